"""SQLite's files on that disk: each call does what it always does, and the disk is told."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from .disk import Disk, Piece, Shortened

NAME = "tenuto-power"
SYNC_FOLDER = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, path: Path, base: str, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._name = path.name
        with disk.lock:
            is_new = not disk.has(path.name)  # the engine makes an empty one first, for its owner alone
            if is_new:
                disk.about_to("make")
            super().__init__(base, name, flags)
            if is_new:
                disk.made(path.name, syncs_folder=bool(flags[0] & SYNC_FOLDER))

    def xWrite(self, data: Any, offset: int) -> None:
        with self._disk.lock:
            self._disk.about_to("write")
            super().xWrite(data, offset)
            self._disk.changed(self._name, Piece(offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        with self._disk.lock:
            self._disk.about_to("shorten")
            super().xTruncate(newsize)
            self._disk.changed(self._name, Shortened(newsize))

    def xSync(self, flags: int) -> None:
        """The machine's own disk is not waited for: this one is the disk."""
        with self._disk.lock:
            self._disk.about_to("sync")
            self._disk.synced(self._name)


class _Files(apsw.VFS):
    def __init__(self, disk: Disk, folder: Path, base: str) -> None:
        self._disk = disk
        self._folder = folder
        self._base = base
        super().__init__(NAME, base)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name or "")
        if path.parent != self._folder:
            return apsw.VFSFile(self._base, name, flags)
        return _File(self._disk, path, self._base, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with self._disk.lock:
            path = Path(filename)
            known = path.parent == self._folder and path.exists()
            if known:
                self._disk.about_to("delete")
            super().xDelete(filename, syncdir)
            if known:
                self._disk.deleted(path.name, synced=syncdir)


@contextmanager
def in_place(disk: Disk, folder: Path) -> Iterator[None]:
    """Whatever this process opens in that folder is on that disk."""
    base = apsw.vfs_names()[0]
    files = _Files(disk, folder, base)
    apsw.set_default_vfs(NAME)
    try:
        yield
    finally:
        apsw.set_default_vfs(base)
        files.unregister()
