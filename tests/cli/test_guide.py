"""The guide keeps its word: its sessions are what a person sees on a terminal who types them."""

import re
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.examples.pages import fences

from .conftest import steady
from .processes import ROOT, on_terminal, running
from .terminal import picture

GUIDE = ROOT / "docs" / "guides" / "command-line.md"
ID = re.compile(r"\b[0-9a-f]{22}\b")


class Typed(NamedTuple):
    command: str
    shown: str


def session() -> list[Typed]:
    text = "".join(fence.text for fence in fences(GUIDE) if fence.info == "console")
    parts = [part.partition("\n") for part in text.removeprefix("$ ").split("\n$ ")]
    return [Typed(command, shown.rstrip("\n")) for command, _, shown in parts]


def test_the_sessions_are_what_happens(tmp_path: Path) -> None:
    (program,) = [fence.text for fence in fences(GUIDE) if fence.info == "python"]
    (tmp_path / "shop.py").write_text(program, encoding="utf-8")
    known: dict[str, str] = {}
    with ExitStack() as stack:
        for command, shown in session():
            arguments = shlex.split(ID.sub(lambda found: known[found[0]], command))[1:]
            if arguments[0] == "worker":
                stack.enter_context(running(*arguments, ready=shown, folder=tmp_path))
                continue
            _, written = on_terminal(*arguments, columns=110, folder=tmp_path, TZ="UTC")
            seen = picture(written)
            known.update(zip(ID.findall(shown), ID.findall(seen), strict=False))
            assert squeezed(seen) == squeezed(shown), f"{command} shows\n{seen}"


def squeezed(text: str) -> list[str]:
    """Without what differs from run to run; a column is as wide as what is in it."""
    return [re.sub(r" {2,}", "  ", line) for line in steady(text).splitlines()]


def test_a_terminal_draws_again() -> None:
    written = "a\r\nb\r\n\x1b[2A\x1b[2Kc\r\n\x1b[31md\x1b[0me\r\n"
    assert picture(written) == "c\nde"
