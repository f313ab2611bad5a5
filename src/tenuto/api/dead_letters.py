"""Commands for dead letters: one by id, or all that match a filter."""

from datetime import datetime
from typing import Literal

from tenuto.kernel.definition import ErrorClass
from tenuto.runtime.shared.bulk_requests import ReprocessRequest
from tenuto.runtime.shared.filters import check_filter, milliseconds_at
from tenuto.runtime.shared.pages import Paging
from tenuto.storage.reviews import ReviewsWanted
from tenuto.views import DeadLetterRow
from tenuto.views.bulk_results import BulkResult

from .bulk_commands import check_limit
from .context import EngineContext, check_reason
from .lists import Lists
from .review_commands import ReviewCommands

Verb = Literal["reprocess", "discard"]


class DeadLetters:
    """Reprocesses and discards dead letters. Over HTTP, the service does it under its own rules."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._lists = Lists(context)
        self._resolve = ReviewCommands(context).resolve

    async def reprocess(self, id: str, *, reason: str) -> DeadLetterRow:
        """Starts the next run of the failed execution. The id of the execution works too."""
        return await self._answer("reprocess", id, reason)

    async def discard(self, id: str, *, reason: str) -> DeadLetterRow:
        """Closes the dead letter without a retry."""
        return await self._answer("discard", id, reason)

    async def _answer(self, verb: Verb, id: str, reason: str) -> DeadLetterRow:
        self._context.scope.require("dlq:write")
        check_reason(reason)

        async def resolve() -> DeadLetterRow:
            review_id = (await self._lists.dead_letter(id))["id"]
            await self._resolve(review_id, "retry" if verb == "reprocess" else "dismiss", reason=reason)
            return await self._lists.dead_letter(review_id)

        return await self._context.backend.composite.for_dead_letter(verb, id, reason, resolve)

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
        check_limit(limit)
        wanted = ReviewsWanted(
            tenant=context.scope.tenant,
            kinds=("dead_letter",),
            definition=definition,
            error_class=error_class,
            before=milliseconds_at(before, "before"),
        )
        paging = Paging("reprocess", wanted, cursor)
        request = ReprocessRequest(wanted=wanted, reason=reason, limit=limit, cursor=paging.after)
        result = await context.backend.composite.for_dead_letters(
            request, lambda id: self._resolve(id, "retry", reason=reason)
        )
        result.next_cursor = paging.sealed(result.next_cursor)
        return result
