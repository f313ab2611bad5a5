"""`tenuto dlq ls | show | reprocess | discard`: what failed for good."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .command import AsJson, command, connection, group
from .exit_codes import Exit
from .formats import ago, pending_requests, plural
from .printer import Printer

if TYPE_CHECKING:
    from tenuto.api.engine import Engine
    from tenuto.runtime.port import BulkResult

SECTION = "What waits for a person"
AT_ONCE = 100  # dead letters in one call

ErrorClass = Literal[
    "TRANSIENT",
    "RETRYABLE",
    "NON_RETRYABLE",
    "RATE_LIMITED",
    "DEPENDENCY_FAILED",
    "COMPENSATION_REQUIRED",
    "INDETERMINATE",
]
Letter = Annotated[str, typer.Argument(metavar="LETTER", help="From `tenuto dlq ls`.")]
OfDefinition = Annotated[str | None, typer.Option("--definition", metavar="NAME", help="Only of this definition.")]
OfClass = Annotated[ErrorClass | None, typer.Option("--error-class", help="Only with this class of error.")]
Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why: kept in the history and the audit.")]


async def ls(
    context: typer.Context, definition: OfDefinition = None, error_class: OfClass = None, as_json: AsJson = False
) -> None:
    """List dead letters, the oldest first: one for each execution that failed and has not been looked at."""
    async with connection(context).engine(reads=True) as engine:
        found = [row async for row in engine.dlq(definition=definition, error_class=error_class)]
    printer = Printer()
    when = ago if printer.is_terminal else str
    printer.listing(
        found,
        ["LETTER", "STEP", "CREATED", "ERROR"],
        lambda row: [
            row["id"],
            row["step_id"],
            when(row["created_at"]),
            "; ".join([f"{row['error_class']}: {row['error_summary']}", *pending_requests(row)]),
        ],
        "There are no dead letters.",
        as_json=as_json,
    )


async def show(context: typer.Context, letter: Letter, as_json: AsJson = False) -> None:
    """Show one, with the execution that failed."""
    from .execution_view import read, show_document

    where = connection(context)
    async with where.engine(reads=True) as engine:
        with _hinted():
            row = await engine.listing.dead_letter(letter)
        document, history, events = await read(engine, row["execution_id"])
    printer = Printer()
    if as_json:
        printer.json({**row, "execution": document})
        return
    printer.cells(
        ("dead letter ", "bold"), row["id"], f", {ago(row['created_at'])}, {plural(row['attempts'], 'attempt')}"
    )
    for line in pending_requests(row):
        printer.paragraph(f"{line} (a second person has to ask for the same)")
    for word in ("reprocess", "discard"):
        command_line = where.command_line(f"dlq {word} {row['id']} --reason TEXT")
        printer.text(f"    {command_line}")
    printer.text()
    show_document(printer, where, document, history, events)


async def reprocess(
    context: typer.Context,
    reason: Why,
    letter: Annotated[str | None, typer.Argument(metavar="LETTER", help="One; or say which with the options.")] = None,
    definition: OfDefinition = None,
    error_class: OfClass = None,
    all: Annotated[bool, typer.Option("--all", help="All that there are.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="NUMBER", min=1, help="How many at most; the oldest first.")
    ] = None,
    as_json: AsJson = False,
) -> Exit:
    """Try again: open the next run of the executions that failed. What is refused stays, and the others go on."""
    if letter is None and not (definition or error_class or all):
        raise typer.BadParameter("name one, or say which: --definition, --error-class or --all", param_hint="LETTER")
    if letter is not None and (definition or error_class or all or limit):
        raise typer.BadParameter("name one, or say which with the options, not both", param_hint="LETTER")
    from tenuto.runtime.port import BulkResult

    acted = BulkResult()
    async with connection(context).engine() as engine:
        if letter is not None:
            with _hinted():
                row = await engine.letters.reprocess(letter, reason=reason)
            acted.done.append(row["id"])
        else:
            wanted = {"definition": definition, "error_class": error_class, "reason": reason}
            await _try_again(engine, acted, wanted, limit, as_json=as_json)
    _tell(acted, as_json=as_json)
    return Exit.FAILED if acted.refused else Exit.OK


async def _try_again(
    engine: "Engine", acted: "BulkResult", wanted: dict[str, Any], limit: int | None, *, as_json: bool
) -> None:
    """A part at a time. If nobody answers any more, what was done until then is told before the error is."""
    from tenuto.errors import NotAuthenticated, ServiceError, StorageError

    cursor: str | None = None
    while (left := (limit or sys.maxsize) - len(acted.done) - len(acted.pending) - len(acted.refused)) > 0:
        try:
            part = await engine.letters.reprocess_many(**wanted, limit=min(left, AT_ONCE), cursor=cursor)
        except (NotAuthenticated, ServiceError, StorageError):
            if cursor is not None:
                _tell(acted, as_json=as_json)
            raise
        acted.done += part.done
        acted.pending += part.pending
        acted.refused += part.refused
        cursor = part.next_cursor
        if cursor is None:
            break


def _tell(acted: "BulkResult", *, as_json: bool) -> None:
    printer = Printer()
    if as_json:
        refused = [each._asdict() for each in acted.refused]
        printer.json({"reprocessed": acted.done, "pending": acted.pending, "refused": refused})
        return
    printer.text(f"{plural(len(acted.done), 'execution')} will be tried again")
    for id in acted.done:
        printer.text(f"  {id.rpartition('.')[0]}")
    if acted.pending:
        printer.text(f"{plural(len(acted.pending), 'dead letter')} told, and not heard of yet")
    if acted.refused:
        printer.text(f"{plural(len(acted.refused), 'dead letter')} could not be, and stay as they are")
    for each in acted.refused:
        printer.text(f"  {each.id}: {each.detail.splitlines()[0]} [{each.code}]")


async def discard(context: typer.Context, letter: Letter, reason: Why, as_json: AsJson = False) -> None:
    """Leave it as it is: it failed, and somebody has seen it."""
    async with connection(context).engine() as engine:
        with _hinted():
            row = await engine.letters.discard(letter, reason=reason)
    printer = Printer()
    if as_json:
        printer.json(row)
    else:
        printer.text(f"discarded: {row['id']}")


@contextmanager
def _hinted() -> Iterator[None]:
    """What there is, for those who name what is not."""
    from tenuto.errors import NotFound

    try:
        yield
    except NotFound as error:
        raise NotFound(error.message, hint="`tenuto dlq ls` lists those that are open") from None


def add_to(app: typer.Typer) -> None:
    letters = group(app, "dlq", SECTION, "What failed for good: dead letters.")
    for function in (ls, show, reprocess, discard):
        command(letters, function.__name__)(function)
