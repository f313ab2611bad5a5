"""Numbered SQL, one folder per dialect: a schema is what its migrations make of an empty database.

A migration runs in one transaction together with the row that records it, so a process that is killed in the middle
leaves nothing of it behind. Files that were applied may not change (their checksum is kept), and a database that knows
migrations which this program does not is refused: it belongs to a newer release.
"""

import hashlib
from importlib import resources
from typing import NamedTuple

from tenuto.errors import StorageError

MIGRATIONS_TABLE = (
    "CREATE TABLE IF NOT EXISTS tenuto_migrations "
    "(number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at BIGINT NOT NULL)"
)
NO_SCHEMA = "run `tenuto migrate`, or check the URL"  # what to do


class Migration(NamedTuple):
    number: int
    name: str
    sql: str
    checksum: str


def migrations(dialect: str) -> list[Migration]:
    folder = resources.files(__package__).joinpath(dialect)
    found = []
    for file in folder.iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            sql = file.read_text(encoding="utf-8")
            found.append(Migration(int(number), name, sql, hashlib.sha256(sql.encode()).hexdigest()))
    return sorted(found)


def missing(known: list[Migration], applied: dict[int, str]) -> list[Migration]:
    """What is still to be applied; an error when the database is newer than the program, or was made by other files."""
    numbers = {migration.number for migration in known}
    newer = sorted(number for number in applied if number not in numbers)
    if newer:
        raise StorageError(
            f"the database has schema version {newer[-1]}, this program knows up to {max(numbers)}",
            code="newer_schema",
            hint="run a release of tenuto that is at least as new as the one that migrated the database",
        )
    for migration in known:
        if applied.get(migration.number, migration.checksum) != migration.checksum:
            raise StorageError(
                f"migration {migration.number} ({migration.name}) was applied with other contents",
                code="changed_migration",
                hint="the database was made by a modified release; restore the original files",
            )
    return [migration for migration in known if migration.number not in applied]
