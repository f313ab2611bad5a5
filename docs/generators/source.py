"""What the source says of a class or a function, in its author's words: annotations are not looked behind."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tenuto

NOTE = "<!-- Made by `make docs` from the code. Changes belong there. -->\n"


class Member(NamedTuple):
    """One line of a reference: how it is written, and what it is for."""

    signature: str
    line: str


def first_line(documented: object) -> str:
    """The first paragraph of a docstring, as one line."""
    doc = inspect.getdoc(documented) or ""
    return " ".join(doc.partition("\n\n")[0].split())


def signature(function: Callable[..., Any]) -> str:
    node = _parsed(function)
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return _signature(node, node.name, _names(function))


def construction(cls: type) -> str:
    """How one is made; the bare name where it is not made by hand."""
    if fields := _fields(cls):
        return f"{cls.__name__}({fields})"
    node = _method(cls, "__init__")
    return cls.__name__ if node is None else _signature(node, cls.__name__, _names(cls)).removesuffix(" -> None")


def members(cls: type) -> Iterator[Member]:
    """Its public properties and methods, in the order of the source, then those of bases that are not public."""
    yield from _own_members(cls)
    for base in cls.__bases__:
        if base.__module__.startswith("tenuto") and base.__name__ not in tenuto.__all__:
            yield from members(base)


def _own_members(cls: type) -> Iterator[Member]:
    for node in _body(cls):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
        if "overload" in decorators:
            continue
        line = first_line(inspect.getattr_static(cls, node.name))
        if "property" in decorators:
            returns = "" if node.returns is None else f": {_written(node.returns)}"
            yield Member(f"{node.name}{returns}", line)
            continue
        yield Member(_call(node) + _signature(node, node.name, _names(cls)).removesuffix(" -> None"), line)


def attributes(cls: type) -> list[str]:
    """What `__init__` sets for everybody to read."""
    node = _method(cls, "__init__")
    if node is None:
        return []
    given = {
        argument.arg: _written(argument.annotation)
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if argument.annotation is not None
    }
    found: list[str] = []
    for statement in ast.walk(node):
        match statement:
            case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name), annotation=annotation):
                text = _written(annotation)
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=ast.Name(id=argument)):
                text = given.get(argument, "")
            case _:
                continue
        if not name.startswith("_"):
            found.append(f"{name}: {text}" if text else name)
    return found


def _parsed(documented: object) -> ast.stmt:
    source = textwrap.dedent(inspect.getsource(documented))  # type: ignore[arg-type]  # classes and functions alone
    return ast.parse(source).body[0]


def _body(cls: type) -> list[ast.stmt]:
    node = _parsed(cls)
    assert isinstance(node, ast.ClassDef)
    return node.body


def _method(cls: type, name: str) -> ast.FunctionDef | None:
    own = [node for node in _body(cls) if isinstance(node, ast.FunctionDef) and node.name == name]
    if own:
        return own[-1]  # overloads come first
    base = cls.__base__
    return None if base is None or not base.__module__.startswith("tenuto") else _method(base, name)


def _call(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if isinstance(node, ast.FunctionDef):
        return ""
    return "async for … in " if any(isinstance(part, ast.Yield) for part in ast.walk(node)) else "await "


def _names(documented: object) -> dict[str, object]:
    """What the names of defaults stand for, if that is a plain value."""
    module = inspect.getmodule(documented)
    found = {} if module is None else vars(module)
    return {name: value for name, value in found.items() if isinstance(value, int | float | str)}


def _fields(cls: type) -> str:
    if not hasattr(cls, "__dataclass_fields__"):
        return ""
    keyword_only = "kw_only=True" in inspect.getsource(cls).partition("class ")[0]
    parts = ["*"] if keyword_only else []
    for node in _body(cls):
        match node:
            case ast.AnnAssign(annotation=ast.Name(id="KW_ONLY")):
                parts.append("*")
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                parts.append(_parameter(name, annotation, value, _names(cls)))
    return ", ".join(parts)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, names: dict[str, object]) -> str:
    returns = "" if node.returns is None else f" -> {_written(node.returns)}"
    return f"{name}({', '.join(_parameters(node.args, names))}){returns}"


def _parameters(arguments: ast.arguments, names: dict[str, object]) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for index, (argument, default) in enumerate(zip(positional, defaults, strict=True)):
        if argument.arg not in ("self", "cls"):
            yield _parameter(argument.arg, argument.annotation, default, names)
        if arguments.posonlyargs and index == len(arguments.posonlyargs) - 1:
            yield "/"
    if arguments.vararg is not None:
        yield f"*{_parameter(arguments.vararg.arg, arguments.vararg.annotation, None, names)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(argument.arg, argument.annotation, default, names)
    if arguments.kwarg is not None:
        yield f"**{_parameter(arguments.kwarg.arg, arguments.kwarg.annotation, None, names)}"


def _parameter(name: str, annotation: ast.expr | None, default: ast.expr | None, names: dict[str, object]) -> str:
    text = name if annotation is None else f"{name}: {_written(annotation)}"
    if default is None:
        return text
    if isinstance(default, ast.Name) and default.id in names:
        return f"{text} = {names[default.id]!r}"
    return f"{text} = {_written(default)}"


def _written(expression: ast.expr) -> str:
    """As authors write it: double quotes, and none around names that are declared later."""
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str) and expression.value[:1].isupper():
        return expression.value
    return ast.unparse(expression).replace("'", '"')
