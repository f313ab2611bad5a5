"""The only place that knows a SQL driver. `open_store(url)` gives the store that a URL names."""

from tenuto.errors import NotSupported

from .store import Store

__all__ = ["Store", "make_store"]


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
            raise NotSupported(
                "the PostgreSQL driver is not installed", hint="pip install 'tenuto[postgres]'"
            ) from error
        return PostgresStore(url)
    raise NotSupported(f"there is no store for {scheme}://", hint="use sqlite:///file.db or postgresql://host/database")
