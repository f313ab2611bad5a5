"""The rules of the architecture, as tests. What imports may do is import-linter's part (see pyproject.toml)."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import tenuto
from tenuto import errors
from tenuto.errors import TenutoError

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "tenuto"
TESTS = ROOT / "tests"

PUBLIC = [
    "Batch",
    "Done",
    "Engine",
    "EventContext",
    "ExpandEach",
    "FromCompensationError",
    "FromCompensationResult",
    "FromStep",
    "Handle",
    "Header",
    "Headers",
    "HttpCall",
    "Input",
    "Message",
    "NotDone",
    "Outcome",
    "Pending",
    "Progress",
    "Required",
    "Result",
    "Retry",
    "Saga",
    "SagaBuilder",
    "SagaContext",
    "SagaEvents",
    "SagaReport",
    "SagaResult",
    "StepInputs",
    "StepResult",
    "TenutoError",
    "Unknown",
    "Variable",
    "Variables",
    "approval",
    "compensation_step",
    "external_step",
    "group",
    "handler",
    "saga",
    "signal",
    "step",
    "wait",
]

# `hash` of a string and the order of a set differ between processes: both would make a replay decide otherwise.
IMPURE_BUILTINS = {"open", "print", "input", "hash", "id", "breakpoint", "exec", "eval", "__import__"}
KEEPS_ORDER = {"list", "tuple", "enumerate", "iter", "map", "filter", "zip", "reversed", "dict"}
IGNORES_ORDER = {"all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum"}

NEVER_LOADED_BY_THE_KERNEL = {
    "aiohttp",
    "apsw",
    "asyncio",
    "asyncpg",
    "fastapi",
    "httpx2",
    "psycopg",
    "pydantic",
    "sqlite3",
    "starlette",
    "temporalio",
    "uvicorn",
}

MAY_SLEEP = {"chaos", "power", "browser"}  # real disks, processes and a browser have no clock of ours to move


# -- The kernel is pure ------------------------------------------------------------------------------------------------


def impurities(source: str) -> Iterator[str]:
    """What in this source may differ between two runs, as far as syntax shows it."""
    tree = ast.parse(source)
    harmless = {id(generator) for generator in _generators_whose_order_is_lost(tree)}
    for node in ast.walk(tree):
        where = f"line {getattr(node, 'lineno', 0)}"
        match node:
            case ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith() | ast.Await():
                yield f"{where}: async"
            case ast.Global():
                yield f"{where}: global"
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                yield f"{where}: {name}()"
            case ast.For(iter=iterated) if _is_set(iterated):
                yield f"{where}: for over a set"
            case ast.ListComp(generators=loops) | ast.DictComp(generators=loops) | ast.GeneratorExp(generators=loops):
                if id(node) not in harmless and any(_is_set(loop.iter) for loop in loops):
                    yield f"{where}: comprehension over a set"
            case ast.Call(func=ast.Name(id=name), args=args) if name in KEEPS_ORDER and any(map(_is_set, args)):
                yield f"{where}: {name}() of a set"
            case ast.Call(func=ast.Attribute(attr="join"), args=[joined]) if _is_set(joined):
                yield f"{where}: join of a set"
            case ast.Starred(value=unpacked) if _is_set(unpacked):
                yield f"{where}: unpacked set"


def _is_set(node: ast.expr) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
            return _is_set(left) or _is_set(right)
    return False


def _generators_whose_order_is_lost(tree: ast.AST) -> Iterator[ast.GeneratorExp]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[ast.GeneratorExp() as generator, *_]) if name in IGNORES_ORDER:
                yield generator


@pytest.mark.parametrize(
    "source",
    [
        "async def f(): pass",
        "def f():\n    global x",
        "open('x')",
        "key = hash(name)",
        "for x in set(xs): pass",
        "for x in {1, 2}: pass",
        "for x in {y for y in ys}: pass",
        "for x in set(xs) - done: pass",
        "[x for x in frozenset(xs)]",
        "{x: 1 for x in set(xs)}",
        "tuple(x for x in set(xs))",
        "tuple(set(xs))",
        "', '.join({a, b})",
        "f(*{1, 2})",
    ],
)
def test_an_impurity_is_seen(source: str) -> None:
    assert list(impurities(source))


@pytest.mark.parametrize(
    "source",
    [
        "for x in sorted(set(xs)): pass",
        "any(x > 1 for x in {1, 2})",
        "if x in {1, 2}: pass",
        "{x for x in set(xs)}",
        "self.open(x)",
        "for x in xs: pass",
    ],
)
def test_what_is_pure_passes(source: str) -> None:
    assert list(impurities(source)) == []


def test_the_kernel_is_pure() -> None:
    assert {path: found for path in _python(SRC / "kernel") if (found := list(impurities(_text(path))))} == {}


def test_the_kernel_loads_no_driver_and_no_framework() -> None:
    program = """
import importlib, json, pkgutil, sys
import tenuto.kernel
for module in pkgutil.walk_packages(tenuto.kernel.__path__, "tenuto.kernel."):
    importlib.import_module(module.name)
print(json.dumps(sorted(sys.modules)))
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    loaded = set(json.loads(answer.stdout))
    assert "tenuto.kernel" in loaded
    assert loaded & NEVER_LOADED_BY_THE_KERNEL == set()


# -- The public surface ------------------------------------------------------------------------------------------------


def test_the_public_names_are_frozen() -> None:
    assert sorted(tenuto.__all__) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_can_be_had(name: str) -> None:
    assert getattr(tenuto, name) is not None
    assert name in dir(tenuto)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'tenuto' has no attribute 'nothing'"):
        getattr(tenuto, "nothing")  # noqa: B009  (mypy would refuse the plain form)


def _error_classes() -> list[type[TenutoError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, TenutoError)]
    assert TenutoError in found
    return found


def test_every_error_has_a_code_of_its_own() -> None:
    codes = {cls.__name__: vars(cls).get("code") for cls in _error_classes()}
    assert [name for name, code in codes.items() if not code] == []
    assert len(set(codes.values())) == len(codes), codes


@pytest.mark.parametrize("cls", _error_classes(), ids=lambda cls: cls.__name__)
def test_every_error_explains_itself(cls: type[TenutoError]) -> None:
    assert cls.__doc__
    assert str(cls()).endswith(".")


# -- Habits ------------------------------------------------------------------------------------------------------------


def sleeps(source: str) -> list[int]:
    """The lines that call something named sleep."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and "sleep" in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
    ]


def test_a_sleep_is_seen() -> None:
    assert sleeps("import asyncio\nasyncio.sleep(0)\nx = sleep(1)\nawait_sleep(1)") == [2, 3]


def test_tests_do_not_sleep() -> None:
    awake = [path for path in _python(TESTS) if not MAY_SLEEP & set(path.relative_to(TESTS).parts)]
    assert {path: lines for path in awake if (lines := sleeps(_text(path)))} == {}


MOST_LINES = 400  # of a class
DEEPEST = 2  # steps of inheritance among our own classes
DATA = {
    "BaseModel",
    "Exception",
    "NamedTuple",
    "Protocol",
    "Struct",
    "TypedDict",
}  # these may be deeper: no control flow
BEING_SPLIT = {"DurableRuntime", "Engine"}


def classes(sources: Iterable[str]) -> dict[str, ast.ClassDef]:
    """The classes of these sources. Of those with one name, the one with the most bases: their depth counts."""
    found = [node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    return {node.name: node for node in sorted(found, key=lambda node: len(node.bases))}


def lineage(name: str, known: dict[str, ast.ClassDef]) -> list[str]:
    """The longest line of bases, ours and the first that is not, beginning with the class itself."""
    if name not in known:
        return [name]
    bases = (ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in known[name].bases)
    return [name, *max((lineage(base, known) for base in bases if base != name), key=len, default=[])]


def long_classes(sources: Iterable[str]) -> dict[str, int]:
    nodes = (node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    sizes = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes}
    return {name: lines for name, lines in sizes.items() if lines > MOST_LINES}


def deep_classes(sources: Iterable[str]) -> list[list[str]]:
    known = classes(sources)
    lines = (lineage(name, known) for name in known)
    return [line for line in lines if len([n for n in line if n in known]) > DEEPEST + 1 and line[-1] not in DATA]


def test_a_long_class_is_seen() -> None:
    lines = "\n".join(["class Long:", *["    x = 1"] * MOST_LINES])
    assert long_classes([lines, "class Short:\n    x = 1"]) == {"Long": MOST_LINES + 1}


def test_deep_inheritance_is_seen() -> None:
    chain = "class A: ...\nclass B(A): ...\nclass C(m.B[int]): ...\nclass D(C): ...\n"
    assert deep_classes([chain, "class S(Struct): ...\nclass T(S): ...\nclass U(T): ...\nclass V(U): ..."]) == [
        ["D", "C", "B", "A"]
    ]


def test_classes_are_short_and_composed() -> None:
    sources = [_text(path) for path in _python(SRC)]
    assert long_classes(sources).keys() <= BEING_SPLIT
    assert deep_classes(sources) == []


def test_parts_are_wired_by_their_constructors() -> None:
    """A `_prepare_…` method would have to be called in the right order."""
    found = [
        f"{path.relative_to(SRC)}: {node.name}"
        for folder in ("runtime", "storage")
        for path in _python(SRC / folder)
        for node in ast.walk(ast.parse(_text(path)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("_prepare_")
    ]
    assert found == []


UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")


def test_an_unfinished_mark_is_seen() -> None:
    assert UNFINISHED.search("# FIX" + "ME: later")
    assert not UNFINISHED.search("XXXL")


def test_nothing_is_left_unfinished() -> None:
    assert [path for folder in (SRC, TESTS) for path in _python(folder) if UNFINISHED.search(_text(path))] == []


def test_the_lock_names_public_registries_only() -> None:
    hosts = set(re.findall(r"\w+://([^/\"]*)", (ROOT / "uv.lock").read_text(encoding="utf-8")))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


# Seams name the internals that tests need. The others plant bugs in internals, or extend a class of the engine.
MAY_REACH_INTERNALS = {
    "checking/sites.py",
    "crash/plants.py",
    "hostile/mutants.py",
    "seams.py",
    "simulation/invariants.py",
    "simulation/mutants.py",
}


NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}  # public, though they begin with an underscore


def private_names(source: str) -> set[str]:
    """The private functions, methods, attributes and constants that a source defines."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
    return {name for name in found if name.startswith("_") and not name.startswith("__")} - {"_", *NAMED_TUPLE}


def reaches(source: str, private: set[str]) -> list[int]:
    """The lines that use one of these names of another object or module."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name):
                names = [name]
            case ast.ImportFrom(module=str(module), names=imported) if module.startswith("tenuto"):
                names = [each.name for each in imported]
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr") | ast.Attribute(attr="setattr"),
                args=[ast.Name(id=owner), ast.Constant(value=str(name)), *_],
            ) if owner != "self":
                names = [name]
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr") | ast.Attribute(attr="setattr"),
                args=[ast.Attribute() | ast.Call(), ast.Constant(value=str(name)), *_],
            ):
                names = [name]
            case _:
                continue
        if private & {*names}:
            found.append(node.lineno)
    return sorted(found)


def test_a_reach_into_internals_is_seen() -> None:
    source = (
        "from tenuto.x import _a\no._b\nself._b\npatch.setattr(o, '_c', 1)\nsetattr(f(x), '_b', 1)\no._other\no.b\n"
    )
    assert reaches(source, private_names("_a = 1\nclass C:\n def _c(self): self._b = 1")) == [1, 2, 4, 5]


def test_tests_reach_internals_through_seams() -> None:
    private = set[str]().union(*(private_names(_text(path)) for path in _python(SRC)))
    found = {path.relative_to(TESTS).as_posix() for path in _python(TESTS) if reaches(_text(path), private)}
    assert found == MAY_REACH_INTERNALS
    assert len(found) <= 10


def _python(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.py"))
    assert found, f"{folder} has no Python files"
    return found


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


# -- Requirements ------------------------------------------------------------------------------------------------------


def test_everything_that_is_imported_is_declared() -> None:
    """A library that only comes along with another one may leave with it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    declared = {re.split(r"[\s\[<>=;]", each, maxsplit=1)[0].lower() for each in wanted}
    provided = packages_distributions()
    imported = {
        name.partition(".")[0]
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in _imported(node)
    }
    others = imported - set(sys.stdlib_module_names) - {"tenuto"}
    undeclared = {
        name for name in others if not declared & {each.lower().replace("_", "-") for each in provided.get(name, [])}
    }
    assert undeclared - OF_CALLERS == set()


def test_a_library_whose_insides_are_used_has_an_upper_bound() -> None:
    """`service/connection.py` extends a protocol of uvicorn that may change with any minor version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (uvicorn,) = [each for each in project["dependencies"] if each.startswith("uvicorn")]
    assert "<" in uvicorn


OF_CALLERS = {"psycopg"}  # whoever hands over such a connection has installed it


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
    return []
