"""What is done about dead letters: one by its id, or all that fit."""

from collections.abc import Callable, Coroutine
from datetime import datetime
from time import monotonic
from typing import Any, Literal

from tenuto.errors import InvalidInput
from tenuto.kernel.definition import ErrorClass
from tenuto.runtime.port import BulkResult
from tenuto.runtime.shared.filters import check_filter, milliseconds_at
from tenuto.runtime.shared.pages import Paging
from tenuto.storage.reviews import ReviewsWanted
from tenuto.views import DeadLetterRow

from .bulk_commands import AT_ONCE, CALL_SECONDS, MOST, run_commands
from .context import EngineContext, check_reason
from .lists import Lists

Verb = Literal["reprocess", "discard"]


class DeadLetters:
    """Where executions are told elsewhere, whoever is there does it, under the rules that hold there."""

    def __init__(self, context: EngineContext, resolve: Callable[..., Coroutine[Any, Any, None]]) -> None:
        self._context = context
        self._listing = Lists(context)
        self._resolve = resolve

    async def reprocess(self, id: str, *, reason: str) -> DeadLetterRow:
        """Opens the next run of what failed. The id may be that of the execution."""
        return await self._answer("reprocess", id, reason)

    async def discard(self, id: str, *, reason: str) -> DeadLetterRow:
        """Lets it go: nothing is tried again."""
        return await self._answer("discard", id, reason)

    async def _answer(self, verb: Verb, id: str, reason: str) -> DeadLetterRow:
        self._context.scope.require("dlq:write")
        check_reason(reason)
        elsewhere = await self._context.runtime.answer_letter(verb, id, reason)
        if elsewhere is not None:
            return elsewhere
        letter = (await self._listing.dead_letter(id))["id"]
        await self._resolve(letter, "retry" if verb == "reprocess" else "dismiss", reason=reason)
        return await self._listing.dead_letter(letter)

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
        """All that fit, oldest first, `limit` (1,000 at most). What is refused stays where it is, with the reason."""
        context = self._context
        context.scope.require("dlq:write")
        check_reason(reason)
        check_filter(error_class=error_class, definition=definition)
        if not 1 <= limit <= MOST:
            raise InvalidInput.at("/limit", "out_of_range", f"from 1 to {MOST}")
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
        """A few at a time. Where that takes long, or verdicts are long in coming, the rest is for another call."""
        acted, until = BulkResult(), monotonic() + CALL_SECONDS
        while limit > 0:
            page = await self._context.runtime.review_page(wanted, cursor, min(limit, AT_ONCE))
            await run_commands({row.id: self._resolve(row.id, "retry", reason=reason) for row in page.items}, acted)
            limit -= len(page.items)
            acted.next_cursor = cursor = page.next_cursor
            if cursor is None or acted.pending or monotonic() >= until:
                break
        return acted
