"""What goes on for ever must not end because of one bad round."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from tenuto.errors import StorageError

logger = logging.getLogger("tenuto.runtime")

# What the last round of a task failed for, by what it was for. A process may have several engines.
_troubled: "WeakKeyDictionary[asyncio.Task[Any], dict[str, str]]" = WeakKeyDictionary()


@contextmanager
def supervised(what: str) -> Iterator[None]:
    """Runs one round of a loop. Logs a storage error once until a round succeeds, and other errors each time."""
    try:
        yield
    except StorageError as error:
        troubles = _troubled.setdefault(_task(), {})
        if troubles.get(what) != error.code:
            troubles[what] = error.code
            extra = {"action": "round_failed", "code": error.code}
            logger.warning("%s failed, and will be tried again: %s", what, error.message, extra=extra)
    except Exception as error:
        report(f"{what} failed, and will be tried again.", error)
    else:
        if _troubled:
            _troubled.get(_task(), {}).pop(what, None)


def _task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None
    return task


def report(message: str, error: Exception) -> None:
    """Reports an error to the event loop's exception handler. The loop that failed continues."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
