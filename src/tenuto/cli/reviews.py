"""`tenuto reviews ls | resolve`: the reviews that wait for a person."""

from typing import Annotated, Literal

import typer

from .command import AsJson, command, connection, group, read_json
from .formats import ago, pending_requests
from .printer import Printer

SECTION = "What waits for a person"
PAGE = 100

Kind = Literal["approval", "compensation", "compensation_failed", "indeterminate", "dead_letter", "escalation"]
Resolution = Literal["approved", "rejected", "completed", "not_completed", "retry", "compensate", "dismiss"]


async def ls(
    context: typer.Context,
    kind: Annotated[Kind | None, typer.Option(help="Show only this kind.")] = None,
    definition: Annotated[str | None, typer.Option(metavar="NAME", help="Show only this definition.")] = None,
    execution: Annotated[str | None, typer.Option(metavar="ID", help="Show only this execution.")] = None,
    as_json: AsJson = False,
) -> None:
    """List open reviews, oldest first, dead letters included."""
    async with connection(context).engine(reads=True) as engine:
        found = [row async for row in engine.reviews(kind=kind, definition=definition, execution_id=execution)]
    printer = Printer()
    when = ago if printer.is_terminal else str
    printer.listing(
        found,
        ["REVIEW", "KIND", "STEP", "OPENED", "REASON"],
        lambda row: [
            row["id"],
            (row["kind"], "yellow"),
            row["step_id"],
            when(row["opened_at"]),
            "; ".join(filter(None, [row["reason"], *pending_requests(row)])),
        ],
        "No open reviews.",
        as_json=as_json,
    )


async def resolve(
    context: typer.Context,
    review: Annotated[
        str, typer.Argument(metavar="REVIEW", help="The id, from `tenuto reviews ls` or `tenuto show ID`.")
    ],
    resolution: Annotated[Resolution, typer.Argument(help="The decision.")],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Record this reason in the history and the audit log.")
    ],
    result: Annotated[
        str | None, typer.Option(metavar="JSON", help="Set the result of the step: JSON or @file. For completed.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Repeat the effect with a new key. For retry.")] = False,
    as_json: AsJson = False,
) -> None:
    """Resolve a review: decide what happened, or what to do."""
    from tenuto.errors import NotFound

    given = read_json(result, "--result")
    async with connection(context).engine() as engine:
        try:
            await engine.resolve(review, resolution, reason=reason, result=given, again=again)
        except NotFound as error:
            raise NotFound(error.message, hint="run `tenuto reviews ls` to list the open ones") from None
        document = await engine.get(review.rpartition(".")[0]).status()
    printer = Printer()
    if as_json:
        printer.json(document)
    else:
        printer.text(f"resolved; {document['definition_id']} {document['execution_id']}: {document['status']}")


def add_to(app: typer.Typer) -> None:
    reviews = group(app, "reviews", SECTION, "List and resolve reviews.")
    command(reviews, "ls")(ls)
    command(reviews, "resolve")(resolve)
