"""The bodies of requests. Unknown fields are rejected, so that a misspelled one is not ignored."""

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tenuto.api.bulk_commands import ExecutionFilter
from tenuto.kernel.definition import ErrorClass

_FORM = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d")


def _as_written(value: object) -> object:
    if not isinstance(value, str) or _FORM.match(value) is None:
        raise ValueError("write a time as in RFC 3339: 2026-11-16T09:30:00Z")
    return value


Timestamp = Annotated[AwareDatetime, BeforeValidator(_as_written), Strict(False)]

EXAMPLE_KEY = "tnt_4fK2mQ9xLp_0000000000000000000000000000000000000000000000000"  # of no service

Name = Annotated[str, Field(min_length=1, max_length=256)]
Reason = Annotated[str, Field(max_length=2_000)]
# For commands that cannot be undone. A blank reason is rejected.
Why = Annotated[str, Field(min_length=1, max_length=2_000, pattern=r"\S")]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Target(Body):
    type: Name
    id: Name


class StepInput(Body):
    """The input of one step: a value, or one value for each clone."""

    value: Any = None
    each: list[Any] | None = Field(default=None, description="fan the step out over these values")
    labels: list[str] | None = Field(default=None, description="the names of the clones, in the same order")

    @model_validator(mode="after")
    def _is_one_of_them(self) -> "StepInput":
        if self.labels is not None and len(self.labels) != len(self.each or ()):
            raise ValueError("give one label for each value in `each`")
        if self.each is not None and "value" in self.model_fields_set:
            raise ValueError("give either `value` or `each`")
        return self


class StartBody(Body):
    """An execution to start."""

    definition: Name = Field(examples=["invoice-approval"])
    version: int | None = Field(default=None, ge=1, le=2**31 - 1, description="default: the newest published version")
    input: Any = Field(default=None, examples=[{"amount": 1200}])
    inputs: dict[str, StepInput] | None = Field(
        default=None, max_length=1_000, description="instead of `input`: the inputs by step"
    )
    target: Target | None = Field(default=None, examples=[{"type": "Invoice", "id": "inv-42"}])
    priority: Literal["high", "normal"] = "normal"
    concurrency_key: Name | None = None
    variables: dict[str, Any] = Field(default_factory=dict, max_length=100)
    headers: dict[str, str] = Field(default_factory=dict, max_length=50)

    @model_validator(mode="after")
    def _has_one_input(self) -> "StartBody":
        if self.inputs is not None and self.input is not None:
            raise ValueError("give either `input` or `inputs`")
        return self


class SignInBody(Body):
    """An API key, or the token of a sign-in link."""

    key: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(default=None, examples=[EXAMPLE_KEY])
    token: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @model_validator(mode="after")
    def _has_one(self) -> "SignInBody":
        if (self.key is None) == (self.token is None):
            raise ValueError("give either `key` or `token`")
        return self


class ReauthenticateBody(Body):
    """The API key of the same principal."""

    key: Annotated[str, Field(min_length=1, max_length=256)] = Field(examples=[EXAMPLE_KEY])


class PauseBody(Body):
    reason: Reason = Field(default="", examples=["the books are closed"])


class NoFields(Body):
    """An empty body."""


class CancelBody(Body):
    mode: Literal["drain", "terminate", "compensate"] | None = Field(default=None, description="default: as defined")
    reason: Reason = Field(default="", examples=["the invoice was withdrawn"])


class RetryStepBody(Body):
    again: bool = Field(default=False, description="repeat completed effects from that step on, with new keys")
    reason: Why = Field(examples=["the invoice was corrected"])


class RetryBody(Body):
    from_: Name | None = Field(default=None, alias="from", description="the step to start from", examples=["approve"])
    again: bool = Field(
        default=False, description="repeat completed effects from that step on, with new keys; needs `from`"
    )
    reason: Why = Field(examples=["the invoice was corrected"])


class DecisionBody(Body):
    comment: Reason = Field(default="", examples=["compared with the order"])
    data: Any = None


class SignalBody(Body):
    payload: Any = Field(default=None, examples=[{"paid": 1200}])
    id: Name | None = Field(default=None, description="signals with the same id are one signal")


class ResolveBody(Body):
    resolution: Literal["completed", "not_completed", "retry", "compensate", "dismiss", "approved", "rejected"] = Field(
        examples=["approved"]
    )
    result: Any = None
    again: bool = False
    reason: Reason = Field(
        default="",
        validate_default=True,
        description="required except for `approved` and `rejected`",
        examples=["compared with the order"],
    )

    @field_validator("reason")
    @classmethod
    def _says_why(cls, reason: str, info: ValidationInfo) -> str:
        if info.data.get("resolution") not in ("approved", "rejected") and not reason.strip():
            raise ValueError("this command cannot be undone: give a reason")
        return reason


class ReprocessBody(Body):
    reason: Why = Field(examples=["the invoice was corrected"])


class DiscardBody(Body):
    reason: Why = Field(examples=["there is a new invoice"])


class ReprocessManyBody(Body):
    definition: Name | None = Field(default=None, examples=["invoice-approval"])
    error_class: ErrorClass | None = Field(default=None, examples=["NON_RETRYABLE"])
    before: Timestamp | None = Field(default=None, description="only those created before this time (RFC 3339)")
    limit: int = Field(ge=1, le=1_000, description="the maximum number of items", examples=[100])
    cursor: Annotated[str, Field(max_length=2_000)] | None = Field(
        default=None, description="`next_cursor` of the previous response"
    )
    reason: Why = Field(examples=["the invoices were corrected"])


class ManyBody(Body):
    """Selects executions: at least one filter, and the maximum number."""

    definition: Name | None = Field(default=None, examples=["invoice-approval"])
    correlation_id: Name | None = None
    target_id: Name | None = None
    since: Timestamp | None = Field(default=None, description="started at this time or later (RFC 3339)")
    before: Timestamp | None = Field(default=None, description="started before this time")
    limit: int = Field(ge=1, le=1_000, description="the maximum number of items", examples=[100])
    cursor: Annotated[str, Field(max_length=2_000)] | None = Field(
        default=None, description="`next_cursor` of the previous response"
    )
    dry_run: bool = Field(default=False, description="only list the matching executions as `chosen`")
    reason: Why = Field(examples=["the price list was wrong"])

    def filter(self) -> ExecutionFilter:
        return {
            "definition": self.definition,
            "correlation_id": self.correlation_id,
            "target_id": self.target_id,
            "since": self.since,
            "before": self.before,
        }


class CancelManyBody(ManyBody):
    status: Literal["running", "waiting_approval", "paused"] | None = Field(
        default=None, description="default: every active execution"
    )
    mode: Literal["drain", "terminate", "compensate"] | None = Field(default=None, description="default: as defined")


class RetryManyBody(ManyBody):
    pass


class LimitBody(Body):
    """A limit that all workers share: `rate`, `concurrency`, or both."""

    rate: Annotated[str, Field(max_length=64)] | None = Field(default=None, examples=["14/s"])
    concurrency: int | None = Field(default=None, ge=1, le=2**31 - 1, examples=[20])

    @model_validator(mode="after")
    def _says_something(self) -> "LimitBody":
        if self.rate is None and self.concurrency is None:
            raise ValueError("give `rate`, `concurrency`, or both; DELETE removes a limit")
        return self


class TenantLimitBody(Body):
    max_in_flight: int = Field(ge=0, le=2**31 - 2, examples=[500])
