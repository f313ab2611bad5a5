"""Sends each notification once: a row under the step's key is written before sending and completed afterwards.

An attempt that finds a completed row sends nothing and returns the stored receipt. An attempt that finds an incomplete
row sends again, because the engine repeats only steps that are safe to retry. For other steps there is `sent`, a
handler for `guard_handler` and `reconcile_handler` that answers from the row: done, not done, or unknown.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tenuto.authoring.context import SagaContext
from tenuto.authoring.outcome import Done, NotDone, Outcome, Unknown
from tenuto.storage.notices import Notice, Notices


async def send_once(notices: Notices, ctx: SagaContext, channel: str, send: Callable[[], Awaitable[Any]]) -> Any:
    notice = Notice(
        key=ctx.idempotency_key, tenant=ctx.tenant, execution=ctx.execution_id, path=ctx.path, channel=channel
    )
    known = await notices.begin_notice(notice)
    if known.receipt is not None:
        return msgspec.json.decode(known.receipt)
    receipt = await send()
    await notices.end_notice(notice.key, msgspec.json.encode(receipt))
    return receipt


async def probe(notices: Notices, ctx: SagaContext) -> Outcome[Any]:
    known = await notices.notice(ctx.forward_key)
    if known is None:
        return NotDone()
    if known.receipt is None:
        return Unknown("an attempt began to send it, and it is unknown whether it arrived")
    return Done(msgspec.json.decode(known.receipt))
