"""Definitions for tests, in as few words as their point needs. Delays have no jitter here, so that times are round."""

from typing import Any, Literal

from tenuto.kernel.definition import (
    JSON,
    Branch,
    Definition,
    ErrorClass,
    Mode,
    Node,
    Policies,
    RetryPolicy,
    Scheduling,
    Scope,
    Step,
)
from tenuto.kernel.definition import RETRIED_BY_DEFAULT as RETRIED
from tenuto.kernel.validation import problems

SAFE: Literal["SAFE_TO_RETRY"] = "SAFE_TO_RETRY"
GUARDED: Literal["SAFE_TO_RETRY_WITH_GUARD"] = "SAFE_TO_RETRY_WITH_GUARD"
UNSAFE: Literal["NOT_SAFE_TO_RETRY"] = "NOT_SAFE_TO_RETRY"


def step(
    id: str,
    *,
    tries: int = 3,
    delay: int | None = None,
    timeout: int = 30_000,
    on: tuple[ErrorClass, ...] = RETRIED,
    undo: bool = False,
    after: tuple[str, ...] = (),
    **fields: Any,
) -> Step:
    """A task. `tries`, `delay`, `timeout` and `on` are its retry policy, `undo` gives it a compensation."""
    policy = RetryPolicy(max_attempts=tries, initial_delay_ms=delay, timeout_ms=timeout, jitter=0, retry_on_classes=on)
    if undo:
        fields["compensation_handler"] = f"undo_{id}"
    return Step(id=id, handler=id, retry_policy=policy, depends_on=after, **fields)


def guarded(id: str, **fields: Any) -> Step:
    return step(id, safety=GUARDED, guard_handler=f"guard_{id}", **fields)


def unsafe(id: str, *, reconcile: bool = False, **fields: Any) -> Step:
    """Not safe to retry. Without a reconcile handler and without a compensation, a person decides."""
    if reconcile:
        fields["reconcile_handler"] = f"find_{id}"
    elif not fields.get("undo"):
        fields["compensation_policy"] = "manual"
    return step(id, safety=UNSAFE, **fields)


def callback(id: str, *, ack: int | None = 1_000, result: int | None = 10_000, **fields: Any) -> Step:
    """A step that is handed to a bus and answered from outside."""
    return step(
        id,
        type="external_call",
        completion="callback",
        ack_timeout_ms=ack,
        result_timeout_ms=result,
        **fields,
    )


def approval(id: str, **fields: Any) -> Step:
    return Step(id=id, type="human_approval", **fields)


def pause_for(id: str, duration: JSON, **fields: Any) -> Step:
    return Step(id=id, type="wait", with_={"duration_ms": duration}, **fields)


def wait_for(id: str, signal: str, **fields: Any) -> Step:
    return Step(id=id, type="wait", with_={"signal": signal}, **fields)


def decision(id: str, *branches: tuple[str, str], default: str | None = None) -> Step:
    return Step(
        id=id,
        type="decision",
        branches=tuple(Branch(when=when, next=target) for when, target in branches),
        default=default,
    )


def scope(id: str, *children: Node, **fields: Any) -> Scope:
    return Scope(id=id, children=children, **fields)


def definition(
    *nodes: Node,
    mode: Mode = "sequence",
    scheduling: Scheduling = "eager",
    output: JSON = None,
    output_schema: JSON = None,
    name: str = "test",
    valid: bool = True,
    **policies: Any,
) -> Definition:
    """A definition of these nodes; what is not named here is one of its policies. Only valid ones, unless said so."""
    made = Definition(
        name=name,
        mode=mode,
        scheduling=scheduling,
        steps=nodes,
        output=output,
        output_schema=output_schema,
        policies=Policies(**policies),
    )
    assert not valid or problems(made) == [], problems(made)
    return made
