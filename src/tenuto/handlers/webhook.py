"""The built-in handler `webhook`: sends a notification, signed as in the Standard Webhooks specification.

`webhook-id` is the step's idempotency key. It is the same for every attempt, so that a receiver can detect a
repetition. The signature is an HMAC over id, time and body. A secret is `whsec_` followed by base64. Several secrets,
separated by spaces, each add a signature, so that a secret can be rotated. Of the response only the status is kept.
"""

import base64
import hashlib
import hmac
import logging
import time
from datetime import UTC, datetime
from typing import Final, TypedDict

import httpx2
import msgspec

from tenuto.authoring.context import SagaContext
from tenuto.errors import NonRetryableError

from .given import Webhook
from .outgoing import Outgoing, bad_with, check_headers, read_with, statuses, target_of
from .settings import HandlerSettings

logger = logging.getLogger("tenuto.handlers")

DEFAULT_SECRET: Final = "webhook"  # noqa: S105  (its name, not the secret)
_PREFIX: Final = "whsec_"


class WebhookReceipt(TypedDict):
    id: str
    status: int


class _Quiet(Outgoing):
    """Leaves the path of the URL out of errors, because the URL of a webhook is often a secret itself."""

    def _place(self, url: str) -> str:
        scheme, _, rest = super()._place(url).partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"

    async def _received(self, response: httpx2.Response) -> bytes:
        """Returns nothing: of the response only its status is kept."""
        return b""


async def call(
    given: object, ctx: SagaContext, settings: HandlerSettings, client: httpx2.AsyncClient
) -> WebhookReceipt:
    webhook = read_with(given, Webhook, "webhook")
    check_headers(webhook.headers, "webhook")
    body = _body(webhook, ctx)
    headers = {
        **webhook.headers,
        "content-type": "application/json",
        **_signed(webhook, ctx, settings, body, int(time.time())),
    }
    response = await _Quiet(ctx, classify=statuses(webhook.classify, "webhook"), client=client).request(
        "POST", webhook.url, headers=headers, content=body, timeout=client.timeout
    )
    return {"id": ctx.idempotency_key, "status": response.status_code}


def _body(webhook: Webhook, ctx: SagaContext) -> bytes:
    if webhook.json is not msgspec.UNSET:
        if webhook.type is not None or webhook.data is not msgspec.UNSET:
            raise bad_with("webhook", "either `json`, which is the whole body, or `type` and `data`")
        return msgspec.json.encode(webhook.json)
    about = {
        "execution_id": ctx.execution_id,
        "definition": ctx.saga,
        "step_id": ctx.step_id,
        "correlation_id": ctx.correlation_id,
    }
    return msgspec.json.encode(
        {
            "type": webhook.type or f"{ctx.saga}.{ctx.step_id}",
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "data": about if webhook.data is msgspec.UNSET else webhook.data,
        }
    )


def _signed(webhook: Webhook, ctx: SagaContext, settings: HandlerSettings, body: bytes, now_s: int) -> dict[str, str]:
    headers = {"webhook-id": ctx.idempotency_key, "webhook-timestamp": str(now_s)}
    target = target_of(webhook.url, "webhook")
    name = webhook.secret or DEFAULT_SECRET
    if webhook.secret is None and not settings.has_secret(DEFAULT_SECRET, ctx.owner):
        logger.warning(
            "A webhook is sent without a signature: there is no secret for it.",
            extra={"action": "webhook_unsigned", "execution_id": ctx.execution_id, "step_id": ctx.step_id},
        )
        return headers
    content = b".".join((ctx.idempotency_key.encode(), str(now_s).encode(), body))
    secrets = settings.secret(name, target, ctx.owner, is_sent=False).split()
    signatures = (sign(secret, content, name) for secret in secrets)
    return {**headers, "webhook-signature": " ".join(signatures)}


def sign(secret: str, content: bytes, name: str = "") -> str:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except ValueError:
        text = f"the secret {name!r} must be `whsec_` and base64, as standard-webhooks has it"
        raise NonRetryableError(text, code="secret_invalid") from None
    return f"v1,{base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()}"
