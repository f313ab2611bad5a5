"""Shows the news: as lines, and on a terminal also as a table below them, drawn anew with each line."""

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from .news import Mark, News

_SIGNS: dict[Mark, str] = {
    "waits": "·",
    "runs": "▶",
    "again": "↻",
    "done": "✓",
    "failed": "✗",
    "undone": "↩",
    "asks": "?",
}
_COLOURS: dict[Mark, str] = {
    "waits": "2",
    "runs": "36",
    "again": "33",
    "done": "32",
    "failed": "31",
    "undone": "35",
    "asks": "33;1",
}


CELL = 10  # how wide a step is in the table


class Screen:
    def __init__(self, rows: Mapping[str, Sequence[str]], out: TextIO = sys.stdout) -> None:
        self.is_live = out.isatty() and os.environ.get("TERM") != "dumb"
        self._coloured = self.is_live and "NO_COLOR" not in os.environ
        self._out = out
        self._began = time.monotonic()
        self._width = max(map(len, rows))
        self._marks: dict[str, dict[str, Mark]] = {row: dict.fromkeys(steps, "waits") for row, steps in rows.items()}
        self._question = ""
        self._drawn = 0

    def show(self, news: News) -> None:
        if news.step:
            self._marks[news.row][news.step] = news.mark
        seconds = self._coloured_text(f"{time.monotonic() - self._began:6.2f} s", "2")
        text = self._coloured_text(news.text, _COLOURS[news.mark] if news.step else "1")
        self._draw(f"{seconds}  {news.row:<{self._width}}  {text}")

    def say(self, text: str = "") -> None:
        self._draw(text)

    def ask(self, question: str) -> None:
        """Puts a question below the table, or with an empty one takes it away."""
        self._question = question
        self._draw()
        if question and not self._drawn:
            print(question, file=self._out, flush=True)

    def close(self) -> None:
        """Leaves the lines, and takes the table away."""
        self._question = ""
        self._erase()
        self._out.flush()

    def table(self) -> list[str]:
        most = max(map(len, self._marks.values()))
        return [
            f"  {row:<{self._width}}  {self._steps_text(steps)}{' ' * CELL * (most - len(steps))}"
            for row, steps in self._marks.items()
        ]

    def _steps_text(self, steps: Mapping[str, Mark]) -> str:
        cells = ((f"{_SIGNS[mark]} {step}".ljust(CELL), _COLOURS[mark]) for step, mark in steps.items())
        return "".join(self._coloured_text(text, colour) for text, colour in cells)

    def _draw(self, *lines: str) -> None:
        self._erase()
        for line in lines:
            print(line, file=self._out)
        if self.is_live:
            below = ["", *self.table(), *(["", f"  {self._question}"] if self._question else [])]
            columns = shutil.get_terminal_size().columns
            if all(_visible(line) <= columns for line in below):  # a line that wraps could not be erased again
                print("\n".join(below), file=self._out)
                self._drawn = len(below)
        self._out.flush()

    def _erase(self) -> None:
        if self._drawn:
            print(f"\x1b[{self._drawn}A\x1b[J", end="", file=self._out)
            self._drawn = 0

    def _coloured_text(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._coloured else text


def _visible(line: str) -> int:
    """How wide a line is without its colours."""
    return len("".join(part.partition("m")[2] if index else part for index, part in enumerate(line.split("\x1b["))))
