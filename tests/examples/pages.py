"""Runs the code of a page of documentation, from its first block to its last, and compares what it prints.

- ```` ```python ```` is run. Blocks of a page share one namespace. `await` may stand outside of functions; functions
  named `test_…` are called when their block has been run.
- ```` ```text ```` right after it is what it prints. Ids and durations may differ.
- ```` ```python no-run ```` is only compiled. It needs a reason that a reader can see.
- ```` ```python NAME.py ```` and others with a name are files. `write_files` writes them, and tests run them.
"""

import ast
import asyncio
import builtins
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"\w+ \w+\.\w+")
_VARYING = [(re.compile(r"\b[0-9a-f]{22}\b"), "<id>"), (re.compile(r"\b\d+ ms\b"), "<n> ms")]


class Fence(NamedTuple):
    info: str
    text: str
    line: int  # of its first line of text, in the page


def fences(page: Path) -> list[Fence]:
    text = page.read_text(encoding="utf-8")
    return [
        Fence(found["info"].strip(), found["text"], text.count("\n", 0, found.start("text")) + 1)
        for found in _FENCE.finditer(text)
    ]


def steady(printed: str) -> str:
    """Without what differs from run to run: ids and durations."""
    for pattern, word in _VARYING:
        printed = pattern.sub(word, printed)
    return printed.rstrip()


def run_page(page: Path) -> int:
    """Runs the blocks of a page as a program, in the present folder; says how many there were."""
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins  # Python 3.13 looks for it where a class is made
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module  # where dataclasses look for the names in their annotations
    try:
        return _run_blocks(page, module)
    finally:
        sys.modules["__main__"] = before


def write_files(page: Path, folder: Path) -> list[str]:
    """Writes the blocks that have the name of a file; returns the names."""
    named = [(fence.info.split()[1], fence.text) for fence in fences(page) if _FILE.fullmatch(fence.info)]
    for name, text in named:
        (folder / name).write_text(text, encoding="utf-8")
    return [name for name, _ in named]


def _run_blocks(page: Path, module: ModuleType) -> int:
    blocks = 0
    with asyncio.Runner() as runner:
        found = fences(page)
        for fence, after in zip_longest(found, found[1:]):
            if fence.info == "python no-run":
                _compile(page, fence)
            elif fence.info == "python":
                blocks += 1
                printed = _run(runner, module, _compile(page, fence))
                if after is not None and after.info == "text":
                    assert steady(printed) == steady(after.text), (
                        f"{page.name}, line {after.line}: the block before prints\n{printed}"
                    )
    return blocks


def _compile(page: Path, fence: Fence) -> CodeType:
    placed = "\n" * (fence.line - 1) + fence.text  # so that a traceback names the line of the page
    code: CodeType = compile(placed, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code


def _run(runner: asyncio.Runner, module: ModuleType, code: CodeType) -> str:
    known = dict(vars(module))
    printed = StringIO()
    with redirect_stdout(printed):
        _call(runner, FunctionType(code, vars(module)))
        for test in _new_tests(module, known):
            _call(runner, test)
    return printed.getvalue()


def _call(runner: asyncio.Runner, function: FunctionType) -> None:
    answer = function()
    if inspect.iscoroutine(answer):
        runner.run(answer)


def _new_tests(module: ModuleType, known: dict[str, object]) -> Iterator[FunctionType]:
    for name, value in list(vars(module).items()):
        if name.startswith("test_") and isinstance(value, FunctionType) and known.get(name) is not value:
            yield value
