"""What goes on for ever must not end because of one bad round."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tenuto.errors import StorageError


@contextmanager
def enduring(what: str) -> Iterator[None]:
    """One round. A database that is away waits for the next one; any other error is said as well, and waits too."""
    try:
        yield
    except StorageError:
        return
    except Exception as error:
        report(f"{what} failed, and will be tried again.", error)


def report(message: str, error: Exception) -> None:
    """To whoever runs the event loop: what happened is nobody else's affair, and goes on."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
