"""What should the kernel's values be made of? Frozen slotted dataclasses, msgspec structs and named tuples, compared.

    python -m benchmarks.kernel_values

One event with nine fields is made, read, compared, hashed, changed and sent through JSON; then a miniature `evolve`
folds a history of six kinds of event into a state. Each figure is the median of several repetitions of a loop that is
long enough for the clock, in processor time, with the garbage collector as it is in production: on.
"""

import argparse
import dataclasses
import platform
import statistics
import time
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

import msgspec

FIELDS: dict[str, dict[str, Any]] = {
    "started": {"seq": int, "at_ms": int, "execution": str},
    "granted": {"seq": int, "at_ms": int, "path": str, "number": int},
    "failed": {
        "seq": int,
        "at_ms": int,
        "path": str,
        "phase": str,
        "number": int,
        "error_class": str,
        "summary": str,
        "retry_at_ms": int | None,
        "grants": tuple[str, ...],
    },
    "timer_set": {"seq": int, "at_ms": int, "path": str, "due_at_ms": int},
    "succeeded": {"seq": int, "at_ms": int, "path": str, "number": int, "result": str},
    "ended": {"seq": int, "at_ms": int, "status": str},
}

Work: TypeAlias = Callable[[int], object]


@dataclass(frozen=True)
class Form:
    """One way to make the six classes, to change a value, and to write and read it with its kind."""

    classes: dict[str, type[Any]]
    replace: Callable[..., Any]
    encode: Callable[[str, Any], bytes]
    decode: Callable[[bytes], Any]


def dataclass_form() -> Form:
    classes: dict[str, type[Any]] = {
        kind: dataclasses.make_dataclass(kind, list(fields.items()), frozen=True, slots=True, kw_only=True)
        for kind, fields in FIELDS.items()
    }
    return Form(classes, dataclasses.replace, *wrapped(classes))


def struct_form() -> Form:
    classes: dict[str, type[Any]] = {
        kind: msgspec.defstruct(kind, list(fields.items()), frozen=True, kw_only=True, array_like=True, tag=kind)
        for kind, fields in FIELDS.items()
    }
    encode = msgspec.json.Encoder().encode
    decode = msgspec.json.Decoder(Union[tuple(classes.values())]).decode  # noqa: UP007  (made of a list)
    return Form(classes, msgspec.structs.replace, lambda _, value: encode(value), decode)


def named_tuple_form() -> Form:
    classes: dict[str, type[Any]] = {}
    for kind, fields in FIELDS.items():
        cls: type[Any] = namedtuple(kind, fields)  # type: ignore[misc]
        cls.__annotations__ = fields
        classes[kind] = cls
    return Form(classes, lambda value, **changes: value._replace(**changes), *wrapped(classes))


def wrapped(classes: dict[str, type[Any]]) -> tuple[Callable[[str, Any], bytes], Callable[[bytes], Any]]:
    """A class without a tag of its own is written as [kind, value], and read in two steps."""
    encode = msgspec.json.Encoder().encode
    open_envelope = msgspec.json.Decoder(tuple[str, msgspec.Raw]).decode
    by_kind = {kind: msgspec.json.Decoder(cls).decode for kind, cls in classes.items()}

    def decode(text: bytes) -> Any:
        kind, body = open_envelope(text)
        return by_kind[kind](body)

    return lambda kind, value: encode((kind, value)), decode


# -- One event ---------------------------------------------------------------------------------------------------------


def single_event(form: Form) -> dict[str, Work]:
    failed, other = form.classes["failed"], form.classes["started"]
    value, twin = failure(failed), failure(failed)
    stranger = other(seq=1, at_ms=1, execution="0192f3c4a1")
    text = form.encode("failed", value)

    def create(n: int) -> None:
        for _ in range(n):
            failure(failed)

    def read(n: int) -> None:
        for _ in range(n):
            _ = value.seq, value.path, value.number, value.grants

    def equal(n: int) -> None:
        for _ in range(n):
            _ = value == twin

    def hashed(n: int) -> None:
        for _ in range(n):
            hash(value)

    def replace(n: int) -> None:
        for _ in range(n):
            form.replace(value, number=2)

    def encode(n: int) -> None:
        for _ in range(n):
            form.encode("failed", value)

    def decode(n: int) -> None:
        for _ in range(n):
            form.decode(text)

    def miss(n: int) -> None:
        for _ in range(n):
            match stranger:
                case failed():
                    raise AssertionError

    return {
        "create, 9 keywords": create,
        "read 4 attributes": read,
        "== of equals": equal,
        "hash": hashed,
        "replace one field": replace,
        "JSON encode with its kind": encode,
        "JSON decode with its kind": decode,
        "`match`: one case that does not fit": miss,
    }


def failure(cls: type[Any], seq: int = 7, path: str = "work/pay") -> Any:
    return cls(
        seq=seq,
        at_ms=1_700_000_000_000,
        path=path,
        phase="forward",
        number=1,
        error_class="TRANSIENT",
        summary="connection reset by peer",
        retry_at_ms=1_700_000_000_200,
        grants=("work/next",),
    )


# -- A miniature evolve ------------------------------------------------------------------------------------------------


class State:
    __slots__ = ("failures", "open", "results", "seq", "status", "timers")

    def __init__(self) -> None:
        self.seq = 0
        self.status = "running"
        self.open: dict[str, int] = {}
        self.results: dict[str, str] = {}
        self.timers: dict[str, int] = {}
        self.failures = 0


def history(form: Form, steps: int) -> list[tuple[str, Any]]:
    """Each step is granted, fails once, waits, is granted again and succeeds."""
    make = form.classes
    events: list[tuple[str, Any]] = [("started", make["started"](seq=0, at_ms=0, execution="0192f3c4a1"))]
    for step in range(steps):
        at, place, seq = 1_700_000_000_000 + step, f"work/step{step}", len(events)
        ok = '{"ok":true}'
        events += [
            ("granted", make["granted"](seq=seq, at_ms=at, path=place, number=1)),
            ("failed", failure(make["failed"], seq + 1, place)),
            ("timer_set", make["timer_set"](seq=seq + 2, at_ms=at, path=place, due_at_ms=at + 200)),
            ("granted", make["granted"](seq=seq + 3, at_ms=at, path=place, number=2)),
            ("succeeded", make["succeeded"](seq=seq + 4, at_ms=at, path=place, number=2, result=ok)),
        ]
    return [*events, ("ended", make["ended"](seq=len(events), at_ms=1_700_000_100_000, status="succeeded"))]


def evolve_by_match(form: Form) -> Callable[[State, Any], None]:
    started, granted, failed, timer_set, succeeded, ended = form.classes.values()

    def evolve(state: State, event: Any) -> None:
        match event:
            case started():
                state.status = "running"
            case granted(path=path, number=number):
                state.open[path] = number
                state.timers.pop(path, None)
            case failed(path=path, retry_at_ms=retry_at_ms):
                del state.open[path]
                state.failures += 1
                state.timers[path] = retry_at_ms
            case timer_set(path=path, due_at_ms=due_at_ms):
                state.timers[path] = due_at_ms
            case succeeded(path=path, result=result):
                del state.open[path]
                state.results[path] = result
            case ended(status=status):
                state.status = status
        state.seq = event.seq

    return evolve


def evolve_by_table(form: Form) -> Callable[[State, Any], None]:
    def started(state: State, event: Any) -> None:
        state.status = "running"

    def granted(state: State, event: Any) -> None:
        state.open[event.path] = event.number
        state.timers.pop(event.path, None)

    def failed(state: State, event: Any) -> None:
        del state.open[event.path]
        state.failures += 1
        state.timers[event.path] = event.retry_at_ms

    def timer_set(state: State, event: Any) -> None:
        state.timers[event.path] = event.due_at_ms

    def succeeded(state: State, event: Any) -> None:
        del state.open[event.path]
        state.results[event.path] = event.result

    def ended(state: State, event: Any) -> None:
        state.status = event.status

    rules = (started, granted, failed, timer_set, succeeded, ended)
    table: dict[object, Callable[[State, Any], None]] = dict(zip(form.classes.values(), rules, strict=True))

    def evolve(state: State, event: Any) -> None:
        table[type(event)](state, event)
        state.seq = event.seq

    return evolve


STEPS = 200
EVENTS = 5 * STEPS + 2


def folding(form: Form) -> dict[str, Work]:
    entries = history(form, STEPS)
    events = [event for _, event in entries]
    lines = [form.encode(kind, event) for kind, event in entries]
    by_match, by_table = evolve_by_match(form), evolve_by_table(form)

    def fold(evolve: Callable[[State, Any], None]) -> Work:
        def work(n: int) -> None:
            for _ in range(n):
                state = State()
                for event in events:
                    evolve(state, event)
                assert (state.seq, state.status, len(state.results)) == (EVENTS - 1, "succeeded", STEPS)

        return work

    def replay(n: int) -> None:
        for _ in range(n):
            state = State()
            for line in lines:
                by_match(state, form.decode(line))
            assert (state.seq, state.status, len(state.results)) == (EVENTS - 1, "succeeded", STEPS)

    return {
        "evolve by `match`, six kinds": fold(by_match),
        "evolve by a table of types": fold(by_table),
        "decode, then evolve by `match`": replay,
    }


# -- Measuring ---------------------------------------------------------------------------------------------------------


def medians_ns(works: Sequence[Work], *, loops: int, repetitions: int) -> list[float]:
    """Processor time of one unit of each work. They take turns, so that a busy machine disturbs them alike."""
    samples: list[list[float]] = [[] for _ in works]
    for repetition in range(repetitions + 1):
        for work, sample in zip(works, samples, strict=True):
            began = time.process_time_ns()
            work(loops)
            if repetition:  # the first is for warming up
                sample.append((time.process_time_ns() - began) / loops)
    return [statistics.median(sample) for sample in samples]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare what the kernel's values could be made of.")
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--loops", type=int, default=50_000)
    options = parser.parse_args(argv)

    forms = (dataclass_form(), struct_form(), named_tuple_form())
    rows: list[tuple[str, list[float]]] = []
    for suite, loops, per in ((single_event, options.loops, 1), (folding, max(1, options.loops // 500), EVENTS)):
        suites = [suite(form) for form in forms]
        for name in suites[0]:
            works = [works[name] for works in suites]
            each = medians_ns(works, loops=loops, repetitions=options.repetitions)
            rows.append((name, [figure / per for figure in each]))
    rows.append(("bytes of that JSON", [len(form.encode("failed", failure(form.classes["failed"]))) for form in forms]))

    print(f"{platform.python_implementation()} {platform.python_version()}, msgspec {msgspec.__version__},", end=" ")
    print(f"{platform.system()} {platform.machine()}. Nanoseconds per event, median of {options.repetitions}.\n")
    print("| | dataclass | Struct | NamedTuple | dataclass ÷ Struct |")
    print("|---|---:|---:|---:|---:|")
    for name, (data, struct, named_tuple) in rows:
        print(f"| {name} | {data:,.0f} | {struct:,.0f} | {named_tuple:,.0f} | {data / struct:.1f} |")


if __name__ == "__main__":
    main()
