"""Calls the `completed` URL of jobs that have ended: at least once, signed, and behind the egress guard.

The row of a job in the ledger says that its call is due. Any process takes it; it is due again if that process dies.
"""

import asyncio
import logging
import time
from typing import Any, Final

import msgspec

from tenuto.api.engine import Engine
from tenuto.runtime.supervision import supervised
from tenuto.values.jitter import spread
from tenuto.views.jobs import LedgerRow, job_summary

logger = logging.getLogger("tenuto.commands")

POLL_SECONDS: Final = 1.0
FIRST_DELAY_MS: Final = 1_000
LONGEST_DELAY_MS: Final = 300_000


class CompletedWebhooks:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="tenuto-completed")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            with supervised("Calling back for completed jobs"):
                await self.send_due()
            await asyncio.sleep(spread(POLL_SECONDS, 0.5, 1))

    async def send_due(self) -> None:
        """Sends what is due."""
        ledger = self._engine.job_store.ledger
        for row, tries in await ledger.take_notices(self._engine.now_ms):
            failure = await self._send(row)
            if failure is None:
                await ledger.notified(row.execution)
                continue
            delay = min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** min(tries, 20))
            await ledger.put_off_notice(row.execution, self._engine.now_ms + int(spread(delay, 0.5, 1)))
            extra = {"action": "completed_failed", "execution_id": row.execution, "tries": tries + 1}
            logger.warning("The end of a job could not be announced: %s", failure, extra=extra)

    async def _send(self, row: LedgerRow) -> str | None:
        """Returns what went wrong; None if the receiver accepted it."""
        body: dict[str, Any] = msgspec.json.decode(row.body)
        content = msgspec.json.encode({"type": "job.completed", "data": job_summary(row)})
        id = f"{row.execution}.{row.seq}"
        return await self._engine.post_signed(body["completed_url"], id, content, int(time.time()))
