"""`reference/states.md`, `retries.md` and `events.md`: what the kernel's own tables say."""

import inspect
import re
import types
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Raw
from msgspec.structs import FieldInfo

from tenuto.kernel import events
from tenuto.kernel.definition import ERROR_CLASSES, ErrorClass, RetryPolicy, Safety, Step
from tenuto.kernel.retry import EXCEPTIONS, MATRIX, MAX_DISPATCHES, MAX_LOSSES, MAX_TRIES, Judgement, judge
from tenuto.kernel.run_states import FINAL, TRANSITIONS
from tenuto.kernel.state import CLOSED, TERMINAL
from tenuto.kernel.transitions import (
    COMPENSATION_TRANSITIONS,
    EXECUTION_TRANSITIONS,
    FAN_OUT_TRANSITIONS,
    SCOPE_TRANSITIONS,
    STEP_TRANSITIONS,
)

S = TypeVar("S", bound=str)

NOTE = "<!-- Made by `make docs` from the code. Changes belong there. -->\n"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# -- States ------------------------------------------------------------------------------------------------------------


def states() -> str:
    return f"""{NOTE}
# States

The kernel looks up every status change in these tables. A change that is not listed is a bug in the engine: it raises,
and nothing is recorded. Tests visit every arrow.

## Execution

The status is derived from the state after every event. An execution is `waiting_approval` if it can proceed only after
a person decides. `failed` is final for its run; an audited retry opens the next run.

{diagram(EXECUTION_TRANSITIONS, "running", TERMINAL)}
## Step

A closed step becomes pending again only in a new round of its scope or a new run of its execution. `retrying` means
that another attempt follows, or that the outcome of the last attempt is being looked up.

{diagram(STEP_TRANSITIONS, "pending", CLOSED)}
## Compensation

A step that succeeded, or may have taken effect in part, is compensated during a rollback. The status is `none` before
the rollback, and again in a new run.

{diagram(COMPENSATION_TRANSITIONS, "none", ("done", "skipped"))}
## Scope

A scope is `closing` from the moment its outcome is known until its running attempts have ended. It opens again for its
next round, and in a new run.

{diagram(SCOPE_TRANSITIONS, "open", ("closed",))}
## Fan-out

A fan-out runs its step once for each item. Each clone has the statuses of a step; the fan-out has these.

{diagram(FAN_OUT_TRANSITIONS, "pending", ("succeeded", "failed", "skipped", "canceled"))}
## Runs

The state of a run is derived from its execution and the first claim of each attempt. `failed` is final once the run's
attempts are spent.

{run_diagram()}"""


def run_diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "  [*] --> created"]
    lines += [f"  {change.old} --> {change.new}: {change.trigger}" for change in TRANSITIONS]
    lines += [f"  {end} --> [*]" for end in FINAL]
    return "\n".join([*lines, "```", ""])


def diagram(transitions: Mapping[S, tuple[S, ...]], start: S, ends: tuple[S, ...]) -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"  [*] --> {start}"]
    lines += [f"  {old} --> {new}" for old, news in transitions.items() for new in news]
    lines += [f"  {end} --> [*]" for end in ends]
    return "\n".join([*lines, "```", ""])


# -- Retries -----------------------------------------------------------------------------------------------------------

How = Literal["failed", "timed_out", "lost"]


def retries() -> str:
    return f"""{NOTE}
# Retries

Whether an attempt is followed by another depends on the class of its error, on what the step declares about repeating
it, and on how many attempts are left.

## Classes

{table(("class", "retried", "first delay", "longest delay", "`Retry-After`", "then"), _matrix())}
Delays double from one attempt to the next and vary by ±10 %, unless the step's `retry_policy` says otherwise. The
variation is computed from the execution, the step and the attempt, so that every runtime waits equally long.

## What follows an attempt

With attempts left; in brackets, where it differs, when they are spent or none may start any more (a cancel, a closing
scope). A lost worker costs no attempt, but {MAX_LOSSES} losses of a step are all that is borne. A send to a queue or a
bus that is refused costs none either; it is tried {MAX_DISPATCHES} times.

{table(("what happened", *_DECLARED), _safety())}
- **retry**: another attempt after the delay.
- **probe**: the guard or the reconcile handler is asked first: at once if the outcome is unknown, otherwise after the
  delay. *Done*: its result is taken. *Not done*: another
  attempt, if one is left. *Pending*: asked again later. *Unknown*: review.
- **review**: a person decides; nothing is repeated until then.
- **fail**: the failure moves up the tree. *Undone*: with the step's own compensation, because it may have been made in
  part. A step also says so with `partial_effect`.

## Ordinary exceptions

An exception that is none of Tenuto's is classified by the first name in its ancestry that is found in the step's
`classify`, in the definition's, or here. One that is in no table is `RETRYABLE`, or `INDETERMINATE` on a step that is
not safe to retry.

{table(("exception", "class"), ((f"`{name}`", _with_limit(name, kind)) for name, kind in EXCEPTIONS.items()))}"""


def _with_limit(name: str, error_class: str) -> str:
    tries = MAX_TRIES.get(name)
    return error_class if tries is None else f"{error_class}, at most {tries} attempts"


def _matrix() -> Iterable[tuple[str, ...]]:
    for error_class, rule in MATRIX.items():
        delays = (_seconds(rule.initial_ms), _seconds(rule.max_ms)) if rule.retried else ("", "")
        after = "respected" if rule.honours_retry_after else ""
        yield (f"`{error_class}`", "yes" if rule.retried else "no", *delays, after, rule.then)


def _seconds(ms: int) -> str:
    return f"{ms} ms" if ms < 1_000 else f"{ms // 1_000} s"


def _declare(safety: Safety, **fields: object) -> Step:
    return Step(id="s", handler="h", safety=safety, retry_policy=RetryPolicy(max_attempts=2), **fields)  # type: ignore[arg-type]


_DECLARED: dict[str, Step] = {
    "SAFE_TO_RETRY": _declare("SAFE_TO_RETRY"),
    "…_WITH_GUARD": _declare("SAFE_TO_RETRY_WITH_GUARD", guard_handler="g"),
    "NOT_SAFE…, `reconcile`": _declare("NOT_SAFE_TO_RETRY", reconcile_handler="r"),
    "NOT_SAFE…, `compensate`": _declare("NOT_SAFE_TO_RETRY", compensation_handler="c"),
    "NOT_SAFE…, by hand": _declare("NOT_SAFE_TO_RETRY", compensation_policy="manual"),
}


def _safety() -> Iterable[tuple[str, ...]]:
    for error_class in ERROR_CLASSES:
        yield (f"failed, `{error_class}`", *_verdicts("failed", error_class))
    yield ("timed out", *_verdicts("timed_out", "INDETERMINATE"))
    yield ("worker lost", *_verdicts("lost", "INDETERMINATE"))


def _verdicts(how: How, error_class: ErrorClass) -> Iterable[str]:
    for step in _DECLARED.values():
        first = _said(judge(step, how, error_class, tries=1, losses=1, may_repeat=True))
        last = _said(judge(step, how, error_class, tries=2, losses=MAX_LOSSES + 1, may_repeat=True))
        yield first if first == last else f"{first} ({last})"


def _said(judgement: Judgement) -> str:
    return f"{judgement.verdict}, undone" if judgement.half_done else judgement.verdict


# -- Events ------------------------------------------------------------------------------------------------------------


def recorded_events() -> str:
    kinds = get_args(events.Event)
    return f"""{NOTE}
# Events

What is recorded of an execution. Its state is the fold of these and of nothing else; every decision is in one of them.
An event is stored as a JSON array: its tag, then its fields in this order. A field that was added later has a default,
so that old histories stay readable; no event is ever changed or taken away.

An entry puts an event in its place:

{fields_of(events.Entry)}
`grants` are the attempts that may start once the entry is committed:

{fields_of(events.Grant)}
{"".join(_event(kind) for kind in kinds)}"""


def _event(kind: type[msgspec.Struct]) -> str:
    words = inspect.getdoc(kind)
    inherited = inspect.getdoc(events.Recorded)
    text = f"\n{words}\n" if words and words != inherited else ""
    return f"\n## {kind.__name__}\n\nTag `{kind.__struct_config__.tag}`.\n{text}\n{fields_of(kind)}"


def fields_of(kind: type[msgspec.Struct]) -> str:
    fields = msgspec.structs.fields(kind)
    return table(("field", "type", "default"), map(_field, fields)) if fields else "No fields.\n"


def _field(field: FieldInfo) -> tuple[str, str, str]:
    if field.default_factory is not msgspec.NODEFAULT:
        default = f"`{field.default_factory()}`"
    elif field.default is not msgspec.NODEFAULT:
        default = f"`{bytes(field.default).decode() if isinstance(field.default, Raw) else repr(field.default)}`"
    else:
        default = ""
    return f"`{field.name}`", type_text(field.type), default


def type_text(kind: object) -> str:
    if kind in _NAMED:
        return _NAMED[kind]
    origin = get_origin(kind)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if origin in (Union, types.UnionType):
        return " or ".join(type_text(part) for part in get_args(kind))
    if kind is type(None):
        return "null"
    if origin is tuple:
        parts = [type_text(part) for part in get_args(kind) if part is not Ellipsis]
        return f"list of {parts[0]}" if Ellipsis in get_args(kind) else f"[{', '.join(parts)}]"
    if origin is dict:
        return f"object of {type_text(get_args(kind)[1])}"
    return re.sub(r".*\.", "", getattr(kind, "__name__", str(kind)))


_NAMED: dict[object, str] = {
    Raw: "JSON",
    str: "text",
    int: "integer",
    bool: "boolean",
    ErrorClass: "error class",
    events.Event: "an event",
}
