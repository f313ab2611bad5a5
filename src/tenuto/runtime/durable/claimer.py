"""Taking executions into hand: those that are due, or have mail, and that nobody owns.

A claim is a word of the database; the execution is then loaded and folded, and the kernel is told of the takeover. What
was claimed and could not be loaded stays claimed, and a claim whose answer was lost is found again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from tenuto.errors import (
    StorageError,
)
from tenuto.kernel import facts as f
from tenuto.kernel.codec import decode_entries
from tenuto.kernel.effects import EffectKey
from tenuto.kernel.evolve import evolve
from tenuto.runtime.executor import Performer
from tenuto.runtime.executor.held_execution import Record, Ticket
from tenuto.runtime.executor.slots import RESUME
from tenuto.runtime.shared.supervision import report
from tenuto.storage.port import WORK, Claim, ExecutionRow, Loaded, ProgressRow, Turn
from tenuto.values.jitter import spread

from . import snapshots
from .held_executions import LONGEST_ASIDE_MS, SET_ASIDE_MS, UNREADABLE, Parking
from .session import Session
from .starter import IN_HAND, Starter

logger = logging.getLogger("tenuto.durable")

CLAIM_AT_ONCE = 200
# When to ask for claims that went astray: longer than a database takes to carry out what its client has given up.
ASTRAY_SECONDS = (0.0, 1.0, 3.0, 8.0, 20.0, 35.0)
ASIDE_SECONDS = 60.0  # between looks for what others could not go on with


class Claimer(Starter):
    """A worker that takes over what is due."""

    def _prepare_claiming(self) -> None:
        self._claimed: dict[str, Claim] = {}  # and not loaded yet
        self._asked_for: Counter[str] = Counter()  # by name, and the answer is on its way
        self._adopting: Counter[str] = Counter()  # loaded, and not in hand yet
        self._astray_at: list[float] = []  # a claim failed, and may have been made, or be made yet
        self._suspected: dict[str, Claim] = {}  # what the last look over found
        self._look_over_at = 0.0
        self._fetching: dict[asyncio.Future[None], None] = {}
        self._turn = ""  # the tenant that was last in turn to be claimed for
        self._next_turn = 0.0
        self._aside_at = 0.0

    async def _claim(self) -> None:
        await self._look_for_astray()
        await self._adopt_claimed()
        await self._park_all()
        if not self._works or not self._session.may_start or self._closing:
            return
        self._held_up = self._find_held_up()
        plans = [
            f"{name}/{version}"
            for (name, version), performer in self._performers.items()
            if self._can_run(performer) and performer not in self._held_up
        ]
        if not plans:
            return
        room = min(IN_HAND - len(self._records), CLAIM_AT_ONCE)
        is_full = (
            room <= 0 or self._tasks.backlog > self._tasks.size or self._in_threads.backlog > self._in_threads.size
        )
        await self._look_aside(plans, room)
        session = self._session
        with self._claiming():
            claims = await (self._claim_in_turn(plans) if is_full else self._store.claim(session.id, plans, room))
        if session is not self._session:
            return  # they are nobody's again
        self._claimed.update((claim.id, claim) for claim in claims)
        await self._adopt_claimed()
        if len(claims) == room:
            self._nudge(WORK)  # there may be more

    async def _look_aside(self, plans: list[str], room: int) -> None:
        """What was set aside is tried here at once, and once with the code that is here: another's may not have fitted.

        After that it comes as it is due, by and by: workers that all cannot go on with it do not hand it around.
        """
        if room <= 0 or monotonic() < self._aside_at:
            return
        self._aside_at = monotonic() + spread(ASIDE_SECONDS)
        try:
            found = await self._store.aside(plans, LONGEST_ASIDE_MS)
        except BaseException:
            self._look_aside_soon()
            raise
        new = [id for id in found if self._tried.get(id) != self._learned and id not in self._letting_go]
        if len(new) > room:
            self._look_aside_soon()
        for id in new[:room]:
            await self._take(id)

    def _look_aside_soon(self) -> None:
        self._aside_at = 0.0

    def _learn(self) -> None:
        super()._learn()
        self._look_aside_soon()

    async def _claim_in_turn(self, plans: list[str]) -> list[Claim]:
        """There is more here than can run. Tenants that have less than their share of it come in all the same."""
        slots = self._tasks.size + self._in_threads.size
        room = min(IN_HAND + slots - len(self._records), CLAIM_AT_ONCE)
        if room <= 0 or monotonic() < self._next_turn:
            return []
        tenants = Counter(record.state.tenant for record in self._records.values())
        share = max(1, 2 * slots // (len(tenants) + 1))
        full = [tenant for tenant, number in tenants.items() if number >= share]
        turn = Turn(after=self._turn, full=full, each=share, limit=room)
        claims, self._turn = await self._store.claim_in_turn(self._session.id, plans, turn)
        self._next_turn = monotonic() + (0 if self._turn else self._poll_ms / 1_000)
        return claims

    def _find_held_up(self) -> frozenset[Performer]:
        """Programs of which so much waits for a limit here that more of them would only be in the way of others."""
        waiting: Counter[Performer] = Counter()
        for lane in (self._tasks, self._in_threads):
            for record, number in lane.held_up():
                waiting[record.performer] += number
        return frozenset(performer for performer, number in waiting.items() if number > self._tasks.size)

    async def _take(self, execution_id: str) -> None:
        session = self._session
        if self._held(execution_id) is None and session.may_start:
            with self._claiming(execution_id):
                claim = await self._store.claim_one(session.id, execution_id)
            if claim is not None and session is self._session:
                self._claimed[claim.id] = claim
                await self._adopt_claimed()

    @contextmanager
    def _claiming(self, *ids: str) -> Iterator[None]:
        self._asked_for.update(ids)
        try:
            yield
        except BaseException:
            self._look_for_astray_soon()
            raise
        finally:
            self._asked_for -= Counter(ids)

    def _look_for_astray_soon(self) -> None:
        self._astray_at = [monotonic() + seconds for seconds in ASTRAY_SECONDS]

    async def _look_for_astray(self) -> None:
        """A claim may have been granted though its answer was lost: then this session owns what nobody has in hand.

        Nor is it over with one look: the claim may be under way still.
        """
        looks, session = self._astray_at, self._session
        if looks and monotonic() >= looks[0]:
            for claim in await self._astray():
                if session is self._session:
                    self._claimed[claim.id] = claim
            del looks[0]
        elif not looks and monotonic() >= self._look_over_at:
            self._look_over_at = monotonic() + spread(self._lease_ms / 2_000)
            await self._look_over()

    async def _look_over(self) -> None:
        """A net under all this: what is owned here twice running and in nobody's hand; what has mail and is not due.

        There should be nothing in it, ever.
        """
        session, before = self._session, self._suspected
        self._suspected = {claim.id: claim for claim in await self._astray()}
        caught = [claim for id, claim in self._suspected.items() if before.get(id) == claim]
        if session is self._session:
            self._claimed.update((claim.id, claim) for claim in caught)
        number = len(caught) + await self._store.rouse()
        if number:
            self._say_caught(number)

    def _say_caught(self, number: int) -> None:
        logger.warning("%d executions were in nobody's hand, and go on now", number, extra={"action": "found_again"})

    async def _astray(self) -> list[Claim]:
        """What this session owns and has not in hand. What it just lets go of is not that.

        Nor what somebody asked for: he is told of it, and nobody is told of a claim twice. The second could take it
        into hand when the first has let go of it.
        """
        known = {*self._in_hands, *self._letting_go}
        owned = await self._store.owned(self._session.id)
        known |= self._in_hands
        return [claim for claim in owned if claim.id not in known]

    @property
    def _in_hands(self) -> set[str]:
        return {*self._records, *self._claimed, *self._asked_for, *self._to_park, *self._adopting}

    async def _adopt_claimed(self) -> None:
        """Takes into hand what was claimed. What cannot be loaded now stays claimed, and is loaded at the next poll."""
        if not self._claimed:
            return
        session = self._session
        progress = await self._beats.give(list(self._claimed))
        for loaded in await self._store.load(list(self._claimed), short=True):
            if session is not self._session:
                return  # what is claimed now is another session's, and was not loaded for it
            claim = self._claim_of(loaded.row)
            if claim is not None:
                self._adopting[claim.id] += 1
                try:
                    await self._adopt(claim, loaded, session, progress.get(claim.id, []))
                except (StorageError, asyncio.CancelledError):
                    if session is self._session:
                        self._claimed[claim.id] = claim
                    raise
                except Exception as error:  # whatever it is: it is this one's affair, and the others go on
                    await self._set_aside(claim.id, claim.epoch, error)
                finally:
                    self._adopting -= Counter({claim.id: 1})

    def _claim_of(self, row: ExecutionRow) -> Claim | None:
        """The one that is to be taken into hand with this row. Others may have loaded the same, and been sooner.

        They may even have let go of it, and claimed it again. Then the row is too old for the claim, and is no reason
        to forget it: whoever made it loads what is there now.
        """
        claim = self._claimed.get(row.id)
        return None if claim is None or row.epoch < claim.epoch else self._claimed.pop(row.id)

    async def _set_aside(self, id: str, epoch: int, error: Exception) -> None:
        """This release cannot read what is recorded, or sent. Another may; it is looked at again after a while."""
        report(UNREADABLE.format(id), error)
        self._to_park[id] = Parking(self._session, epoch, "incompatible", SET_ASIDE_MS)
        if (record := self._records.get(id)) is not None:
            self._give_up(record, "parked")
        await self._park_all()

    async def _park_all(self) -> None:
        """If the database cannot be reached now, it is done at the next poll."""
        for id, parking in list(self._to_park.items()):
            session, epoch, why, again_ms = parking
            if session is self._session:
                if why:
                    self._note_tried(id, "")
                await self._store.park(session.id, id, why, again_ms, epoch)
            if self._to_park.get(id) == parking:  # else it was taken meanwhile, and is to be parked again
                del self._to_park[id]

    async def _adopt(self, claim: Claim, loaded: Loaded, session: Session, progress: list[ProgressRow]) -> None:
        if (loaded.row.owner, loaded.row.epoch) != (session.id, claim.epoch):
            return  # what told of the claim was late: it was ours, and has other hands by now
        performer = await self._stored_performer(claim.definition, claim.version)
        record = Record(self, performer, loaded.row.key)
        await self._restore(record, loaded)
        if session is not self._session or not session.alive:
            return  # it was claimed in the name of one that is over
        if (held := self._records.get(claim.id)) is not None and held.epoch == claim.epoch:
            return  # two were told of the same claim
        self._beats.take(record, progress)
        record.is_active = record.state.finished is None
        record.epoch = claim.epoch
        self._records[claim.id] = record
        if held is not None:
            record.zombies.update(held.zombies)
        self._wait_for_stragglers(record)
        self._watched.came_here(claim.id)
        fact = f.Taken(at=self._now(), epoch=claim.epoch, lease_ms=self._lease_ms)
        self._fresh[claim.id] = None
        self._letters.taken(claim.id)
        taken: list[EffectKey] | None = None  # what is granted on top of this is not recorded with it

        def follow(_: f.Answer) -> None:
            self._follow(record, list(record.state.agenda) if taken is None else taken, RESUME)

        self.apply(record, fact, RESUME, follow)
        taken = list(record.state.agenda)

    # -- Restoring -----------------------------------------------------------------------------------------------------

    async def _restore(self, record: Record, loaded: Loaded) -> None:
        if loaded.snapshot is None or not snapshots.restore(record, loaded):
            await self._restore_whole(record, loaded)
        if self._observers and record.unread:
            await self._read_all(record)
        record.state.changed.clear()

    async def _restore_whole(self, record: Record, loaded: Loaded) -> None:
        """From the beginning: the history is short, or what cuts it short is another release's."""
        if loaded.snapshot is not None:
            (loaded,) = await self._store.load([loaded.row.id])
        entries = [entry for body in loaded.bodies for entry in decode_entries(body)]
        for entry in entries:
            evolve(record.state, entry)
        record.note(entries)
        record.tail = sum(len(body) for body in loaded.bodies)

    def _has_to_read(self, ticket: Ticket) -> bool:
        seqs = snapshots.needed(ticket.record, ticket.ref)
        if seqs:
            fetching = asyncio.ensure_future(self._read_for(ticket, seqs))
            self._fetching[fetching] = None
            fetching.add_done_callback(self._fetching.pop)
        return bool(seqs)

    async def _read_for(self, ticket: Ticket, seqs: list[int]) -> None:
        record, ref, _ = ticket
        while record.tickets.get(ref) is ticket:
            try:
                snapshots.fill(record, await self._store.holding(record.state.id, seqs))
                break
            except StorageError:
                await asyncio.sleep(spread(self._poll_ms / 1_000))
        self._enter_again(ticket)

    async def _read_all(self, record: Record) -> None:
        """What a snapshot spared: somebody wants to see the whole history."""
        snapshots.fill(record, await self._store.bodies(record.state.id, 1, record.unread))
        record.unread = 0
