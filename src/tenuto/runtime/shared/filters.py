"""Filters of lists, and their checks: a misspelt filter must not look like an empty list."""

from dataclasses import dataclass, replace
from datetime import datetime

from tenuto.errors import InvalidInput
from tenuto.kernel.definition import ErrorClass
from tenuto.kernel.events import ReviewKind
from tenuto.kernel.state import ExecutionStatus
from tenuto.storage.catalog import DefinitionStatus
from tenuto.values.names import check_one_of, check_text
from tenuto.views.shapes import BlockedReason

MOST_ROWS = 2**53  # more is no number that every database and every client can say


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selects executions, reviews or dead letters. A field that is None matches everything."""

    tenant: str | None = None
    status: ExecutionStatus | None = None
    definition: str | None = None
    correlation_id: str | None = None
    target_id: str | None = None
    since_ms: int | None = None
    before_ms: int | None = None
    active: bool = False  # executions that are not finished
    blocked: bool = False  # executions that cannot proceed; `before_ms` then means blocked since before that time
    newest_first: bool = False
    error_class: str | None = None
    error_code: str | None = None
    failed_step: str | None = None  # as it is shown; without a suffix it means all clones
    blocked_reason: str | None = None  # with `blocked`
    kind: str | None = None
    execution_id: str | None = None  # of reviews
    version: int | None = None
    q: str | None = None  # an execution's id or its beginning, idempotency key, target or correlation id

    @property
    def names_failure(self) -> bool:
        """Whether it selects by what only the history of a failed execution tells."""
        return self.error_code is not None or self.failed_step is not None

    def for_blocked(self) -> "Filter":
        """Selects the executions that can be blocked."""
        return replace(self, active=True, blocked=False, before_ms=None)


def check_filter(
    *,
    status: str | None = None,
    state: str | None = None,
    kind: str | None = None,
    error_class: str | None = None,
    blocked_reason: str | None = None,
    limit: int = 1,
    after: int = 0,
    **texts: str | None,
) -> None:
    """`status` is an execution's, `state` a definition's; `texts` are what else is compared, by their names."""
    for word, words, where in (
        (status, ExecutionStatus, "/status"),
        (state, DefinitionStatus, "/status"),
        (kind, ReviewKind, "/kind"),
        (error_class, ErrorClass, "/error_class"),
        (blocked_reason, BlockedReason, "/blocked_reason"),
    ):
        if word is not None:
            check_one_of(word, words, where)
    _check_number(limit, "/limit", 1)
    _check_number(after, "/after", 0)
    for name, text in texts.items():
        if text is None:
            continue
        if not isinstance(text, str):
            raise InvalidInput.at(f"/{name}", "type", "must be text")
        check_text(text, name)


def milliseconds_at(moment: datetime | None, name: str) -> int | None:
    """Since 1970."""
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise InvalidInput.at(f"/{name}", "type", "it is a moment, as a `datetime`")
    return round(moment.timestamp() * 1_000)


def _check_number(number: object, where: str, least: int) -> None:
    if not isinstance(number, int) or number < least:
        raise InvalidInput.at(where, "out_of_range", f"{least} or more")
    if number > MOST_ROWS:
        raise InvalidInput.at(where, "out_of_range", f"at most {MOST_ROWS}")
