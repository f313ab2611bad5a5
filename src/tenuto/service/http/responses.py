"""JSON responses and pages."""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Annotated, Any

import msgspec
from fastapi import Query
from starlette.responses import Response

from tenuto.runtime.shared.pages import Paging
from tenuto.views.pages import Page

MAX_PAGE = 100

Cursor = Annotated[str | None, Query(description="`next_cursor` of the previous page", max_length=2_000)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="the maximum number of items")]


class _Json(Response):
    """A response with fixed headers: the framework would search them for a content type."""

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
    """A page of a short list that is read completely, in the order of a unique field."""
    paging = Paging(of, {}, cursor)
    left = sorted((row for row in rows if row[by] > (paging.after or "")), key=itemgetter(by))
    return page_response(paging.page(left[:limit], left[limit - 1][by] if len(left) > limit else None))
