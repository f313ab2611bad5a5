"""Claims executions that are due or have mail, and have no owner.

After a claim, the execution is loaded and folded, and the takeover is reported to the kernel. An execution that could
not be loaded stays claimed, and a claim whose answer was lost is found again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from tenuto.errors import StorageError
from tenuto.kernel import facts as f
from tenuto.kernel.effects import EffectKey
from tenuto.runtime.executor import Performer
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.program_registry import ProgramRegistry
from tenuto.runtime.executor.slots import RESUME
from tenuto.runtime.executor.worker import Worker
from tenuto.runtime.supervision import report
from tenuto.storage.port import WORK, Claim, ExecutionRow, Loaded, ProgressRow, Store, Turn
from tenuto.values.jitter import spread

from .definition_cache import DefinitionCache
from .held_executions import UNREADABLE, HeldExecutions
from .late_reports import LateReports
from .parked_executions import LONGEST_PARKED_MS, PARKED_MS, ParkedExecutions, Parking
from .restoration import Restorer
from .session import CurrentSession, Session
from .wakeups import Wakeups
from .watcher import Watcher

logger = logging.getLogger("tenuto.durable")

CLAIM_AT_ONCE = 200
MAX_HELD = 4_000  # executions that one process holds at most


class Claimer:
    """Claims due executions in batches, and loads them."""

    def __init__(
        self,
        store: Store,
        current: CurrentSession,
        wakeups: Wakeups,
        worker: Worker,
        registry: ProgramRegistry,
        cache: DefinitionCache,
        parked: ParkedExecutions,
        held: HeldExecutions,
        restorer: Restorer,
        late_reports: LateReports,
        watcher: Watcher,
    ) -> None:
        self._store = store
        self._current = current
        self._wakeups = wakeups
        self._worker = worker
        self._registry = registry
        self._cache = cache
        self._parked = parked
        self._held = held
        self._restorer = restorer
        self._late_reports = late_reports
        self._watcher = watcher
        self._claimed: dict[str, Claim] = {}  # and not loaded yet
        self._asked_for: Counter[str] = Counter()  # by id, and the answer is on its way
        self._adopting: Counter[str] = Counter()  # loaded, and not held yet
        self._suspected: dict[str, Claim] = {}  # what the last sweep found
        self._sweep_at = 0.0
        self._turn = ""  # the tenant that was last in turn to be claimed for
        self._next_turn = 0.0
        self.limited: frozenset[Performer] = frozenset()  # programs whose attempts wait for limits here

    def clear(self) -> None:
        """The session is lost, and all its claims."""
        self._claimed.clear()
        self._parked.lost_claims_at = []
        self._suspected = {}

    async def claim(self) -> None:
        await self._look_for_lost_claims()
        await self._adopt_claimed()
        await self._park_all()
        worker = self._worker
        if not worker.works or not self._current.session.may_start or worker.closing:
            return
        self.limited = self._find_limited()
        plans = [
            f"{name}/{version}"
            for (name, version), performer in self._registry.performers.items()
            if self._cache.can_run(performer) and performer not in self.limited
        ]
        if not plans:
            return
        room = min(MAX_HELD - len(self._held.records), CLAIM_AT_ONCE)
        is_full = (
            room <= 0
            or worker.async_lane.backlog > worker.async_lane.size
            or worker.thread_lane.backlog > worker.thread_lane.size
        )
        await self._claim_parked(plans, room)
        session = self._current.session
        with self._claiming():
            claims = await (
                self._claim_in_turn(plans) if is_full else self._store.claims.claim(session.id, plans, room)
            )
        if session is not self._current.session:
            return  # the session was lost, and its claims with it
        self._claimed.update((claim.id, claim) for claim in claims)
        await self._adopt_claimed()
        if len(claims) == room:
            self._wakeups.notify(WORK)  # there may be more

    async def _claim_parked(self, plans: list[str], room: int) -> None:
        """Tries executions that other workers parked, once with the present code of this process.

        After that they are claimed when they are due, so that workers that cannot continue them do not pass them on.
        """
        if room <= 0 or not self._parked.begin_look():
            return
        try:
            found = await self._store.claims.parked(plans, LONGEST_PARKED_MS)
        except BaseException:
            self._parked.look_soon()
            raise
        held = self._held
        new = [id for id in found if not self._parked.was_tried(id) and id not in held.releasing]
        if len(new) > room:
            self._parked.look_soon()
        for id in new[:room]:
            await self.claim_one(id)

    async def _claim_in_turn(self, plans: list[str]) -> list[Claim]:
        """All slots are taken. Executions of tenants that have less than their share are claimed all the same."""
        slots = self._worker.async_lane.size + self._worker.thread_lane.size
        room = min(MAX_HELD + slots - len(self._held.records), CLAIM_AT_ONCE)
        if room <= 0 or monotonic() < self._next_turn:
            return []
        tenants = Counter(record.state.tenant for record in self._held.records.values())
        share = max(1, 2 * slots // (len(tenants) + 1))
        full = [tenant for tenant, number in tenants.items() if number >= share]
        turn = Turn(after=self._turn, full=full, each=share, limit=room)
        claims, self._turn = await self._store.claims.claim_by_tenant(self._current.session.id, plans, turn)
        self._next_turn = monotonic() + (0 if self._turn else self._wakeups.poll_s)
        return claims

    def _find_limited(self) -> frozenset[Performer]:
        """Programs of which so many attempts wait for a limit here that more of them would delay others."""
        waiting: Counter[Performer] = Counter()
        for lane in (self._worker.async_lane, self._worker.thread_lane):
            for record, number in lane.held_up():
                waiting[record.performer] += number
        return frozenset(performer for performer, number in waiting.items() if number > self._worker.async_lane.size)

    async def claim_one(self, execution_id: str) -> None:
        session = self._current.session
        if self._held.find_held(execution_id) is None and session.may_start:
            with self._claiming(execution_id):
                claim = await self._store.claims.claim_one(session.id, execution_id)
            if claim is not None and session is self._current.session:
                self._claimed[claim.id] = claim
                await self._adopt_claimed()

    @contextmanager
    def _claiming(self, *ids: str) -> Iterator[None]:
        self._asked_for.update(ids)
        try:
            yield
        except BaseException:
            self._parked.look_for_lost_claims()
            raise
        finally:
            self._asked_for -= Counter(ids)

    async def _look_for_lost_claims(self) -> None:
        """Looks for claims that were made though their answers were lost.

        One look is not enough: a claim may still be under way.
        """
        looks, session = self._parked.lost_claims_at, self._current.session
        if looks and monotonic() >= looks[0]:
            for claim in await self._lost_claims():
                if session is self._current.session:
                    self._claimed[claim.id] = claim
            del looks[0]
        elif not looks and monotonic() >= self._sweep_at:
            self._sweep_at = monotonic() + spread(self._current.lease_ms / 2_000)
            await self._sweep()

    async def _sweep(self) -> None:
        """Looks for executions that are owned here in two sweeps and not held, and for unread mail that woke nothing.

        It should never find anything.
        """
        session, before = self._current.session, self._suspected
        self._suspected = {claim.id: claim for claim in await self._lost_claims()}
        caught = [claim for id, claim in self._suspected.items() if before.get(id) == claim]
        if session is self._current.session:
            self._claimed.update((claim.id, claim) for claim in caught)
        number = len(caught) + await self._store.mailbox.wake_unread()
        if number:
            self._report_found(number)

    def _report_found(self, number: int) -> None:
        logger.warning(
            "%d executions were owned by this session but not held, and continue now",
            number,
            extra={"action": "found_again"},
        )

    async def _lost_claims(self) -> list[Claim]:
        """Executions that this session owns and does not hold, apart from those that it is releasing.

        Also without those that are being claimed: no claim is adopted twice. The second adoption could come after the
        first one was released.
        """
        known = {*self._known, *self._held.releasing}
        owned = await self._store.claims.owned(self._current.session.id)
        known |= self._known
        return [claim for claim in owned if claim.id not in known]

    @property
    def _known(self) -> set[str]:
        return {*self._held.records, *self._claimed, *self._asked_for, *self._parked.to_park, *self._adopting}

    async def _adopt_claimed(self) -> None:
        """Loads claimed executions. Those that cannot be loaded now stay claimed until the next poll."""
        if not self._claimed:
            return
        session = self._current.session
        progress = await self._held.progress.give(list(self._claimed))
        for loaded in await self._store.executions.load(list(self._claimed), short=True):
            if session is not self._current.session:
                return  # the claims are another session's now
            claim = self._claim_of(loaded.row)
            if claim is not None:
                self._adopting[claim.id] += 1
                try:
                    await self._adopt(claim, loaded, session, progress.get(claim.id, []))
                except (StorageError, asyncio.CancelledError):
                    if session is self._current.session:
                        self._claimed[claim.id] = claim
                    raise
                except Exception as error:  # the others are loaded all the same
                    await self._park(claim.id, claim.epoch, error)
                finally:
                    self._adopting -= Counter({claim.id: 1})

    def _claim_of(self, row: ExecutionRow) -> Claim | None:
        """The claim to adopt with this row, if another call has not adopted it meanwhile.

        The execution may even have been released and claimed again. Then the row is too old for the claim, and the
        call that made the claim loads the present one.
        """
        claim = self._claimed.get(row.id)
        return None if claim is None or row.epoch < claim.epoch else self._claimed.pop(row.id)

    async def _park(self, id: str, epoch: int, error: Exception) -> None:
        """This release cannot read the history or a message. Another may; it is tried again after a while."""
        report(UNREADABLE.format(id), error)
        self._parked.to_park[id] = Parking(self._current.session, epoch, "incompatible", PARKED_MS)
        if (record := self._held.records.get(id)) is not None:
            self._held.give_up(record, "parked")
        await self._park_all()

    async def _park_all(self) -> None:
        """If the database cannot be reached now, it is done at the next poll."""
        for id, parking in list(self._parked.to_park.items()):
            session, epoch, why, again_ms = parking
            if session is self._current.session:
                if why:
                    self._parked.note_tried(id, "")
                await self._store.claims.park(session.id, id, why, again_ms, epoch)
            if self._parked.to_park.get(id) == parking:  # else it was claimed meanwhile, and is to be parked again
                del self._parked.to_park[id]

    async def _adopt(self, claim: Claim, loaded: Loaded, session: Session, progress: list[ProgressRow]) -> None:
        if (loaded.row.owner, loaded.row.epoch) != (session.id, claim.epoch):
            return  # the answer was late: another session or claim has it by now
        performer = await self._cache.stored_performer(claim.definition, claim.version)
        record = Record(self._held, performer, loaded.row.key)
        await self._restorer.restore(record, loaded)
        if session is not self._current.session or not session.alive:
            return  # the session of this claim has ended
        if (held := self._held.records.get(claim.id)) is not None and held.epoch == claim.epoch:
            return  # another call adopted the same claim
        self._held.progress.take(record, progress)
        record.is_active = record.state.finished is None
        record.epoch = claim.epoch
        self._held.records[claim.id] = record
        if held is not None:
            record.zombies.update(held.zombies)
        self._late_reports.attach(record)
        self._watcher.came_here(claim.id)
        fact = f.Taken(at=self._worker.now(), epoch=claim.epoch, lease_ms=self._current.lease_ms)
        self._held.unread_mail.taken(claim.id)
        taken: list[EffectKey] | None = None  # attempts granted after this one are not committed with it

        def follow(_: f.Answer) -> None:
            self._held.follow_agenda(record, list(record.state.agenda) if taken is None else taken, RESUME)

        self._held.apply(record, fact, RESUME, follow)
        taken = list(record.state.agenda)
