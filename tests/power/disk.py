"""The disk: what is on it for good, and what is only on its way there.

Contents are kept by a sync of their file. Names are kept by a sync of the folder, which SQLite asks for with the first
sync of a new journal or log; until then files that were made or deleted may be as they were.
"""

import threading
from collections.abc import Callable
from random import Random
from typing import Literal, NamedTuple

SECTOR = 512

What = Literal["write", "sync", "shorten", "make", "delete"]
Mode = Literal["nothing", "everything", "its beginning", "any sectors"]
MODES: tuple[Mode, ...] = ("nothing", "everything", "its beginning", "any sectors", "any sectors")


class Piece(NamedTuple):
    offset: int
    data: bytes


class Shortened(NamedTuple):
    size: int


Change = Piece | Shortened


class Inode:
    def __init__(self, *, syncs_folder: bool) -> None:
        self.kept = bytearray()
        self.changes: list[Change] = []
        self.syncs_folder = syncs_folder

    def sync(self) -> None:
        for change in self.changes:
            apply(self.kept, change)
        self.changes.clear()

    def after_a_cut(self, mode: Mode, rng: Random) -> bytes:
        content = bytearray(self.kept)
        filler = rng.choice((b"\0", b"\xa7"))  # what is in sectors that never arrived
        for change in _arrived(self.changes, mode, rng):
            apply(content, change, filler)
        return bytes(content)


def apply(content: bytearray, change: Change, filler: bytes = b"\0") -> None:
    if isinstance(change, Shortened):
        del content[change.size :]
        return
    content.extend(filler * (change.offset - len(content)))
    content[change.offset : change.offset + len(change.data)] = change.data


def _arrived(changes: list[Change], mode: Mode, rng: Random) -> list[Change]:
    pieces = [piece for change in changes for piece in _sectors(change)]
    match mode:
        case "nothing":
            return []
        case "everything":
            return pieces
        case "its beginning":
            return pieces[: rng.randint(0, len(pieces))]
        case "any sectors":
            share = rng.choice((0.2, 0.5, 0.9))
            return [piece for piece in pieces if rng.random() < share]


def _sectors(change: Change) -> list[Change]:
    if isinstance(change, Shortened):
        return [change]
    first = SECTOR - change.offset % SECTOR
    starts = [0, *range(first, len(change.data), SECTOR)]
    ends = [*starts[1:], len(change.data)]
    return [Piece(change.offset + a, change.data[a:b]) for a, b in zip(starts, ends, strict=True)]


class Disk:
    """`on`: called before anything happens to the disk, which waits meanwhile."""

    def __init__(self, on: Callable[["Disk", What], None]) -> None:
        self.lock = threading.RLock()
        self._on = on
        self._names: dict[str, Inode] = {}
        self._kept: dict[str, Inode] = {}
        self._moves: list[tuple[str, Inode | None]] = []  # names that were made or deleted, and that is not synced

    def about_to(self, what: What) -> None:
        self._on(self, what)

    def has(self, name: str) -> bool:
        return name in self._names

    def made(self, name: str, *, syncs_folder: bool) -> None:
        self._names[name] = inode = Inode(syncs_folder=syncs_folder)
        self._moves.append((name, inode))

    def deleted(self, name: str, *, synced: bool) -> None:
        del self._names[name]
        self._moves.append((name, None))
        if synced:
            self._sync_folder()

    def changed(self, name: str, change: Change) -> None:
        self._names[name].changes.append(change)

    def synced(self, name: str) -> None:
        inode = self._names[name]
        inode.sync()
        if inode.syncs_folder:
            self._sync_folder()
            inode.syncs_folder = False

    def _sync_folder(self) -> None:
        self._kept = dict(self._names)
        self._moves.clear()

    def after_a_cut(self, mode: Mode, rng: Random) -> dict[str, bytes]:
        names: dict[str, Inode | None] = dict(self._kept)
        if mode != "nothing":
            number = len(self._moves) if mode == "everything" else rng.randint(0, len(self._moves))
            names |= dict(self._moves[:number])
        return {name: inode.after_a_cut(mode, rng) for name, inode in names.items() if inode is not None}
