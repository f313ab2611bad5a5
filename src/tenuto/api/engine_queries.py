"""The part of `Engine` that lists and counts."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypedDict, TypeVar, get_args

import msgspec

from tenuto.kernel.definition import ErrorClass, plain_name, to_document
from tenuto.kernel.events import ReviewKind
from tenuto.kernel.state import ExecutionStatus
from tenuto.runtime.shared.filters import Filter, check_filter, milliseconds_at
from tenuto.runtime.shared.reviews import dead_letter_document, review_document
from tenuto.storage.reviews import ReviewsWanted
from tenuto.values.names import check_one_of
from tenuto.views import DeadLetterRow, ExecutionSummary, ReviewRow, WorkerRow
from tenuto.views.feed import FeedChunk, FeedDocument
from tenuto.views.overview import OverviewDocument
from tenuto.views.pages import Page
from tenuto.views.shapes import BlockedReason

from .context import EngineContext
from .feed import feed_chunks, feed_documents
from .handle import Handle
from .lists import Lists

T = TypeVar("T")

PAGE = 100


class DefinitionDocument(TypedDict):
    name: str
    version: int
    status: Literal["draft", "published", "deprecated"]
    hash: str
    definition: Any


class EngineQueries:
    """Lists and counts executions and what belongs to them."""

    _context: EngineContext

    async def definitions(self, *, name: str | None = None) -> AsyncIterator[DefinitionDocument]:
        """Yields the registered and published definitions, each with the canonical document of its plan."""
        self._context.scope.require("definitions:read")
        owner = self._context.scope.tenant
        for found in await self._context.backend.programs.published():
            definition = found.definition
            tenant, _, plain = definition.name.rpartition("/")
            if name in (None, plain) and (not tenant or owner in (None, tenant)):
                yield {
                    "name": plain,
                    "version": definition.version,
                    "status": found.status,
                    "hash": found.plan_hash,
                    "definition": to_document(msgspec.structs.replace(definition, name=plain)),
                }

    async def executions(
        self,
        *,
        status: ExecutionStatus | None = None,
        definition: str | None = None,
        correlation_id: str | None = None,
        target_id: str | None = None,
        since: datetime | None = None,
    ) -> AsyncIterator[Handle[Any]]:
        """Yields the matching executions, oldest first."""
        self._context.scope.require("executions:read")
        check_filter(status=status, definition=definition, correlation_id=correlation_id, target_id=target_id)
        wanted = Filter(
            tenant=self._context.scope.tenant,
            status=status,
            definition=definition,
            correlation_id=correlation_id,
            target_id=target_id,
            since_ms=milliseconds_at(since, "since"),
        )
        async for summary in _pages(lambda cursor: self._context.backend.executions.page(wanted, cursor, PAGE)):
            yield Handle(self._context, summary["execution_id"])

    async def summaries(
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
        newest_first: bool = False,
    ) -> AsyncIterator[ExecutionSummary]:
        """Yields a summary of each matching execution.

        `blocked` selects executions that cannot proceed, and says why. `before` then means blocked since before that
        time; otherwise it means started before it. `blocked_reason` selects blocked executions with this reason.
        `error_code` and `failed_step` select executions that ended with this error, or because of this step; a
        fan-out's step means all of its clones. `q` finds executions by their id or its beginning, their idempotency
        key, target or correlation id.
        """
        page = partial(
            Lists(self._context).executions,
            status=status,
            definition=definition,
            correlation_id=correlation_id,
            target_id=target_id,
            since=since,
            before=before,
            version=version,
            error_class=error_class,
            error_code=error_code,
            failed_step=failed_step,
            blocked_reason=blocked_reason,
            q=q,
            blocked=blocked,
            newest_first=newest_first,
            limit=PAGE,
        )
        async for summary in _pages(lambda cursor: page(cursor=cursor)):
            yield summary

    async def workers(self) -> list[WorkerRow]:
        """Returns the worker processes and their load. An engine scoped to a tenant gets an empty list."""
        self._context.scope.require("executions:read")
        return await self._context.backend.operations.workers() if self._context.scope.is_deployment else []

    async def count(
        self,
        *,
        group_by: Literal["status", "definition"] = "status",
        definition: str | None = None,
        correlation_id: str | None = None,
    ) -> Mapping[str, int]:
        """Counts executions by status or by definition."""
        self._context.scope.require("executions:read")
        check_one_of(group_by, Literal["status", "definition"], "/group_by")
        check_filter(definition=definition, correlation_id=correlation_id)
        wanted = Filter(tenant=self._context.scope.tenant, definition=definition, correlation_id=correlation_id)
        counts = await self._context.backend.executions.count(wanted, group_by)
        return _by_plain_name(counts) if group_by == "definition" and self._context.scope.tenant is not None else counts

    async def overview(self) -> OverviewDocument:
        """Returns figures of the tenant: executions by status, open reviews and dead letters, workers, queues.

        Calls at the same time share one computation. Counts stop at `counted_to`.
        """
        scope = self._context.scope
        scope.require("executions:read")
        found = await self._context.backend.feed.overview(scope.tenant)
        return found if scope.is_deployment else {**found, "workers": None}

    async def feed(self, *, watch: Iterable[str] = (), after: str | None = None) -> AsyncIterator[FeedDocument]:
        """Yields status changes of the tenant's executions as they happen, and all events of those in `watch`.

        `watch` takes up to 20 ids, or `ID:SEQ` for the events after event number SEQ. `after` is the `id` of an event
        that you have seen: the feed continues there. After `reset`, changes were missed: read the lists again. Several
        changes of an execution may be one event, and an event may be repeated: compare `seq`.
        """
        async for document in feed_documents(self._context, watch, after):
            yield document

    def feed_chunks(self, watch: Iterable[str] = (), after: str | None = None) -> AsyncIterator[FeedChunk]:
        """Returns the feed for a server: encoded once for all its viewers. The first chunk says where it begins."""
        return feed_chunks(self._context, watch, after)

    async def reviews(
        self, *, kind: ReviewKind | None = None, definition: str | None = None, execution_id: str | None = None
    ) -> AsyncIterator[ReviewRow]:
        """Yields everything that waits for a person, including dead letters. `kind` selects one kind."""
        self._context.scope.require("reviews:read")
        check_filter(kind=kind, definition=definition, execution_id=execution_id)
        wanted = ReviewsWanted(
            tenant=self._context.scope.tenant,
            kinds=get_args(ReviewKind) if kind is None else (kind,),
            definition=definition,
            execution=execution_id,
        )
        async for row in _pages(lambda cursor: self._context.backend.reviews.page(wanted, cursor, PAGE)):
            yield review_document(row)

    async def dlq(
        self, *, definition: str | None = None, error_class: ErrorClass | None = None
    ) -> AsyncIterator[DeadLetterRow]:
        """Yields the open dead letters: one for each execution that failed for good."""
        self._context.scope.require("dlq:read")
        check_filter(error_class=error_class, definition=definition)
        wanted = ReviewsWanted(
            tenant=self._context.scope.tenant, kinds=("dead_letter",), definition=definition, error_class=error_class
        )
        async for row in _pages(lambda cursor: self._context.backend.reviews.page(wanted, cursor, PAGE)):
            yield dead_letter_document(row)


async def _pages(fetch: Callable[[str | None], Awaitable[Page[T]]]) -> AsyncIterator[T]:
    cursor: str | None = None
    while True:
        page = await fetch(cursor)
        for item in page.items:
            yield item
        cursor = page.next_cursor
        if cursor is None:
            return


def _by_plain_name(counts: Mapping[str, int]) -> dict[str, int]:
    """Adds up counts by plain name: a tenant's definition and the deployment's can have the same name."""
    found: dict[str, int] = {}
    for name, count in counts.items():
        found[plain_name(name)] = found.get(plain_name(name), 0) + count
    return found
