"""The same program, with the same things happening around it, has the same history in every runtime.

More of it: `python -m tests.differential --programs 500`.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tenuto.kernel import events as e
from tenuto.kernel import facts as f
from tests.seams import change_reports
from tests.servers.postgres import Server

from .compare import compare, places
from .play import Played, Player
from .programs import draw

SHARDS = 4
PROGRAMS_PER_SHARD = 6
PLAYED = 400  # at most, and in memory, which is fast
MET = (
    e.AttemptDispatched, e.DispatchFailed, e.AttemptAcked, e.AttemptTimedOut, e.StepExpired, e.ChildrenAdded,
    e.AttemptAbandoned, e.ProbeAnswered, e.ScopeRestarted, e.CompensationStopped, e.RunOpened, e.Resumed,
    e.ExecutionAdmitted, e.Expanded,
)  # fmt: skip


@pytest.mark.parametrize("shard", range(SHARDS))
async def test_a_program_has_one_history(shard: int, postgres_server: Server) -> None:
    entries = 0
    for seed in range(shard * PROGRAMS_PER_SHARD, (shard + 1) * PROGRAMS_PER_SHARD):
        with places(postgres_server) as urls:
            entries += await compare(seed, urls)
    assert entries > 8 * PROGRAMS_PER_SHARD, "programs that do nothing differ in nothing"


async def _play(seed: int) -> Played:
    return await Player(draw(seed), "memory://").play()


async def test_programs_meet_what_they_are_about() -> None:
    left, seed = set(MET), 0
    while left and seed < PLAYED:
        left -= {type(entry.event) for entry in (await _play(seed)).entries}
        seed += 1
    assert left == set()


def test_programs_are_started_in_every_way() -> None:
    """With others before them that have their key, by who does not run them, and with an input for each step."""
    programs = [draw(seed) for seed in range(PLAYED)]
    assert sum(program.is_keyed for program in programs) > PLAYED // 10
    assert sum(program.is_unowned for program in programs) > PLAYED // 10
    assert sum(any(program.each.values()) for program in programs) > PLAYED // 20


def _refused(fact: f.Fact) -> f.Fact:
    """Directives never get out."""
    if not isinstance(fact, f.Dispatched):
        return fact
    return f.DispatchRefused(at=fact.at, ref=fact.ref, failure=f.Failed(error_class="TRANSIENT", code="planted"))


def _unplanned(fact: f.Fact) -> f.Fact:
    """Planners fail."""
    if not isinstance(fact, f.Reported) or fact.ref.phase != "plan":
        return fact
    return msgspec.structs.replace(fact, outcome=f.Failed(error_class="NON_RETRYABLE", code="planted"))


def _in_time(fact: f.Fact) -> f.Fact:
    """What is timed out is told as a failure."""
    if not isinstance(fact, f.Reported) or not isinstance(fact.outcome, f.TimedOut):
        return fact
    return msgspec.structs.replace(fact, outcome=f.Failed(error_class="TRANSIENT", code="planted"))


PLANTED: dict[type[e.Recorded], Callable[[f.Fact], f.Fact]] = {
    e.AttemptDispatched: _refused,
    e.ChildrenAdded: _unplanned,
    e.AttemptTimedOut: _in_time,
}


@pytest.mark.parametrize("kind", PLANTED, ids=lambda kind: kind.__name__)
async def test_a_runtime_that_differs_is_found(
    kind: type[e.Recorded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug is planted in one of two runtimes, and the first program that meets it there tells.

    What is not made again is answered for another way: a program in which nothing was changed is passed over.
    """
    planted: list[f.Fact] = []

    def changed(fact: f.Fact) -> f.Fact:
        told = PLANTED[kind](fact)
        planted.extend([told] if told is not fact else ())
        return told

    change_reports(monkeypatch, changed)
    with pytest.raises(AssertionError, match=r"program \d+ differs"):
        await _compare_those_that_meet(kind, tmp_path, planted)


async def _compare_those_that_meet(kind: type[e.Recorded], folder: Path, planted: list[f.Fact]) -> None:
    for seed in range(PLAYED):
        if any(_meets(entry.event, kind) for entry in (await _play(seed)).entries):
            await compare(seed, {"memory": "memory://", "sqlite": f"sqlite:///{folder}/{seed}.db"})
            assert not planted, "it was met, and nobody noticed"


def _meets(event: e.Event, kind: type[e.Recorded]) -> bool:
    return isinstance(event, kind) and getattr(event, "kind", "attempt") == "attempt"
