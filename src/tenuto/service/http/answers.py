"""Answers: JSON, and pages of it."""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Annotated, Any

import msgspec
from fastapi import Query
from starlette.responses import Response

from tenuto.paging import Paging
from tenuto.runtime import Page

MAX_PAGE = 100

Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before", max_length=2_000)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="how many items at most")]


def answer(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(document), status, headers, "application/json")


def page(found: Page[Any]) -> Response:
    return answer({"items": found.items, "next_cursor": found.next_cursor})


def part(of: str, rows: Iterable[Mapping[str, Any]], by: str, cursor: str | None, limit: int) -> Response:
    """A page of what is read whole because there is little of it, in the order of a field that tells all apart."""
    paging = Paging(of, {}, cursor)
    left = sorted((row for row in rows if row[by] > (paging.after or "")), key=itemgetter(by))
    return page(paging.page(left[:limit], left[limit - 1][by] if len(left) > limit else None))
