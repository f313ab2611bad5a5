"""What is wrong with what a run left: the record against every invariant, and against the outside."""

from collections import Counter
from collections.abc import Iterator

from tests.crash.verdict import (
    TERMINAL,
    Record,
    acknowledged,
    begun_once,
    explained,
    findings_at,
    made_once,
    record_at,
    settled,
)

from .outside import Line, Outside


async def judge(url: str, outside: Outside) -> tuple[list[str], Record]:
    """Everything that is wrong, in words. Nothing is expected."""
    findings = await findings_at(url)
    record = await record_at(url)
    wrong = [
        *findings,
        *(f"execution {x} is {row.status}" for x, row in record.executions.items() if row.status not in TERMINAL),
        *acknowledged(record, outside),
        *explained(record, outside),
        *made_once(record, in_time(outside.lines("made"))),
        *begun_once(record, outside.lines("began")),
        *settled(record, outside, lost=True),
    ]
    return wrong, record


def in_time(made: list[Line]) -> Iterator[Line]:
    """Without what a process wrote long after it had decided to, because it was frozen between the two.

    That is the one thing that no engine prevents, and it is promised to nobody: the receiver would have to honour the
    key. So of two effects under one key, one that came in this way is not held against the engine.
    """
    times = Counter(line["key"] for line in made)
    return (line for line in made if not (line["late"] and times[line["key"]] > 1))
