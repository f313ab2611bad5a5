"""`tenuto export | check`: export the stored records and check their invariants. Both only read."""

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from tenuto.values.terminal import escape_lines

from .command import AsJson, command, connection
from .exit_codes import Exit
from .formats import plural
from .output import NAME, named
from .printer import Printer

if TYPE_CHECKING:
    from tenuto.checker import Finding

SECTION = "Operations"

Url = Annotated[str | None, typer.Argument(metavar="URL", help="Read this database. Default: TENUTO_URL.")]


async def export(
    context: typer.Context,
    url: Url = None,
    to: Annotated[Path | None, typer.Option(help="Write to this file. Default: standard output.")] = None,
) -> None:
    """Export all executions as lines of JSON, payloads included."""
    database = connection(context).database(url)
    if to is None:
        await _write(database, sys.stdout.buffer, NAME)
    else:
        with named(str(to)), to.open("wb") as file:  # closing it can fail, too
            await _write(database, file, str(to))


async def _write(url: str, to: BinaryIO, name: str) -> None:
    import tenuto
    from tenuto.checker import export_lines

    async with aclosing(export_lines(url, tenuto.__version__)) as lines:
        async for line in lines:
            with named(name):
                to.write(escape_lines(line.decode()).encode() if to.isatty() else line)
    with named(name):
        to.flush()


async def check(
    context: typer.Context,
    url: Url = None,
    file: Annotated[Path | None, typer.Option(help="Check an export instead of a database.")] = None,
    stuck: Annotated[bool, typer.Option("--stuck", help="Check only for overdue work, which is cheap.")] = False,
    slack: Annotated[int, typer.Option(help="Treat work as overdue after this many seconds.")] = 60,
    as_json: AsJson = False,
) -> int:
    """Check the invariants of all stored executions. Prints each violation with its evidence."""
    from tenuto.checker import Checker, find_stuck_in, records_of, records_of_lines

    if stuck and file:
        raise typer.BadParameter("--stuck needs a database: remove --file", param_hint="--stuck")
    printer = Printer()
    database = "" if file else connection(context).database(url)
    if stuck:
        async with aclosing(find_stuck_in(database, slack * 1_000)) as found:
            count = await _tell(found, printer, as_json=as_json)
        if not as_json:
            printer.text(f"{count} stuck" if count else "nothing is stuck")
        return Exit.FAILED if count else Exit.OK
    checker = Checker(slack_ms=slack * 1_000)
    if file is None:
        async with aclosing(records_of(database)) as records:
            await _tell(checker.findings(records), printer, as_json=as_json)
    else:
        with file.open("rb") as lines:
            await _tell(checker.findings(records_of_lines(lines)), printer, as_json=as_json)
    counts = checker.counts
    for told in checker.told if not as_json else ():
        printer.text(f"for information, {told.detail} ({told.invariant}: {told.sentence})")
    if not as_json:
        verdict = plural(counts.findings, "violation") if counts.findings else "sound"
        printer.text(f"{plural(counts.executions, 'execution')}, {plural(counts.records, 'record')}: {verdict}")
    return Exit.FAILED if counts.findings else Exit.OK


async def _tell(findings: AsyncIterator["Finding"], printer: Printer, *, as_json: bool) -> int:
    from msgspec.json import encode

    count = 0
    async for finding in findings:
        count += 1
        if as_json:
            printer.line(encode(finding).decode())
        else:
            for line in finding.lines():
                printer.text(line)
    return count


def add_to(app: typer.Typer) -> None:
    command(app, "export", SECTION)(export)
    command(app, "check", SECTION)(check)
