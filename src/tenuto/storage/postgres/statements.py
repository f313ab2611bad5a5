"""Parts of statements that several modules need, on PostgreSQL."""

from collections.abc import Sequence
from typing import Any

NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
INCARNATION = "(SELECT number FROM incarnation WHERE id = 1)"
IS_LIVE = f"ended_at IS NULL AND incarnation = {INCARNATION}"
LIVE = f"SELECT id FROM sessions WHERE id = $1 AND {IS_LIVE} FOR SHARE"


def columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Rows turned on their side, for `unnest`; as many columns where there are no rows."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
