"""Where the checker can find something wrong, and whether a planted violation of that invariant was found there."""

import ast
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from tenuto import checker as checking
from tenuto.checker import findings, invariants
from tenuto.checker.history import History
from tenuto.checker.invariants import Invariant

ASKING = ("require", "finding", "_find", "_give_up")
TELLING = (  # they pass on what was found elsewhere
    "self._find(violated.invariant, violated.detail, *rows)",
    "self._find(G3, detail, *rows)",
    "finding(invariant, self.row.id, detail, *rows)",
    "finding(violated.invariant, None, violated.detail, show(row))",
    "finding(question.invariant, _execution_of(row), question.detail, show(row))",
)


class Site(NamedTuple):
    module: str
    first: int
    last: int
    text: str


def modules() -> list[ModuleType]:
    found = [name for _, name, _ in pkgutil.iter_modules(checking.__path__)]
    return [importlib.import_module(f"{checking.__name__}.{name}") for name in found]


def sites() -> list[Site]:
    """Every call that may tell of a violation."""
    return [site for module in modules() for site in _sites_of(module)]


def _sites_of(module: ModuleType) -> Iterator[Site]:
    source = Path(str(module.__file__)).read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _name(node.func) in ASKING:
            text = " ".join((ast.get_source_segment(source, node) or "").split())
            if text not in TELLING:
                yield Site(module.__name__.rpartition(".")[2], node.lineno, node.end_lineno or node.lineno, text)


def _name(func: ast.expr) -> str:
    return func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""


class Watch:
    """Notes each call that tells of a violation of the invariant that is looked for."""

    def __init__(self) -> None:
        self.wanted = ""
        self.hit: set[tuple[str, int]] = set()

    def note(self, invariant: Invariant) -> None:
        if invariant.id == self.wanted:
            caller = sys._getframe(2)
            module = caller.f_globals["__name__"].rpartition(".")[2]
            self.hit.add((module, caller.f_lineno))

    def missed(self) -> list[Site]:
        return [s for s in sites() if not any((s.module, line) in self.hit for line in range(s.first, s.last + 1))]


@contextmanager
def watching() -> Iterator[Watch]:
    watch = Watch()
    require, finding = invariants.require, findings.finding
    find, give_up = History._find, History._give_up

    def required(condition: object, invariant: Invariant, detail: object) -> None:
        if not condition:
            watch.note(invariant)
        require(condition, invariant, detail)

    def made(invariant: Invariant, execution: str | None, detail: str, *rows: str) -> findings.Finding:
        watch.note(invariant)
        return finding(invariant, execution, detail, *rows)

    def found(history: History, invariant: Invariant, detail: str, *rows: str) -> None:
        watch.note(invariant)
        find(history, invariant, detail, *rows)

    def gave_up(history: History, detail: str, *rows: str) -> None:
        watch.note(invariants.INVARIANTS["G3"])
        give_up(history, detail, *rows)

    with pytest.MonkeyPatch.context() as patch:
        for module in modules():
            for name, old, new in (("require", require, required), ("finding", finding, made)):
                if vars(module).get(name) is old:
                    patch.setattr(module, name, new)
        patch.setattr(History, "_find", found)
        patch.setattr(History, "_give_up", gave_up)
        yield watch
