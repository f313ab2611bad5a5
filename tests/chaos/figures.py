"""What a run was, in numbers. Times are told, and never judged."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from tests.crash.verdict import Record

from .outside import Line, Outside


@dataclass
class Figures:
    database: str
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    taken_over: list[float] = field(default_factory=list)  # from a kill until others had all that the process owned
    outages: list[tuple[float, float]] = field(default_factory=list)  # of the database: from when to when
    back_to_work: list[float] = field(default_factory=list)  # from the kill of the database to the next effect
    stops: list[float] = field(default_factory=list)  # from SIGTERM to the end of the process
    statuses: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    effects: Counter[str] = field(default_factory=Counter)
    late: int = 0
    images: int = 0

    def count(self, record: Record, outside: Outside) -> None:
        self.statuses = Counter(row.status for row in record.executions.values())
        self.attempts = Counter(row.state for row in record.attempts.values())
        lines = outside.lines()
        self.effects = Counter(line["what"] for line in lines)
        self.late = sum(line["late"] for line in lines)
        self.back_to_work = list(self._back_to_work(lines))

    def _back_to_work(self, lines: list[Line]) -> Iterator[float]:
        for killed_at, back_at in self.outages:
            later = [line["t"] for line in lines if line["what"] == "made" and line["t"] > back_at]
            yield from (at - killed_at for at in later[:1])

    def lines(self) -> Iterator[str]:
        executions = sum(self.statuses.values())
        yield f"{self.database}: {executions} executions in {self.seconds:.0f} s: {_counted(self.statuses)}"
        yield f"  {sum(self.attempts.values())} attempts: {_counted(self.attempts)}"
        yield f"  outside: {_counted(self.effects)}; {self.late} of them written by a process that had been frozen"
        yield f"  faults: {_counted(self.faults)}"
        yield from _seconds("taken over after the kill of a worker", self.taken_over)
        yield from _seconds("at work again after the kill of the database", self.back_to_work)
        yield from _seconds("ended after SIGTERM", self.stops)
        if self.images:
            yield f"  {self.images} copies of the file were opened and finished"


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counter.most_common()) or "none"


def _seconds(what: str, times: list[float]) -> Iterator[str]:
    if times:
        yield f"  {what}: median {median(times):.1f} s, at most {max(times):.1f} s (of {len(times)})"
