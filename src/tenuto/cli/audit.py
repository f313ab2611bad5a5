"""`tenuto audit`: the audit log and the check of its hash chain."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from . import event_loop
from .command import AsJson, command, connection
from .exit_codes import Exit
from .formats import ago, plural
from .printer import Printer
from .shared_options import Group

if TYPE_CHECKING:
    from tenuto.storage.audit import Kept

SECTION = "Operations"
_HEAD = re.compile("([1-9][0-9]{0,15}):([0-9a-f]{64})")
HELP = "List, verify and export the audit log."


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
        str | None,
        typer.Option(metavar="N:HASH", help="Check that this head, stored elsewhere earlier, is still in the chain."),
    ] = None,
    as_json: AsJson = False,
) -> Exit:
    """Verify the hash chain of the audit log and print its head."""
    printer = Printer()
    head = _kept(kept)
    async with connection(context).engine(reads=True) as engine:
        chain = await engine.audit.verify(head)
    if as_json:
        printer.json(chain._asdict())
    elif chain.broken_at is None:
        printer.text(f"the chain of {plural(chain.rows, 'row')} is intact; its head is {chain.rows}:{chain.head}")
    elif chain.cut:
        printer.text(f"the chain ends at row {chain.rows} but had more rows before: rows were removed", "bold red")
    else:
        printer.text(f"row {chain.broken_at} does not match the previous row: the log was changed", "bold red")
    return Exit.OK if chain.broken_at is None else Exit.FAILED


def _kept(text: str | None) -> "Kept | None":
    from tenuto.storage.audit import Kept

    if text is None:
        return None
    found = _HEAD.fullmatch(text)
    if found is None:
        raise typer.BadParameter("write N:HASH, as `tenuto audit verify` prints it", param_hint="--kept")
    return Kept(int(found[1]), found[2])


async def export(context: typer.Context) -> None:
    """Write the audit log as lines of JSON, oldest first, to store and verify it elsewhere."""
    printer = Printer()
    async with connection(context).engine(reads=True) as engine:
        async for row in engine.audit.export():
            printer.json_line(row)


def add_to(app: typer.Typer) -> None:
    audit = typer.Typer(cls=Group, rich_markup_mode=None, help=HELP)

    @audit.callback(invoke_without_command=True, help=HELP)
    def run(
        context: typer.Context,
        action: Annotated[
            str | None, typer.Option(metavar="NAME", help="Show only this action, such as execution.canceled.")
        ] = None,
        actor: Annotated[str | None, typer.Option(metavar="NAME", help="Show only actions of this actor.")] = None,
        of: Annotated[
            str | None, typer.Option("--object", metavar="ID", help="Show only actions on this object.")
        ] = None,
        limit: Annotated[
            int, typer.Option("--limit", "-n", metavar="NUMBER", min=1, help="Show at most this many.")
        ] = 50,
        as_json: AsJson = False,
    ) -> None:
        if context.invoked_subcommand is None:
            event_loop.run(ls(context, action, actor, of, limit, as_json=as_json))

    app.add_typer(audit, name="audit", rich_help_panel=SECTION)
    command(audit, "verify")(verify)
    command(audit, "export")(export)
