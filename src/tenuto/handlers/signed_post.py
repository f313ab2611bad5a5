"""Posts a webhook that does not belong to a step, such as the end of a job: signed, and behind the egress guard."""

import httpx2

from tenuto.errors import StepError
from tenuto.values.redaction import summary

from .outgoing import target_of
from .settings import HandlerSettings
from .webhook import DEFAULT_SECRET, sign


async def post(
    url: str, id: str, content: bytes, now_s: int, settings: HandlerSettings, client: httpx2.AsyncClient
) -> str | None:
    """Returns what went wrong, without the URL; None if the receiver accepted it."""
    headers = {"content-type": "application/json", "webhook-id": id, "webhook-timestamp": str(now_s)}
    try:
        target = target_of(url, "completed")
        if settings.has_secret(DEFAULT_SECRET, None):
            signed = b".".join((id.encode(), str(now_s).encode(), content))
            secrets = settings.secret(DEFAULT_SECRET, target, None, is_sent=False).split()
            headers["webhook-signature"] = " ".join(sign(secret, signed, DEFAULT_SECRET) for secret in secrets)
        answer = await client.post(url, headers=headers, content=content)
    except StepError as error:
        return summary(error.message)
    except httpx2.HTTPError as error:
        return type(error).__name__
    return None if answer.status_code < 300 else f"status {answer.status_code}"
