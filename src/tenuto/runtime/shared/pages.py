"""Pages of a list. A cursor is the position of the next page; every other list refuses it.

A cursor is also bound to its filter and order, because with another one it would omit or repeat rows. That is a check
against mistakes, not access control: a cursor shows nothing that its user may not read without it. The check has no
secret, so a client can forge any position. Code that reads a position validates it (`number_at`, `id_at`).
"""

import base64
import re
from hashlib import blake2b
from typing import TypeVar

import msgspec

from tenuto.errors import BadCursor
from tenuto.views.pages import Page

T = TypeVar("T")
_CHECK_BYTES = 6
_ID = re.compile(r"[0-9a-f]+(\.[0-9]+)?")  # of an execution or of a review
LARGEST_NUMBER = 2**53


class Paging:
    """A page that is asked for, `after` a position of the list; None: the first one."""

    def __init__(self, of: str, wanted: object, cursor: str | None) -> None:
        """`wanted` is the filter, as a struct, a dataclass or a mapping."""
        filters = msgspec.to_builtins(wanted)
        self._bound = (of, sorted(each for each in filters.items() if each[1]))  # what is unset says nothing
        self.after = None if cursor is None else self._opened(cursor)

    @property
    def first(self) -> int:
        """Where positions are how many came before."""
        return 0 if self.after is None else number_at(self.after)

    def page(self, items: list[T], last: str | int | None) -> Page[T]:
        """`last` is the position that it ends at, None if nothing comes after it."""
        return Page(items, self.sealed(last))

    def sealed(self, position: str | int | None) -> str | None:
        """What a caller gets is not to be understood, only given back."""
        if position is None:
            return None
        text = f"{position}"
        check = blake2b(ascii((self._bound, text)).encode(), digest_size=_CHECK_BYTES).digest()
        return base64.urlsafe_b64encode(check + text.encode()).decode().rstrip("=")

    def _opened(self, cursor: str) -> str:
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            position = raw[_CHECK_BYTES:].decode()
        except (TypeError, ValueError):
            position = None
        if not position or "\0" in position or self.sealed(position) != cursor:
            raise bad_cursor()
        return position


def bad_cursor() -> BadCursor:
    return BadCursor.at("/cursor", "bad_cursor", "it is not a cursor of this list, asked for in this way")


def number_at(position: str, largest: int = LARGEST_NUMBER) -> int:
    """A position that is a number, from 0 on."""
    if not (position.isascii() and position.isdecimal() and len(position) <= len(f"{largest}")):
        raise bad_cursor()
    if (number := int(position)) > largest:
        raise bad_cursor()
    return number


def id_at(position: str | None) -> str | None:
    """A position that is the id of an execution or of a review."""
    if position is not None and _ID.fullmatch(position) is None:
        raise bad_cursor()
    return position


def part_of(paging: Paging, rows: list[T], limit: int) -> Page[T]:
    """Of what is read whole."""
    end = paging.first + limit
    return paging.page(rows[paging.first : end], end if end < len(rows) else None)
