"""`tenuto dlq ls | show | reprocess | discard`: what failed for good."""

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from .command import AsJson, command, group, place
from .exits import Exit
from .screen import Screen
from .words import ago, many, requested

if TYPE_CHECKING:
    from tenuto.engine import Engine
    from tenuto.errors import TenutoError
    from tenuto.view import DeadLetterRow

SECTION = "What waits for a person"

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
    async with place(context).engine() as engine:
        found = [row async for row in engine.dlq(definition=definition, error_class=error_class)]
    screen = Screen()
    when = ago if screen.is_terminal else str
    screen.listing(
        found,
        ["LETTER", "STEP", "CREATED", "ERROR"],
        lambda row: [
            row["id"],
            row["step_id"],
            when(row["created_at"]),
            "; ".join([f"{row['error_class']}: {row['error_summary']}", *requested(row)]),
        ],
        "There are no dead letters.",
        as_json=as_json,
    )


async def show(context: typer.Context, letter: Letter, as_json: AsJson = False) -> None:
    """Show one, with the execution that failed."""
    from .execution import read, show_document

    where = place(context)
    async with where.engine() as engine:
        row = await _letter(engine, letter)
        document, history, events = await read(engine, row["execution_id"])
    screen = Screen()
    if as_json:
        screen.json({**row, "execution": document})
        return
    screen.cells(("dead letter ", "bold"), row["id"], f", {ago(row['created_at'])}, {many(row['attempts'], 'attempt')}")
    for line in requested(row):
        screen.paragraph(f"{line} (a second person has to ask for the same)")
    for word in ("reprocess", "discard"):
        command_line = where.line(f"dlq {word} {row['id']} --reason TEXT")
        screen.say(f"    {command_line}")
    screen.say()
    show_document(screen, where, document, history, events)


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
    async with place(context).engine() as engine:
        if letter is not None:
            row = await _letter(engine, letter)
            await engine.resolve(row["id"], "retry", reason=reason)
            tried = Tried([row], [])
        else:
            rows = [row async for row in engine.dlq(definition=definition, error_class=error_class)][:limit]
            tried = await _try_again(engine, rows, reason, as_json=as_json)
    tried.tell(as_json=as_json)
    return Exit.FAILED if tried.refused else Exit.OK


class Tried(NamedTuple):
    """Dead letters that were reprocessed, and those that could not be."""

    done: "list[DeadLetterRow]"
    refused: "list[tuple[DeadLetterRow, TenutoError]]"

    def tell(self, *, as_json: bool) -> None:
        screen = Screen()
        if as_json:
            refused = [{"id": row["id"], "code": error.code, "detail": error.message} for row, error in self.refused]
            screen.json({"reprocessed": [row["id"] for row in self.done], "refused": refused})
            return
        screen.say(f"{many(len(self.done), 'execution')} will be tried again")
        for row in self.done:
            screen.say(f"  {row['execution_id']}")
        if self.refused:
            screen.say(f"{many(len(self.refused), 'dead letter')} could not be, and stay as they are")
        for row, error in self.refused:
            screen.say(f"  {row['id']}: {error.message.splitlines()[0]} [{error.code}]")


async def _try_again(engine: "Engine", rows: "list[DeadLetterRow]", reason: str, *, as_json: bool) -> Tried:
    """One after another. If nobody answers any more, what was done until then is told before the error is."""
    from tenuto.errors import NotAuthenticated, ServiceError, StorageError, TenutoError

    tried = Tried([], [])
    for row in rows:
        try:
            await engine.resolve(row["id"], "retry", reason=reason)
            tried.done.append(row)
        except (NotAuthenticated, ServiceError, StorageError):
            tried.tell(as_json=as_json)
            raise
        except TenutoError as error:
            tried.refused.append((row, error))
    return tried


async def discard(context: typer.Context, letter: Letter, reason: Why, as_json: AsJson = False) -> None:
    """Leave it as it is: it failed, and somebody has seen it."""
    async with place(context).engine() as engine:
        row = await _letter(engine, letter)
        await engine.resolve(row["id"], "dismiss", reason=reason)
    screen = Screen()
    if as_json:
        screen.json({**row, "state": "resolved"})
    else:
        screen.say(f"discarded: {row['id']}")


async def _letter(engine: "Engine", id: str) -> "DeadLetterRow":
    """By its id, or by that of its execution."""
    from tenuto.errors import NotFound

    try:
        return await engine.listing.dead_letter(id)
    except NotFound:
        hint = "`tenuto dlq ls` lists those that are open"
        raise NotFound(f"There is no dead letter {id!r}.", hint=hint) from None


def add_to(app: typer.Typer) -> None:
    letters = group(app, "dlq", SECTION, "What failed for good: dead letters.")
    for function in (ls, show, reprocess, discard):
        command(letters, function.__name__)(function)
