"""What one attempt is made of: its handler, the values its parameters read, and the context it may ask."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Raw

from tenuto.authoring.context import HeartbeatReply, SagaContext
from tenuto.authoring.program import AgentOutput, Handler, Planning, Program
from tenuto.authoring.run_context import RunContext, Usage
from tenuto.errors import IndeterminateError, NonRetryableError, PayloadError
from tenuto.kernel import facts as f
from tenuto.kernel.address import Phase, Ref, fan_of, idempotency_key, lease_id, step_id
from tenuto.kernel.compensation import undo_policy
from tenuto.kernel.definition import JSON, RetryPolicy, Step, owner_of, plain_name
from tenuto.kernel.events import Entry, ExecutionStarted, Expanded, Failure
from tenuto.kernel.evolve import find_step, holder_of
from tenuto.kernel.expression import Template, compile_template
from tenuto.kernel.plan import Node, handler_name
from tenuto.kernel.retry import needs_begin
from tenuto.kernel.state import Execution, StepState
from tenuto.values.codec import encode
from tenuto.values.credits import CREDIT, cost_of_tokens
from tenuto.values.redaction import summary
from tenuto.values.schema import Schema
from tenuto.views import find_path, result_of, result_seqs, step_status
from tenuto.views.agents import agents_of, given_input, place_of, planning_of

Reported = TypeVar("Reported", bound=f.Outcome)
CHARGED = (f.Succeeded, f.Failed, f.TimedOut, f.Planned)
PLAN_TIMEOUT_MS: Final = RetryPolicy().timeout_ms


class Payloads:
    """The values of one execution: results by the events that hold them, items of fan-outs, inputs by step.

    The durable runtime gives a `history` that holds what it fetched; `wanted` says which entries an attempt reads.
    """

    __slots__ = ("_expansions", "_items", "_step_inputs", "history", "started")

    def __init__(self, started: ExecutionStarted, history: "Sequence[Entry] | Mapping[int, Entry]") -> None:
        self.started = started
        self.history = history
        self._expansions: dict[str, Expanded] = {}
        self._items: dict[str, list[Raw]] = {}
        self._step_inputs: dict[str, Raw] | None = None

    def note(self, entries: Iterable[Entry]) -> None:
        """Remembers what fan-outs were expanded to, as it is recorded."""
        for entry in entries:
            event = entry.event
            if type(event) is Expanded:
                self._expansions[event.path] = event
                self._items.pop(event.path, None)

    def result(self, seq: int) -> Raw | None:
        return result_of(self.history[seq - 1].event) if seq else None

    def item(self, fan_path: str, index: int) -> Raw | None:
        items = self._items.get(fan_path)
        if items is None:
            id = step_id(fan_path)
            expanded = self._expansions.get(fan_path)
            if id in self.started.each:
                items = self._given(id).items
            else:
                items = [] if expanded is None else _RAW_LIST.decode(expanded.items)
            self._items[fan_path] = items
        return items[index] if index < len(items) else None

    def _given(self, id: str) -> "_Given":
        """A fan-out over items that came with the input."""
        raw = self.step_input(id)
        return _Given() if raw is None else _GIVEN.decode(raw)

    def step_input(self, id: str) -> Raw | None:
        if self._step_inputs is None:
            self._step_inputs = _RAW_OBJECT.decode(self.started.input)
        return self._step_inputs.get(id)


class _Given(msgspec.Struct):
    """`ExpandEach`, as `authoring` writes it."""

    items: list[Raw] = []


_GIVEN = msgspec.json.Decoder(_Given)
_RAW_LIST = msgspec.json.Decoder(list[Raw])
_RAW_OBJECT = msgspec.json.Decoder(dict[str, Raw])


class Host(Protocol):
    """What a runtime does for the attempts it runs, beside running them."""

    def progress(self, path: str) -> Raw | None: ...

    def keep_progress(self, path: str, progress: Raw) -> None: ...

    def once(self, key: str, connection: object) -> AbstractAsyncContextManager[bool]: ...


class Role:
    """What all attempts of one phase of one step have in common."""

    __slots__ = (
        "begins",
        "dispatches",
        "handler",
        "handler_name",
        "has_blocked",
        "limits",
        "may_repeat",
        "node",
        "phase",
        "schema",
        "step",
        "template",
        "timeout_ms",
    )

    def __init__(
        self,
        node: Node,
        phase: Phase,
        handlers: Callable[[str], Handler | None],
        plan_timeout_ms: int = PLAN_TIMEOUT_MS,
    ) -> None:
        self.node = node
        self.phase: Phase = phase
        spec = node.spec
        self.handler_name = handler_name(spec, phase)
        self.handler = handlers(self.handler_name) if self.handler_name is not None else None
        self.begins = needs_begin(node, Ref("", phase, 1))
        self.dispatches = False  # its handler only sends: the answer comes from outside
        self.has_blocked = False  # the event loop, and a warning said so
        self.may_repeat = True  # what it did may be done once more, whatever that was
        self.limits: tuple[str, ...] = ()
        self.template: Template | None = None
        self.schema: Schema | None = None
        self.timeout_ms = plan_timeout_ms
        self.step = spec if isinstance(spec, Step) else _PLANNING
        if isinstance(spec, Step):
            self._of_step(spec, phase)

    def _of_step(self, step: Step, phase: Phase) -> None:
        self.limits = step.limits
        self.dispatches = phase == "forward" and step.completion == "callback"
        self.may_repeat = phase != "forward" or (step.safety == "SAFE_TO_RETRY" and not self.dispatches)
        self.timeout_ms = step.retry_policy.timeout_ms
        given = step.with_
        if phase == "compensate":
            self.timeout_ms = undo_policy(step, 1).timeout_ms
            given = step.compensation_with if step.compensation_with is not None else step.with_
        if given is not None:
            self.template = compile_template(given)
        gives_result = phase in ("forward", "guard", "reconcile") and not self.dispatches
        if gives_result and step.output_schema is not None:
            self.schema = Schema(step.output_schema)


_PLANNING = Step(id="plan")  # how a planner's exceptions are classified: as those of any step that is safe to retry


class Performer:
    """The attempts of one program's executions. Made once for each program; what is found out per step is kept."""

    __slots__ = ("_handlers", "_owner", "_plan_timeout_ms", "_planned", "_roles", "classify", "program")

    def __init__(self, program: Program, handlers: Mapping[str, Handler]) -> None:
        self.program = program
        self.classify = program.plan.definition.policies.classify
        self._handlers = handlers
        self._owner = owner_of(program.name)
        self._planned = frozenset(program.plan.root.walk())
        run = program.plan.run
        self._plan_timeout_ms = PLAN_TIMEOUT_MS if run is None else run.planner_retry.timeout_ms
        self._roles: dict[tuple[Node, Phase], Role] = {}

    def replace(self, program: Program) -> None:
        """The same plan with other handlers, or a handler that was missing until now."""
        self.program = program
        self._roles.clear()

    def handler(self, name: str) -> Handler | None:
        found = self.program.handlers.get(name) or self._handlers.get(name)
        return found if found is not None and found.serves(self._owner) else None

    def role(self, node: Node, phase: Phase) -> Role:
        role = self._roles.get((node, phase))
        if role is None:
            role = Role(node, phase, self.handler, self._plan_timeout_ms)
            if node in self._planned:  # children that a planner added live and die with their execution
                self._roles[node, phase] = role
        return role


def wanted(performer: Performer, state: Execution, ref: Ref) -> list[int]:
    """The entries that an attempt will read: what a runtime must have at hand before it performs it."""
    holder = holder_of(state, ref)
    assert holder is not None
    role = performer.role(holder.node, ref.phase)
    names: list[str] = []
    seqs: list[int] = []
    if role.handler is not None:
        names.extend(role.handler.needs.results)
        if role.handler.needs.agents:
            seqs.extend(agent.output_seq for agent in agents_of(state))
        for id in role.handler.needs.compensation_results:
            undone = _step_named(state, id, ref.path)
            seqs.append(undone.undo_seq if undone is not None else 0)
    if role.template is not None:
        names.extend(role.template.steps)
    if ref.phase == "compensate" and isinstance(holder, StepState):
        seqs.append(holder.done_seq)
    for name in names:
        path = find_path(state, name, ref.path)
        found = result_seqs(state, path) if path is not None else 0
        seqs.extend(found if isinstance(found, list) else [found])
    return sorted({seq for seq in seqs if seq})


def _step_named(state: Execution, name: str, near: str) -> StepState | None:
    path = find_path(state, name, near)
    return find_step(state, path) if path is not None else None


class Attempt:
    """One call of a handler: what it may read (`program.Call`), and what its context asks for."""

    __slots__ = (
        "_context",
        "_rendered",
        "handler",
        "host",
        "payloads",
        "performer",
        "rate",
        "ref",
        "role",
        "started_at",
        "state",
        "stopped",
        "usage",
    )

    def __init__(
        self,
        performer: Performer,
        role: Role,
        state: Execution,
        payloads: Payloads,
        host: Host,
        ref: Ref,
        now_ms: int,
        rate: int = CREDIT,
    ) -> None:
        assert role.handler is not None
        self.handler = role.handler
        self.performer = performer
        self.role = role
        self.state = state
        self.payloads = payloads
        self.host = host
        self.ref = ref
        self.started_at = now_ms
        self.stopped = False
        self.rate = rate  # of tokens: millionths per 1,000
        self.usage: Usage | None = None
        self._context: SagaContext | None = None
        self._rendered: Raw | None = None

    # What parameters read

    def unreadable(self) -> str | None:
        """What of it the code that is here cannot read. Whatever else is wrong shows when the handler is called."""
        try:
            self.handler.read(self)
        except PayloadError as error:
            return summary(error.message) if error.code == "incompatible" else None
        except Exception:
            return None
        return None

    def is_readable(self) -> bool:
        """Whether the code in this process can read everything that the handler's parameters name."""
        try:
            self.handler.read(self)
        except Exception:
            return False
        return True

    @property
    def context(self) -> SagaContext:
        if self._context is None:
            self._context = self._make_context()
        return self._context

    @property
    def input(self) -> Raw | None:
        if self.role.template is not None:
            if self._rendered is None:
                self._rendered = self._render(self.role.template)
            return self._rendered
        return self._own_input()

    def _own_input(self) -> Raw | None:
        path = self.ref.path
        if "#" in path and (clone := fan_of(path)) is not None:
            return self.payloads.item(*clone)
        given = given_input(self.role.node)
        if given is not None:
            return given
        if self.state.by_step:
            return self.payloads.step_input(step_id(path)) if path else None
        return self.state.input

    @property
    def own_result(self) -> Raw | None:
        seq = result_seqs(self.state, self.ref.path)
        return self.payloads.result(seq) if isinstance(seq, int) else None

    def agent_outputs(self) -> list[AgentOutput]:
        result = self.payloads.result
        standing = [agent for agent in agents_of(self.state) if agent.status != "superseded"]
        return [AgentOutput(agent.kind, result(agent.output_seq)) for agent in standing]

    def planning(self) -> Planning:
        return planning_of(self.state)

    def with_usage(self, outcome: Reported) -> Reported:
        """Adds what the handler reported to have used."""
        used = self.usage
        if used is None or not (used.credits or used.tokens) or not isinstance(outcome, CHARGED):
            return outcome
        cost = used.credits + cost_of_tokens(used.tokens, self.rate)
        return msgspec.structs.replace(outcome, usage=cost, tokens=used.tokens)

    @property
    def headers(self) -> Mapping[str, str]:
        return self.payloads.started.headers

    @property
    def variables(self) -> Mapping[str, Raw]:
        return self.state.variables

    def result_of(self, step: str) -> Raw | list[Raw | None] | None:
        path = find_path(self.state, step, self.ref.path)
        if path is None:
            return None
        seqs = result_seqs(self.state, path)
        result = self.payloads.result
        return [result(seq) for seq in seqs] if isinstance(seqs, list) else result(seqs)

    def compensation_result(self, step: str) -> Raw | None:
        found = _step_named(self.state, step, self.ref.path)
        return self.payloads.result(found.undo_seq) if found is not None else None

    def compensation_error(self, step: str) -> Failure | None:
        found = _step_named(self.state, step, self.ref.path)
        return found.undo_failure if found is not None and found.undo != "done" else None

    # What the context asks for

    def is_cancelled(self) -> bool:
        return self.stopped or self.state.cancel is not None or self.state.finished is not None

    def heartbeat(self, progress: object) -> HeartbeatReply:
        if progress is not None:
            self.host.keep_progress(self.ref.path, encode(progress, where="progress"))
        return HeartbeatReply(paused=self.state.pause is not None, cancelled=self.is_cancelled())

    def once(self, key: str, connection: object) -> AbstractAsyncContextManager[bool]:
        return self.host.once(key, connection)

    def decoded_result_of(self, step: str) -> object:
        raw = self.result_of(step)
        decoders = self.performer.program.decode_result
        decode: Callable[[Raw | None], object] = decoders.get(step.partition("#")[0], _plain)
        try:
            return [decode(one) for one in raw] if isinstance(raw, list) else decode(raw)
        except PayloadError as error:  # inside a handler, which may have made its effect: no longer a reason to park
            kind = NonRetryableError if self.role.may_repeat else IndeterminateError
            raise kind(error.message, code=error.code) from None

    def _make_context(self) -> SagaContext:
        state, ref, role = self.state, self.ref, self.role
        generation = _generation(state, ref)
        forward = idempotency_key(state.tenant, state.id, ref.path, "forward", generation)
        current = forward
        if ref.phase != "forward":
            current = idempotency_key(state.tenant, state.id, ref.path, ref.phase, generation)
        progress = self.host.progress(ref.path)
        is_run = state.plan.run is not None
        context = (RunContext if is_run else SagaContext)(
            _Services(self),
            execution_id=state.id,
            saga=plain_name(state.plan.definition.name),
            step_id=role.node.id,
            path=ref.path,
            correlation_id=state.correlation_id,
            tenant=state.tenant,
            attempt=ref.number,
            idempotency_key=current,
            forward_key=forward,
            lease_id=lease_id(state.id, ref),
            deadline=datetime.fromtimestamp(self._ends_at() / 1_000, UTC),
            headers=dict(self.headers),
            variables={name: _plain(value) for name, value in state.variables.items()},
            progress=_plain(progress),
            owner=owner_of(state.plan.definition.name),
        )
        if isinstance(context, RunContext):
            self.usage = Usage()
            agent, task = place_of(ref.path)
            left = state.hold - state.charged if state.hold else None
            context.in_run(self.usage, agent_id=agent, task_id=task, attempt_number=state.run, left=left)
        return context

    def _ends_at(self) -> int:
        """When its time is over: the attempt's, or that of the whole step if it is less."""
        own = self.started_at + self.role.timeout_ms
        return min(own, self.state.timers.get(("deadline", self.ref.path), own))

    def _render(self, template: Template) -> Raw:
        if template.constant:
            return encode(template.value)
        return encode(template.render(self._scope(template)), where="with")

    def _scope(self, template: Template) -> dict[str, JSON]:
        """What the template names, and nothing else."""
        state, roots = self.state, template.roots
        scope: dict[str, JSON] = {}
        if "input" in roots:
            scope["input"] = _plain(state.input)
        if "variables" in roots:
            scope["variables"] = {name: _plain(value) for name, value in state.variables.items()}
        if "context" in roots:
            scope["context"] = self._context_map()
        if "steps" in roots:
            names = (
                [node.id for node in state.plan.root.walk() if node.id] if template.reads_all_steps else template.steps
            )
            scope["steps"] = {name: self._step_map(name) for name in names}
        clone = fan_of(self.ref.path)
        if clone is not None:
            scope["item"] = _plain(self.payloads.item(*clone))
            scope["index"] = clone[1]
        return scope

    def _context_map(self) -> dict[str, JSON]:
        state, definition = self.state, self.state.plan.definition
        return {
            "execution_id": state.id,
            "tenant": state.tenant,
            "correlation_id": state.correlation_id,
            "saga": plain_name(definition.name),
            "version": definition.version,
            "run": state.run,
            "step_id": self.role.node.id,
            "attempt": self.ref.number,
            "idempotency_key": self.context.idempotency_key,
            "forward_key": self.context.forward_key,
            "workspace_ref": state.workspace or None,
        }

    def _step_map(self, name: str) -> dict[str, JSON]:
        path = find_path(self.state, name, self.ref.path)
        node = (self.state.nodes.get(path) or find_step(self.state, path)) if path is not None else None
        raw = self.result_of(name)
        result: JSON = [_plain(one) for one in raw] if isinstance(raw, list) else _plain(raw)
        return {"result": result, "status": step_status(self.state, node)}


class _Services:
    """The face of an attempt that its context sees."""

    __slots__ = ("heartbeat", "is_cancelled", "once", "result_of")

    def __init__(self, attempt: Attempt) -> None:
        self.is_cancelled = attempt.is_cancelled
        self.heartbeat = attempt.heartbeat
        self.once = attempt.once
        self.result_of = attempt.decoded_result_of


def _generation(state: Execution, ref: Ref) -> int:
    holder = holder_of(state, ref)
    return holder.generation if isinstance(holder, StepState) else 1


def _plain(raw: Raw | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)
