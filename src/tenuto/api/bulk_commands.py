"""Bulk commands: one command for all executions that match a filter.

Each execution gets its own command. Refused ones are reported with a reason and left unchanged.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from time import monotonic
from typing import Any, Literal, TypedDict

from tenuto.errors import EngineClosed, InvalidInput, NotAuthenticated, ServiceError, StorageError, TenutoError
from tenuto.kernel.definition import CancelMode
from tenuto.runtime.port import Executions, Reviews
from tenuto.runtime.shared.bulk_requests import BulkRequest, ReprocessRequest
from tenuto.runtime.shared.filters import Filter, check_filter, milliseconds_at
from tenuto.runtime.shared.pages import Paging
from tenuto.values.names import check_one_of
from tenuto.views import DeadLetterRow
from tenuto.views.bulk_results import BulkResult, RefusedItem

from .context import EngineContext, check_reason
from .handle import Handle

MAX_PER_CALL = 1_000
CONCURRENCY = 20  # commands for executions of other processes wait for their verdicts together
PAGE = 500
MAX_COUNTED = 10_000  # remaining executions beyond this are not counted
VERDICT_SECONDS = 5.0
# Limits one call; the rest needs another call. A caller gives up after a minute, and its idempotency key is then free
# again: a call that continued beyond that could be carried out twice.
CALL_SECONDS = 20.0
COUNT_SECONDS = 5.0  # in addition

ActiveStatus = Literal["running", "waiting_approval", "paused"]


class ExecutionFilter(TypedDict, total=False):
    """Selects executions. They were started at `since` or later, and before `before`."""

    definition: str | None
    correlation_id: str | None
    target_id: str | None
    since: datetime | None
    before: datetime | None


class BulkCommand:
    """Sends one command to all executions of a tenant that match a filter, oldest first."""

    def __init__(
        self, context: EngineContext, wanted: Filter, *, limit: int, cursor: str | None, dry_run: bool
    ) -> None:
        check_limit(limit)
        self._context = context
        self._wanted = wanted
        self._limit = limit
        self._cursor = cursor
        self._dry_run = dry_run

    async def cancel(self, mode: CancelMode | None, reason: str) -> BulkResult:
        """Cancels the matching executions that are not finished. Repeating it changes nothing."""
        if mode is not None:
            check_one_of(mode, CancelMode, "/mode")
        if self._wanted.status is not None:
            check_one_of(self._wanted.status, ActiveStatus, "/status")
        self._check(reason)
        wanted = replace(self._wanted, active=True)
        return await self._send("cancel", wanted, reason, lambda one: one.cancel(mode, reason=reason), mode)

    async def retry(self, reason: str) -> BulkResult:
        """Starts the next run of the matching executions that failed."""
        self._check(reason)
        wanted = replace(self._wanted, status="failed")
        return await self._send("retry", wanted, reason, lambda one: one.retry(reason=reason))

    def _check(self, reason: str) -> None:
        self._context.scope.require("executions:write")
        check_reason(reason)
        asked = replace(self._wanted, tenant=None)
        if asked == Filter():
            text = "give at least one filter: status, definition, correlation_id, target_id, since or before"
            raise InvalidInput.at("", "no_filter", text)

    async def _send(
        self,
        verb: Literal["cancel", "retry"],
        wanted: Filter,
        reason: str,
        command: Callable[[Handle[Any]], Awaitable[None]],
        mode: CancelMode | None = None,
    ) -> BulkResult:
        context = self._context
        paging = Paging(verb, wanted, self._cursor)
        request = BulkRequest(
            verb=verb,
            wanted=wanted,
            reason=reason,
            limit=self._limit,
            cursor=paging.after,
            mode=mode,
            dry_run=self._dry_run,
        )
        result = await context.backend.composite.for_executions(request, lambda id: command(Handle(context, id)))
        result.next_cursor = paging.sealed(result.next_cursor)
        return result


class LocalCommands:
    """Implements `CompositeCommands` by commands from this process, in small batches.

    Stops early when time is up or verdicts are late; the rest needs another call.
    """

    def __init__(self, executions: Executions, reviews: Reviews) -> None:
        self._executions = executions
        self._reviews = reviews

    async def for_executions(self, request: BulkRequest, command: Callable[[str], Awaitable[None]]) -> BulkResult:
        result, left, cursor = BulkResult(), request.limit, request.cursor
        until = monotonic() + CALL_SECONDS
        while left > 0:
            page = await self._executions.page(request.wanted, cursor, min(CONCURRENCY, left))
            ids = [row["execution_id"] for row in page.items]
            if request.dry_run:
                result.chosen += ids
            else:
                await _run({id: command(id) for id in ids}, result)
            left -= len(ids)
            cursor = page.next_cursor
            if cursor is None or result.pending or monotonic() >= until:
                break
        result.next_cursor = cursor
        result.remaining = 0 if cursor is None else await self._count(request.wanted, cursor, until + COUNT_SECONDS)
        return result

    async def _count(self, wanted: Filter, cursor: str | None, until: float) -> int:
        """Counts the remaining executions, at least one page of them."""
        count = 0
        while count < MAX_COUNTED:
            page = await self._executions.page(wanted, cursor, min(PAGE, MAX_COUNTED - count))
            count += len(page.items)
            cursor = page.next_cursor
            if cursor is None or monotonic() >= until:
                break
        return count

    async def for_dead_letters(
        self, request: ReprocessRequest, command: Callable[[str], Awaitable[None]]
    ) -> BulkResult:
        result, left, cursor = BulkResult(), request.limit, request.cursor
        until = monotonic() + CALL_SECONDS
        while left > 0:
            page = await self._reviews.page(request.wanted, cursor, min(CONCURRENCY, left))
            await _run({row.id: command(row.id) for row in page.items}, result)
            left -= len(page.items)
            result.next_cursor = cursor = page.next_cursor
            if cursor is None or result.pending or monotonic() >= until:
                break
        return result

    async def for_dead_letter(
        self,
        verb: Literal["reprocess", "discard"],
        id: str,
        reason: str,
        command: Callable[[], Awaitable[DeadLetterRow]],
    ) -> DeadLetterRow:
        return await command()


def check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_PER_CALL:
        raise InvalidInput.at("/limit", "out_of_range", f"must be from 1 to {MAX_PER_CALL}")


async def _run(commands: Mapping[str, Awaitable[None]], result: BulkResult) -> None:
    """Runs commands concurrently. A command without a verdict in time is pending, and still carried out later."""
    tasks = {id: asyncio.ensure_future(command) for id, command in commands.items()}
    for task in tasks.values():
        _under_way.add(task)
        task.add_done_callback(_end)
    if tasks:
        await asyncio.wait(tasks.values(), timeout=VERDICT_SECONDS)
    for id, task in tasks.items():
        if not task.done():
            result.pending.append(id)
            continue
        try:
            task.result()
            result.done.append(id)
        except (EngineClosed, NotAuthenticated, ServiceError, StorageError):  # the other commands would fail too
            raise
        except TenutoError as error:
            result.refused.append(RefusedItem(id, error.code, error.message))


_under_way: set["asyncio.Future[None]"] = set()  # keeps references while they wait for verdicts


def _end(task: "asyncio.Future[None]") -> None:
    """Retrieves the exception, so that asyncio does not log it."""
    _under_way.discard(task)
    if not task.cancelled():
        task.exception()


def build_filter(tenant: str | None, status: ActiveStatus | None, chosen: ExecutionFilter) -> Filter:
    definition, correlation_id = chosen.get("definition"), chosen.get("correlation_id")
    target_id = chosen.get("target_id")
    check_filter(definition=definition, correlation_id=correlation_id, target_id=target_id)
    return Filter(
        tenant=tenant,
        status=status,
        definition=definition,
        correlation_id=correlation_id,
        target_id=target_id,
        since_ms=milliseconds_at(chosen.get("since"), "since"),
        before_ms=milliseconds_at(chosen.get("before"), "before"),
    )
