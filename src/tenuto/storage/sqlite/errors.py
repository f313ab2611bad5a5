"""Translates apsw's exceptions to `tenuto.errors`."""

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from tenuto.errors import StorageError


@contextmanager
def translated() -> Iterator[None]:
    """Raises a `StorageError` for an error of the database."""
    try:
        yield
    except apsw.CantOpenError as error:
        raise StorageError(
            "the database file cannot be opened", code="unreachable", hint="check its path and permissions"
        ) from error
    except apsw.NotADBError as error:
        raise StorageError(
            "the file is not a SQLite database", code="not_a_database", hint="name another file, or move this one away"
        ) from error
    except apsw.ReadOnlyError as error:
        raise StorageError("the database is read-only", code="read_only", hint="make the file writable") from error
    except (apsw.FullError, apsw.IOError) as error:
        raise StorageError(
            "the database cannot be written: the disk is full or failing", code="full", hint="free space and try again"
        ) from error
    except (apsw.ConstraintError, apsw.TooBigError, apsw.MismatchError, UnicodeEncodeError) as error:
        raise StorageError("the database refused the data of a batch", code="bad_data") from error
    except apsw.BusyError as error:
        raise StorageError(
            "the database is locked by another program", code="busy", hint="end long transactions on this file"
        ) from error
    except apsw.Error as error:
        raise StorageError(f"SQLite answered with an error ({type(error).__name__})", code="failed") from error
