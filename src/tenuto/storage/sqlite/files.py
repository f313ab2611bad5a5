"""SQLite files that this process may only read, and why a file cannot be opened."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from tenuto.errors import StorageError


def connect_to_read(path: str) -> apsw.Connection:
    """Opens a connection that cannot write.

    To read a database in WAL mode, SQLite creates two files beside it. If this process may not create files there and
    no log is left, the database file is complete on its own, and SQLite reads it as immutable.
    """
    if not _is_complete(path):
        return apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    uri = f"{Path(path).absolute().as_uri()}?immutable=1"
    return apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


class Unchanged:
    """Notices another process that writes a file while this one reads it as immutable, without any lock."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp = _stamp(path) if _is_complete(path) else None

    def check(self) -> None:
        if self._stamp is not None and _stamp(self._path) != self._stamp:
            raise StorageError(
                f"another process began to write {self._path} while it was read", code="busy", hint="run it again"
            )


def check_writable(path: str) -> None:
    """SQLite would open the file all the same, and leave files beside it that keep its owner out."""
    if os.path.isfile(path) and os.access(path, os.R_OK) and not os.access(path, os.W_OK):
        raise _unusable(path, "", to_read=False)


@contextmanager
def opening(path: str, *, to_read: bool = False) -> Iterator[None]:
    """Errors name the file and the cause, which SQLite does not tell."""
    try:
        yield
    except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
        raise _unusable(path, str(error), to_read=to_read) from error
    except apsw.NotADBError as error:
        raise StorageError(
            f"{path} is not a SQLite database", code="not_a_database", hint="name another file, or move this one away"
        ) from error


def _unusable(path: str, told: str, *, to_read: bool) -> StorageError:
    folder = os.path.dirname(path) or "."
    code, hint = "unreachable", "check the path and its permissions"
    if not os.path.isdir(folder):
        cause, hint = f"the folder {folder} does not exist", "create the folder, or name another file"
    elif os.path.isdir(path):
        cause = "it is a folder"
    elif not os.path.exists(path):
        cause = f"there is no such file, and {_refusal(folder)}"
    elif not os.access(path, os.R_OK):
        cause = "this user may not read it"
    elif _is_writable(path):
        cause = told
    elif to_read:
        cause = f"it has a write-ahead log (-wal) to be read in, and {_refusal(path)}"
        hint = "copy the file and the log to a folder that you can write, and read them there"
    else:
        code, cause = "read_only", _refusal(path)
        hint = "let this user write the file and its folder; commands that only read work without that"
    return StorageError(f"the database {path} cannot be opened: {cause}", code=code, hint=hint)


def _refusal(path: str) -> str:
    """Why a file, or one in this folder, cannot be written."""
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return "the file system is read-only"
    return f"this user may not write {folder if os.access(path, os.W_OK) or folder == path else path}"


def _is_writable(path: str) -> bool:
    return os.access(path, os.W_OK) and os.access(os.path.dirname(path) or ".", os.W_OK)


def _is_complete(path: str) -> bool:
    return not _is_writable(path) and not os.path.exists(f"{path}-wal")


def _stamp(path: str) -> tuple[int, int, bool]:
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, os.path.exists(f"{path}-wal")
