"""Whether the record and the outside tell one story, when all is over."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Protocol

from tenuto import Engine
from tenuto.checker import SLACK_MS, check_database, export_lines
from tenuto.checker.derived import AttemptRow, RunRow, StepRow
from tenuto.checker.ndjson import record_of
from tenuto.kernel.address import idempotency_key
from tenuto.storage.shared.records import ExecutionRecord

from .scenario import UNSAFE, Scenario

Line = dict[str, Any]

TERMINAL = ("succeeded", "failed", "canceled")


class Log(Protocol):
    """What the outside remembers."""

    def lines(self, *what: str) -> list[Line]: ...


class Record:
    """What an export says of executions, attempts and steps."""

    def __init__(self, lines: list[bytes]) -> None:
        records = [record_of(line) for line in lines]
        self.executions = {row.id: row for row in records if isinstance(row, ExecutionRecord)}
        steps = [row for row in records if isinstance(row, StepRow)]
        self.steps = [row for row in steps if row.run == self.executions[row.execution].run]
        self.runs = [row for row in records if isinstance(row, RunRow)]
        attempts = [row for row in records if isinstance(row, AttemptRow)]
        self.attempts = {(row.execution, row.path, row.phase, row.number): row for row in attempts}
        self.by_key: defaultdict[str, list[AttemptRow]] = defaultdict(list)
        for row in attempts:
            self.by_key[row.key].append(row)

    @property
    def unsafe(self) -> set[tuple[str, str]]:
        return {(row.execution, row.path) for row in self.steps if row.safety == UNSAFE}


async def record_at(url: str) -> Record:
    return Record([line async for line in export_lines(url, "")])


async def findings_at(url: str, *, slack_ms: int = SLACK_MS) -> list[str]:
    return [line for found in await check_database(url, slack_ms=slack_ms) for line in found.lines()]


async def judge(scenario: Scenario, url: str, world: Log) -> list[str]:
    """Everything that is wrong, in words. Nothing is expected."""
    findings = await findings_at(url)
    record = await record_at(url)
    if scenario.pruned:
        world = _Kept(world, record)
    return [
        *findings,
        *(line["why"] for line in world.lines("wrong")),
        *(published(record, world) if "messages" in scenario.options else []),
        *(await audited(url, record) if scenario.actor else []),
        *one_at_a_time(world, {step["step_id"] for step in scenario.document["steps"] if "limits" in step}),
        *_ends(scenario, record),
        *acknowledged(record, world),
        *explained(record, world),
        *made_once(record, world.lines("made"), scenario.repeats),
        *begun_once(record, world.lines("began")),
        *settled(record, world, lost=scenario.lost),
    ]


def _ends(scenario: Scenario, record: Record) -> list[str]:
    bad = {x: row.status for x, row in record.executions.items() if row.status not in scenario.statuses}
    return [f"execution {x} ended {status}" for x, status in bad.items()]


class _Kept:
    """What the outside remembers of executions that are still recorded."""

    def __init__(self, world: Log, record: Record) -> None:
        self._world = world
        self._record = record

    def lines(self, *what: str) -> list[Line]:
        return [line for line in self._world.lines(*what) if line.get("x") in self._record.executions]


def published(record: Record, world: Log) -> list[str]:
    """B1, B4: of every execution the first and the last word left, and none before an earlier one."""
    wrong = []
    for x, row in record.executions.items():
        lines = [line for line in world.lines("published") if line["x"] == x]
        firsts = list(dict.fromkeys(line["seq"] for line in lines))
        if firsts != sorted(firsts):
            wrong.append(f"messages of {x} left in the order {firsts}")
        kinds = Counter({line["seq"]: line["kind"] for line in lines}.values())
        if kinds["execution.started"] != 1 or not kinds["execution.finished"]:
            wrong.append(f"of {x}, which is {row.status}, was told {dict(kinds)}")
        if len({line["id"] for line in lines}) != len(firsts):
            wrong.append(f"a message of {x} left under two ids, or two under one")
    return wrong


async def audited(url: str, record: Record) -> list[str]:
    """A1, H4: the audit is whole, and says of every execution once that it was started, and how it ended."""
    async with Engine(url, worker=False) as engine:
        audit = engine.scoped(tenant="default", actor="verdict").audit
        chain = await audit.verify()
        actions = Counter([(row["object_id"], row["action"]) async for row in audit.export()])
    wrong = [] if chain.broken_at is None else [f"the audit does not hold at row {chain.broken_at}"]
    for x, row in record.executions.items():
        for action in ("execution.started", f"execution.{row.status}"):
            if actions[x, action] != 1:
                wrong.append(f"{action} of {x} is in the audit {actions[x, action]} times")
    return wrong


def one_at_a_time(world: Log, limited: set[str]) -> list[str]:
    """Of steps under a limit of one: none begins while one that this process began is under way."""
    under_way: dict[int, str] = {}
    wrong = []
    for line in world.lines("began", "made"):
        if line["path"] in limited:
            if line["what"] == "made":
                under_way.pop(line["pid"], None)
            elif under_way.setdefault(line["pid"], line["x"]) != line["x"]:
                wrong.append(f"{line['path']} of {line['x']} ran beside that of {under_way[line['pid']]}")
    return wrong


def acknowledged(record: Record, world: Log) -> list[str]:
    """K5, K1: what was acknowledged is there; one key is one execution."""
    wrong = []
    keys: dict[str, str] = {}
    for line in world.lines("acknowledged"):
        if line["x"] not in record.executions:
            wrong.append(f"execution {line['x']} was acknowledged, and is not there")
        if keys.setdefault(line["key"], line["x"]) != line["x"]:
            wrong.append(f"key {line['key']} was given two executions")
    return wrong


PHASES = {"began": ("forward",), "undoing": ("compensate",), "asked": ("guard", "reconcile"), "sent": ("forward",)}


def explained(record: Record, world: Log) -> list[str]:
    """L10, K7: every call of a handler is an attempt that was granted, under the key of its step."""
    wrong = []
    for line in world.lines(*PHASES):
        refs = [(line["x"], line["path"], phase, line["number"]) for phase in PHASES[line["what"]]]
        known = [record.attempts[ref] for ref in refs if ref in record.attempts]
        if not known:
            wrong.append(f"{line['what']} {line['path']} {line['number']}, and there was no such attempt")
        elif line["key"] not in [row.key for row in known]:
            wrong.append(f"{line['what']} {line['path']} {line['number']} under another key")
    made = {line["key"] for line in world.lines("made")}
    began = {line["key"] for line in world.lines("began")}
    for row in record.attempts.values():
        if row.phase == "forward" and row.state == "succeeded" and row.key in began and row.key not in made:
            wrong.append(f"{row.path} succeeded, and nothing was made")
    return wrong


def made_once(record: Record, made: Iterable[Line], repeats: int = 0) -> list[str]:
    """R3: what is not safe to repeat is made once for each key."""
    unsafe = record.unsafe
    times = Counter(line["key"] for line in made if (line["x"], line["path"]) in unsafe)
    return [f"made {count} times under one key" for count in times.values() if count > 1 + repeats]


def begun_once(record: Record, began: Iterable[Line]) -> list[str]:
    """R3: and no attempt of it is begun twice."""
    unsafe = record.unsafe
    times = Counter((line["key"], line["number"]) for line in began if (line["x"], line["path"]) in unsafe)
    return [f"attempt {ref[1]} was begun {count} times" for ref, count in times.items() if count > 1]


def settled(record: Record, world: Log, *, lost: bool = False) -> list[str]:
    """P1: an effect that was made is kept by a step that is done, or was undone; and what was undone had been made."""
    undone = Counter(line["undoes"] for line in world.lines("undone"))
    made = {line["key"]: line for line in world.lines("made")}
    wrong = []
    for row in record.steps:
        if row.compensable:
            status = record.executions[row.execution].status
            wrong += _step(row, status, _key(record, row), made, undone, lost=lost)
    for key in undone:
        if key not in made and not _forgiven(record, key):
            wrong.append("something was undone that was never made")
    return wrong


def _key(record: Record, step: StepRow) -> str:
    """The forward key of the step's present generation, which a retried run may not have tried yet."""
    tenant = record.executions[step.execution].tenant
    return idempotency_key(tenant, step.execution, step.path, "forward", step.generation)


def _step(row: StepRow, status: str, key: str, made: Any, undone: "Counter[str]", *, lost: bool) -> list[str]:
    was_made, was_undone = key in made, undone[key] > 0
    if row.undo == "done" and was_made and not was_undone:
        return [f"{row.path} is recorded as undone, and was not"]
    if was_undone and row.undo != "done":
        return [f"{row.path} was undone, and is recorded as {row.undo or 'not undone'}"]
    if status == "succeeded" and row.done_seq and not was_made:
        return [f"{row.path} is recorded as done, and nothing was made"]
    if was_made and not was_undone and not row.done_seq and not lost:
        return [f"{row.path} was made, and nobody keeps or undoes it ({status})"]
    if was_made and not was_undone and status == "failed":
        return [f"{row.path} was made, and the execution failed without undoing it"]
    return []


def _forgiven(record: Record, key: str) -> bool:
    """An attempt whose outcome was unknown, or half made, may be undone though it made nothing."""
    return any(row.state in ("lost", "timed_out", "failed") for row in record.by_key[key])
