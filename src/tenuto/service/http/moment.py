"""Moments in requests: RFC 3339, with their offset. Numbers are not taken for seconds since anything."""

import re
from typing import Annotated

from pydantic import AwareDatetime, BeforeValidator, Strict

_FORM = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d")


def _as_written(value: object) -> object:
    if not isinstance(value, str) or _FORM.match(value) is None:
        raise ValueError("a moment is written as in RFC 3339: 2026-11-16T09:30:00Z")
    return value


Timestamp = Annotated[AwareDatetime, BeforeValidator(_as_written), Strict(False)]
