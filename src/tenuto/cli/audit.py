"""`tenuto audit`: who did what, and whether that record is whole."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from . import loop
from .command import AsJson, command, connection
from .exit_codes import Exit
from .formats import ago, plural
from .printer import Printer

if TYPE_CHECKING:
    from tenuto.storage.audit import Kept

SECTION = "Operations"
_HEAD = re.compile("([1-9][0-9]{0,15}):([0-9a-f]{64})")
HELP = "Who did what, and whether that record is whole."


async def ls(
    context: typer.Context,
    action: str | None,
    actor: str | None,
    of: str | None,
    limit: int,
    *,
    as_json: bool,
) -> None:
    printer = Printer()
    found = []
    async with connection(context).engine(reads=True) as engine:
        async for row in engine.audit.rows(action=action, actor=actor, object_id=of):
            found.append(row)
            if len(found) == limit:
                break
    when = ago if printer.is_terminal else str
    printer.listing(
        found,
        ["AT", "ACTOR", "ACTION", "OF", "REASON"],
        lambda row: [when(row["at"]), row["actor"], row["action"], row["object_id"], row["reason"]],
        "Nothing is recorded.",
        as_json=as_json,
    )


async def verify(
    context: typer.Context,
    kept: Annotated[
        str | None, typer.Option(metavar="N:HASH", help="A head that was kept elsewhere: it must be there still.")
    ] = None,
    as_json: AsJson = False,
) -> Exit:
    """See whether the chain of hashes holds, and tell its head."""
    printer = Printer()
    head = _kept(kept)
    async with connection(context).engine(reads=True) as engine:
        chain = await engine.audit.verify(head)
    if as_json:
        printer.json(chain._asdict())
    elif chain.broken_at is None:
        printer.text(f"the chain of {plural(chain.rows, 'row')} holds; its head is {chain.rows}:{chain.head}")
    elif chain.cut:
        printer.text(f"the chain ends with row {chain.rows}, and once had more: rows are gone", "bold red")
    else:
        printer.text(f"row {chain.broken_at} does not fit the one before it: something was changed", "bold red")
    return Exit.OK if chain.broken_at is None else Exit.FAILED


def _kept(text: str | None) -> "Kept | None":
    from tenuto.storage.audit import Kept

    if text is None:
        return None
    found = _HEAD.fullmatch(text)
    if found is None:
        raise typer.BadParameter("it is N:HASH, as `tenuto audit verify` told it", param_hint="--kept")
    return Kept(int(found[1]), found[2])


async def export(context: typer.Context) -> None:
    """Write the whole chain as lines of JSON, the oldest first: to be kept, and checked, elsewhere."""
    printer = Printer()
    async with connection(context).engine(reads=True) as engine:
        async for row in engine.audit.export():
            printer.json_line(row)


def add_to(app: typer.Typer) -> None:
    audit = typer.Typer(rich_markup_mode=None, help=HELP)

    @audit.callback(invoke_without_command=True, help=HELP)
    def run(
        context: typer.Context,
        action: Annotated[str | None, typer.Option(metavar="NAME", help="Only this, as in execution.canceled.")] = None,
        actor: Annotated[str | None, typer.Option(metavar="NAME", help="Only what this one did.")] = None,
        of: Annotated[str | None, typer.Option("--object", metavar="ID", help="Only what was done to this.")] = None,
        limit: Annotated[int, typer.Option("--limit", "-n", metavar="NUMBER", min=1, help="How many at most.")] = 50,
        as_json: AsJson = False,
    ) -> None:
        if context.invoked_subcommand is None:
            loop.run(ls(context, action, actor, of, limit, as_json=as_json))

    app.add_typer(audit, name="audit", rich_help_panel=SECTION)
    command(audit, "verify")(verify)
    command(audit, "export")(export)
