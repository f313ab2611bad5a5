"""Jobs: their ledger is the fold of their events, each callback has one verdict, and directives belong to attempts."""

from collections.abc import Iterable, Sequence

import msgspec

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.state import Execution
from tenuto.storage.ledger.port import IndexRow
from tenuto.storage.shared.records import BusRecord, ExecutionRecord
from tenuto.views.jobs import CallbackRow, LedgerAttempt, LedgerRow, is_job, ledger_attempts, ledger_rows

from .invariants import Family, require

family = Family("Jobs")

J1 = family("J1", "The ledger of a job equals the fold of its events, and its index names its key.")
J2 = family(
    "J2",
    "A callback has one row and one verdict: an applied one is recorded for the attempt and lease that it names, "
    "another left no event; a recorded one has its row.",
)
J3 = family("J3", "The lease of a directive is in the ledger before it is dispatched.")
J4 = family("J4", "A directive on the bus belongs to an attempt that was granted, and names its lease.")

CALLBACK = "callback:"


class Jobs:
    """What the history of a job says about its rows."""

    def __init__(self) -> None:
        self._rows: dict[str, LedgerRow] = {}
        self._attempts: dict[tuple[str, int], LedgerAttempt] = {}
        self._caused: dict[str, e.Entry] = {}
        self.ledger: list[LedgerRow] = []
        self.attempts: list[LedgerAttempt] = []
        self.index: list[IndexRow] = []
        self.callbacks: list[CallbackRow] = []
        self.messages: list[BusRecord] = []

    def note(self, state: Execution, entries: Sequence[e.Entry]) -> None:
        """Adds the entries of one decision, after they were folded."""
        for entry in entries:
            if entry.cause is not None:
                self._caused.setdefault(entry.cause.removeprefix(CALLBACK), entry)
        if not is_job(state):
            return
        for row in ledger_rows(state, entries):
            known = self._rows.get(row.key)
            created_at = row.created_at if known is None else known.created_at
            self._rows[row.key] = msgspec.structs.replace(row, created_at=created_at)
        for attempt in ledger_attempts(state, entries):
            at = (attempt.step, attempt.attempt)
            if at not in self._attempts:
                self._attempts[at] = attempt
                continue
            fields = {name: getattr(attempt, name) for name in attempt.__struct_fields__}
            learned = {name: value for name, value in fields.items() if value is not None}
            self._attempts[at] = msgspec.structs.replace(self._attempts[at], **learned)

    def rows(self) -> list[LedgerRow | LedgerAttempt]:
        """The rows that the history gives."""
        return [*self._rows.values(), *self._attempts.values()]

    def are_shown(self, row: ExecutionRecord) -> None:
        """Compares the ledger with the fold."""
        stored = {each.key: each for each in self.ledger}
        require(stored.keys() == self._rows.keys(), J1, f"the ledger has {sorted(stored)} of {sorted(self._rows)}")
        for key, made in self._rows.items():
            _same_row(stored[key], made)
        known = {(each.step, each.attempt): each for each in self.attempts}
        require(known.keys() == self._attempts.keys(), J1, f"the ledger has the attempts {sorted(known)}")
        for at, attempt in self._attempts.items():
            differing = [
                name for name in attempt.__struct_fields__ if getattr(known[at], name) != getattr(attempt, name)
            ]
            require(not differing, J1, f"attempt {at} differs from the history in {differing}")
        for each in self.index:
            is_so = (each.hash, each.tenant) == (row.key, row.tenant)
            require(is_so, J1, "the index has another key than the job")
        listed = row.key is None or not self._rows or bool(self.index)
        require(listed, J1, "the job has a key, and is not in the index")

    def were_called_back(self) -> None:
        ids = [row.id for row in self.callbacks]
        require(len(set(ids)) == len(ids), J2, "two callbacks have one id")
        for row in self.callbacks:
            entry = self._caused.get(row.id)
            if row.verdict == "applied":
                require(entry is not None, J2, f"callback {row.id} was applied, and led to nothing")
                assert entry is not None
                _answers(row, entry)
            else:
                require(entry is None, J2, f"callback {row.id} is {row.verdict}, and led to an entry")

    def recorded_callbacks(self, causes: Iterable[str]) -> None:
        """Requires that each callback that left an entry is in the log."""
        known = {row.id for row in self.callbacks}
        missing = [
            cause for cause in causes if cause.startswith(CALLBACK) and cause.removeprefix(CALLBACK) not in known
        ]
        require(not missing, J2, f"{missing[:3]} led to entries, and are not in the log")

    def are_leased(self) -> None:
        for attempt in self.attempts:
            own = lease_id(attempt.execution, Ref(attempt.step, "forward", attempt.attempt))
            place = f"attempt {attempt.attempt} of {attempt.step}"
            require(attempt.lease_id == own, J3, f"{place} has the lease of another")
            in_order = attempt.dispatched_at is None or attempt.created_at is not None
            require(in_order, J3, f"{place} was dispatched, and never granted")

    def are_directed(self) -> None:
        for message in self.messages:
            _, step, number, lease = message.id.rsplit("/", 3)
            known = self._attempts.get((step, int(number)))
            require(known is not None, J4, f"a directive is for attempt {number} of {step}, which was not granted")
            assert known is not None
            require(known.lease_id == lease, J4, f"the directive for attempt {number} of {step} has another lease")

    @property
    def causes(self) -> list[str]:
        return [entry.cause for entry in self._caused.values() if entry.cause is not None]


def _same_row(stored: LedgerRow, made: LedgerRow) -> None:
    require(stored.seq == made.seq, J1, f"{made.key} shows entry {stored.seq}, and the last about it is {made.seq}")
    columns = ("tenant", "status", "protocol", "created_at")
    differing = [name for name in columns if getattr(stored, name) != getattr(made, name)]
    said, should = _body(stored), _body(made)
    differing += sorted(name for name in said.keys() | should.keys() if said.get(name) != should.get(name))
    require(not differing, J1, f"{made.key} differs from the history in {differing}")


def _body(row: LedgerRow) -> dict[str, object]:
    return msgspec.json.decode(row.body, type=dict[str, object])


def _answers(row: CallbackRow, entry: e.Entry) -> None:
    event = entry.event
    kinds: tuple[type, ...] = (e.AttemptAcked,) if row.kind == "ack" else (e.AttemptSucceeded, e.AttemptFailed)
    # A late result may first dismiss the review of its step.
    kinds = (*kinds, e.ReviewResolved, e.AttemptAbandoned)
    require(isinstance(event, kinds), J2, f"the {row.kind} {row.id} led to entry {entry.seq}, of another kind")
    own = lease_id(row.execution, Ref(row.step, "forward", row.attempt))
    require(row.lease_id == own, J2, f"callback {row.id} was applied with the lease of another attempt")
    about = (getattr(event, "path", row.step), getattr(event, "number", row.attempt))
    wanted = (row.step, row.attempt)
    is_own = isinstance(event, e.ReviewResolved | e.AttemptAbandoned) or about == wanted
    require(is_own, J2, f"callback {row.id} is about {wanted}, and led to entry {entry.seq} about {about}")
