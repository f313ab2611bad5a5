"""The only place that knows a SQL driver. `make_store(url)` gives the store that a URL names, not opened yet."""

from urllib.parse import parse_qs

from tenuto.errors import NotSupported
from tenuto.values.redaction import redact_url

from .port import Store
from .shared.records import Reader

__all__ = ["DATABASE_URLS", "Reader", "Store", "grant", "make_reader", "make_store", "sqlite_file", "unsupported"]

DATABASE_URLS = ("sqlite:///file.db", "postgresql://host/database")

_SYNCHRONOUS = ("FULL", "NORMAL")


def make_store(url: str, *, read_only: bool = False, serializable: bool = False) -> Store:
    """The store of this URL, not opened yet. Drivers are imported when they are asked for.

    `serializable`: on PostgreSQL, commits with a reserve of credits are serializable transactions.
    """
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from .sqlite.store import SqliteStore

        path, synchronous = sqlite_file(url)
        return SqliteStore(path, synchronous=synchronous, read_only=read_only)
    if scheme in ("postgresql", "postgres"):
        try:
            from .postgres.store import PostgresStore
        except ImportError as error:
            raise _no_driver() from error
        return PostgresStore(url, read_only=read_only, serializable=serializable)
    raise unsupported(url, *DATABASE_URLS)


def make_reader(url: str) -> Reader:
    """Reads the database of this URL and can do nothing else to it."""
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from .sqlite.reader import SqliteReader

        return SqliteReader(sqlite_file(url)[0])
    if scheme in ("postgresql", "postgres"):
        try:
            from .postgres.reader import PostgresReader
        except ImportError as error:
            raise _no_driver() from error
        return PostgresReader(url)
    raise unsupported(url, *DATABASE_URLS)


async def grant(url: str, role: str, *, prunes: bool) -> None:
    """Lets a role of the server run services on the database of this URL, and do nothing else to it."""
    if url.partition("://")[0] not in ("postgresql", "postgres"):
        raise NotSupported("Only PostgreSQL has roles: a process that can write a SQLite file can do everything.")
    try:
        from .postgres.roles import grant as grant_on_postgres
    except ImportError as error:
        raise _no_driver() from error
    await grant_on_postgres(url, role, prunes=prunes)


def sqlite_file(url: str) -> tuple[str, str]:
    """Returns the file of `sqlite:///file.db?synchronous=normal`, and how commits reach the disk. Default: FULL."""
    location = url.partition("://")[2]
    path, _, query = location.removeprefix("/").partition("?")
    if location and not location.startswith("/"):
        raise NotSupported(
            f"{url!r} has two slashes before the file.",
            hint=f"write sqlite:///{path} for a file in this folder, or sqlite:////{path} for an absolute path",
        )
    if path in ("", ":memory:"):  # of which every connection has its own
        raise NotSupported(f"{url!r} names no file.", hint="use sqlite:///file.db; memory:// keeps nothing")
    options = parse_qs(query, keep_blank_values=True)
    synchronous = options.pop("synchronous", ["FULL"])[-1].upper()
    if options or synchronous not in _SYNCHRONOUS:
        raise NotSupported(
            f"{url!r} has an option that SQLite's URL does not know.", hint="synchronous=full or synchronous=normal"
        )
    return path, synchronous


def unsupported(url: str, *supported: str) -> NotSupported:
    """The error for a URL that selects nothing. `supported` are the URLs to use instead."""
    scheme, separator, _ = url.partition("://")
    use = f"use {', '.join(supported[:-1])} or {supported[-1]}"
    if not separator:
        return NotSupported(f"{redact_url(url)!r} is not a URL.", hint=use)
    return NotSupported(f"Unsupported URL scheme {scheme!r}.", hint=use)


def _no_driver() -> NotSupported:
    return NotSupported("the PostgreSQL driver is not installed", hint="pip install 'tenuto[postgres]'")
