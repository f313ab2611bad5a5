"""How many bytes a system keeps on disk."""

from pathlib import Path

import apsw
import psycopg

IN_MEMORY = {"tmpfs", "ramfs"}


def file_system(directory: Path) -> str:
    """The kind of file system that a directory is on. In memory nothing is durable, and `fsync` costs nothing."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(len(Path(point).parts), kind) for point, kind in mounts if directory.resolve().is_relative_to(point)]
    return max(above)[1]


def files_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def sqlite_bytes(path: Path) -> int:
    """The file after a checkpoint, without the write-ahead log, whose size depends on when one looks."""
    connection = apsw.Connection(str(path))
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.close()
    return path.stat().st_size


def database_bytes(dsn: str) -> int:
    """Tables and indexes; the write-ahead log, whose files are used again and again, is not in it."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return int(row[0])
