"""Releases executions that this process need not hold.

An execution that only waits leaves memory; a worker claims it when it is due or has mail. An execution whose attempts
cannot run here goes to another worker, or is parked.
"""

from collections.abc import Collection

from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.events import AttemptsGranted, AttemptsReturned
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.worker import Worker
from tenuto.runtime.supervision import report
from tenuto.storage.port import WORK, Store
from tenuto.views.projections import has_work, work_of

from .committer import Fate
from .decision_writer import DecisionWrite, DecisionWriter
from .definition_cache import DefinitionCache
from .held_executions import HeldExecutions, Moved
from .parked_executions import LONGEST_PARKED_MS, PARKED_MS, ParkedExecutions
from .queued_attempts import has_queued

EVICT_MS = 2_000  # an execution that waits longer than this is released
GRANTS = (AttemptsGranted, AttemptsReturned)  # all that is recorded each time a worker tries a parked execution


class ReleaseWrite(DecisionWrite, gc=False):
    """Releases an execution: nothing follows here."""

    releaser: "Releaser"

    def settle(self, fate: Fate) -> None:
        self.releaser.released(self, fate)


class ParkWrite(ReleaseWrite, gc=False):
    """Releases an execution that cannot continue with the code of this process. It is due again after a while."""

    def settle(self, fate: Fate) -> None:
        super().settle(fate)
        self.releaser.parked(self)


class HandoverWrite(ReleaseWrite, gc=False):
    """Releases an execution for other workers, which are notified."""

    def settle(self, fate: Fate) -> None:
        super().settle(fate)
        self.releaser.handed_over()


class Releaser:
    """Decides when a held execution is released, and in what state."""

    def __init__(
        self,
        store: Store,
        worker: Worker,
        held: HeldExecutions,
        writer: DecisionWriter,
        cache: DefinitionCache,
        parked_executions: ParkedExecutions,
    ) -> None:
        self._store = store
        self._worker = worker
        self._held = held
        self._writer = writer
        self._cache = cache
        self._parked_executions = parked_executions
        self._lingering: dict[str, int] = {}  # executions whose attempts run elsewhere, and until when they stay
        self._hands_over = False  # while closing: executions without a running handler go to other workers

    def release_if_idle(self, record: Record) -> None:
        """Releases the execution if it has nothing to do here."""
        state, held = record.state, self._held
        if record.uncommitted or held.records.get(state.id) is not record or state.id in held.unread_mail.unchecked:
            return
        if self._worker.closing:
            self._hand_over_on_close(record)
            return
        if record.parked and not self._cache.runs(record.performer):
            self._hand_over(record)
            return
        if not record.is_idle:
            return
        if state.finished is not None:
            if not state.retries:  # else its next run is about to be opened, or refused
                self.release(record)
            return
        if record.parked:
            self._park(record)
            return
        if has_queued(state) and self._lingers(state.id):
            return
        waits_long = record.wake_at is None or record.wake_at - self._worker.now() > EVICT_MS
        if waits_long and not has_work(state):
            self.release(record)

    def _lingers(self, id: str) -> bool:
        """Whether an execution whose attempts run elsewhere is kept for a while: most reports come soon."""
        now = self._worker.now()
        return now < self._lingering.setdefault(id, now + EVICT_MS)

    def release_lingering(self) -> None:
        now = self._worker.now()
        for id in [id for id, until in self._lingering.items() if until <= now]:
            try:
                if (record := self._held.records.get(id)) is not None:
                    self.release_if_idle(record)
            finally:  # not before: until then it says that the time is over
                del self._lingering[id]

    def _hand_over(self, record: Record) -> None:
        """This process has decided for the execution, and cannot run the attempts that it granted."""
        if record.jobs or record.tickets or record.zombies or record.held:
            return
        self._hand_back(record)

    def _hand_over_on_close(self, record: Record) -> None:
        """An execution that runs no handler here does not wait for the handlers of others."""
        if not self._hands_over or record.jobs or record.zombies:
            return
        record.tickets.clear()
        record.held.clear()
        self._hand_back(record)

    def _hand_back(self, record: Record) -> None:
        self.return_work(record, ())
        if not record.uncommitted:  # else this is tried again once that is committed
            self.release(record, HandoverWrite)

    def release_all(self) -> None:
        """Releases executions without a running handler now, each of the others when its last handler has ended."""
        self._hands_over = True
        for record in list(self._held.records.values()):
            try:
                self.release_if_idle(record)
            except Exception as error:
                report(f"Execution {record.state.id} could not be handed over.", error)

    def stop_handing_over(self) -> None:
        """Handlers are stopped from now on, and what became of their attempts is unknown."""
        self._hands_over = False

    def _park(self, record: Record) -> None:
        """The execution waits for code that fits its history. Another worker may have it."""
        self.return_work(record, ())
        if not record.uncommitted:
            why = _why_parked(record)
            self.release(record, ParkWrite, (why, self._retry_at(record)))
            self._parked_executions.note_tried(record.state.id, why)

    def _retry_at(self, record: Record) -> int:
        """After as long as it has not moved, at least a minute and at most an hour; or when it is due anyway."""
        now = self._worker.now()
        moved = (entry.at for entry in reversed(record.history) if not isinstance(entry.event, GRANTS))
        pause = min(max(now - next(moved, now), PARKED_MS), LONGEST_PARKED_MS)
        due = record.state.wake_at
        return now + pause if due is None or due <= now else min(now + pause, due)

    def return_work(self, record: Record, unknown: Collection[Ref]) -> None:
        """Returns attempts that were granted and have not begun: they are not lost, and not counted as lost.

        `unknown`: attempts that were stopped, whose outcome is unknown.
        """
        refs = tuple(ref for ref in work_of(record.state) if ref not in unknown and ref not in record.jobs)
        if refs and record.owned:
            self._held.apply(record, f.Returned(at=self._worker.now(), refs=refs))

    def release(
        self, record: Record, kind: type[ReleaseWrite] = ReleaseWrite, parked: tuple[str, int] | None = None
    ) -> None:
        state, held = record.state, self._held
        if held.records.get(state.id) is not record:
            return
        del held.records[state.id]
        self._worker.parked.pop(record, None)
        held.unread_mail.left(state.id)
        record.wake_at = None
        record.fail_waiters(Moved())
        if record.shown and state.finished is None:
            held.progress.leave(state.id)
        if record.owned:
            held.releasing[state.id] += 1
            write = kind(held, record, [], [], None, f.APPLIED, None, self, execution=state.id)
            self._writer.write(write, release=True, parked=parked)

    def released(self, write: ReleaseWrite, fate: Fate) -> None:
        self._held.has_left(write.execution)
        if fate == "stale":
            self._held.load_again(write.record)

    def parked(self, write: ParkWrite) -> None:
        """The parking is committed. The execution may be able to run with code that was registered meanwhile."""
        if not self._parked_executions.was_tried(write.execution):
            self._parked_executions.look_soon()

    def handed_over(self) -> None:
        self._store.notify(WORK)


def _why_parked(record: Record) -> str:
    """The reason and its subject, as the row shows it. Of several, that of a stored value."""
    reasons = sorted(record.parked.values())
    return f"{reasons[0].reason}: {reasons[0].what}" if reasons else "incompatible"
