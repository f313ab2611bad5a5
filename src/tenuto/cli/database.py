"""`tenuto migrate | restored | doctor`."""

from typing import TYPE_CHECKING, Annotated

import typer

from .command import AsJson, command, connection
from .exit_codes import Exit
from .printer import Cell, Printer

if TYPE_CHECKING:
    from .doctor import Check

SECTION = "Operations"


async def migrate(
    context: typer.Context,
    url: Annotated[str | None, typer.Option(metavar="URL", help="Migrate this database. Default: TENUTO_URL.")] = None,
    role: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Grant this PostgreSQL role the rights that services need, and no others."),
    ] = None,
    prunes: Annotated[bool, typer.Option("--prunes", help="Let that role delete expired data, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Migrate a database to the current schema. Running it twice is safe."""
    from tenuto.storage import grant, make_store

    if prunes and role is None:
        raise typer.BadParameter("needs --role NAME", param_hint="--prunes")
    found = connection(context).database(url, creates=True)
    store = make_store(found)
    await store.open(migrate=True)
    await store.close()
    if role is not None:
        await grant(found, role, prunes=prunes)
    text = "the schema is up to date" + (f", and {role} may run services on it" if role else "")
    Printer().tell(text, {"up_to_date": True, "role": role}, as_json=as_json)


async def restored(
    context: typer.Context,
    url: Annotated[str | None, typer.Option(metavar="URL", help="The database. Default: TENUTO_URL.")] = None,
    as_json: AsJson = False,
) -> None:
    """End all worker sessions after a backup was restored.

    Run it as the owner of the schema. Raises the database's incarnation number: sessions from before can write nothing
    more, and their executions are taken over at once.
    """
    from tenuto.storage import make_store

    store = make_store(connection(context).database(url))
    await store.open(migrate=False)
    try:
        number = await store.sessions.mark_restored()
        ended = await store.sessions.reap()
    finally:
        await store.close()
    text = f"the incarnation is {number}; {ended} session{'' if ended == 1 else 's'} ended"
    Printer().tell(text, {"incarnation": number, "sessions_ended": ended}, as_json=as_json)


async def doctor(context: typer.Context, as_json: AsJson = False) -> int:
    """Show the effective settings with their sources, and check the setup."""
    from .doctor import checks as look

    where = connection(context)
    settings = where.settings()
    checks = [check._replace(found=where.with_options(check.found)) async for check in look(settings)]
    printer = Printer()
    if as_json:
        told = [{"name": s.name, "variable": s.variable, "value": s.value, "source": s.source} for s in settings.told()]
        printer.json({"settings": told, "checks": [check._asdict() for check in checks]})
    else:
        for check in checks:
            first, *rest = check.found.split("\n")
            printer.cells(_sign_of(check), f"{check.name}: {first}")
            for line in rest:
                printer.text(line)
        printer.text()
        rows: list[list[Cell]] = [
            [s.variable, (s.source, "dim" if s.source == "default" else ""), s.value] for s in settings.told()
        ]
        printer.table(["SETTING", "FROM", "VALUE"], rows)
    return Exit.OK if all(check.ok for check in checks) else Exit.FAILED


def _sign_of(check: "Check") -> Cell:
    if not check.ok:
        return ("✗ ", "red")
    return ("! ", "yellow") if check.warns else ("✓ ", "green")


def add_to(app: typer.Typer) -> None:
    command(app, "migrate", SECTION)(migrate)
    command(app, "restored", SECTION)(restored)
    command(app, "doctor", SECTION)(doctor)
