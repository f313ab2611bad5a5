"""How a limit is shared out among sessions: the arithmetic, and that both databases keep to it."""

import asyncio
from collections.abc import Callable

import pytest

from tenuto.runtime.durable.permits import Permits
from tenuto.storage import Store
from tenuto.storage.permits import STALE_MS, Ask, Dealing, Dealt, HolderRow, LimitRow, Share, fair_shares
from tenuto.testing import VirtualClock
from tests.seams import permit_request

NOW = 1_000_000


class Limit:
    """One limit and the sessions on it, without a database."""

    def __init__(self, count: int | None = None, period_ms: int | None = None, concurrency: int | None = None) -> None:
        self.row = LimitRow("l", count, period_ms, concurrency)
        self.holders: dict[str, HolderRow] = {}
        self.now = NOW

    def ask(self, session: str, wants: int, *, running: int = 0, unspent: int = 0, spare: int = 0) -> Share:
        return self.exchange(session, wants, running=running, unspent=unspent, spare=spare).shares["l"]

    def exchange(self, session: str, wants: int, *, running: int = 0, unspent: int = 0, spare: int = 0) -> Dealt:
        slice = self.row.spent[-1][0] if self.row.spent else 0
        ask = Ask(running={"l": running}, unspent={"l": (slice, unspent)}, wants=[(("l",), wants)], spare={"l": spare})
        dealing = Dealing([self.row], list(self.holders.values()), session, ask, self.now)
        dealt = dealing.deal()
        self.holders.update((holder.session, holder) for holder in dealing.changed_holders())
        return dealt


def test_the_sum_of_what_is_held_is_within_the_limit() -> None:
    limit = Limit(concurrency=3)
    assert limit.ask("a", 2).running == 2
    assert limit.ask("b", 2).running == 1
    assert limit.ask("c", 2).running == 0
    assert sum(holder.held for holder in limit.holders.values()) == 3


def test_what_a_session_does_not_run_any_more_is_free_again() -> None:
    limit = Limit(concurrency=3)
    limit.ask("a", 3)
    limit.ask("b", 2)
    limit.ask("a", 0, running=1)
    assert limit.ask("b", 2).running == 2


def test_an_answer_that_was_lost_costs_nothing() -> None:
    limit = Limit(concurrency=3)
    limit.ask("a", 3)
    assert limit.ask("a", 3).running == 3, "it says that it runs none, so that it holds none"


def test_a_session_with_more_than_its_share_is_told_to_go_down_to_it() -> None:
    limit = Limit(concurrency=10)
    assert limit.ask("a", 50).running == 10
    assert limit.ask("b", 50).running == 0
    assert limit.ask("a", 50, running=10).running == 5
    assert limit.ask("a", 50, running=5).running == 5
    assert limit.ask("b", 50).running == 5


def test_one_permit_goes_from_one_to_the_other() -> None:
    limit = Limit(concurrency=1)
    turns = ["a", "b"]
    limit.ask("a", 9)
    for turn in range(6):
        holder, other = turns[turn % 2], turns[1 - turn % 2]
        limit.now += 10
        limit.ask(other, 9)
        assert limit.ask(holder, 9, running=1).running == 0, "somebody else has waited for longer"
        limit.ask(holder, 9)
        assert limit.ask(other, 9).running == 1


def test_who_does_not_come_again_is_not_waited_for() -> None:
    limit = Limit(concurrency=2)
    limit.ask("a", 2)
    limit.ask("gone", 2)
    assert limit.ask("a", 2, running=2).running == 1
    limit.now += STALE_MS + 1
    assert limit.ask("a", 2, running=2).running == 2


def test_what_ran_before_counts_even_beyond_the_limit() -> None:
    limit = Limit(concurrency=1)
    assert limit.ask("a", 1, running=5).running == 1, "it may not start until it is down to one"
    assert limit.ask("b", 1).running == 0


@pytest.mark.parametrize(("count", "period_ms"), [(14, 1_000), (3, 50), (100, 60_000)])
def test_in_no_period_is_more_dealt_than_the_rate_allows(count: int, period_ms: int) -> None:
    limit = Limit(count, period_ms)
    dealt: list[tuple[int, int]] = []
    for step in range(400):
        limit.now += period_ms // 37
        starts = limit.ask(f"session {step % 3}", step % 11).starts
        assert starts is not None
        dealt.append((limit.now, starts))
    for at, _ in dealt:
        assert sum(number for other, number in dealt if at <= other < at + period_ms) <= count
    periods = (limit.now - NOW) // period_ms
    assert sum(number for _, number in dealt) > count * periods * 3 // 4, "and most of what it allows is dealt"


def test_starts_that_were_not_made_are_open_again() -> None:
    limit = Limit(10, 1_000)
    assert limit.ask("a", 10).starts == 10
    assert limit.ask("b", 4).starts == 0
    limit.ask("a", 0, unspent=4)
    assert limit.ask("b", 4).starts == 4


def test_it_is_said_when_a_rate_opens() -> None:
    limit = Limit(2, 1_000)
    limit.ask("a", 2)
    limit.now += 300
    dealt = limit.exchange("a", 1)
    assert dealt.denied == [("l",)]
    limit.now += dealt.retry_ms
    assert limit.ask("a", 1).starts == 1
    assert 700 <= dealt.retry_ms <= 710


def test_a_rate_is_shared_by_those_who_wait() -> None:
    limit = Limit(10, 1_000)
    limit.ask("a", 10)
    limit.ask("b", 10)
    limit.now += 1_100
    dealt = {"a": 0, "b": 0}
    for session in "abababab":
        limit.now += 1
        dealt[session] += limit.ask(session, 10 - dealt[session]).starts or 0
    assert sum(dealt.values()) == 10
    assert min(dealt.values()) >= 4


def test_spare_starts_are_dealt_while_nobody_waits() -> None:
    limit = Limit(10, 1_000)
    assert limit.ask("a", 1, spare=4).starts == 5
    limit.ask("b", 10)
    assert limit.ask("a", 1, spare=4).starts == 0


def test_what_names_several_limits_is_dealt_all_or_nothing() -> None:
    rows = [LimitRow("a", None, None, 5), LimitRow("b", None, None, 2)]
    ask = Ask(running={}, wants=[(("a", "b"), 4), (("a",), 2), (("free",), 7)])
    dealt = Dealing(rows, [], "s", ask, NOW).deal()
    assert dealt.shares == {"a": Share(4), "b": Share(2), "free": Share()}
    assert dealt.denied == [("a", "b")]


@pytest.mark.parametrize(
    ("capacity", "demands", "shares"),
    [
        (10, {"a": 3, "b": 4}, {"a": 3, "b": 4}),
        (10, {"a": 2, "b": 9, "c": 9}, {"a": 2, "b": 4, "c": 4}),
        (10, {"a": 9, "b": 9, "c": 9}, {"a": 3, "b": 3, "c": 4}),
        (1, {"a": 9, "b": 9}, {"a": 0, "b": 1}),
        (0, {"a": 1}, {"a": 0}),
        (-3, {"a": 1}, {"a": 0}),
        (5, {}, {}),
    ],
)
def test_fair_shares(capacity: int, demands: dict[str, int], shares: dict[str, int]) -> None:
    assert fair_shares(capacity, demands, ["c", "b", "a"]) == shares


# -- In a worker -------------------------------------------------------------------------------------------------------


class Desk:
    """Whoever deals in place of the database. `left` is how many it still deals, `held` what it believes to run."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.left = self.held = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self.wants: dict[tuple[str, ...], int] = {}
        self.permits = Permits(self.clock, self._exchange)
        self.permits.add_queue(self)

    async def _exchange(self, ask: Ask) -> Dealt:
        number = min(self.left, sum(number for _, number in ask.wants))
        denied = [names for names, wants in ask.wants if wants > number]
        self.held = ask.running.get("l", 0) + number
        self.meanwhile()
        return Dealt(now=self.clock.now_ms(), shares={"l": Share(min(self.held, self.left))}, denied=denied)

    def wanted(self) -> dict[tuple[str, ...], int]:
        return dict(self.wants)

    def pump(self) -> None:
        """Nothing starts here."""

    async def pass_time(self, ms: int) -> None:
        self.clock.go_to(self.clock.now_ms() + ms)
        while (task := permit_request(self.permits)) is not None:
            await task


async def test_what_was_denied_is_asked_for_again_when_slots_are_free_again() -> None:
    """While all slots were taken, nothing was wanted of the limit, and nobody came again."""
    desk = Desk()
    desk.wants = {("l",): 1}
    desk.permits.wait(("l",))
    await desk.pass_time(0)
    assert desk.permits.spent(("l",)) == "l"
    desk.wants = {}
    await desk.pass_time(10_000)
    desk.wants, desk.left = {("l",): 1}, 1
    desk.permits.wait(("l",))
    await desk.pass_time(10_000)
    desk.permits.wait(("l",))
    await desk.pass_time(0)
    assert desk.permits.spent(("l",)) is None


async def test_what_ends_during_an_exchange_is_given_back_by_the_next() -> None:
    """Somebody else waits for it: this worker may run no more, and wants no more either."""
    desk = Desk()
    desk.wants, desk.left = {("l",): 1}, 1
    desk.permits.wait(("l",))
    await desk.pass_time(0)
    desk.permits.take(("l",))
    desk.wants, desk.left = {}, 0
    desk.meanwhile = lambda: desk.permits.leave(("l",))
    await desk.pass_time(10_000)
    assert desk.held == 1
    desk.meanwhile = lambda: None
    await desk.pass_time(0)
    assert desk.held == 0


async def test_what_was_dealt_is_lost_with_the_session() -> None:
    desk = Desk()
    desk.wants, desk.left = {("l",): 2}, 2
    desk.permits.wait(("l",))
    await desk.pass_time(0)
    assert desk.permits.spent(("l",)) is None
    desk.permits.forget()
    assert desk.permits.spent(("l",)) == "l"


async def test_without_a_session_it_is_not_asked_for_over_and_over() -> None:
    """Those who wait are looked at after every exchange, and would ask for another at once."""
    clock, asked = VirtualClock(), 0

    async def exchange(ask: Ask) -> None:
        nonlocal asked
        asked += 1

    class Queue:
        def wanted(self) -> dict[tuple[str, ...], int]:
            return {("l",): 1}

        def pump(self) -> None:
            permits.wait(("l",))

    permits = Permits(clock, exchange)
    permits.add_queue(Queue())
    permits.wait(("l",))
    clock.go_to(clock.now_ms())
    for _ in range(3):
        clock.go_to(clock.now_ms())
        while (task := permit_request(permits)) is not None:
            await task
    assert asked == 1
    permits.close()


# -- On a database -----------------------------------------------------------------------------------------------------


async def _session(store: Store, id: str, lease_ms: int = 60_000) -> None:
    await store.sessions.open(id, "worker", "build", lease_ms, ())


async def test_sessions_that_come_at_once_hold_no_more_than_there_is(store: Store) -> None:
    await store.limits.set("l", None, 7)
    sessions = [f"s{number}" for number in range(6)]
    for session in sessions:
        await _session(store, session)

    async def ask(session: str) -> int:
        dealt = await store.limits.exchange(session, Ask(running={}, wants=[(("l",), 3)]))
        assert dealt is not None
        held = dealt.shares["l"].running
        assert held is not None
        return held

    held = await asyncio.gather(*(ask(session) for session in sessions))
    assert sum(held) <= 7
    (use,) = await store.limits.all()
    assert (use.concurrency, use.running, use.running + use.waiting) == (7, 7, 18)


async def test_starts_at_once_are_within_the_rate(store: Store) -> None:
    await store.limits.set("l", (5, 60_000), None)
    for number in range(4):
        await _session(store, f"s{number}")
    answers = await asyncio.gather(
        *(store.limits.exchange(f"s{number}", Ask(running={}, wants=[(("l",), 3)])) for number in range(4))
    )
    assert sum(dealt.shares["l"].starts or 0 for dealt in answers if dealt is not None) == 5


async def test_what_a_session_held_is_free_when_it_is_ended(store: Store) -> None:
    await store.limits.set("l", None, 2)
    await _session(store, "dead", -1)
    await _session(store, "alive")
    wants = Ask(running={}, wants=[(("l",), 2)])
    held = await store.limits.exchange("dead", wants)
    none = await store.limits.exchange("alive", wants)
    assert await store.sessions.reap() == 1
    freed = await store.limits.exchange("alive", wants)
    assert held is not None
    assert none is not None
    assert freed is not None
    assert (held.shares["l"].running, none.shares["l"].running, freed.shares["l"].running) == (2, 0, 2)
    assert await store.limits.exchange("dead", wants) is None, "and the dead one is dealt nothing more"


async def test_a_limit_is_changed_and_lifted(store: Store) -> None:
    await _session(store, "s")
    wants = Ask(running={"l": 2}, wants=[(("l",), 9)])
    await store.limits.set("l", (4, 1_000), 5)
    first = await store.limits.exchange("s", wants)
    await store.limits.set("l", None, 3)
    second = await store.limits.exchange("s", wants)
    await store.limits.set("l", None, None)
    third = await store.limits.exchange("s", wants)
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.shares["l"].running, first.shares["l"].starts) == (5, 3)
    assert second.shares["l"] == Share(3)
    assert third.shares["l"] == Share()
    assert await store.limits.all() == []
