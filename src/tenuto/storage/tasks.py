"""The port of task queues: attempts that any worker of a queue may run.

A task is a row for one attempt. It is written with the grant of the attempt and deleted when the attempt is settled:

- It *waits*, without a session.
- A worker *takes* it: the row names the worker's session, and no other worker sees it.
- The worker *begins* it just before it calls the handler: from here on the effect may have been made. For a step that
  is not safe to retry, the same transaction puts `Begun` into the execution's mailbox.
- The worker *answers*: the report goes into the mailbox and the row is deleted, in one transaction.

A row counts how often it was taken. Each statement about a task names its taking, and one about an earlier taking
changes nothing. A database may execute a statement late, after the worker gave it up and repeated it, and by then the
task may have been taken again, even by the same worker.

A worker that leaves returns the tasks that it did not begin. When a session ends, `sweep` does that for it, and reports
the tasks that it had begun as lost: that message and the end of the row are one transaction too. When an execution is
canceled, the commit removes its tasks that were not begun, and a message records that. So for every open attempt
without a row there is a message that explains it.

Like a commit, taking and beginning first lock the session's row and find it live. Rows are locked in one order:
session, execution, task.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from tenuto.authoring.program import EVERY_TENANT
from tenuto.kernel.address import Phase, Ref, lease_id
from tenuto.kernel.codec import encode_fact
from tenuto.kernel.definition import owner_of
from tenuto.kernel.facts import Lost, Returned

ANY_PLAN = "*"
SERVING = "SELECT queues, handlers FROM sessions WHERE ended_at IS NULL AND queues <> 'null' AND expires_at >= "


class TaskKey(NamedTuple):
    """The attempt that a task is for."""

    execution: str
    path: str
    phase: Phase
    number: int

    @property
    def ref(self) -> Ref:
        return Ref(self.path, self.phase, self.number)


class Taking(NamedTuple):
    """One time that a task was taken, by its number."""

    key: TaskKey
    number: int


class Task(Struct, frozen=True):
    """What a worker needs to know to run an attempt. `plan` is `name/version`; `progress` is an earlier attempt's."""

    taking: Taking
    plan: str
    queue: str
    handler: str
    progress: bytes | None = None

    @property
    def key(self) -> TaskKey:
        return self.taking.key


class MailMessage(Struct, frozen=True):
    """A fact for the mailbox. A message with the same id is stored once."""

    id: str
    execution: str
    body: bytes


class Beginning(Struct, frozen=True):
    """`marks`: from now on the attempt counts as lost when its worker dies. `message` is posted with that mark."""

    taking: Taking
    marks: bool
    message: MailMessage | None = None


class Answered(Struct, frozen=True):
    """`progress` is how far the attempt came. `is_last`: no other will need to know."""

    taking: Taking
    message: MailMessage
    progress: bytes | None = None
    is_last: bool = False


class Held(Struct, frozen=True):
    """A task that a session has taken, and how its execution stands."""

    taking: Taking
    begun: bool
    status: str
    cancel_requested: bool


class TaskState(Struct, frozen=True, kw_only=True):
    """A task as it is shown to people. `parked`: why a worker that took it could not run it."""

    key: TaskKey
    plan: str
    queue: str
    handler: str
    worker: str | None
    begun: bool
    progress: bytes | None
    parked: str


class Serving(Struct, frozen=True):
    """What a live session runs: queues, and handlers as `work_names` writes them."""

    queues: list[str]
    handlers: list[str]


def queues_text(queues: Sequence[str] | None) -> str:
    """Those that a session serves, as its row has them."""
    return json.dumps(None if queues is None else list(queues))


def queues_of(text: str) -> list[str]:
    """The other way round. One that runs no steps serves none."""
    return json.loads(text) or []


def loss(key: TaskKey, now: int, lease_ms: int) -> MailMessage:
    """That the worker of this attempt is gone. An attempt is lost once, and so is the id."""
    fact = Lost(at=now, refs=(key.ref,), lease_ms=lease_ms)
    return MailMessage(f"lost:{lease_id(key.execution, key.ref)}", key.execution, encode_fact(fact))


def withdrawals(keys: Sequence[TaskKey], now: int) -> list[MailMessage]:
    """Messages that these attempts were never begun, one for each execution. An attempt is withdrawn once."""
    by_execution: dict[str, list[Ref]] = {}
    for key in keys:
        by_execution.setdefault(key.execution, []).append(key.ref)
    return [
        MailMessage(f"withdrawn:{lease_id(id, refs[0])}", id, encode_fact(Returned(at=now, refs=tuple(refs))))
        for id, refs in by_execution.items()
    ]


def work_names(plan: str, handler: str) -> tuple[str, str]:
    """How a worker may name a handler: as that of one plan, or as one that any plan can call by its name."""
    return f"{plan}/{handler}", f"{ANY_PLAN}/{handler}"


def serving_names(plan: str, handler: str) -> tuple[str, ...]:
    """The names under which a session that runs this handler for this plan lists it.

    A plan that belongs to a tenant is run where the handler is open to that tenant, or to all.
    """
    own, named = work_names(plan, handler)
    owner = owner_of(plan.rpartition("/")[0])
    if owner is None:
        return own, named
    return own, f"{owner}/{ANY_PLAN}/{handler}", f"{EVERY_TENANT}/{ANY_PLAN}/{handler}"


class TaskStore(Protocol):
    async def serve(self, session: str, handlers: Sequence[str]) -> None:
        """States what a session can run, so that other processes know what no worker can run."""

    async def serving(self) -> list[Serving]:
        """What the live sessions run; those that run nothing are left out."""

    async def take(self, session: str, queue: str, handlers: Sequence[str], limit: int) -> list[Task]:
        """Takes waiting tasks of this queue, for these handlers.

        High priority goes first, then the tenant and the execution with the fewest taken tasks. Among equal tenants the
        choice is random, so that one with many tasks does not delay the others.
        """

    async def begin(self, session: str, beginnings: Sequence[Beginning]) -> tuple[set[Taking], set[str | None]]:
        """Returns the tasks that may begin, and the owners of executions that have a message now."""

    async def answer(self, session: str, answers: Sequence[Answered]) -> set[str | None]:
        """Posts the reports of attempts. Returns the owners of their executions; None stands for no owner.

        The session need not be live: a late report may still be useful, and the kernel judges it.
        """

    async def give_back(self, session: str, takings: Sequence[Taking], why: str = "") -> None:
        """Makes tasks wait again. `why`: this session cannot run them, and does not take them a second time."""

    async def try_again(self, session: str) -> None:
        """Lets this session take tasks again that it could not run: it has new handlers."""

    async def held(self, session: str) -> list[Held]:
        """What the session holds by the database's account."""

    async def beat(self, session: str, progress: Mapping[Taking, bytes]) -> None:
        """Says that the tasks of this session are being worked on, and how far some of them are.

        How far one is that others have now, they tell.
        """

    async def sweep(self, lease_ms: int) -> int:
        """Takes the tasks of ended sessions from them: what they did not begin waits again, the rest is lost."""

    async def of(self, execution: str) -> list[TaskState]: ...
