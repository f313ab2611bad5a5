"""Chains the audit and numbers the ledger while the process runs, and writes the ends of the chains to the log.

With it goes what else a service leaves behind: answers to repeated requests, and what waits for a second person.
"""

import logging
from collections.abc import Callable

from tenuto.storage.audit import seal
from tenuto.storage.credits import CreditStore
from tenuto.storage.registry import ANSWERS_KEPT_MS, Head, Registry
from tenuto.values.jitter import spread

logger = logging.getLogger("tenuto.audit")

SEAL_MS = 500  # how long a row of the audit log may stay outside the chain
TELL_MS = 3_600_000


class AuditSealer:
    def __init__(self, registry: Registry, credits: CreditStore, now_ms: Callable[[], int]) -> None:
        self._registry = registry
        self._credits = credits
        self._now = now_ms
        self._seal_at = 0
        self._tell_at = 0
        self._told: dict[str, Head] = {}

    async def look(self) -> None:
        now = self._now()
        if now < self._seal_at:
            return
        self._seal_at = now + int(spread(SEAL_MS, 0.5, 1))
        await seal(self._registry)
        await self._credits.number()
        if now >= self._tell_at:
            self._tell_at = now + int(spread(TELL_MS, 0.5, 1))
            await self._tell()
            await self._registry.forget(now - ANSWERS_KEPT_MS)

    async def close(self) -> None:
        """Seals the last rows too: it may be long until another process does."""
        await seal(self._registry)
        await self._credits.number()

    async def _tell(self) -> None:
        """Logs the heads of the chains. Logs kept elsewhere prove that the database was not rewritten."""
        heads = await self._registry.heads()
        for tenant, head in heads.items():
            if self._told.get(tenant) != head:
                about = {"action": "audit_head", "tenant": tenant, "n": head.n, "audit_hash": head.hash}
                logger.info("The end of an audit chain: keep it elsewhere.", extra=about)
        self._told = heads
