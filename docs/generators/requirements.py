"""The table of tests in `requirements.md`, read from the markers of the tests without importing them."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "requirements.md"
TESTS = ROOT / "tests"

_ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+?) \| (.+?) \|$", re.MULTILINE)
_BEGIN, _END = "<!-- begin tests: made by `make docs` -->\n", "<!-- end tests -->"


class Requirement(NamedTuple):
    id: str
    text: str
    state: str

    @property
    def is_tested(self) -> bool:
        """Whether its state promises a test."""
        return self.state == "built" or self.state.startswith("partly: ")


@cache
def requirements() -> dict[str, Requirement]:
    written = PAGE.read_text(encoding="utf-8").partition(_BEGIN)[0]
    return {found[0]: Requirement(*found) for found in _ROW.findall(written)}


class Test(NamedTuple):
    path: Path
    name: str
    requirements: tuple[str, ...]


def marked(path: Path, source: str) -> Iterator[Test]:
    """The tests of a file that name requirements."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            ids = tuple(id for decorator in node.decorator_list for id in _ids(decorator))
            if ids:
                yield Test(path, node.name, ids)


def _ids(decorator: ast.expr) -> list[str]:
    match decorator:
        case ast.Call(func=ast.Attribute(attr="requirement"), args=args):
            return [arg.value for arg in args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    return []


@cache
def tests() -> dict[str, list[Test]]:
    """The tests of each requirement."""
    found: dict[str, list[Test]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        if "mark.requirement(" in source:
            for test in marked(path, source):
                for id in test.requirements:
                    found.setdefault(id, []).append(test)
    return found


def table() -> str:
    return "| id | tests |\n|---|---|\n" + "".join(
        f"| {each.id} | {_listed(tests().get(each.id, [])) or each.state} |\n" for each in requirements().values()
    )


def _listed(found: list[Test]) -> str:
    by_file: dict[Path, list[str]] = {}
    for test in found:
        by_file.setdefault(test.path, []).append(test.name.removeprefix("test_").replace("_", " "))
    return "<br>".join(
        f"[{path.relative_to(TESTS).as_posix()}](../{path.relative_to(ROOT).as_posix()}): {'; '.join(names)}"
        for path, names in by_file.items()
    )


def filled(text: str) -> str:
    """The page with its table of tests as the markers say."""
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{rest.partition(_END)[2]}"
