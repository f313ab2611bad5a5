"""`tenuto audit`: who did what, and whether that record is whole."""

from typing import TYPE_CHECKING, Annotated

import typer

from .command import AsJson, command, place
from .exits import Exit
from .screen import Cell, Screen
from .words import ago, many

if TYPE_CHECKING:
    from tenuto.storage.audit import Verified

SECTION = "Operations"


async def audit(
    context: typer.Context,
    action: Annotated[str | None, typer.Option(metavar="NAME", help="Only this, as in execution.canceled.")] = None,
    actor: Annotated[str | None, typer.Option(metavar="NAME", help="Only what this one did.")] = None,
    of: Annotated[str | None, typer.Option("--object", metavar="ID", help="Only what was done to this.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="NUMBER", min=1, help="How many at most.")] = 50,
    verify: Annotated[bool, typer.Option("--verify", help="See whether the chain of hashes holds, instead.")] = False,
    as_json: AsJson = False,
) -> int | None:
    """List who did what, the newest first."""
    screen = Screen()
    async with place(context).engine() as engine:
        if verify:
            return _tell_chain(screen, await engine.audit.verify(), as_json=as_json)
        found = []
        async for row in engine.audit.rows(action=action, actor=actor, object_id=of):
            found.append(row)
            if len(found) == limit:
                break
    if as_json:
        screen.json(found)
    elif found:
        when = ago if screen.is_terminal else str
        rows: list[list[Cell]] = [
            [when(row["at"]), row["actor"], row["action"], row["object_id"], row["reason"]] for row in found
        ]
        screen.table(["AT", "ACTOR", "ACTION", "OF", "REASON"], rows)
    elif screen.is_terminal:
        screen.say("Nothing is recorded.", "dim")
    return None


def _tell_chain(screen: Screen, chain: "Verified", *, as_json: bool) -> Exit:
    if as_json:
        screen.json(chain._asdict())
    elif chain.broken_at is None:
        screen.say(f"the chain of {many(chain.rows, 'row')} holds; its head is {chain.head}")
    else:
        screen.say(f"row {chain.broken_at} does not fit the one before it: something was changed", "bold red")
    return Exit.OK if chain.broken_at is None else Exit.FAILED


def add_to(app: typer.Typer) -> None:
    command(app, "audit", SECTION)(audit)
