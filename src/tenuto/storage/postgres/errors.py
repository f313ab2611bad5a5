"""Translates asyncpg's exceptions to `tenuto.errors`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tenuto.errors import StorageError

# The server is down, shutting down or starting, or the connection broke.
_UNREACHABLE = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
_BAD_DATA = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,  # a text that no index has room for
    UnicodeEncodeError,
)


_PERMIT_SERVICE = "as the owner of the schema, run `tenuto migrate --role` with its name"


@asynccontextmanager
async def translated(permit: str = _PERMIT_SERVICE) -> AsyncIterator[None]:
    """Raises a `StorageError` for an error of the database. `permit`: the hint if this user lacks the rights."""
    try:
        yield
    except _UNREACHABLE as error:
        raise StorageError(
            "PostgreSQL cannot be reached", code="unreachable", hint="check the URL and that the server is up"
        ) from error
    except _BAD_DATA as error:
        raise StorageError("the database refused the data of a batch", code="bad_data") from error
    except asyncpg.TransactionRollbackError as error:
        raise StorageError("PostgreSQL ended a transaction that stood in the way of another", code="busy") from error
    except asyncpg.QueryCanceledError as error:
        raise StorageError(
            "PostgreSQL stopped a query that took too long", code="too_slow", hint="ask for less, or try again later"
        ) from error
    except asyncpg.LockNotAvailableError as error:
        raise StorageError("another transaction holds a lock that the batch needs", code="locked") from error
    except asyncpg.ReadOnlySQLTransactionError as error:
        raise StorageError("the database is read-only", code="read_only", hint="connect to the primary") from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise StorageError(
            f"PostgreSQL does not let this user do that: {error.args[0]}",
            code="not_permitted",
            hint=permit,
        ) from error
    except asyncpg.DiskFullError as error:
        raise StorageError("the database's disk is full", code="full", hint="free space and try again") from error
    except asyncpg.InvalidCatalogNameError as error:
        raise StorageError(
            "the server has no database of that name", code="no_database", hint="create it first, or check the URL"
        ) from error
    except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as error:
        raise StorageError("PostgreSQL refused the credentials", code="refused", hint="check the URL") from error
    except asyncpg.PostgresError as error:
        raise StorageError(f"PostgreSQL answered with an error ({error.sqlstate})", code="failed") from error
