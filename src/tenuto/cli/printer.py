"""Printed output: colour and columns on a terminal, plain lines or JSON elsewhere.

Every command prints through this module. It escapes control characters, so that data cannot control the terminal.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tenuto.values.terminal import escape_controls, escape_lines

from .output import print_to_stderr

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from tenuto.errors import TenutoError

    from .connection import Connection

T = TypeVar("T")

GAP = 2  # between columns
ROOM = 12  # of columns that are broken, what each has at least
WHOLE = {"ID", "REVIEW", "LETTER", "KEY", "WORKER", "OF"}  # what commands take: half of it is nothing

Cell = str | tuple[str, str]  # a text, or a text and its style


class Printer:
    """Standard output. Colour, tables and progress are for a terminal; elsewhere there are plain lines."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._console: Console | None = None

    @property
    def console(self) -> "Console":
        """Rich is loaded when something is to be drawn."""
        if self._console is None:
            from rich.console import Console

            self._console = Console(highlight=False, soft_wrap=False)
        return self._console

    def text(self, text: str = "", style: str = "") -> None:
        if self.is_terminal:
            self.console.print(escape_controls(text), style=style or None, markup=False, soft_wrap=True)
        else:
            self.line(text)

    def line(self, text: str, *, at_once: bool = False) -> None:
        """One plain line, also on a terminal."""
        print(escape_controls(text), flush=at_once)

    def cells(self, *cells: Cell) -> None:
        """One line, of parts with styles of their own."""
        if self.is_terminal:
            self.console.print(assemble(cells), soft_wrap=True)
        else:
            self.line("".join(map(_text, cells)))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Columns with a head on a terminal; elsewhere one line for each row, its whole values parted by tabs."""
        if self.is_terminal:
            self.console.print(make_table(columns, rows, self.console.width), crop=False)
            return
        for row in rows:
            print("\t".join(escape_controls(" ".join(_text(cell).split())) for cell in row))

    def listing(
        self,
        found: Sequence[T],
        columns: Sequence[str],
        row: Callable[[T], Sequence[Cell]],
        nothing: str,
        *,
        as_json: bool,
    ) -> None:
        """Prints a list as a document or as a table. Only the table says that the list is empty."""
        if as_json:
            self.json(found)
        elif found:
            self.table(columns, map(row, found))
        elif self.is_terminal:
            self.text(nothing, "dim")

    def grid(self, rows: Sequence[Sequence[Cell]]) -> None:
        """Columns without a head, moved in a little."""
        if self.is_terminal:
            self.console.print(make_grid(rows, self.console.width))
            return
        lines = [[escape_controls(_text(cell)) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            print("".join(f"  {text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())

    def paragraph(self, text: str, style: str = "") -> None:
        """Moved in a little, and on a terminal broken at words."""
        if self.is_terminal:
            from rich.padding import Padding

            self.console.print(Padding(styled((text, style)), (0, 0, 0, 2)))
        else:
            self.line(f"  {text}")

    def tell(self, text: str, value: object, *, as_json: bool) -> None:
        """What was done, in a line or as a document."""
        if as_json:
            self.json(value)
        else:
            self.line(text)

    def json(self, value: object) -> None:
        """One document. On a terminal it is spread over lines."""
        text = json.dumps(value, indent=2 if self.is_terminal else None, ensure_ascii=False, default=str)
        print(escape_lines(text))

    def json_line(self, value: object, *, at_once: bool = False) -> None:
        """One document of several, each on a line of its own."""
        self.line(json.dumps(value, ensure_ascii=False, default=str), at_once=at_once)


def make_grid(rows: Sequence[Sequence[Cell]], width: int) -> "RenderableType":
    from rich.padding import Padding

    return Padding(make_table([""] * len(rows[0]) if rows else [], rows, width - 2), (0, 0, 0, 2))


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def make_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], width: int) -> "RenderableType":
    """Nothing is cut: what is wide is broken, and where there is no room for columns, each row has lines of its own."""
    from rich.cells import cell_len
    from rich.table import Table

    lines = list(rows)
    widths = [max(cell_len(escape_controls(_text(c))) for c in column) for column in zip(columns, *lines, strict=True)]
    needed = [own if name in WHOLE else min(own, ROOM) for name, own in zip(columns, widths, strict=True)]
    if sum(needed) + GAP * (len(needed) - 1) > width:
        return _below_one_another(lines, whole=columns[0] in WHOLE)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=any(columns), header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=name in WHOLE, overflow="fold")
    for line in lines:
        table.add_row(*map(styled, line))
    return table


def _below_one_another(lines: Sequence[Sequence[Cell]], *, whole: bool) -> "RenderableType":
    """The first cell of each row, if it is to be whole for the terminal alone to break; the others below it."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[RenderableType] = []
    for first, *rest in lines:
        head = styled(first)
        head.no_wrap, head.overflow = whole, "ignore" if whole else "fold"
        told = [styled(cell) for cell in rest if _text(cell)]
        parts += [head, Padding(Text("  ").join(told), (0, 0, 0, 2))]
    return Group(*parts)


def styled(cell: Cell) -> "Text":
    from rich.text import Text

    return Text(escape_controls(_text(cell)), "" if isinstance(cell, str) else cell[1])


def assemble(cells: Iterable[Cell]) -> "Text":
    from rich.text import Text

    return Text("").join(map(styled, cells))


def in_lines(command: str, width: int) -> Iterator[str]:
    """A command as a shell takes it over several lines, broken between words where it is too long for one."""
    line = ""
    for word in map(shlex.quote, shlex.split(command)):
        if line and len(line) + len(word) + 3 > width:
            yield f"{line} \\"
            line = word
        else:
            line = f"{line} {word}".lstrip()
    yield line


def print_error(error: "TenutoError", connection: "Connection", *, as_json: bool = False) -> None:
    """On standard error: the code, what happened, what to do."""
    hint = error.hint or _WHAT_TO_DO.get(error.code)
    what_to_do = hint and connection.with_options(hint)
    if as_json:
        told: dict[str, Any] = {"code": error.code, "message": error.message, "what_to_do": what_to_do}
        if problems := getattr(error, "problems", ()):
            told["errors"] = [{"pointer": p.path, "code": p.code, "message": p.message} for p in problems]
        print_to_stderr(json.dumps(told, ensure_ascii=False))
        return
    first, *rest = error.message.split("\n")
    print_to_stderr("\n".join([f"tenuto: {first} [{error.code}]", *rest]))
    if what_to_do:
        print_to_stderr(f"What to do: {what_to_do}")


_WHAT_TO_DO = {
    "not_found": "check the id and the tenant; `tenuto ls` lists executions, `tenuto definitions` lists definitions",
    "idempotency_conflict": "use a new --key for a new request",
    "concurrency_conflict": "wait until the other execution ends: `tenuto ls --status running`",
    "tenant_limit": "wait until some executions end, or raise the limit: `tenuto limits`",
    "result_timeout": "run `tenuto show ID` later. The execution continues",
    "definition_invalid": "fix the errors above; nothing was stored",
    "input_invalid": "fix the errors above; nothing was started or changed",
    "invalid_transition": "run `tenuto show ID` to see its state and the allowed commands",
}
