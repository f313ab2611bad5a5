"""`tenuto dlq ls | show | reprocess | discard`: the dead-letter queue."""

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
    from tenuto.views.bulk_results import BulkResult

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
Letter = Annotated[str, typer.Argument(metavar="LETTER", help="The id, from `tenuto dlq ls`.")]
OfDefinition = Annotated[str | None, typer.Option("--definition", metavar="NAME", help="Select only this definition.")]
OfClass = Annotated[ErrorClass | None, typer.Option("--error-class", help="Select only this error class.")]
Why = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Record this reason in the history and the audit log.")
]


async def ls(
    context: typer.Context, definition: OfDefinition = None, error_class: OfClass = None, as_json: AsJson = False
) -> None:
    """List open dead letters, oldest first."""
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
        "No dead letters.",
        as_json=as_json,
    )


async def show(context: typer.Context, letter: Letter, as_json: AsJson = False) -> None:
    """Show a dead letter: where its handler raised, and its failed execution."""
    from .execution_view import read, show_document, show_trace

    where = connection(context)
    async with where.engine(reads=True) as engine:
        with _hinted():
            row = await engine.listing.dead_letter(letter, trace=True)
        document, history, events = await read(engine, row["execution_id"])
    printer = Printer()
    if as_json:
        printer.json({**row, "execution": document})
        return
    printer.cells(
        ("dead letter ", "bold"), row["id"], f", {ago(row['created_at'])}, {plural(row['attempts'], 'attempt')}"
    )
    for line in pending_requests(row):
        printer.paragraph(f"{line} (a second person must request the same)")
    for word in ("reprocess", "discard"):
        command_line = where.command_line(f"dlq {word} {row['id']} --reason TEXT")
        printer.text(f"    {command_line}")
    if row.get("error_trace"):
        printer.text()
        show_trace(printer, str(row["error_trace"]))
    printer.text()
    show_document(printer, where, document, history, events)


async def reprocess(
    context: typer.Context,
    reason: Why,
    letter: Annotated[
        str | None, typer.Argument(metavar="LETTER", help="One dead letter. Or select several with the options.")
    ] = None,
    definition: OfDefinition = None,
    error_class: OfClass = None,
    all: Annotated[bool, typer.Option("--all", help="Reprocess all of them.")] = False,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", metavar="NUMBER", min=1, help="Reprocess at most this many, oldest first."),
    ] = None,
    as_json: AsJson = False,
) -> Exit:
    """Retry the failed executions of dead letters. Refused ones are reported and left unchanged."""
    if letter is None and not (definition or error_class or all):
        raise typer.BadParameter("name one, or select with --definition, --error-class or --all", param_hint="LETTER")
    if letter is not None and (definition or error_class or all or limit):
        raise typer.BadParameter("name one, or select with the options, not both", param_hint="LETTER")
    from tenuto.views.bulk_results import BulkResult

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
    """Works in batches. If the connection fails, prints the result so far before the error."""
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
    printer.text(f"{plural(len(acted.done), 'execution')} will be retried")
    for id in acted.done:
        printer.text(f"  {id.rpartition('.')[0]}")
    if acted.pending:
        printer.text(f"{plural(len(acted.pending), 'dead letter')} requested, verdict not known yet")
    if acted.refused:
        printer.text(f"{plural(len(acted.refused), 'dead letter')} refused and left unchanged")
    for each in acted.refused:
        printer.text(f"  {each.id}: {each.detail.splitlines()[0]} [{each.code}]")


async def discard(context: typer.Context, letter: Letter, reason: Why, as_json: AsJson = False) -> None:
    """Discard a dead letter. The execution stays failed."""
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
    """Adds a hint to `NotFound`."""
    from tenuto.errors import NotFound

    try:
        yield
    except NotFound as error:
        raise NotFound(error.message, hint="run `tenuto dlq ls` to list the open ones") from None


def add_to(app: typer.Typer) -> None:
    letters = group(app, "dlq", SECTION, "Inspect and reprocess dead letters.")
    for function in (ls, show, reprocess, discard):
        command(letters, function.__name__)(function)
