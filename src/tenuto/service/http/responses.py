"""Answers: JSON, and pages of it."""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Annotated, Any

import msgspec
from fastapi import Query
from starlette.responses import Response

from tenuto.runtime.port import Page
from tenuto.runtime.shared.pages import Paging

MAX_PAGE = 100

Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before", max_length=2_000)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="how many items at most")]


class _Json(Response):
    """An answer of which it is known what it is: the framework would look for that among its headers."""

    media_type = "application/json"

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        own = [(b"content-length", b"%d" % len(self.body)), (b"content-type", b"application/json")]
        for name, value in (headers or {}).items():
            own.append((name.lower().encode("latin-1"), value.encode("latin-1")))
        self.raw_headers = own


def json_response(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return _Json(msgspec.json.encode(document), status, headers)


def page_response(found: Page[Any]) -> Response:
    return json_response({"items": found.items, "next_cursor": found.next_cursor})


def page_of_rows(of: str, rows: Iterable[Mapping[str, Any]], by: str, cursor: str | None, limit: int) -> Response:
    """A page of what is read whole because there is little of it, in the order of a field that tells all apart."""
    paging = Paging(of, {}, cursor)
    left = sorted((row for row in rows if row[by] > (paging.after or "")), key=itemgetter(by))
    return page_response(paging.page(left[:limit], left[limit - 1][by] if len(left) > limit else None))
