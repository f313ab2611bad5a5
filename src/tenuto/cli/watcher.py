"""The live status of one execution: redrawn on a terminal, in lines elsewhere."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import typer

from tenuto.errors import ResultTimeout, TenutoError
from tenuto.values.durations import milliseconds
from tenuto.views import Until

from .blocked_reasons import commands, sentence
from .connection import Connection
from .execution_view import attempt_end, attempt_name, heading, show_why, standing, step_rows, waits_of
from .exit_codes import Exit, exit_of_status
from .formats import clock, moment
from .printer import Printer, assemble, in_lines, make_grid, print_error, styled

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tenuto.api.handle import Handle

LOOK_MS = 200  # how often it is looked at
PASSING = timedelta(seconds=2)  # what is over sooner is not worth a line

# Reasons that it waits through, although without a command they may never end.
ENDED_BY_PEOPLE = ("signal", "no_worker", "incompatible", "paused")

OVER = ("succeeded", "failed", "canceled")


def milliseconds_of(text: str | None, option: str) -> int | None:
    """A duration as given on the command line."""
    try:
        return None if text is None else milliseconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


async def follow(
    connection: Connection,
    handle: "Handle[Any]",
    *,
    until: Until,
    patience_ms: int | None,
    as_json: bool,
    each_change: bool = False,
) -> Exit:
    """Shows it until it has come so far. The exit code says what came of it.

    `as_json` prints the last state, or with `each_change` a line for every one.
    """
    printer = Printer()
    reporter: _JsonLines | _Drawn | _Lines
    if as_json:
        reporter = _JsonLines(printer, each_change=each_change)
    else:
        reporter = _Drawn(printer, connection) if printer.is_terminal else _Lines(printer, connection)
    document: Mapping[str, Any] = {}
    try:
        with reporter:
            async for document in _states(handle, until, patience_ms):
                history = await handle.history() if isinstance(reporter, _Lines) else []
                reporter.tell(document, history)
    except asyncio.CancelledError:  # Ctrl-C
        if document.get("status") not in OVER:
            print_error(_interrupted(handle.id), connection, as_json=as_json)
        raise
    if as_json:
        if not each_change:
            printer.json(document)
    else:
        _conclude(printer, connection, document)
    return exit_of_status(document["status"], waits=document["status"] not in OVER)


async def _states(handle: "Handle[Any]", until: Until, patience_ms: int | None) -> AsyncIterator[Mapping[str, Any]]:
    """How it stands, again and again; the last one is where it came to rest."""
    loop = asyncio.get_running_loop()
    deadline = None if patience_ms is None else loop.time() + patience_ms / 1_000
    while True:
        document = await handle.status()
        yield document
        if document["status"] in OVER:
            return
        left = LOOK_MS if deadline is None else min(LOOK_MS, round((deadline - loop.time()) * 1_000))
        if left <= 0:
            hint = f"run `tenuto show {handle.id}` later. The execution continues"
            raise ResultTimeout(f"Execution {handle.id} has not ended yet: {standing(document)}.", hint=hint)
        with suppress(ResultTimeout):
            await handle.result(timeout=left / 1_000, return_when=until)
            yield await handle.status()
            return


def _interrupted(id: str) -> TenutoError:
    hint = f"run `tenuto watch {id}` to watch it again, or `tenuto cancel {id}` to cancel it"
    return TenutoError(f"Stopped watching execution {id}. It continues.", code="interrupted", hint=hint)


def _conclude(printer: Printer, connection: Connection, document: Mapping[str, Any]) -> None:
    printer.cells(*heading(document))
    show_why(printer, connection, document)
    if document["output"] is not None:
        printer.text(f"  output {json.dumps(document['output'], ensure_ascii=False)}")


class _Lines(nullcontext[None]):
    """A line for each attempt that begins or ends, and for each new reason to wait."""

    def __init__(self, printer: Printer, connection: Connection) -> None:
        super().__init__()
        self._printer = printer
        self._connection = connection
        self._seen: dict[object, str] = {}
        self._reason: object = None

    def tell(self, document: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        waits = waits_of(document)
        for row in history:
            attempt = (row["step_execution_id"], row["generation"], row["run"])
            before = self._seen.get(attempt)
            if before != row["status"]:
                self._seen[attempt] = row["status"]
                at = row["finished_at"] or (row["started_at"] if before is None else None)
                told = f"{clock(at) or _now()}  {attempt_name(row)}: {attempt_end(row, waits)}"
                self._printer.line(told, at_once=True)
        blocked = worth_telling(document)
        reason = None if blocked is None else (blocked["reason"], blocked["waiting_for"])
        if blocked is not None and reason != self._reason:
            most = 1 if blocked["reason"] in ENDED_BY_PEOPLE else 0
            helps = commands(self._connection, document["execution_id"], blocked)[:most]
            self._printer.line(" ".join([f"{_now()}  {sentence(blocked)}", *helps]), at_once=True)
        self._reason = reason


def worth_telling(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Why it does not go on, unless that is in the line of the attempt, or will be over before it is read."""
    blocked: Mapping[str, Any] | None = document["blocked"]
    if blocked is None or document["status"] in OVER or blocked["reason"] == "retry":
        return None
    since = moment(blocked["since"])
    passing = blocked["reason"] in ("no_worker", "slot", "limit")
    return None if passing and since is not None and datetime.now(UTC) - since < PASSING else blocked


class _JsonLines(nullcontext[None]):
    def __init__(self, printer: Printer, *, each_change: bool) -> None:
        super().__init__()
        self._printer = printer
        self._each = each_change
        self._last: Mapping[str, Any] = {}

    def tell(self, document: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        if self._each and document != self._last:
            self._printer.json_line(document, at_once=True)
        self._last = document


class _Drawn:
    """Which it is and its steps, drawn anew in their place. What it waits for is below them while it waits."""

    def __init__(self, printer: Printer, connection: Connection) -> None:
        from rich.live import Live

        self._connection = connection
        self._console = printer.console
        self._live: Live = Live(console=printer.console, auto_refresh=False)
        self._last: Mapping[str, Any] | None = None

    def __enter__(self) -> None:
        self._live.__enter__()

    def __exit__(self, *exc: object) -> None:
        if self._last is not None:
            self._live.update(self._steps(self._last), refresh=True)
        self._live.__exit__(None, None, None)

    def tell(self, document: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        self._last = document
        self._live.update(self._picture(document), refresh=True)

    def _picture(self, document: Mapping[str, Any]) -> "RenderableType":
        from rich.console import Group
        from rich.padding import Padding

        head, steps = assemble(heading(document)), self._steps(document)
        blocked = worth_telling(document)
        if blocked is None:
            return Group(head, steps)
        parts: list[RenderableType] = [head, steps, Padding(styled((sentence(blocked), "yellow")), (0, 0, 0, 2))]
        for command in commands(self._connection, document["execution_id"], blocked)[:1]:
            parts += [styled(f"  {line}") for line in in_lines(command, self._console.width - 2)]
        return Group(*parts)

    def _steps(self, document: Mapping[str, Any]) -> "RenderableType":
        return make_grid(step_rows(document["steps"]), self._console.width)


def _now() -> str:
    return clock(datetime.now(UTC).isoformat())
