"""`tenuto keys create | ls | revoke`: on the database, because no API key exists before the first."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.values.names import DEFAULT_TENANT

from .command import AsJson, command, connection, group
from .connection import Connection, actor, check_schema, open_engine
from .formats import ago
from .printer import Cell, Printer

if TYPE_CHECKING:
    from tenuto.access.keys import Keyring
    from tenuto.storage.registry import KeyRow

SECTION = "Operations"


async def create(
    context: typer.Context,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="Create the key for this tenant.")],
    role: Annotated[
        list[str],
        typer.Option(
            "--role",
            metavar="ROLE",
            help="Grant this role: viewer, operator, approver, author, worker or admin. Repeatable.",
        ),
    ],
    name: Annotated[str, typer.Option(metavar="TEXT", help="Describe the purpose of the key.")] = "",
    days: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            min=0,
            max=36_500,
            help="Expire after this many days; 0 is never. Default: TENUTO_KEY_DAYS.",
        ),
    ] = None,
    service: Annotated[
        str | None,
        typer.Option(
            "--service",
            metavar="NAME",
            help="Bind a worker's key to this platform service. Such a key may be for all tenants: --tenant '*'.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create an API key. It is printed only once."""
    from tenuto.access.keys import check_key
    from tenuto.errors import InvalidInput

    try:
        check_key(tenant, role, service)  # before there is a database that was not there
    except InvalidInput as error:
        (problem,) = error.problems
        raise typer.BadParameter(problem.message, param_hint=f"--{problem.path[1:].rstrip('s')}") from None
    life = connection(context).settings().key_days if days is None else days
    async with _keys(connection(context), creates=True) as keys:
        made = await keys.create(tenant=tenant, roles=role, name=name, days=life, actor=actor(), service=service)
    printer = Printer()
    if as_json:
        printer.json({"key": made.token, **_document(made.row)})
        return
    printer.line(made.token)
    if printer.is_terminal:
        expires = ago(_document(made.row)["expires_at"]) or "never"
        printer.text(
            f"for tenant {tenant} as {', '.join(made.row.roles)}; expires {expires}. Store it: it is not shown again.",
            "dim",
        )


async def ls(
    context: typer.Context,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Show only this tenant.")] = None,
    as_json: AsJson = False,
) -> None:
    """List API keys. Secrets are not stored."""
    own = connection(context).tenant
    async with _keys(connection(context), reads=True) as keys:
        found = [_document(row) for row in await keys.list(tenant or (None if own == DEFAULT_TENANT else own))]
    printer = Printer()
    when = ago if printer.is_terminal else _as_it_is
    printer.listing(
        found,
        ["KEY", "TENANT", "ROLES", "LAST USED", "EXPIRES", "NAME"],
        lambda key: _row(key, when),
        connection(context).with_options(
            "No API keys. Run `tenuto keys create --tenant default --role admin` to create one."
        ),
        as_json=as_json,
    )


async def revoke(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The id, from `tenuto keys ls`, or the key itself.")],
    as_json: AsJson = False,
) -> None:
    """Revoke an API key."""
    from tenuto.errors import NotFound

    id = key.split("_")[1] if key.startswith("tnt_") and key.count("_") >= 2 else key
    async with _keys(connection(context)) as keys:
        try:
            await keys.revoke(id, actor=actor())
        except NotFound as error:
            raise NotFound(error.message, hint="run `tenuto keys ls` to list them") from None
    Printer().tell(f"revoked: {id}", {"id": id, "revoked": True}, as_json=as_json)


@asynccontextmanager
async def _keys(where: Connection, *, creates: bool = False, reads: bool = False) -> "AsyncIterator[Keyring]":
    creates = creates and not where.settings().server  # that service has a database already
    database = where.database(creates=creates)
    if not creates:
        await check_schema(database)
    async with open_engine(database, reads=reads) as engine:
        yield engine.keys


def _document(row: "KeyRow") -> dict[str, Any]:
    from tenuto.views import rfc3339, time_text

    return {
        "id": row.id,
        "tenant": row.tenant,
        "roles": list(row.roles),
        "name": row.name,
        "created_at": rfc3339(row.created_at),
        "created_by": row.created_by,
        "expires_at": time_text(row.expires_at),
        "revoked_at": time_text(row.revoked_at),
        "last_used_at": time_text(row.last_used_at),
    }


def _row(key: dict[str, Any], when: Callable[[str | None], str]) -> list[Cell]:
    ends: Cell = ("revoked", "red") if key["revoked_at"] else when(key["expires_at"]) or "never"
    used = when(key["last_used_at"]) or "never"
    return [key["id"], key["tenant"], ", ".join(key["roles"]), used, ends, key["name"]]


def _as_it_is(moment: str | None) -> str:
    return moment or ""


def add_to(app: typer.Typer) -> None:
    keys = group(app, "keys", SECTION, "Manage API keys of the service.")
    for function in (create, ls, revoke):
        command(keys, function.__name__)(function)
