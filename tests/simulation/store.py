"""The durable side of the simulated world: committed entries, the epoch that fences, snapshots, and the mailbox."""

from dataclasses import dataclass, field
from typing import Literal

from tenuto.kernel import codec
from tenuto.kernel.events import Entry
from tenuto.kernel.evolve import evolve, fold
from tenuto.kernel.facts import Fact
from tenuto.kernel.plan import Plan
from tenuto.kernel.state import Execution

# mail: kept in the mailbox until it is consumed. local: known to the worker alone. command: somebody waits for the
# answer and may ask again. clock: means nothing once the moment is over.
Source = Literal["mail", "local", "command", "clock"]


@dataclass(eq=False)
class Envelope:
    """A fact on its way to whoever decides it."""

    fact: Fact
    source: Source


@dataclass
class Store:
    plan: Plan
    history: list[bytes] = field(default_factory=list)
    epoch: int = 0
    snapshot: tuple[int, bytes] | None = None
    mailbox: list[Envelope] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.committed = Execution(self.plan)  # for looking at: whoever decides loads a state of their own

    def append(self, entries: list[Entry], consumed: list[Envelope]) -> None:
        for entry in entries:
            assert entry.seq == len(self.history) + 1, "the primary key (execution, seq) refuses this"
            self.history.append(codec.encode_entry(entry))
            evolve(self.committed, codec.decode_entry(self.history[-1]))
        for envelope in consumed:
            if envelope in self.mailbox:
                self.mailbox.remove(envelope)

    def read(self) -> list[Entry]:
        return [codec.decode_entry(data) for data in self.history]

    def load(self, *, from_snapshot: bool) -> Execution:
        """The state as a new owner finds it: folded from the beginning, or from the last snapshot."""
        if from_snapshot and self.snapshot is not None:
            seq, data = self.snapshot
            state = codec.decode_snapshot(self.plan, data)
            assert state is not None
            return fold(state, [codec.decode_entry(data) for data in self.history[seq:]])
        return fold(Execution(self.plan), self.read())
