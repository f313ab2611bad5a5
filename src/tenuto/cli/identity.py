"""`tenuto whoami | console | sessions`: who you are, and how you sign in to the console."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .command import AsJson, command, connection, group
from .formats import ago
from .printer import Cell, Printer

if TYPE_CHECKING:
    from tenuto.settings import Settings

SECTION = "Operations"


async def whoami(context: typer.Context, as_json: AsJson = False) -> None:
    """Show the actor, tenant, roles and permissions of your commands."""
    async with connection(context).engine(reads=True) as engine:
        found = await engine.me()
    printer = Printer()
    if as_json:
        printer.json(found)
        return
    printer.grid(
        [
            [("actor", "dim"), found["actor"] or ""],
            [("tenant", "dim"), found["tenant"] or ""],
            [("roles", "dim"), ", ".join(found["roles"])],
            [("permissions", "dim"), ", ".join(found["permissions"])],
            [("version", "dim"), found["version"]],
        ]
    )


async def console(context: typer.Context, as_json: AsJson = False) -> None:
    """Print a link that signs you in to the console. It works once, within 10 minutes."""
    where = connection(context)
    settings = where.settings()
    if settings.server:
        address = settings.server.rstrip("/")
        told = {"url": address}
        Printer().tell(f"{address}/ (sign in with your API key)", told, as_json=as_json)
        return
    async with where.engine() as engine:
        token = await engine.sessions.link_token()
    link = sign_in_link(console_address(settings), token)
    Printer().tell(link, {"url": link}, as_json=as_json)


def console_address(settings: "Settings") -> str:
    """Where browsers reach a service with these settings."""
    return settings.public_url.rstrip("/") or f"http://{settings.host}:{settings.port}"


def sign_in_link(address: str, token: str) -> str:
    """Browsers keep the part after `#` to themselves: no server, proxy or log sees the token."""
    return f"{address}/#token={token}"


def has_console(settings: "Settings") -> bool:
    from tenuto.service.console_pages import BUILT

    return settings.console and (BUILT / "index.html").is_file()


async def ls(context: typer.Context, as_json: AsJson = False) -> None:
    """List the sign-in sessions of the console."""
    async with connection(context).engine(reads=True) as engine:
        found = await engine.sessions.list()
    printer = Printer()
    when = ago if printer.is_terminal else str
    printer.listing(
        found,
        ["SESSION", "ACTOR", "ROLES", "SIGNED IN", "LAST USED", "EXPIRES"],
        lambda row: _row(row, when),
        connection(context).with_options("No sign-in sessions. Run `tenuto console` for a link that opens one."),
        as_json=as_json,
    )


def _row(row: Any, when: Any) -> list[Cell]:
    times = [when(row[name]) for name in ("created_at", "last_used_at", "expires_at")]
    return [row["id"], row["actor"], ", ".join(row["roles"]), *times]


async def revoke(
    context: typer.Context,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The id, from `tenuto sessions ls`.")],
    as_json: AsJson = False,
) -> None:
    """End a sign-in session."""
    async with connection(context).engine() as engine:
        await engine.sessions.revoke(session)
    Printer().tell(f"revoked: {session}", {"id": session, "revoked": True}, as_json=as_json)


def add_to(app: typer.Typer) -> None:
    command(app, "whoami", SECTION)(whoami)
    command(app, "console", SECTION)(console)
    sessions = group(app, "sessions", SECTION, "Manage the sign-in sessions of the console.")
    for function in (ls, revoke):
        command(sessions, function.__name__)(function)
