"""Validates steps: the fields that each type may and must have, and their values."""

from collections.abc import Iterator

import msgspec

from tenuto.errors import Problem
from tenuto.kernel.definition import Step
from tenuto.kernel.expression import NODE_ROOTS, ROOTS

from .ranges import MAX_DURATION, RETRY_RANGES, STEP_RANGES, between, check_ranges, is_within
from .reads import check_expression, check_template
from .tree import Place, Tree

HANDLED = frozenset({"task", "external_call", "notify"})
NEVER_RETRIED = {
    "NON_RETRYABLE": "is never retried",
    "COMPENSATION_REQUIRED": "is never retried: a person decides",
    "INDETERMINATE": "is not governed by this list, but by `idempotency_strategy`",
}

_STEP_FIELDS = msgspec.structs.fields(Step)
# some defaults are factories
_DEFAULTS = {field.name: getattr(Step(id="default"), field.name) for field in _STEP_FIELDS}
_EVERYWHERE = {"id", "name", "type", "depends_on", "on_success", "on_failure", "on_timeout", "max_visits"}
_WAITING = _EVERYWHERE | {"when", "with_", "timeout_ms", "set_variable", "output_schema"}
_CALLBACK = {"completion", "ack_timeout_ms", "result_timeout_ms"}
_DECIDING = {"branches", "default"}
_ALL = {field.name for field in _STEP_FIELDS}
_FIELDS: dict[str, set[str]] = {
    "task": _ALL - _CALLBACK - _DECIDING,
    "notify": _ALL - _CALLBACK - _DECIDING,
    "external_call": _ALL - _DECIDING,
    "decision": (_EVERYWHERE | _DECIDING) - {"on_success", "on_timeout"},
    "wait": _WAITING,
    "human_approval": _WAITING | {"permission"},
}
_COMPENSATION_SETTINGS = {
    "compensation_with",
    "compensation_max_attempts",
    "compensation_backoff_ms",
    "compensation_timeout_ms",
    "compensation_critical",
}


def check_step(place: Place, step: Step, tree: Tree) -> Iterator[Problem]:
    pointer = place.pointer
    yield from _of_fields(step, pointer)
    yield from check_ranges(step, pointer, STEP_RANGES)
    if step.type in HANDLED:
        yield from _of_handler(step, pointer)
        yield from _of_safety(step, pointer)
        yield from _of_compensation(step, pointer)
        yield from _of_retry(step, pointer)
        yield from _of_fan_out(place, step, tree)
        yield from _of_names(step, pointer)
    elif step.type == "decision":
        yield from _of_decision(place, step, tree)
    elif step.type == "wait":
        yield from _of_wait(step, pointer)
    yield from _of_payloads(place, step, tree)


def _of_fields(step: Step, pointer: str) -> Iterator[Problem]:
    allowed = _FIELDS[step.type]
    for field in _STEP_FIELDS:
        if field.name not in allowed and getattr(step, field.name) != _DEFAULTS[field.name]:
            text = f"a step of type `{step.type}` has no `{field.encode_name}`: leave it out, or change the type"
            yield Problem(f"{pointer}/{field.encode_name}", "not_allowed", text)


def _of_handler(step: Step, pointer: str) -> Iterator[Problem]:
    if step.completion == "callback":
        if step.ack_timeout_ms is None and step.result_timeout_ms is None:
            text = "a callback may never come: set `ack_timeout_ms`, `result_timeout_ms` or both"
            yield Problem(f"{pointer}/completion", "timeout_missing", text)
    else:
        if not step.handler:
            yield Problem(f"{pointer}/handler", "missing", f"a step of type `{step.type}` needs a `handler`")
        for field in ("ack_timeout_ms", "result_timeout_ms"):
            if step.type == "external_call" and getattr(step, field) is not None:
                text = 'only callbacks have it: add `"completion": "callback"`, or leave it out'
                yield Problem(f"{pointer}/{field}", "not_allowed", text)


def _of_safety(step: Step, pointer: str) -> Iterator[Problem]:
    guarded = step.safety == "SAFE_TO_RETRY_WITH_GUARD"
    if guarded and step.guard_handler is None:
        text = "SAFE_TO_RETRY_WITH_GUARD means that a guard is asked first: name it in `guard_handler`"
        yield Problem(f"{pointer}/guard_handler", "missing", text)
    if not guarded and step.guard_handler is not None:
        text = f"{step.safety} never asks a guard: declare SAFE_TO_RETRY_WITH_GUARD, or leave the guard out"
        yield Problem(f"{pointer}/guard_handler", "not_allowed", text)
    undecided = step.compensation_handler is None and step.reconcile_handler is None
    if step.safety == "NOT_SAFE_TO_RETRY" and undecided and step.compensation_policy != "manual":
        text = (
            "a step that is NOT_SAFE_TO_RETRY needs a `compensation_handler`, a `reconcile_handler`, "
            'or `"compensation_policy": "manual"`'
        )
        yield Problem(f"{pointer}/idempotency_strategy", "unsafe", text)


def _of_compensation(step: Step, pointer: str) -> Iterator[Problem]:
    if step.compensation_handler is None:
        for field in _STEP_FIELDS:
            if field.name in _COMPENSATION_SETTINGS and getattr(step, field.name) != _DEFAULTS[field.name]:
                text = "there is no `compensation_handler` that it could apply to: add one, or leave it out"
                yield Problem(f"{pointer}/{field.encode_name}", "not_allowed", text)


def _of_retry(step: Step, pointer: str) -> Iterator[Problem]:
    policy, at = step.retry_policy, f"{pointer}/retry_policy"
    yield from check_ranges(policy, at, RETRY_RANGES)
    if step.timeout_ms is not None and 0 < step.timeout_ms < policy.timeout_ms:
        text = (
            f"one attempt may take {policy.timeout_ms} ms, but the whole step only {step.timeout_ms} ms: "
            "shorten the attempt, or lengthen the step's `timeout_ms`"
        )
        yield Problem(f"{at}/timeout_ms", "timeout_order", text)
    first, longest = policy.initial_delay_ms, policy.max_delay_ms
    if first is not None and longest is not None and first > longest:
        text = f"the first delay ({first} ms) is longer than the longest ({longest} ms)"
        yield Problem(f"{at}/initial_delay_ms", "out_of_range", text)
    for index, name in enumerate(policy.retry_on_classes):
        if name in NEVER_RETRIED:
            text = f"{name} {NEVER_RETRIED[name]}: take it out"
            yield Problem(f"{at}/retry_on_classes/{index}", "forbidden_class", text)


def _of_fan_out(place: Place, step: Step, tree: Tree) -> Iterator[Problem]:
    yield from check_expression(step.foreach, f"{place.pointer}/foreach", NODE_ROOTS, place, tree)
    yield from check_expression(step.suffix, f"{place.pointer}/suffix", ROOTS, place, tree)
    if step.suffix is not None and step.foreach is None:
        text = "it names the clones of a fan-out, and there is no `foreach`: add one, or leave it out"
        yield Problem(f"{place.pointer}/suffix", "not_allowed", text)


def _of_names(step: Step, pointer: str) -> Iterator[Problem]:
    named = {
        "handler": step.handler,
        "guard_handler": step.guard_handler,
        "reconcile_handler": step.reconcile_handler,
        "compensation_handler": step.compensation_handler,
        "queue": step.queue,
        "set_variable": step.set_variable,
        "permission": step.permission,
        **{f"limits/{index}": name for index, name in enumerate(step.limits)},
        **{f"classify/{name}": name for name in step.classify},
    }
    for field, name in named.items():
        if name is not None and not name.strip() and field != "handler":
            yield Problem(f"{pointer}/{field}", "blank", "it is blank: give a name, or leave it out")


def _of_decision(place: Place, step: Step, tree: Tree) -> Iterator[Problem]:
    if place.scope.mode != "flow":
        text = f"a decision leads to other steps, which only a `flow` can, and this stands in a `{place.scope.mode}`"
        yield Problem(f"{place.pointer}/type", "misplaced", f"{text}: use `when` on the steps instead")
    if not step.branches:
        text = 'a decision needs at least one branch: {"when": "<expression>", "next": "<step>"}'
        yield Problem(f"{place.pointer}/branches", "missing", text)
    for index, branch in enumerate(step.branches):
        yield from check_expression(branch.when, f"{place.pointer}/branches/{index}/when", NODE_ROOTS, place, tree)


_WAIT_FIELDS = ("duration_ms", "until", "signal")


def _of_wait(step: Step, pointer: str) -> Iterator[Problem]:
    given = step.with_ if isinstance(step.with_, dict) else {}
    at = f"{pointer}/with"
    if sum(field in given for field in _WAIT_FIELDS) != 1:
        yield Problem(at, "ambiguous_wait", "a wait needs exactly one of `duration_ms`, `until` and `signal`")
    for field in given:
        if field not in _WAIT_FIELDS:
            yield Problem(
                f"{at}/{field}", "not_allowed", f"a wait has no `{field}`: use one of {', '.join(_WAIT_FIELDS)}"
            )
    duration = given.get("duration_ms", "")
    if not isinstance(duration, str) and not is_within(duration, 1, MAX_DURATION):
        yield Problem(
            f"{at}/duration_ms", "out_of_range", f"it must be a number of milliseconds {between(1, MAX_DURATION)}"
        )
    until = given.get("until", 1)
    if isinstance(until, bool) or not isinstance(until, str | int) or until == "":
        yield Problem(
            f"{at}/until", "bad_time", "it must be RFC 3339 text, milliseconds since 1970, or `${expression}`"
        )
    signal = given.get("signal", "-")
    if not isinstance(signal, str) or not signal.strip():
        yield Problem(f"{at}/signal", "blank", "it must be the name of a signal")


def _of_payloads(place: Place, step: Step, tree: Tree) -> Iterator[Problem]:
    roots = ROOTS if step.foreach is not None else NODE_ROOTS
    pointer = place.pointer
    yield from check_template(step.with_, f"{pointer}/with", roots, place, tree)
    yield from check_template(step.idempotency_key, f"{pointer}/idempotency_key", NODE_ROOTS, place, tree)
    # A compensation reads the values that exist by then, so no order is required.
    yield from check_template(step.compensation_with, f"{pointer}/compensation_with", roots, None, tree)
