"""Pages of executions, reviews and dead letters."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import get_args

from tenuto.errors import NotFound
from tenuto.kernel.definition import ErrorClass
from tenuto.kernel.events import ReviewKind
from tenuto.kernel.state import ExecutionStatus, StepStatus
from tenuto.runtime.shared.filters import Filter, check_filter, milliseconds_at
from tenuto.runtime.shared.pages import Paging, part_of
from tenuto.runtime.shared.reviews import dead_letter_document, review_document
from tenuto.storage.reviews import ReviewsWanted
from tenuto.values.names import check_one_of
from tenuto.views import (
    AttemptRow,
    CloneDocument,
    DeadLetterRow,
    EventDocument,
    ExecutionSummary,
    ReviewRow,
    clone_documents,
    event_document,
    last_trace,
)
from tenuto.views.pages import Page
from tenuto.views.shapes import AttemptKind, BlockedReason

from .context import EngineContext


@contextmanager
def _as_dead_letter(id: str) -> Iterator[None]:
    """Reports a missing execution or review as a missing dead letter."""
    try:
        yield
    except NotFound:
        raise NotFound(f"There is no dead letter {id!r}.") from None


class Lists:
    """Returns lists one page at a time. Pass `next_cursor` of a page as `cursor` for the next one."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context

    async def executions(
        self,
        *,
        status: ExecutionStatus | None = None,
        definition: str | None = None,
        correlation_id: str | None = None,
        target_id: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        version: int | None = None,
        error_class: ErrorClass | None = None,
        error_code: str | None = None,
        failed_step: str | None = None,
        blocked_reason: BlockedReason | None = None,
        q: str | None = None,
        blocked: bool = False,
        newest_first: bool = True,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[ExecutionSummary]:
        """Lists executions. `blocked` selects those that cannot proceed, and says why.

        `before` then means blocked since before that time; otherwise it means started before it. `blocked_reason`
        selects blocked executions with this reason. `error_code` and `failed_step` select executions that ended with
        this error, or because of this step; a fan-out's step means all of its clones. With any of these filters, a page
        may hold fewer than `limit` although there are more: the executions that it is chosen from are read one by one.
        `q` finds executions by their id or its beginning, their idempotency key, target or correlation id.
        """
        context = self._context
        context.scope.require("executions:read")
        check_filter(
            status=status,
            limit=limit,
            error_class=error_class,
            blocked_reason=blocked_reason,
            error_code=error_code,
            failed_step=failed_step,
            definition=definition,
            correlation_id=correlation_id,
            target_id=target_id,
            q=q,
        )
        wanted = Filter(
            tenant=context.scope.tenant,
            status=status,
            definition=definition,
            correlation_id=correlation_id,
            target_id=target_id,
            since_ms=milliseconds_at(since, "since"),
            before_ms=milliseconds_at(before, "before"),
            blocked=blocked or blocked_reason is not None,
            newest_first=newest_first,
            version=version,
            error_class=error_class,
            error_code=error_code,
            failed_step=failed_step,
            blocked_reason=blocked_reason,
            q=q,
        )
        paging = Paging("executions", wanted, cursor)
        found = await context.backend.executions.page(wanted, paging.after, limit)
        return paging.page(found.items, found.next_cursor)

    async def statuses(self, ids: Sequence[str]) -> dict[str, ExecutionStatus]:
        """Returns the statuses of those of these executions that exist."""
        self._context.scope.require("executions:read")
        return await self._context.backend.executions.statuses(self._context.scope.tenant, ids)

    async def reviews(
        self,
        *,
        kind: ReviewKind | None = None,
        definition: str | None = None,
        execution_id: str | None = None,
        resolved: bool = False,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[ReviewRow]:
        """Lists everything that waits for a person, including dead letters, oldest first."""
        context = self._context
        context.scope.require("reviews:read")
        check_filter(kind=kind, limit=limit, definition=definition, execution_id=execution_id)
        kinds = get_args(ReviewKind) if kind is None else (kind,)
        wanted = ReviewsWanted(
            tenant=context.scope.tenant, kinds=kinds, definition=definition, execution=execution_id, resolved=resolved
        )
        paging = Paging("reviews", wanted, cursor)
        found = await context.backend.reviews.page(wanted, paging.after, limit)
        return paging.page([review_document(row) for row in found.items], found.next_cursor)

    async def dlq(
        self,
        *,
        definition: str | None = None,
        error_class: ErrorClass | None = None,
        before: datetime | None = None,
        resolved: bool = False,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[DeadLetterRow]:
        """Lists dead letters, oldest first."""
        context = self._context
        context.scope.require("dlq:read")
        check_filter(error_class=error_class, limit=limit, definition=definition)
        wanted = ReviewsWanted(
            tenant=context.scope.tenant,
            kinds=("dead_letter",),
            definition=definition,
            error_class=error_class,
            before=milliseconds_at(before, "before"),
            resolved=resolved,
        )
        paging = Paging("dlq", wanted, cursor)
        found = await context.backend.reviews.page(wanted, paging.after, limit)
        return paging.page([dead_letter_document(row) for row in found.items], found.next_cursor)

    async def review(self, id: str) -> ReviewRow:
        """Returns one review, open or resolved."""
        self._context.scope.require("reviews:read")
        return review_document(await self._context.backend.reviews.find(self._context.scope.tenant, id))

    async def dead_letter(self, id: str, *, trace: bool = False) -> DeadLetterRow:
        """Returns one dead letter, open or resolved. The id of an execution means its open dead letter.

        With `trace`, it tells where the handler raised, if the caller may read the execution.
        """
        self._context.scope.require("dlq:read")
        found = id if "." in id else await self._open_dead_letter(id)
        with _as_dead_letter(id):
            row = await self._context.backend.reviews.find(self._context.scope.tenant, found)
            if row.kind != "dead_letter":
                raise NotFound
        document = dead_letter_document(row)
        if trace:
            document["error_trace"] = None
            if self._context.scope.permits("executions:read"):
                reading = await self._context.read(row.execution)
                document["error_trace"] = last_trace(reading.history, row.path, row.opened_at)
        return document

    async def _open_dead_letter(self, execution_id: str) -> str:
        with _as_dead_letter(execution_id):
            reading = await self._context.read(execution_id)
        for review in reading.state.reviews.values():
            if review.kind == "dead_letter":
                return review.id
        raise NotFound(f"Execution {execution_id} has no open dead letter.")

    # Lists of one execution

    async def attempts(
        self,
        id: str,
        *,
        step_id: str | None = None,
        kind: AttemptKind | None = None,
        status: StepStatus | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[AttemptRow]:
        """Lists attempts in the order in which they ended, open ones last.

        `step_id` selects those of a step, with all clones of a fan-out, or of one clone.
        """
        self._context.scope.require("executions:read")
        check_filter(limit=limit, step_id=step_id)
        for word, words, where in ((kind, AttemptKind, "/kind"), (status, StepStatus, "/status")):
            if word is not None:
                check_one_of(word, words, where)
        chosen = {"step_id": step_id, "kind": kind, "status": status}
        given = {name: value for name, value in chosen.items() if value is not None}
        paging = Paging("attempts", {"execution": id, **given}, cursor)
        reading = await self._context.read(id)
        rows = reading.attempts
        if given:
            rows = [row for row in rows if _is_chosen(row, step_id, kind, status)]
        return part_of(paging, rows, limit)

    async def events(
        self, id: str, *, after: int = 0, cursor: str | None = None, limit: int = 100
    ) -> Page[EventDocument]:
        """Lists recorded events after the event number `after`."""
        self._context.scope.require("executions:read")
        check_filter(limit=limit, after=after)
        paging = Paging("events", {"execution": id, "after": after}, cursor)
        first = max(after, paging.first)
        context = self._context
        found = await context.backend.executions.events(context.scope.tenant, id, first, limit + 1)
        more = first + limit if len(found) > limit else None
        return paging.page([event_document(entry) for entry in found[:limit]], more)

    async def clones(self, id: str, step: str, *, cursor: str | None = None, limit: int = 100) -> Page[CloneDocument]:
        """Lists the clones of a fan-out in the order of its items."""
        self._context.scope.require("executions:read")
        check_filter(limit=limit)
        paging = Paging("clones", {"execution": id, "step": step}, cursor)
        reading = await self._context.read_state(id)
        found = clone_documents(reading.state, step, paging.first, limit + 1)
        if found is None:
            raise NotFound(f"Execution {id} has no fan-out {step!r}.")
        return paging.page(found[:limit], paging.first + limit if len(found) > limit else None)


def _is_chosen(row: AttemptRow, step_id: str | None, kind: AttemptKind | None, status: StepStatus | None) -> bool:
    named = step_id is None or step_id in (row["step_id"], row["step_id"].partition("#")[0])
    return named and kind in (None, row["kind"]) and status in (None, row["status"])
