"""Sagas for the journeys. Each stops where a person has to act, or fails as its input says."""

from pathlib import Path
from typing import Any

from tenuto import SagaBuilder
from tenuto.errors import IndeterminateError, NonRetryableError

MARKUP = "<img src=x onerror=\"console.error('executed')\"><script>console.error('executed')</script>"


async def reserve(input: dict[str, Any]) -> dict[str, Any]:
    return {"reservation": "R-1", "note": input.get("note", "")}


async def release() -> str:
    return "released"


def charge(input: dict[str, Any]) -> dict[str, Any]:
    """Fails until the file that the input names exists."""
    needed = input.get("needs")
    if needed and not Path(needed).exists():
        raise NonRetryableError(f"the account is closed {MARKUP}")
    return {"paid": 12345678901234567890}


async def transfer() -> str:
    raise IndeterminateError("the bank did not answer")


ORDER = (
    SagaBuilder("order")
    .step("reserve", reserve, compensate=release)
    .approval("approve", depends_on=["reserve"], deadline="2h")
    .step("charge", charge, depends_on=["approve"])
    .build()
)
PAYMENT = SagaBuilder("payment").step("charge", charge).build()
DELIVERY = (
    SagaBuilder("delivery").step("reserve", reserve).signal("delivery", "delivered", depends_on=["reserve"]).build()
)
TRANSFER = (
    SagaBuilder("transfer").step("transfer", transfer, safety="not_safe_to_retry", compensation_policy="manual").build()
)
