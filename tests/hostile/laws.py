"""What must hold when all is quiet: between what was seen outside, what callers were told, and what is stored."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tenuto.checker import check_database
from tenuto.kernel import events as e

from .order import out_of_order
from .sagas import QUEUED

if TYPE_CHECKING:
    from .operators import Operator
    from .world import World

Broken = tuple[str, str]
# Each of these has a message, whatever else is in it; and in this world everybody wants all messages.
TOLD = (e.ExecutionStarted, e.ExecutionFinished, e.RunOpened, e.Paused, e.Resumed, e.ReviewOpened, e.ReviewResolved)


async def check_end(world: "World", operator: "Operator") -> None:
    from .world import Violation

    broken = (_callers, _letters, _effects, _answers, _messages, _progress, out_of_order)
    for law, detail in (each for find in broken for each in find(world)):
        raise Violation(law, detail)
    findings = await check_database(f"sqlite:///{world.path}")
    if findings:
        raise Violation(findings[0].sentence, "\n".join(line for found in findings[:3] for line in found.lines()))
    _note_situations(world)


def _rows(world: "World") -> dict[str, tuple[str, str]]:
    return {
        id: (status, parked)
        for id, status, parked in world.reader().execute("SELECT id, status, parked FROM executions")
    }


def _heard(world: "World") -> Counter[str]:
    """Signals that were recorded, and how often they were used or kept, whichever is more."""
    used: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    for id in _rows(world):
        for entry in world.entries_of(id):
            if isinstance(entry.event, e.SignalKept):
                kept[entry.event.id] += 1
            elif isinstance(entry.event, e.WaitEnded):
                used[entry.event.by] += 1
    del used["timer"]
    return used | kept


def _callers(world: "World") -> Iterator[Broken]:
    rows = _rows(world)
    heard = _heard(world)
    for client in world.clients:
        for key, id in client.started.items():
            if id not in rows:
                yield "what was acknowledged is there", f"{key} {id}"
        for id, status in client.results.items():
            if rows[id][0] != status:
                yield "what is over stays as it was told", f"{id}: told {status}, is {rows[id][0]}"
        told = {id for id, acknowledged in client.signals.items() if acknowledged}
        for id in sorted(told - heard.keys()):
            yield "a signal that was acknowledged is recorded", id
        for id in sorted(client.paused | client.canceled):
            events = [entry.event for entry in world.entries_of(id)]
            if id in client.paused and not any(isinstance(event, e.Paused) for event in events):
                yield "a pause that was acknowledged is recorded", id
            if id in client.canceled and not any(_cancels(event) for event in events):
                yield "a cancel that was acknowledged is recorded", id
    for id, times in heard.items():
        if times > 1:
            yield "a signal is used once", f"{id}: {times} times"
    for id, (_, parked) in rows.items():
        if parked:
            yield "nothing is set aside that can be read", f"{id}: {parked}"


def _cancels(event: e.Event) -> bool:
    """A failed execution whose next run waits for its credits is canceled by refusing them."""
    return isinstance(event, e.CancelRequested) or (isinstance(event, e.HoldChanged) and event.refused)


def _letters(world: "World") -> Iterator[Broken]:
    """What a letter causes is decided when it is read: it stands in one row of the history, in one piece."""
    letters = {id for (id,) in world.reader().execute("SELECT id FROM mailbox")}
    for id in _rows(world):
        causes = [entry.cause for entry in world.entries_of(id)]
        pieces = Counter(cause for cause, before in zip(causes, [None, *causes], strict=False) if cause != before)
        for cause, times in pieces.items():
            if cause in letters and times > 1:
                yield "a letter acts once", f"{cause} in {id}: {times} times"


def _effects(world: "World") -> Iterator[Broken]:
    outside = world.outside
    of = {effect.key: effect.execution for effect in outside.effects}
    for key, times in outside.applied.items():
        if outside.begun[key] and times > 1 and key not in outside.doubtful and not outside.may_repeat[of[key]]:
            yield "an unsafe effect is made once", f"{key}: {times} times"
    applied = {(x.execution, x.path, x.phase, x.number) for x in outside.effects if x.what == "applied"}
    for id in _rows(world):
        for entry in world.entries_of(id):
            event = entry.event
            if not isinstance(event, e.AttemptSucceeded) or event.phase not in ("forward", "compensate"):
                continue
            if (id, event.path, event.phase, event.number) not in applied:
                yield "what succeeded was made", f"{id} {event.path} {event.phase} {event.number}"


def _answers(world: "World") -> Iterator[Broken]:
    """Whoever was told that his answer counts finds it in the history."""
    for execution, path, number in sorted(world.receiver.answered):
        ends = [entry.event for entry in world.entries_of(execution) if isinstance(entry.event, e.AttemptSucceeded)]
        if not any((event.path, event.phase, event.number) == (path, "forward", number) for event in ends):
            yield "an answer that was applied is recorded", f"{execution} {path} {number}"


def _messages(world: "World") -> Iterator[Broken]:
    first: dict[str, list[int]] = {}
    for execution, seq in world.published:
        line = first.setdefault(execution, [])
        if seq not in line:
            line.append(seq)
    for execution, line in first.items():
        if line != sorted(line):
            yield "messages of an execution leave in order", f"{execution}: {line}"
    for execution, seq in world.reader().execute("SELECT execution, seq FROM outbox"):
        if seq not in first.get(execution, ()):
            yield "every message leaves", f"{execution} {seq}"
    for execution in _rows(world):
        for entry in world.entries_of(execution):
            if isinstance(entry.event, TOLD) and entry.seq not in first.get(execution, ()):
                yield "what is recorded is told", f"{execution} {entry.seq} {type(entry.event).__name__}"


def _progress(world: "World") -> Iterator[Broken]:
    if world.knows_words:
        for told in world.reader().execute("SELECT execution, path, body FROM told_late"):
            if told[1] in QUEUED:
                yield "how far a step is, is told by its last attempt", f"{told}"


def _note_situations(world: "World") -> None:
    statuses = [status for status, _ in _rows(world).values()]
    world.sometimes("all succeeded", set(statuses) == {"succeeded"})
    for id in _rows(world):
        for entry in world.entries_of(id):
            _note_entry(world, entry)
    world.sometimes("snapshot taken", world.reader().execute("SELECT count(*) FROM snapshots").get)


def _note_entry(world: "World", entry: e.Entry) -> None:
    match entry.event:
        case e.AttemptLost():
            world.sometimes("attempt lost")
        case e.ReviewOpened():
            world.sometimes("review opened")
        case e.ExecutionAdmitted():
            world.sometimes("waited for a key")
        case e.AttemptSucceeded(phase="compensate"):
            world.sometimes("undone")
        case e.AttemptSucceeded(path="sort"):
            world.sometimes("attempt of a queue")
        case e.ExecutionStarted(definition="bounded"):
            world.sometimes("under a limit")
