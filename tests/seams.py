"""The internals of the engine that tests need, each under a name.

Tests use public behaviour where they can. If a test must see or replace an internal, it does so through a function of
this module, so that a change of the internals changes this module alone. Planted bugs replace internals by nature and
are exempt: `tests/test_tidy.py` lists the files.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from tenuto import Engine
from tenuto.kernel import facts as f
from tenuto.runtime.clock import Environment
from tenuto.runtime.durable import DurableRuntime, snapshots
from tenuto.runtime.durable.claimer import Claimer
from tenuto.runtime.durable.clock import DatabaseClock
from tenuto.runtime.durable.committer import Committer, Write
from tenuto.runtime.durable.committer import _batch as merged_batch
from tenuto.runtime.durable.held_executions import HeldExecutions
from tenuto.runtime.durable.late_reports import LateReports
from tenuto.runtime.durable.mailbox import Mailbox
from tenuto.runtime.durable.parked_executions import ParkedExecutions
from tenuto.runtime.durable.permits import Permits
from tenuto.runtime.durable.poller import Poller
from tenuto.runtime.durable.reader import Reader
from tenuto.runtime.durable.releaser import Releaser
from tenuto.runtime.durable.restoration import Restorer
from tenuto.runtime.durable.session import CurrentSession, Session
from tenuto.runtime.durable.session_opener import SessionOpener
from tenuto.runtime.durable.task_reports import TaskReports
from tenuto.runtime.durable.tenant_admission import OverLimitTenants, StartQueue, TenantAdmission
from tenuto.runtime.durable.wakeups import Wakeups
from tenuto.runtime.durable.watcher import Watcher
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.limits import Limit
from tenuto.runtime.executor.worker import Worker
from tenuto.runtime.memory import MemoryRuntime
from tenuto.runtime.memory.executions import MemoryExecutions
from tenuto.runtime.port import Runtime
from tenuto.runtime.shared.outbox_relay import Relay
from tenuto.storage import Store
from tenuto.storage.outbox import OutboxStore
from tenuto.storage.port import Claim
from tenuto.storage.postgres import database as postgres_database
from tenuto.storage.postgres import row_security
from tenuto.storage.postgres.claims import _CLAIM as POSTGRES_CLAIM
from tenuto.storage.postgres.claims import _CLAIM_BY_TENANT as POSTGRES_CLAIM_BY_TENANT
from tenuto.storage.postgres.database import _BY_INDEX as BY_INDEX
from tenuto.storage.postgres.database import _BY_ROW as BY_ROW
from tenuto.storage.postgres.store import PostgresStore
from tenuto.storage.sqlite.claims import _DUE as SQLITE_DUE
from tenuto.storage.sqlite.claims import _DUE_OF_TENANT as SQLITE_DUE_OF_TENANT
from tenuto.storage.sqlite.claims import _NEXT_PLAN as SQLITE_NEXT_PLAN
from tenuto.storage.sqlite.store import SqliteStore
from tenuto.testing import Harness

__all__ = [
    "BY_INDEX",
    "BY_ROW",
    "POSTGRES_CLAIM",
    "POSTGRES_CLAIM_BY_TENANT",
    "SQLITE_DUE",
    "SQLITE_DUE_OF_TENANT",
    "SQLITE_NEXT_PLAN",
    "merged_batch",
]

Owner = Engine | Runtime


# -- The engine and its runtime ----------------------------------------------------------------------------------------


def runtime_of(engine: Engine) -> Runtime:
    runtime = engine._context.backend.lifecycle
    assert isinstance(runtime, DurableRuntime | MemoryRuntime)
    return runtime


def durable_runtime(owner: Owner) -> DurableRuntime:
    runtime = runtime_of(owner) if isinstance(owner, Engine) else owner
    assert isinstance(runtime, DurableRuntime)
    return runtime


def environment_of(engine: Engine) -> Environment:
    return engine._context.environment


def built_in_handler(engine: Engine, name: str) -> Callable[..., Any]:
    assert engine._built_in is not None, "this engine runs no handlers"
    return engine._built_in.functions[name]


def memory_of(harness: Harness) -> MemoryRuntime:
    return harness._memory


def executions_in_memory(runtime: MemoryRuntime) -> list[Record]:
    """All executions of a runtime in memory, in the order of their starts."""
    return runtime._executions.in_order


def worker_in_memory(runtime: MemoryRuntime) -> Worker:
    return runtime._worker


def controller_in_memory() -> MemoryExecutions:
    return MemoryRuntime(Environment())._executions


def limit_in_memory(runtime: MemoryRuntime, name: str) -> Limit:
    return runtime._limits._named[name]


# -- The parts of the durable runtime ----------------------------------------------------------------------------------


def store_of(owner: Owner) -> Store:
    return durable_runtime(owner)._store


def sqlite_store_of(owner: Owner) -> SqliteStore:
    store = store_of(owner)
    assert isinstance(store, SqliteStore)
    return store


def postgres_store_of(owner: Owner) -> PostgresStore:
    store = store_of(owner)
    assert isinstance(store, PostgresStore)
    return store


def session_of(owner: Owner) -> CurrentSession:
    return durable_runtime(owner)._current


def held_by(owner: Owner) -> HeldExecutions:
    return durable_runtime(owner)._held


def worker_of(owner: Owner) -> Worker:
    return durable_runtime(owner)._worker


def session_opener_of(owner: Owner) -> SessionOpener:
    return durable_runtime(owner)._sessions


def releaser_of(owner: Owner) -> Releaser:
    return durable_runtime(owner)._releaser


def permits_of(owner: Owner) -> Permits:
    return durable_runtime(owner)._permits


def claimer_of(owner: Owner) -> Claimer:
    return durable_runtime(owner)._claimer


def poller_of(owner: Owner) -> Poller:
    return durable_runtime(owner)._poller


def mailbox_of(owner: Owner) -> Mailbox:
    return durable_runtime(owner)._mailbox


def admission_of(owner: Owner) -> TenantAdmission:
    return durable_runtime(owner)._admission


def restorer_of(owner: Owner) -> Restorer:
    return durable_runtime(owner)._restorer


def parked_by(owner: Owner) -> ParkedExecutions:
    return durable_runtime(owner)._parked_executions


def wakeups_of(owner: Owner) -> Wakeups:
    return durable_runtime(owner)._wakeups


def late_reports_of(owner: Owner) -> LateReports:
    return durable_runtime(owner)._late_reports


def watcher_of(owner: Owner) -> Watcher:
    return durable_runtime(owner)._watcher


def relay_of(owner: Owner) -> Relay:
    relay = durable_runtime(owner)._relay
    assert relay is not None, "the engine publishes no messages"
    return relay


def use_store(
    patch: pytest.MonkeyPatch, part: Claimer | Committer | Mailbox | Poller | Relay | SessionOpener, store: Any
) -> None:
    """Gives one part of the runtime another store, as a rule an `Altered` one."""
    patch.setattr(part, "_store", store)


# -- Claims, parked and released executions ----------------------------------------------------------------------------


def claimed_not_loaded(owner: Owner) -> dict[str, Claim]:
    return claimer_of(owner)._claimed


async def lost_claims(owner: Owner) -> list[Claim]:
    """What the database says is owned by this process, and this process does not know."""
    return await claimer_of(owner)._lost_claims()


def suspected_claims(owner: Owner) -> dict[str, Claim]:
    """What the last sweep found lost; a second sweep claims it again."""
    return claimer_of(owner)._suspected


async def sweep_claims(owner: Owner) -> None:
    await claimer_of(owner)._sweep()


def make_sweep_due(owner: Owner) -> None:
    claimer_of(owner)._sweep_at = 0.0


async def park_all(owner: Owner) -> None:
    await claimer_of(owner)._park_all()


def parked_in_memory(owner: Owner) -> dict[Record, None]:
    return worker_of(owner).parked


def starts_held_back(owner: Owner) -> list[Callable[[], None]]:
    """Attempts that may not begin while the lease is in doubt."""
    return worker_of(owner).late


def mail_queries(owner: Owner) -> int:
    """The number of the last query for unread messages."""
    return held_by(owner).unread_mail._queries


def mail_queries_under_way(owner: Owner) -> dict[int, None]:
    return held_by(owner).unread_mail._under_way


def stored_definitions(owner: Owner) -> list[tuple[str, int]]:
    return list(durable_runtime(owner)._cache._stored)


def reader_of(owner: Owner) -> Reader:
    return durable_runtime(owner)._reader


def read_together(owner: Owner) -> list[tuple[str | None, bool]]:
    """Which tenants' reads are gathered at present."""
    return list(reader_of(owner)._asked_by)


def keep_watcher_idle(watcher: Watcher, until: float) -> None:
    watcher._rests_until = until


def flood_with_hints(owner: Owner, hints: frozenset[Any]) -> None:
    wakeups_of(owner)._hints |= hints


# -- Attempts ----------------------------------------------------------------------------------------------------------


def observe(owner: Owner, *observers: Any) -> None:
    """Replaces the observers; they hear of starts, too."""
    told = durable_runtime(owner)._observers
    told.all = told.of_starts = observers


def effect_method(owner: Owner) -> Callable[..., None]:
    """What takes up one effect after its commit."""
    return worker_of(owner)._take_up


def replace_effect_method(patch: pytest.MonkeyPatch, owner: Owner, method: Callable[..., None]) -> None:
    patch.setattr(worker_of(owner), "_take_up", method)


def run_method(owner: Owner) -> Callable[..., None]:
    """What begins one attempt."""
    return worker_of(owner)._run


def replace_run_method(patch: pytest.MonkeyPatch, owner: Owner, method: Callable[..., None]) -> None:
    patch.setattr(worker_of(owner), "_run", method)


def set_smallest_tail(owner: Owner, entries: int) -> None:
    """The number of entries after which a snapshot is taken."""
    durable_runtime(owner)._writer.smallest_tail = entries


# -- Task workers ------------------------------------------------------------------------------------------------------


def task_method(owner: Owner) -> Callable[..., None]:
    """What begins one task of a queue."""
    return durable_runtime(owner)._task_worker._enter


def replace_task_method(patch: pytest.MonkeyPatch, owner: Owner, method: Callable[..., None]) -> None:
    patch.setattr(durable_runtime(owner)._task_worker, "_enter", method)


def return_task(owner: Owner, taking: Any, why: str) -> None:
    durable_runtime(owner)._task_reports.return_task(taking, why)


def unreported_tasks(owner: Owner) -> Any:
    return durable_runtime(owner)._task_reports.unconfirmed


def served_steps(owner: Owner) -> frozenset[str]:
    """The steps that the database knows this worker can run."""
    served = durable_runtime(owner)._task_reports.served
    return frozenset() if served is None else frozenset(served[1])


def tasks_of(owner: Owner, execution: str) -> list[str] | None:
    """The paths of the tasks of an execution that this worker has taken."""
    found = durable_runtime(owner)._task_executions.get(execution)
    return None if found is None else [ref.path for ref in found.takings]


def task_loop(owner: Owner) -> asyncio.Task[None]:
    task = durable_runtime(owner)._task_worker._task
    assert task is not None
    return task


# -- Single parts ------------------------------------------------------------------------------------------------------


def committing(committer: Committer) -> list[Write]:
    """What the commit under way contains."""
    return committer._in_hand


def committed_not_reported(committer: Committer) -> deque[Write]:
    return committer._committed


async def ask_for_permits(owner: Owner) -> None:
    await permits_of(owner)._ask()


def permit_request(permits: Permits) -> asyncio.Task[None] | None:
    return permits._task


def set_renewed(session: Session, seconds_ago: float) -> None:
    """As if the lease had last been renewed so long ago."""
    session._renewed(session._renewed_at - seconds_ago)


def clock_offset_ms(clock: DatabaseClock) -> float:
    return clock._offset_ms


async def relay_round(relay: Relay) -> bool:
    return await relay._round()


def outbox_of(relay: Relay) -> OutboxStore:
    return relay._store


def outbox_take_query(store: Any) -> str:
    query: str = store.outbox._take
    return query


def start_queues(queue: StartQueue) -> dict[str, Any]:
    return queue._queues


def begin_reading(tenants: OverLimitTenants, tenant: str, now: float) -> None:
    """As if a start were reading the capacity of the tenant."""
    tenants._begin_reading(tenants._tenants[tenant], now)


def pending_hints(store: PostgresStore) -> list[str]:
    assert store._notifier is not None
    return list(store._notifier._hints)


def make_snapshots_unreadable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(snapshots, "_read", lambda plan, snapshot: None)


def end_idle_transactions(patch: pytest.MonkeyPatch, after: str) -> None:
    """Makes the server end transactions that are idle, as it does for a process that hangs."""
    patch.setattr(postgres_database, "_SHORT_TRANSACTIONS", {"idle_in_transaction_session_timeout": after})


def ignore_request_role(patch: pytest.MonkeyPatch) -> None:
    """Makes the server ignore the role that restricts a query to its tenant."""
    setting = "set_config('role', 'tenuto_request', false)"
    assert setting in row_security._SHOW
    patch.setattr(row_security, "_SHOW", row_security._SHOW.replace(setting, "''"))


def set_tenant_rate(authentication: Any, per_second: float, burst: int) -> None:
    authentication._by_tenant = type(authentication._by_tenant)(per_second, burst)


def change_reports(patch: pytest.MonkeyPatch, change: Callable[[f.Fact], f.Fact]) -> None:
    """Changes what attempts report, those of executions held here and those of tasks."""
    for controller in (HeldExecutions, TaskReports):
        patch.setattr(controller, "report", _changing(controller.report, change))


def _changing(report: Callable[..., None], change: Callable[[f.Fact], f.Fact]) -> Callable[..., None]:
    def changed(self: Any, record: Any, ref: Any, fact: f.Fact) -> None:
        report(self, record, ref, change(fact))

    return changed
