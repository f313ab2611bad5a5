"""The bodies of requests to jobs and to the embedded bus."""

from typing import Annotated

from pydantic import Field

from tenuto.service.http.request_models import Body, Reason

Lock = Annotated[int, Field(ge=1_000, le=300_000, description="how long the lock lasts, in ms", examples=[30_000])]
Token = Annotated[str, Field(min_length=1, max_length=128, examples=["5f2c9d0e1b3a47c6"])]


class CancelJobBody(Body):
    reason: Reason = Field(default="", examples=["uploaded twice"])


class ReceiveBody(Body):
    max: int = Field(default=10, ge=1, le=100, description="messages at most", examples=[10])
    wait_ms: int = Field(default=0, ge=0, le=20_000, description="how long to wait for the first one", examples=[0])
    lock_ms: Lock = 30_000


class SettleBody(Body):
    lock_token: Token


class AbandonBody(SettleBody):
    delay_ms: int = Field(default=0, ge=0, le=3_600_000, description="before it is delivered again", examples=[0])


class RenewBody(SettleBody):
    lock_ms: Lock = 30_000


class DeadLetterBody(SettleBody):
    reason: str = Field(default="", max_length=256, examples=["unreadable"])
