"""The checks of `tenuto doctor`. Each says what it found; a failed one says what to do."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from tenuto.errors import TenutoError
from tenuto.settings import Issuer, Settings

from .connection import check_database_exists
from .formats import plural


class Check(NamedTuple):
    name: str
    ok: bool
    found: str
    warns: bool = False  # it works, but should be changed


async def checks(settings: Settings) -> AsyncIterator[Check]:
    if not (messages := _messages(settings)).ok:
        yield messages
    for issuer in settings.jwt_issuers:
        if issuer.jwks_file:
            yield _keys_of(issuer)
    if settings.app:
        yield _app(settings.app)
    if settings.server:
        yield await _server(settings)
    else:
        yield (database := await _schema(settings.url))
        if not database.ok:
            return  # the other checks need the database
        if settings.url.startswith("postgres"):
            yield await _wall(settings.url)
            yield await _rights(settings.url)
        yield await _workers(settings.url)


def _messages(settings: Settings) -> Check:
    from .processes import check_messages

    try:
        check_messages(settings)
    except TenutoError as error:
        return Check("messages", False, _told(error))
    return Check("messages", True, ", ".join(settings.messages))


def _keys_of(issuer: Issuer) -> Check:
    try:
        Path(issuer.jwks_file).read_bytes()
    except OSError as error:
        return Check("issuer", False, f"{issuer.issuer}: {issuer.jwks_file} cannot be read: {error.strerror}")
    return Check("issuer", True, f"{issuer.issuer}: {issuer.jwks_file} can be read")


def _app(app: str) -> Check:
    from tenuto.api.engine import Engine

    from .app_loader import load_app

    try:
        engine = Engine("memory://")
        engine.register(*load_app(app))
    except TenutoError as error:
        return Check("app", False, _told(error))
    return Check("app", True, f"{app} can be loaded")


async def _server(settings: Settings) -> Check:
    from tenuto.api.engine import Engine

    try:
        async with Engine(settings.server, api_key=settings.api_key or None) as engine:
            counts = await engine.count()
    except TenutoError as error:
        return Check("server", False, _told(error))
    return Check("server", True, f"{settings.server} answers, and has {plural(sum(counts.values()), 'execution')}")


async def _schema(url: str) -> Check:
    """Reads it first on a read-only connection: a file of another program is not changed."""
    from tenuto.storage import make_reader, make_store

    try:
        check_database_exists(url, creates=False)
        reader = make_reader(url)
        await reader.open()
        await reader.close()
        store = make_store(url)
        await store.open(migrate=False)
        await store.close()
    except TenutoError as error:
        return Check("database", False, _told(error))
    return Check("database", True, "it can be opened, and its schema is up to date")


async def _wall(url: str) -> Check:
    from tenuto.storage.postgres.store import PostgresStore

    try:
        store = PostgresStore(url)
        await store.open(migrate=False)
        await store.close()
    except TenutoError as error:
        return Check("tenants", False, _told(error))
    if not store.database.has_row_security:
        told = "the database does not keep tenants apart, the queries alone do. What to do: as a superuser,"
        return Check("tenants", False, f"{told} GRANT tenuto_request TO the user of this database")
    return Check("tenants", True, "the database itself keeps them apart")


async def _rights(url: str) -> Check:
    """To run as the owner is how everybody begins, and so no failure."""
    from tenuto.storage.postgres.roles import own_excess

    try:
        found = await own_excess(url)
    except TenutoError as error:
        return Check("rights", False, _told(error))
    if found:
        told = f"this user could rewrite what happened: {found}. In production, give services a role of their own"
        return Check("rights", True, f"{told}: `tenuto migrate --role NAME`", warns=True)
    return Check("rights", True, "this user can do what a service does, and nothing else")


async def _workers(url: str) -> Check:
    from tenuto.storage import make_store

    try:
        store = make_store(url)
        now = await store.open(migrate=False)
        sessions = [row for row in await store.operations.sessions() if row.works and row.expires_at > now]
        await store.close()
    except TenutoError as error:
        return Check("workers", False, _told(error))
    if not sessions:
        return Check(
            "workers", False, "no worker is running, so no execution proceeds. What to do: `tenuto worker --app MODULE`"
        )
    return Check("workers", True, f"{plural(len(sessions), 'worker')} running")


def _told(error: TenutoError) -> str:
    hint = f" What to do: {error.hint}." if error.hint else ""
    return f"{error.message} [{error.code}]{hint}"
