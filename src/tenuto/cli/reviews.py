"""`tenuto reviews ls | resolve`: what waits for a person's judgement."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .command import AsJson, command, connection, group, read_json
from .formats import ago, pending_requests
from .printer import Printer

if TYPE_CHECKING:
    pass

SECTION = "What waits for a person"
PAGE = 100

Kind = Literal["approval", "compensation", "compensation_failed", "indeterminate", "dead_letter", "escalation"]
Resolution = Literal["approved", "rejected", "completed", "not_completed", "retry", "compensate", "dismiss"]


async def ls(
    context: typer.Context,
    kind: Annotated[Kind | None, typer.Option(help="Only of this kind.")] = None,
    definition: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this definition.")] = None,
    execution: Annotated[str | None, typer.Option(metavar="ID", help="Only of this execution.")] = None,
    as_json: AsJson = False,
) -> None:
    """List all that waits for a person, the oldest first; dead letters too, which `tenuto dlq` tells more of."""
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
        "Nothing waits for a person.",
        as_json=as_json,
    )


async def resolve(
    context: typer.Context,
    review: Annotated[str, typer.Argument(metavar="REVIEW", help="From `tenuto reviews ls` or `tenuto show ID`.")],
    resolution: Annotated[Resolution, typer.Argument(help="What was found, or what is to be done.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why: kept in the history and the audit.")],
    result: Annotated[
        str | None, typer.Option(metavar="JSON", help="With completed: the step's result, as JSON or @file.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="With retry: make the effect anew, under a new key.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what was found: did it happen, is it to be undone or tried again?"""
    from tenuto.errors import NotFound

    given = read_json(result, "--result")
    async with connection(context).engine() as engine:
        try:
            await engine.resolve(review, resolution, reason=reason, result=given, again=again)
        except NotFound as error:
            raise NotFound(error.message, hint="`tenuto reviews ls` lists those that are open") from None
        document = await engine.get(review.rpartition(".")[0]).status()
    printer = Printer()
    if as_json:
        printer.json(document)
    else:
        printer.text(f"resolved; {document['definition_id']} {document['execution_id']}: {document['status']}")


def add_to(app: typer.Typer) -> None:
    reviews = group(app, "reviews", SECTION, "What waits for a person's judgement.")
    command(reviews, "ls")(ls)
    command(reviews, "resolve")(resolve)
