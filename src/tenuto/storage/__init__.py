"""The only place that knows a SQL driver. `make_store(url)` gives the store that a URL names, not opened yet."""

from tenuto.errors import NotSupported

from .records import Reader
from .store import Store

__all__ = ["Reader", "Store", "make_reader", "make_store"]


def make_store(url: str) -> Store:
    """The store of this URL, not opened yet. Drivers are imported when they are asked for."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        from .sqlite import SqliteStore

        return SqliteStore(rest.removeprefix("/"))
    if scheme in ("postgresql", "postgres"):
        try:
            from .postgres import PostgresStore
        except ImportError as error:
            raise _no_driver() from error
        return PostgresStore(url)
    raise _unknown(scheme)


def make_reader(url: str) -> Reader:
    """Reads the database of this URL and can do nothing else to it."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        from .sqlite_reader import SqliteReader

        return SqliteReader(rest.removeprefix("/"))
    if scheme in ("postgresql", "postgres"):
        try:
            from .postgres_reader import PostgresReader
        except ImportError as error:
            raise _no_driver() from error
        return PostgresReader(url)
    raise _unknown(scheme)


def _unknown(scheme: str) -> NotSupported:
    return NotSupported(
        f"there is no store for {scheme}://", hint="use sqlite:///file.db or postgresql://host/database"
    )


def _no_driver() -> NotSupported:
    return NotSupported("the PostgreSQL driver is not installed", hint="pip install 'tenuto[postgres]'")
