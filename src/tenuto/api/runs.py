"""`Runs` and `RunHandle`: create, read and command runs."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec

from tenuto.authoring.agents import Run
from tenuto.authoring.inputs import encode_inputs
from tenuto.authoring.program import Program
from tenuto.errors import IdempotencyConflict, InvalidInput, InvalidTransition, NotFound, NotSupported
from tenuto.kernel import facts as f
from tenuto.kernel.address import fingerprint
from tenuto.kernel.definition import Priority, plain_name
from tenuto.kernel.run_states import COMMANDS, REPEATED, Command, RunState, allowed_text, run_status
from tenuto.runtime.start_request import StartRequest
from tenuto.storage.credits import CreditStore, not_enough
from tenuto.storage.runs import RunRow, RunStore
from tenuto.values.credits import decimal_text
from tenuto.values.durations import Duration, milliseconds
from tenuto.values.names import check_name, check_one_of, check_text
from tenuto.views import EventDocument
from tenuto.views.projections import AuditRow
from tenuto.views.reading import Reading
from tenuto.views.results import SagaResult
from tenuto.views.runs import (
    AgentDocument,
    CreatedRun,
    RunAttemptDocument,
    RunStatus,
    StepRowDocument,
    TaskDocument,
    agent_documents,
    attempt_documents,
    created_document,
    run_document,
    step_rows,
    task_documents,
)

from .context import EngineContext, check_reason, refusal
from .credits import Credits, LedgerEntry, tenant_of

I = TypeVar("I")  # noqa: E741  (the input of a run)
O = TypeVar("O")  # noqa: E741  (its output)

MAX_TOKENS = 100_000
MAX_ATTEMPTS = 1_000
FindProgram = Callable[[type | str, int | None, str], Awaitable[Program]]
START_KEY = "tenuto.run/"  # the idempotency key of a run's execution, before the run's id


class Runs:
    """Creates, reads and lists runs."""

    def __init__(self, context: EngineContext, find: FindProgram) -> None:
        self._context = context
        self._find = find

    @overload
    async def create(
        self,
        run: type[Run[I, O]],
        task: I,
        *,
        org_id: str | None = None,
        name: str = "",
        max_tokens: int = MAX_TOKENS,
        max_attempts: int | None = None,
        priority: Priority = "normal",
        version: int | None = None,
        idempotency_key: str | None = None,
    ) -> "RunHandle[O]": ...
    @overload
    async def create(
        self,
        run: str,
        task: object,
        *,
        org_id: str | None = None,
        name: str = "",
        max_tokens: int = MAX_TOKENS,
        max_attempts: int | None = None,
        priority: Priority = "normal",
        version: int | None = None,
        idempotency_key: str | None = None,
    ) -> "RunHandle[Any]": ...
    async def create(
        self,
        run: type | str,
        task: object,
        *,
        org_id: str | None = None,
        name: str = "",
        max_tokens: int = MAX_TOKENS,
        max_attempts: int | None = None,
        priority: Priority = "normal",
        version: int | None = None,
        idempotency_key: str | None = None,
    ) -> "RunHandle[Any]":
        """Creates a run. It costs nothing until it is started; if credits are missing already now, it is refused.

        The same idempotency key with the same request returns the same run.
        """
        context = self._context
        context.scope.require("runs:write")
        tenant = tenant_of(context, org_id)
        check_text(name, "name")
        check_name(idempotency_key, "idempotency_key")
        check_one_of(priority, Priority, "/priority")
        program = await self._find(run, version, tenant)
        policies = program.plan.run
        if policies is None:
            text = f"{plain_name(program.name)!r} is not a run: start it as an execution"
            raise InvalidInput.at("/definition", "not_a_run", text)
        attempts = policies.max_attempts if max_attempts is None else max_attempts
        _check_limit(max_tokens, "max_tokens", 1 << 40)
        _check_limit(attempts, "max_attempts", MAX_ATTEMPTS)
        input = encode_inputs(program, task).input
        estimate = context.environment.credits.estimate(max_tokens)
        hold = estimate if context.environment.credits.enabled else 0
        digest = fingerprint(
            program.name, str(version or ""), bytes(input).decode(), name, str(max_tokens), str(attempts), priority
        )
        if idempotency_key is not None and (seen := await self._seen(tenant, idempotency_key, digest)) is not None:
            return RunHandle(context, seen.id, self._find, created=False)
        _check_estimates(program, hold)
        if hold and (available := (await credits_of(context).account(tenant)).available) < hold:
            raise not_enough(hold, available)
        row = RunRow(
            id=context.environment.new_id(),
            tenant=tenant,
            definition=program.name,
            version=program.version,
            name=name,
            input=bytes(input),
            priority=priority,
            max_tokens=max_tokens,
            max_attempts=attempts,
            estimate=estimate,
            hold=hold,
            key=idempotency_key,
            request_hash=digest,
            created_by=context.scope.actor or "system",
            created_at=context.now,
        )
        kept = await runs_of(context).create(row, _note(context, row, "run.created"))
        if kept.request_hash != digest:
            raise _key_conflict(idempotency_key)
        return RunHandle(context, kept.id, self._find, created=kept.id == row.id)

    async def _seen(self, tenant: str, key: str, digest: str) -> RunRow | None:
        found = await runs_of(self._context).by_key(tenant, key)
        if found is not None and found.request_hash != digest:
            raise _key_conflict(key)
        return found

    def get(self, id: str) -> "RunHandle[Any]":
        """Returns a handle on a run. It does not check that the run exists; the first call does."""
        return RunHandle(self._context, id, self._find)

    async def list(
        self,
        *,
        org_id: str | None = None,
        status: RunState | Literal["escalated"] | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[RunStatus]:
        """Returns runs, newest first, those created before run `after`. `escalated` runs wait for a person."""
        context = self._context
        context.scope.require("runs:read")
        tenant = context.scope.tenant if org_id is None else tenant_of(context, org_id)
        found: list[RunStatus] = []
        while len(found) < limit:
            rows = await runs_of(context).page(tenant, after, limit)
            for row in rows:
                shown = await RunHandle(context, row.id, self._find).show(row)
                if _matches(shown, status) and len(found) < limit:
                    found.append(shown)
            if len(rows) < limit:
                break
            after = rows[-1].id
        return found


class RunHandle(Generic[O]):
    """One run, by its id. `created` is False if `create` found a run that the same key had created before."""

    def __init__(self, context: EngineContext, id: str, find: FindProgram, *, created: bool = True) -> None:
        self._context = context
        self._find = find
        self.id = id
        self.created = created

    # Reading

    async def status(self) -> RunStatus:
        """Returns the run: the fields of `GET /api/v1/runs/{id}`."""
        self._context.scope.require("runs:read")
        return await self.show(await self._row())

    async def show(self, row: RunRow) -> RunStatus:
        if row.started_at is None:
            return created_document(_created(row), await self._plan_of(row))
        reading = await self._reading(row)
        return run_document(_created(row), reading.state, reading.history, reading.activity)

    async def _plan_of(self, row: RunRow) -> Any:
        try:
            return (await self._context.backend.programs.find(row.definition, row.version)).plan
        except NotFound:
            return None

    async def output(self, *, timeout: Duration | None = None) -> O:  # noqa: ASYNC109  (in the engine's time)
        """Waits until the run ends or waits for a person, and returns its output. Raises `ExecutionFailed` if none."""
        self._context.scope.require("runs:read")
        row = await self._row()
        if row.started_at is None:
            raise InvalidTransition(f"Run {self.id} has not started.", hint="start it first")
        limit = None if timeout is None else milliseconds(timeout)
        reading = await self._context.backend.executions.wait(row.tenant, self.id, "settled", limit)
        result: SagaResult[O] = SagaResult(reading)
        return result.output

    async def attempts(self) -> list[RunAttemptDocument]:
        """Returns each attempt of the run with its credits."""
        return attempt_documents((await self._started()).history)

    async def agents(self) -> list[AgentDocument]:
        """Returns the agents of the current attempt."""
        return agent_documents((await self._started()).state)

    async def tasks(self) -> list[TaskDocument]:
        """Returns the tasks of the current attempt."""
        return list(task_documents((await self._started()).state))

    async def steps(self) -> list[StepRowDocument]:
        """Returns the steps of the current attempt."""
        reading = await self._started()
        return list(step_rows(reading.state, reading.history))

    async def usage(self) -> list[LedgerEntry]:
        """Returns the ledger entries of this run."""
        row = await self._row()
        return await Credits(self._context).ledger(org_id=row.tenant, run_id=self.id)

    async def escalations(self) -> list[dict[str, Any]]:
        """Returns the open escalations of the run."""
        reading = await self._started()
        policy = reading.program.plan.definition.policies.escalation
        severity = policy.severity if policy is not None and isinstance(policy.severity, str) else "high"
        return [
            {
                "id": review.id,
                "error": review.reason,
                "severity": severity,
                "trigger": review.reason,
                "resolved_by": None,
            }
            for review in reading.state.reviews.values()
            if review.kind == "escalation"
        ]

    async def events(self, *, after: int = 0, every: Duration = "200ms") -> AsyncIterator[EventDocument]:
        """Yields events after number `after` as they are recorded, until the run ends."""
        row = await self._row()
        self._context.scope.require("runs:read")
        executions = self._context.backend.executions
        async for event in executions.follow(row.tenant, self.id, after, milliseconds(every)):
            yield event

    # Commands

    async def start(self) -> RunStatus:
        """Starts the run: reserves its estimate, and queues it. Raises `InsufficientCredits` if credits are missing."""
        context = self._context
        row = await self._command_row()
        if row.started_at is not None or row.cancelled_at is not None:
            return await self._repeated(row, "start")
        program = await context.backend.programs.find(row.definition, row.version)
        request = StartRequest(
            program=program,
            tenant=row.tenant,
            input=msgspec.Raw(row.input),
            priority="high" if row.priority == "high" else "normal",
            idempotency_key=f"{START_KEY}{row.id}",
            digest=row.request_hash,
            actor=context.scope.actor,
            execution_id=row.id,
            hold=row.hold,
            max_attempts=row.max_attempts,
        )
        await context.backend.commands.submit(request)
        return await self.status()

    async def pause(self, *, reason: str = "") -> RunStatus:
        """Pauses the run. Running attempts finish and are charged; no new ones start."""
        return await self._send("pause", f.Pause(at=self._context.now, actor=self._actor, reason=reason))

    async def resume(self) -> RunStatus:
        """Resumes a paused run."""
        return await self._send("resume", f.Resume(at=self._context.now, actor=self._actor))

    async def cancel(self, *, reason: str = "") -> RunStatus:
        """Cancels the run. What was charged stays charged, and the rest of the reserve is refunded."""
        context = self._context
        row = await self._command_row()
        note = _note(context, row, "run.cancelled", reason)
        if row.started_at is None and await runs_of(context).cancel(row.id, context.now, note):
            return await self.status()
        return await self._send("cancel", f.Cancel(at=context.now, actor=self._actor, reason=reason))

    async def retry(self, *, reason: str) -> RunStatus:
        """Opens the next attempt of a failed run, and reserves its estimate again."""
        check_reason(reason)
        context = self._context
        row = await self._command_row()
        if row.hold and row.started_at is not None:
            state = (await self._reading(row)).state
            missing = run_status(state) == "failed" and state.run < state.max_attempts
            if missing and (available := (await credits_of(context).account(row.tenant)).available) < row.hold:
                raise not_enough(row.hold, available)
        return await self._send("retry", f.Retry(at=context.now, actor=self._actor, reason=reason, hold=row.hold))

    async def unstick(self, *, reason: str, force: bool = False) -> RunStatus:
        """Ends a run that makes no progress as failed. Refuses a run whose worker is alive, unless `force` is set."""
        check_reason(reason)
        row = await self._command_row()
        if row.started_at is not None and not force:
            state = (await self._reading(row)).state
            limit = state.plan.run.heartbeat_timeout_ms if state.plan.run is not None else 0
            if run_status(state) == "running" and self._context.now - state.at < limit:
                text = f"Run {self.id} recorded something less than {limit // 1_000} s ago, so it is not stuck."
                raise InvalidTransition(text, code="not_stuck", hint="wait, or set `force`")
        fact = f.Fail(at=self._context.now, actor=self._actor, code="unstuck", reason=reason)
        return await self._send("unstick", fact)

    async def delete(self) -> None:
        """Deletes a run that has not started."""
        context = self._context
        context.scope.require("runs:write")
        store = runs_of(context)
        row = await store.find(context.scope.tenant, self.id)
        if row is None:
            if await store.deleted(context.scope.tenant, self.id):
                return
            raise _unknown(self.id)
        if not await store.delete(row.id, context.now, _note(context, row, "run.deleted")):
            status = (await self.show(await self._row())).status
            raise InvalidTransition(f"A run that is {status} cannot be deleted.", hint=allowed_text(status))

    def __repr__(self) -> str:
        return f"<RunHandle {self.id}>"

    # -- Parts of commands ---------------------------------------------------------------------------------------------

    @property
    def _actor(self) -> str | None:
        return self._context.scope.actor

    async def _row(self) -> RunRow:
        found = await runs_of(self._context).find(self._context.scope.tenant, self.id)
        if found is None:
            raise _unknown(self.id)
        return found

    async def _command_row(self) -> RunRow:
        self._context.scope.require("runs:write")
        return await self._row()

    async def _reading(self, row: RunRow) -> Reading:
        return await self._context.backend.executions.read(row.tenant, row.id)

    async def _started(self) -> Reading:
        self._context.scope.require("runs:read")
        row = await self._row()
        if row.started_at is None:
            raise InvalidTransition(f"Run {self.id} has not started.", hint="start it first")
        return await self._reading(row)

    async def _send(self, command: Command, fact: f.Fact) -> RunStatus:
        """Sends a command that the run's state allows. One that it has obeyed already changes nothing."""
        row = await self._command_row()
        status = (await self.show(row)).status
        if command not in COMMANDS[status] or row.started_at is None:
            return await self._repeated(row, command)
        answer = await self._context.tell(self.id, fact)
        if isinstance(answer, f.Refused):
            raise refusal(answer)
        return await self.status()

    async def _repeated(self, row: RunRow, command: Command) -> RunStatus:
        shown = await self.show(await self._row())
        opened_again = command == "retry" and shown.status == "pending" and shown.attempt_number > 1
        if command in REPEATED[shown.status] or opened_again:
            return shown
        raise InvalidTransition(f"A run that is {shown.status} refuses {command!r}.", hint=allowed_text(shown.status))


# -- Parts -------------------------------------------------------------------------------------------------------------


def runs_of(context: EngineContext) -> RunStore:
    if context.backend.runs is None:
        raise NotSupported("A client of a service has no runs of its own: use the service's /api/v1/runs.")
    return context.backend.runs()


def credits_of(context: EngineContext) -> CreditStore:
    assert context.backend.credits is not None  # where there are runs, there are accounts
    return context.backend.credits()


def _created(row: RunRow) -> CreatedRun:
    return CreatedRun(
        id=row.id,
        org_id=row.tenant,
        definition=row.definition,
        version=row.version,
        name=row.name,
        task=row.input,
        priority=row.priority,
        max_tokens=row.max_tokens,
        max_attempts=row.max_attempts,
        estimate=row.estimate,
        created_at=row.created_at,
        cancelled_at=row.cancelled_at,
        deleted_at=row.deleted_at,
    )


def _note(context: EngineContext, row: RunRow, action: str, reason: str = "") -> AuditRow:
    return AuditRow(
        tenant=row.tenant,
        at=context.now,
        actor=context.scope.actor or "system",
        action=action,
        object_type="run",
        object_id=row.id,
        reason=reason,
    )


def _check_limit(value: int, field: str, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidInput.at(f"/{field}", "out_of_range", f"must be a whole number from 1 to {most:,}")


def _check_estimates(program: Program, hold: int) -> None:
    """Refuses a run with a step that is estimated to cost more than the whole attempt reserves."""
    for node in program.plan.root.walk() if hold else ():
        if not node.is_scope and node.step.estimate > hold:
            text = (
                f"step {node.id!r} is estimated to cost {decimal_text(node.step.estimate)} credits, and an attempt of "
                f"the run reserves {decimal_text(hold)}: raise max_tokens"
            )
            raise InvalidInput.at("/max_tokens", "estimate_too_high", text)


def _key_conflict(key: str | None) -> IdempotencyConflict:
    return IdempotencyConflict(f"The idempotency key {key!r} was used before with another request.")


def _unknown(id: str) -> NotFound:
    return NotFound(f"There is no run {id!r}.")


def _matches(shown: RunStatus, status: str | None) -> bool:
    if status == "escalated":
        return shown.status == "paused" and shown.pause_reason == "escalated"
    return status is None or shown.status == status
