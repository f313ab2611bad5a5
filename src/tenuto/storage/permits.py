"""Shares a limit out among the sessions that need it: pure arithmetic for both databases.

A session reports how many attempts it runs under each limit and how many more it would start, and gets permits. It
keeps permits for the attempts that it reported as running, and gives back all others with the same report. So a lost
answer costs only time, and when a session ends, deleting its rows gives back everything.

Concurrency: permits are dealt under the lock of the limit's row, so all sessions together hold at most the limit. If
they need more, each one gets a fair share. A session that holds more starts no attempt until it is down to its share.
Rate: starts are counted in slices of a hundredth of the period, and each slice counts until a period after its end. So
no period has more starts than the rate, by the database's time.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Final, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from tenuto.views.projections import AuditRow

UNCOUNTED: Final = 2**31 - 1  # the limit of a tenant whose executions are being counted

Names: TypeAlias = tuple[str, ...]

SLICES: Final = 100
STALE_MS: Final = 2_000  # who wanted something, and has not come again in this time, does not count


class LimitRow(Struct):
    """A limit as it is stored. `spent` is what was dealt of its rate: until when it counts, and how much."""

    name: str
    count: int | None
    period_ms: int | None
    concurrency: int | None
    spent: list[tuple[int, int]] = []

    @classmethod
    def of(cls, name: str, count: int | None, period_ms: int | None, concurrency: int | None, spent: str) -> "LimitRow":
        return cls(name, count, period_ms, concurrency, msgspec.json.decode(spent, type=list[tuple[int, int]]))

    @property
    def spent_text(self) -> str:
        return msgspec.json.encode(self.spent).decode()


class HolderRow(Struct):
    """What a session holds of a limit, how many more it waits for, when it last asked and was last dealt something."""

    name: str
    session: str
    held: int = 0
    wanted: int = 0
    asked_at: int = 0
    served_at: int = 0


class Ask(Struct, kw_only=True):
    """The report of a session. `unspent`: starts that it got last time and did not make.

    `spare`: starts that it expects to need soon, and gets if no other session waits.
    """

    running: dict[str, int]
    unspent: dict[str, tuple[int, int]] = {}
    wants: list[tuple[Names, int]] = []
    spare: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        return sorted({*self.running, *self.unspent, *(name for names, _ in self.wants for name in names)})


class Share(Struct, frozen=True):
    """Of one limit: how many may run in this session, and how many may start. None: there is no such bound."""

    running: int | None = None
    starts: int | None = None
    slice: int = 0


class Dealt(Struct, kw_only=True):
    """`denied` are those wants that were not met in full; it is worth asking again after `retry_ms`."""

    now: int
    shares: dict[str, Share]
    denied: list[Names] = []
    retry_ms: int = 0


class LimitUse(Struct, frozen=True):
    """A limit, how many attempts run under it, and how many wait for it."""

    name: str
    count: int | None
    period_ms: int | None
    concurrency: int | None
    running: int
    waiting: int


class TenantUse(Struct, frozen=True):
    tenant: str
    max_in_flight: int
    in_flight: int


IN_FLIGHT: Final = "t.in_flight + coalesce((SELECT sum(c.change) FROM tenant_changes c WHERE c.tenant = t.tenant), 0)"
"""Of a tenant, whose row in `tenant_limits` is `t`, with what is not in its count yet."""

USE: Final = """
SELECT l.name, l.count, l.period_ms, l.concurrency, coalesce(sum(h.held), 0), coalesce(sum(h.wanted), 0)
FROM limits l LEFT JOIN limit_holders h ON h.name = l.name
GROUP BY l.name, l.count, l.period_ms, l.concurrency ORDER BY l.name"""


class Dealing:
    """One exchange: `deal` gives the answer, and changes the rows, which are then written."""

    def __init__(
        self, rows: Iterable[LimitRow], holders: Iterable[HolderRow], session: str, ask: Ask, now: int
    ) -> None:
        self.rows = {row.name: row for row in rows}
        self.session = session
        self.ask = ask
        self.now = now
        self.mine: dict[str, HolderRow] = {}
        self._others: dict[str, list[HolderRow]] = {name: [] for name in self.rows}
        for holder in holders:
            if holder.session == session:
                self.mine[holder.name] = holder
            elif holder.name in self._others:
                self._others[holder.name].append(holder)
        self._spent_before = {row.name: list(row.spent) for row in self.rows.values()}
        self._mine_before = {name: copy(holder) for name, holder in self.mine.items()}

    def changed_rows(self) -> list[LimitRow]:
        return [row for name, row in self.rows.items() if row.spent != self._spent_before[name]]

    def changed_holders(self) -> list[HolderRow]:
        """Those that say something new, or that would pass for stale before the session comes again."""
        return [holder for name, holder in self.mine.items() if name in self.rows and self._is_news(holder)]

    def _is_news(self, mine: HolderRow) -> bool:
        before = self._mine_before.get(mine.name, HolderRow(mine.name, mine.session))
        same = (before.held, before.wanted, before.served_at) == (mine.held, mine.wanted, mine.served_at)
        return not same or (mine.wanted > 0 and mine.asked_at - before.asked_at > STALE_MS // 4)

    def deal(self) -> Dealt:
        for row in self.rows.values():
            self._take_back(row)
        left = {name: self._allowance(row) for name, row in self.rows.items()}
        granted = dict.fromkeys(self.rows, 0)
        denied: list[Names] = []
        for names, number in self.ask.wants:
            bound = [name for name in names if name in self.rows]
            given = min([number, *(left[name] for name in bound)])
            for name in bound:
                left[name] -= given
                granted[name] += given
            if given < number:
                denied.append(names)
        shares = {name: self._share(row, granted[name]) for name, row in self.rows.items()}
        asked = {name for names, _ in self.ask.wants for name in names}
        shares.update((name, Share()) for name in {*self.ask.running, *asked} - self.rows.keys())
        return Dealt(now=self.now, shares=shares, denied=denied, retry_ms=self._retry_ms(denied))

    def _take_back(self, row: LimitRow) -> None:
        """What the session says it runs, it holds; starts that it did not make are open again."""
        mine = self._mine(row.name)
        mine.held = self.ask.running.get(row.name, 0)
        mine.wanted = sum(number for names, number in self.ask.wants if row.name in names)
        mine.asked_at = self.now
        slice, unused = self.ask.unspent.get(row.name, (0, 0))
        kept = [(until, number - unused if until == slice else number) for until, number in row.spent]
        row.spent = [(until, number) for until, number in kept if until > self.now and number > 0]

    def _mine(self, name: str) -> HolderRow:
        if name not in self.mine:
            self.mine[name] = HolderRow(name, self.session)
        return self.mine[name]

    def _allowance(self, row: LimitRow) -> int:
        """How many this session may start now, in fairness to the others."""
        mine = self._mine(row.name)
        allowed = mine.wanted
        if row.concurrency is not None:
            held = mine.held + sum(other.held for other in self._others[row.name])
            allowed = min(allowed, row.concurrency - held, self._keeps(row) - mine.held)
        if row.count is not None:
            demands = {holder.session: holder.wanted for holder in (mine, *self._waiting(row.name))}
            allowed = min(allowed, fair_shares(self._open(row), demands, self._turns(row.name))[self.session])
        return max(allowed, 0)

    def _keeps(self, row: LimitRow) -> int:
        """How many this session runs when everyone has its fair share."""
        assert row.concurrency is not None
        demands = {other.session: other.held for other in self._others[row.name]}
        for holder in (self._mine(row.name), *self._waiting(row.name)):
            demands[holder.session] = holder.held + holder.wanted
        return fair_shares(row.concurrency, demands, self._turns(row.name))[self.session]

    def _waiting(self, name: str) -> list[HolderRow]:
        """The other sessions that want of it, and came not long ago."""
        return [other for other in self._others[name] if other.wanted and other.asked_at > self.now - STALE_MS]

    def _turns(self, name: str) -> list[str]:
        """The sessions in order: the one that was served longest ago first."""
        sessions = [self._mine(name), *self._others[name]]
        return [holder.session for holder in sorted(sessions, key=lambda h: (h.served_at, h.session))]

    def _open(self, row: LimitRow) -> int:
        """Starts that the rate allows now."""
        assert row.count is not None
        return max(row.count - sum(number for _, number in row.spent), 0)

    def _share(self, row: LimitRow, granted: int) -> Share:
        mine = self._mine(row.name)
        waiting = self._waiting(row.name)
        running = starts = None
        slice = 0
        if row.concurrency is not None:
            running = min(mine.held + granted, self._keeps(row) if waiting else row.concurrency)
        if row.count is not None:
            spare = 0 if waiting else min(self.ask.spare.get(row.name, 0), self._open(row) - granted)
            starts = granted + max(spare, 0)
            slice = self._spend(row, starts)
        mine.held += granted
        mine.wanted -= granted
        if granted:
            mine.served_at = self.now
        return Share(running, starts, slice)

    def _spend(self, row: LimitRow, number: int) -> int:
        """Counts starts in the present slice, and gives its mark: until when they count."""
        assert row.period_ms is not None
        grain = max(1, row.period_ms // SLICES)
        until = -(-(self.now + 1) // grain) * grain + row.period_ms
        if number:
            spent = dict(row.spent)
            spent[until] = spent.get(until, 0) + number
            row.spent = sorted(spent.items())
        return until

    def _retry_ms(self, denied: list[Names]) -> int:
        bound = [[self.rows[name] for name in names if name in self.rows] for names in denied]
        return min((max(self._opens_in(row) for row in rows) for rows in bound), default=0)

    def _opens_in(self, row: LimitRow) -> int:
        if row.count is None or self._open(row) or not row.spent:
            return 0
        return min(until for until, _ in row.spent) - self.now


def fair_shares(capacity: int, demands: Mapping[str, int], turns: Sequence[str]) -> dict[str, int]:
    """Gives each session at most its demand. Cuts the unmet demands equally; the remainder goes round by turns."""
    shares: dict[str, int] = {}
    left = max(capacity, 0)
    unmet = sorted(demands, key=lambda session: demands[session])
    while unmet and demands[unmet[0]] <= left // len(unmet):
        session = unmet.pop(0)
        shares[session] = demands[session]
        left -= demands[session]
    each, over = divmod(left, len(unmet)) if unmet else (0, 0)
    first = [session for session in turns if session in unmet][:over]
    shares.update((session, each + (session in first)) for session in unmet)
    return shares


class LimitStore(Protocol):
    async def exchange(self, session: str, ask: Ask) -> Dealt | None:
        """Shares limits out. None: the session was ended, and nothing was dealt."""

    async def set(
        self, name: str, rate: tuple[int, int] | None, concurrency: int | None, note: AuditRow | None = None
    ) -> None:
        """So many starts in so many milliseconds, and so many at once. Without either there is no such limit.

        `note` is written into the audit in the same transaction, unless there was no limit to lift.
        """

    async def all(self) -> list[LimitUse]: ...

    async def set_tenant(self, tenant: str, max_in_flight: int | None, note: AuditRow | None = None) -> None:
        """How many executions of a tenant may be under way, for starts from now on. None: as many as it likes.

        `note` as for `set`.
        """

    async def tenants(self, tenant: str | None) -> list[TenantUse]:
        """The tenants that have a limit; or this one, if it has."""
