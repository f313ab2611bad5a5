"""What was done already, noted in the transaction that does it: both are committed, or neither is.

Two that come at once with the same id wait for one another: the second finds the first one's note, or, if that was
rolled back, is the first.
"""

from tenuto.errors import StorageError

from .caller_connections import Caller, is_missing_table
from .shared.rows import insert

_NOTE = insert("inbox", ("consumer", "id", "at"), ignore=True)


async def note_once(caller: Caller, consumer: str, id: str, now: int) -> bool:
    """Whether this is the first time that this consumer notes this id."""
    try:
        return await caller.change(_NOTE, consumer, id, now) == 1
    except Exception as error:
        if is_missing_table(error):
            raise StorageError(
                "The connection's database has no tenuto schema.",
                code="other_database",
                hint="connect to the database that the engine's URL names; with PostgreSQL, check the search_path too",
            ) from error
        raise
