"""Answers: JSON, and pages of it with opaque cursors."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Annotated, Any

import msgspec
from fastapi import Query
from starlette.responses import Response

from tenuto.errors import InvalidInput

MAX_PAGE = 100
_MARK = b"c1:"

Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before", max_length=1_000)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="how many items at most")]


def answer(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(document), status, headers, "application/json")


def page(items: list[Any], next_cursor: str | None) -> Response:
    return answer({"items": items, "next_cursor": None if next_cursor is None else sealed(next_cursor)})


def part(rows: Iterable[Mapping[str, Any]], by: str, cursor: str | None, limit: int) -> Response:
    """A page of what is read whole because there is little of it, in the order of a field that tells all apart."""
    after = opened(cursor) or ""
    left = sorted((row for row in rows if row[by] > after), key=itemgetter(by))
    return page(left[:limit], left[limit - 1][by] if len(left) > limit else None)


def sealed(cursor: str) -> str:
    """What a caller gets is not to be understood, only given back."""
    return base64.urlsafe_b64encode(_MARK + cursor.encode()).decode().rstrip("=")


def opened(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        found = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        if found.startswith(_MARK) and (text := found.removeprefix(_MARK).decode()).isprintable():
            return text
    except (binascii.Error, ValueError):
        pass
    raise InvalidInput.at("/query/cursor", "bad_cursor", "it is not a cursor of this list")


def numbered(cursor: str | None) -> int | None:
    """Of lists whose cursors are numbers."""
    text = opened(cursor)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise InvalidInput.at("/query/cursor", "bad_cursor", "it is not a cursor of this list")
    return int(text)
