"""The reader of expressions: one pass that checks names and bounds, and leaves closures."""

from collections.abc import Callable
from math import inf
from typing import NoReturn, TypeVar, cast

from . import operators, running
from .functions import CALL, FUNCTIONS, IMPURE, METHODS, WORK, Function, matcher
from .kinds import TYPES, Fault
from .library import ask, load
from .operators import OPERATORS, negation, negative
from .patterns import pattern_of
from .running import LOOPS, MAX_LOOPS, Compute, Operator
from .tokens import WORDS, Invalid, Token, tokens, unquoted

MAX_DEPTH = 32

T = TypeVar("T")


class Parser:
    """CEL's grammar, by recursive descent. MAX_DEPTH bounds the recursion; chains of operators are loops."""

    def __init__(self, source: str, allowed: frozenset[str]) -> None:
        self.tokens = list(tokens(source))
        self.at = 0
        self.depth = 0
        self.allowed = allowed
        self.loops: list[str] = []  # the variables of the loops around this place
        self.roots: set[str] = set()
        self.steps: set[str] = set()
        self.reads_all_steps = False
        self.uses_time = False
        self.builds = False  # a value may be in the result more than once
        self.work = 1  # what one evaluation takes, beside the rounds of its loops

    def parse(self) -> Compute:
        compute = self.choice()
        if self.tokens[self.at].kind != "end":
            self.refuse("an operator or the end")
        return compute

    def choice(self) -> Compute:
        self.deeper()
        compute = self.logic("||")
        if self.take("?"):
            then = self.logic("||")
            self.expect(":")
            compute = running.choice(compute, then, self.choice())
            self.work += 2
        self.depth -= 1
        return compute

    def logic(self, sign: str) -> Compute:
        def operand() -> Compute:
            return self.logic("&&") if sign == "||" else self.binary(0)

        operands = [operand()]
        while self.take(sign):
            operands.append(operand())
            self.work += 4
        return operands[0] if len(operands) == 1 else running.logic(operands, decisive=sign == "||")

    def binary(self, level: int) -> Compute:
        if level == len(OPERATORS):
            return self.unary()
        first = self.binary(level + 1)
        rest: list[tuple[Operator, Compute]] = []
        while operation := OPERATORS[level].get(sign := self.tokens[self.at].text):
            self.at += 1
            self.builds = self.builds or sign == "+"
            self.work += operators.WORK.get(sign, operators.ARITHMETIC)
            rest.append((operation, self.binary(level + 1)))
        return running.chain(first, rest) if rest else first

    def unary(self) -> Compute:
        for sign, operation in (("!", negation), ("-", negative)):
            if self.take(sign):
                self.deeper()
                operand = self.unary()
                self.depth -= 1
                self.work += 4 if sign == "!" else operators.ARITHMETIC
                return running.unary(operation, operand)
        return self.settle(*self.member())

    def member(self) -> tuple[Compute, str | None, list[str | int]]:
        """A value, the root it is (if any), and the constant keys that follow: so what is read is known beforehand."""
        depth = self.depth
        value, root = self.primary()
        keys: list[str | int] = []
        while True:
            if self.take("."):
                name = self.name()
                if self.take("("):
                    self.deeper()
                    value, root, keys = self.method(name, self.settle(value, root, keys)), None, []
                else:
                    keys.append(name)
            elif self.take("["):
                token = self.tokens[self.at]
                if token.kind in ("string", "int") and self.tokens[self.at + 1].text == "]":
                    self.at += 1
                    keys.append(cast("str | int", self.literal(token)))
                else:
                    self.deeper()
                    holder = self.settle(value, root, keys)
                    value, root, keys = running.chain(holder, [(running.index, self.choice())]), None, []
                    self.work += 5
                self.expect("]")
            else:
                self.depth = depth
                return value, root, keys

    def settle(self, value: Compute, root: str | None, keys: list[str | int]) -> Compute:
        if root == "steps" and keys and isinstance(keys[0], str):
            self.steps.add(keys[0])
        elif root == "steps":
            self.reads_all_steps = True
        self.work += len(keys)
        return running.path(value, keys) if keys else value

    def primary(self) -> tuple[Compute, str | None]:
        token = self.tokens[self.at]
        self.at += 1
        self.work += 1
        if token.kind in ("string", "int", "double"):
            return running.constant(self.literal(token)), None
        if token.text in WORDS:
            return running.constant(WORDS[token.text]), None
        if token.text == "(":
            value = self.choice()
            self.expect(")")
            return value, None
        if token.text == "[":
            items = self.several("]", self.choice)
            self.builds = True
            self.work += 2 * len(items)
            return running.new_list(items), None
        if token.text == "{":
            entries = self.several("}", self.entry)
            self.builds = True
            self.work += 3 * len(entries)
            return running.new_map(entries), None
        self.at -= 1
        name = self.name("a value")
        if self.take("("):
            return (self.has() if name == "has" else self.call(name, FUNCTIONS)), None
        return self.variable(name, token.start)

    def variable(self, name: str, start: int) -> tuple[Compute, str | None]:
        if name in self.loops:
            slot = len(self.loops) - 1 - self.loops[::-1].index(name)  # the innermost of that name
            return running.variable(slot), None
        if name in self.allowed:
            self.roots.add(name)
            return running.root(name), name
        if name in TYPES:
            return running.constant(name), None
        known = ", ".join(sorted(self.allowed)) or "nothing"
        raise Invalid(f"{name!r} at character {start + 1} is not known here; an expression here may read {known}")

    def method(self, name: str, value: Compute) -> Compute:
        if name == "matches":
            return self.call(name, {name: (2, matcher(pattern_of(self.pattern())))}, value)
        if name not in LOOPS:
            return self.call(name, METHODS, value)
        if len(self.loops) == MAX_LOOPS:
            raise Invalid(f"more than {MAX_LOOPS} loops ({', '.join(LOOPS)}) are inside one another")
        variable = self.name("the name of a loop variable")
        self.expect(",")
        self.loops.append(variable)
        before = self.work
        body = self.choice()
        mapped = self.choice() if name == "map" and self.take(",") else None
        self.loops.pop()
        self.expect(")")
        self.builds = self.builds or name == "map"
        work, self.work = self.work - before + 1, before + 10
        return running.loop(LOOPS[name], value, len(self.loops), body, mapped, work)

    def call(self, name: str, functions: dict[str, Function], value: Compute | None = None) -> Compute:
        if name in IMPURE:
            raise Invalid(f"{name}() would answer otherwise when the execution is replayed; pass such values as input")
        if name not in functions:
            kind = "method" if value else "function"
            raise Invalid(f"there is no {kind} {name}(); there are {', '.join(functions)}")
        arity, function = functions[name]
        operands = [value] if value else []
        operands += self.several(")", self.choice)
        if len(operands) != arity:
            raise Invalid(f"{name}() has the wrong number of arguments")
        if name in ("timestamp", "duration"):
            self.uses_time = True
            load("duration(a)")  # so that the library is loaded now, and not by the first execution that asks
        self.work += WORK.get(name, CALL)
        first, second = operands[0], operands[1] if arity == 2 else running.constant(None)
        return running.call(function, first, second)

    def pattern(self) -> str:
        # Rust's expressions match in linear time, but a hostile one takes long to compile: a payload may not choose it.
        token = self.tokens[self.at]
        if token.kind != "string" or self.tokens[self.at + 1].text != ")":
            raise Invalid("matches() takes one literal string, as in input.name.matches('^A')")
        pattern = unquoted(token)
        try:
            ask("matches", "a.matches(b)", "", pattern)
        except Fault:
            raise Invalid(
                f"the pattern at character {token.start + 1} is no regular expression, or too large"
            ) from None
        return pattern

    def has(self) -> Compute:
        value, root, keys = self.member()
        if not keys or self.tokens[self.at - 1].kind != "name":
            raise Invalid("has() takes a field, as in has(input.discount)")
        self.expect(")")
        self.settle(value, root, keys)
        self.work += 4
        holder, last = running.path(value, keys[:-1]), keys[-1]
        return running.has(holder, last)

    def several(self, closing: str, read: Callable[[], T]) -> list[T]:
        found: list[T] = []
        while not self.take(closing):
            found.append(read())
            if not self.take(","):
                self.expect(closing)
                break
        return found

    def entry(self) -> tuple[Compute, Compute]:
        key = self.choice()
        self.expect(":")
        return key, self.choice()

    def literal(self, token: Token) -> str | int | float:
        if token.kind == "string":
            return unquoted(token)
        digits = token.text.rstrip("uU")
        if token.kind == "int":
            value: float = int(digits, 16 if digits[:2] in ("0x", "0X") else 10)
        else:
            value = float(digits)
        if value >= (1 << 64 if token.kind == "int" else inf):
            raise Invalid(f"the number at character {token.start + 1} is too large")
        return value

    def name(self, wanted: str = "a name") -> str:
        token = self.tokens[self.at]
        if token.kind != "name" or token.text in WORDS or token.text == "in":
            self.refuse(wanted)
        self.at += 1
        return token.text

    def take(self, text: str) -> bool:
        found = self.tokens[self.at].text == text
        self.at += found
        return found

    def expect(self, text: str) -> None:
        if not self.take(text):
            self.refuse(repr(text))

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Invalid(f"it is nested more than {MAX_DEPTH} levels deep")

    def refuse(self, wanted: str) -> NoReturn:
        token = self.tokens[self.at]
        found = f"there is {token.text!r}" if token.text else "the expression ends"
        raise Invalid(f"{wanted} is expected at character {token.start + 1}, where {found}")
