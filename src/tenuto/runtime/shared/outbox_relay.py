"""Publishes the messages of the outbox at least once, and in order within each execution.

Any number of processes may relay. What one has taken no other takes, unless its session ends. A publisher that fails,
or does not answer in time, is asked again later, and longer later each time; messages of other executions go on. While
nothing at all can be published the relay rests, too. Nothing is ever given up: a message leaves, or waits visibly.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby

from tenuto.runtime.supervision import supervised
from tenuto.storage.outbox import OutboxStore, Waiting
from tenuto.values.jitter import spread
from tenuto.values.redaction import summary
from tenuto.views.messages import Publish, read_message

logger = logging.getLogger("tenuto.outbox")

EXECUTIONS_AT_ONCE = 50
POLL_SECONDS = 0.5
PUBLISH_SECONDS = 30.0
END_SECONDS = 1.0  # for a cancelled publisher to end
FIRST_DELAY_MS = 500
LONGEST_DELAY_MS = 300_000
LONGEST_REST_SECONDS = 30.0
UNSURE_SECONDS = 35.0  # longer than a database takes to carry out what its client has given up


class Relay:
    def __init__(
        self,
        store: OutboxStore,
        publish: Publish,
        now: Callable[[], int],
        session: Callable[[], str | None],
        *,
        patience_s: float = PUBLISH_SECONDS,
    ) -> None:
        self._store = store
        self._publish = publish
        self._now = now
        self._session = session
        self._patience_s = patience_s
        self._nudged = asyncio.Event()
        self._stopped = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0  # rounds in which nothing could be published, one after another
        self._drains = False
        self._unsure_until = 0.0  # something failed, and more may be taken in our name than we know of

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="tenuto-relay")

    def nudge(self) -> None:
        """There is something to publish: do not wait until the next look."""
        self._nudged.set()

    async def stop(self, patience_s: float, *, drain: bool = False) -> None:
        """Lets what is being published come to its end, as long as allowed. The rest is others', when the session ends.

        `drain`: there are no others, so all that is due is published first.
        """
        if self._task is None:
            return
        self._drains = drain
        self._stopped.set()
        self._nudged.set()
        await asyncio.wait([self._task], timeout=patience_s)
        self._task.cancel()
        await asyncio.wait([self._task], timeout=END_SECONDS)

    async def _run(self) -> None:
        while not self._stopped.is_set():
            more = False
            with supervised("Relaying messages"):  # what is stored waits
                more = await self._round_or_doubt()
            if not more:
                await self._rest()
        while self._drains and await self._round():
            pass

    async def _rest(self) -> None:
        """Until there is something to do; if publishing failed altogether, for longer each time."""
        longest = min(LONGEST_REST_SECONDS, POLL_SECONDS * 2 ** min(self._failures, 10))
        event = self._stopped if self._failures else self._nudged
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), spread(longest, 0.5, 1))
        self._nudged.clear()

    async def _round_or_doubt(self) -> bool:
        try:
            return await self._round()
        except Exception:
            self._doubt()
            raise

    async def _round(self) -> bool:
        """Whether there may be more to do at once."""
        relay = self._session()
        if relay is None:
            return False
        if asyncio.get_running_loop().time() < self._unsure_until:
            await self._store.give_back(relay)
        taken = await self._store.take(relay, self._now(), EXECUTIONS_AT_ONCE)
        if not taken:
            return False
        lines = [list(line) for _, line in groupby(taken, key=lambda message: message.execution)]
        ended = await asyncio.gather(*(self._line(relay, line) for line in lines), return_exceptions=True)
        if any(isinstance(end, BaseException) for end in ended):
            self._doubt()
        published = any(end for end in ended if isinstance(end, int))
        self._failures = 0 if published else self._failures + 1
        return published

    def _doubt(self) -> None:
        """What failed may have been carried out, or be carried out yet. Between rounds nothing of ours is under way."""
        self._unsure_until = asyncio.get_running_loop().time() + UNSURE_SECONDS

    async def _line(self, relay: str, line: Sequence[Waiting]) -> int:
        """Publishes the messages of one execution, one after another, up to the first that fails. Gives how many."""
        done: list[tuple[str, int]] = []
        failed: tuple[Waiting, str] | None = None
        for message in line:
            if self._session() != relay or (self._stopped.is_set() and not self._drains):
                break  # without the session the rest is others', who may be ahead already
            error = await self._try(message)
            if error is not None:
                failed = (message, error)
                break
            done.append((message.execution, message.seq))
        if done:
            await self._store.published(relay, self._now(), done)
        if failed is not None:
            message, error = failed
            due_at = self._now() + delay_ms(message.tries)
            await self._store.put_off(relay, message.execution, message.seq, due_at, error)
        return len(done)

    async def _try(self, message: Waiting) -> str | None:
        """What went wrong, in words that may be shown; None if it was published."""
        publishing = asyncio.create_task(self._call(message), name="tenuto-publish")
        try:
            await asyncio.wait([publishing], timeout=self._patience_s)
            if not publishing.done():
                publishing.cancel()
                await asyncio.wait([publishing], timeout=END_SECONDS)
        finally:
            publishing.cancel()
        told = _trouble(publishing)
        if told is not None:
            extra = {"action": "publish_failed", "execution_id": message.execution, "tries": message.tries + 1}
            logger.warning("A message could not be published: %s", told, extra=extra)
        return told

    async def _call(self, message: Waiting) -> None:
        await self._publish(read_message(message.body))


def _trouble(publishing: "asyncio.Task[None]") -> str | None:
    """The error of an attempt to publish. A publisher that does not end when it is cancelled is abandoned."""
    if not publishing.done() or publishing.cancelled():
        return "TimeoutError"
    error = publishing.exception()
    return None if error is None else summary(f"{type(error).__name__}: {error}".rstrip(": "))


def delay_ms(tries: int) -> int:
    """How long to wait after this many tries before the one that failed: doubling, and anywhere in its upper half."""
    longest = min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** min(tries, 20))
    return int(spread(longest, 0.5, 1))
