"""Commands for dead letters: one by id, or all that match a filter."""

from collections.abc import Callable, Coroutine
from datetime import datetime
from time import monotonic
from typing import Any, Literal

from tenuto.errors import InvalidInput
from tenuto.kernel.definition import ErrorClass
from tenuto.runtime.shared.filters import check_filter, milliseconds_at
from tenuto.runtime.shared.pages import Paging
from tenuto.storage.reviews import ReviewsWanted
from tenuto.views import DeadLetterRow
from tenuto.views.bulk_results import BulkResult

from .bulk_commands import CALL_SECONDS, CONCURRENCY, MAX_PER_CALL, run_commands
from .context import EngineContext, check_reason
from .lists import Lists

Verb = Literal["reprocess", "discard"]


class DeadLetters:
    """Reprocesses and discards dead letters. Over HTTP, the service does it under its own rules."""

    def __init__(self, context: EngineContext, resolve: Callable[..., Coroutine[Any, Any, None]]) -> None:
        self._context = context
        self._lists = Lists(context)
        self._resolve = resolve

    async def reprocess(self, id: str, *, reason: str) -> DeadLetterRow:
        """Starts the next run of the failed execution. The id of the execution works too."""
        return await self._answer("reprocess", id, reason)

    async def discard(self, id: str, *, reason: str) -> DeadLetterRow:
        """Closes the dead letter without a retry."""
        return await self._answer("discard", id, reason)

    async def _answer(self, verb: Verb, id: str, reason: str) -> DeadLetterRow:
        self._context.scope.require("dlq:write")
        check_reason(reason)
        elsewhere = await self._context.runtime.answer_letter(verb, id, reason)
        if elsewhere is not None:
            return elsewhere
        review_id = (await self._lists.dead_letter(id))["id"]
        await self._resolve(review_id, "retry" if verb == "reprocess" else "dismiss", reason=reason)
        return await self._lists.dead_letter(review_id)

    async def reprocess_many(
        self,
        *,
        reason: str,
        definition: str | None = None,
        error_class: ErrorClass | None = None,
        before: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> BulkResult:
        """Reprocesses up to `limit` (at most 1,000) matching dead letters, oldest first.

        Refused ones are reported with a reason and left unchanged.
        """
        context = self._context
        context.scope.require("dlq:write")
        check_reason(reason)
        check_filter(error_class=error_class, definition=definition)
        if not 1 <= limit <= MAX_PER_CALL:
            raise InvalidInput.at("/limit", "out_of_range", f"must be from 1 to {MAX_PER_CALL}")
        wanted = ReviewsWanted(
            tenant=context.scope.tenant,
            kinds=("dead_letter",),
            definition=definition,
            error_class=error_class,
            before=milliseconds_at(before, "before"),
        )
        paging = Paging("reprocess", wanted, cursor)
        given: dict[str, Any] = {"reason": reason, "limit": limit, "cursor": paging.after}
        acted = await context.runtime.reprocess(wanted, given)
        if acted is None:
            acted = await self._each(wanted, paging.after, limit, reason)
        acted.next_cursor = paging.sealed(acted.next_cursor)
        return acted

    async def _each(self, wanted: ReviewsWanted, cursor: str | None, limit: int, reason: str) -> BulkResult:
        """Works in small batches. Stops early when time is up or verdicts are late; the rest needs another call."""
        acted, until = BulkResult(), monotonic() + CALL_SECONDS
        while limit > 0:
            page = await self._context.runtime.review_page(wanted, cursor, min(limit, CONCURRENCY))
            await run_commands({row.id: self._resolve(row.id, "retry", reason=reason) for row in page.items}, acted)
            limit -= len(page.items)
            acted.next_cursor = cursor = page.next_cursor
            if cursor is None or acted.pending or monotonic() >= until:
                break
        return acted
