"""`StartRequest`: one start, from the engine to the kernel's `Start` fact.

The engine builds it from a caller's options, every runtime takes it, and the HTTP client encodes it as a request body.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Literal, NamedTuple, Self, TypedDict

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from tenuto.authoring.inputs import encode_inputs
from tenuto.authoring.program import Program
from tenuto.errors import ExpressionError, IdempotencyConflict, InvalidInput
from tenuto.kernel import facts as f
from tenuto.kernel.address import fingerprint
from tenuto.kernel.definition import Priority, plain_name
from tenuto.kernel.expression import evaluate_key
from tenuto.kernel.plan import Plan
from tenuto.values.codec import encode
from tenuto.values.names import check_name, check_one_of, check_text
from tenuto.views.reading import Reading

MAX_HEADERS = 16 * 1024
MAX_VERSION = 2**31 - 1


class StartOptions(TypedDict, total=False):
    """The options of `execute`, `start` and `start_many`."""

    tenant: str | None
    correlation_id: str | None
    headers: Mapping[str, str] | None
    variables: Mapping[str, object] | None
    target: tuple[str, str] | None
    priority: Priority
    concurrency_key: str | None
    version: int | None


def check_options(options: StartOptions, idempotency_key: str | None) -> None:
    """Checks everything that can be checked before the definition is known."""
    version = options.get("version")
    if version is not None and not (type(version) is int and 1 <= version <= MAX_VERSION):
        raise InvalidInput.at("/version", "out_of_range", f"must be a whole number from 1 to {MAX_VERSION:,}")
    check_name(idempotency_key, "idempotency_key")
    check_name(options.get("concurrency_key"), "concurrency_key")
    check_name(options.get("correlation_id") or None, "correlation_id")


class StartRequest(Struct, frozen=True, kw_only=True):
    """A validated and encoded request to start an execution.

    If a runtime has seen the idempotency key before, it returns the execution that the key started. `digest` tells a
    repeated request from a different one under the same key.
    """

    program: Program
    tenant: str
    input: Raw
    by_step: bool = False
    each: dict[str, int] = {}
    headers: dict[str, str] = {}
    variables: dict[str, Raw] = {}
    correlation_id: str = ""
    target: tuple[str, str] | None = None
    priority: Priority = "normal"
    concurrency_key: str | None = None
    on_conflict: Literal["queue", "reject"] = "queue"
    idempotency_key: str | None = None
    digest: str = ""
    actor: str | None = None
    connection: object = None
    version: int | None = None  # the version that the caller asked for
    execution_id: str | None = None  # of a run, which has its id from its creation
    hold: int = 0
    max_attempts: int = 0

    @classmethod
    def build(
        cls,
        program: Program,
        input: object,
        options: StartOptions,
        *,
        tenant: str,
        actor: str | None,
        idempotency_key: str | None,
        connection: object,
    ) -> Self:
        """Validates and encodes the caller's values. `check_options` has been called before."""
        encoded = encode_inputs(program, input)
        variables = {
            name: encode(value, where=f"variable {name!r}") for name, value in (options.get("variables") or {}).items()
        }
        target = options.get("target")
        for part, field in zip(target or (), ("target/type", "target/id"), strict=False):
            check_name(part, field)
        priority = options.get("priority", "normal")
        check_one_of(priority, Priority, "/priority")
        request = cls(
            program=program,
            tenant=tenant,
            input=encoded.input,
            by_step=encoded.by_step,
            each=encoded.each,
            headers=_headers(options.get("headers")),
            variables=variables,
            correlation_id=options.get("correlation_id") or "",
            target=target,
            priority=priority,
            concurrency_key=options.get("concurrency_key"),
            on_conflict=program.plan.definition.policies.on_conflict,
            idempotency_key=idempotency_key,
            actor=actor,
            connection=connection,
            version=options.get("version"),
        )
        if idempotency_key is not None:
            request = replace(request, digest=_digest(request))
        if request.concurrency_key is None and program.plan.concurrency_key is not None:
            request = replace(request, concurrency_key=_concurrency_key(program.plan, request))
        return request

    def fact(self, execution_id: str, at: int, *, admitted: bool, owned: bool) -> f.Start:
        """Returns the kernel's fact that starts this execution."""
        return f.Start(
            at=at,
            actor=self.actor,
            execution=execution_id,
            tenant=self.tenant,
            input=self.input,
            by_step=self.by_step,
            each=self.each,
            headers=self.headers,
            variables=self.variables,
            correlation_id=self.correlation_id,
            target=self.target,
            priority=self.priority,
            concurrency_key=self.concurrency_key,
            admitted=admitted,
            owned=owned,
            hold=self.hold,
            max_attempts=self.max_attempts,
        )


class Submitted(NamedTuple):
    """The execution that a start created, or found by its idempotency key.

    `as_started` reads the state that the start recorded, where reading it again would need the database.
    """

    execution_id: str
    created: bool
    as_started: Callable[[], Awaitable[Reading]] | None = None


def key_conflict(request: StartRequest, execution_id: str) -> IdempotencyConflict:
    """Returns the error for a request whose idempotency key started another execution with another request."""
    text = f"The idempotency key {request.idempotency_key!r} was used before with another request"
    return IdempotencyConflict(
        f"{text}: it started execution {execution_id}.",
        execution_id=execution_id,
        hint="use a new key for a new request, and the same key only to repeat a request",
    )


def explained(conflict: IdempotencyConflict, request: StartRequest, known: Reading) -> IdempotencyConflict:
    """Adds to a conflict what differs from the request that started the known execution. Values are not shown."""
    differs = list(_differences(request, known)) or ["the version that was asked for"]
    text = f"{conflict.message.removesuffix('.')}, and differs in {', '.join(differs)}."
    return IdempotencyConflict(text, execution_id=conflict.execution_id, hint=conflict.hint)


def _differences(request: StartRequest, known: Reading) -> Iterator[str]:
    program, started = known.program, known.started
    if program.name != request.program.name:
        yield f"the definition ({plain_name(program.name)!r}, now {plain_name(request.program.name)!r})"
    elif request.version is not None and program.version != request.version:
        yield f"the version ({program.version}, now {request.version})"
    if (request.input, request.by_step) != (started.input, started.by_step):
        yield "the input"
    if request.variables != started.variables:
        yield "the variables"
    if request.target != started.target:
        yield "the target"
    if request.priority != started.priority:
        yield f"the priority ({started.priority}, now {request.priority})"
    if program.name == request.program.name and request.concurrency_key != started.concurrency_key:
        yield "the concurrency key"


def _headers(given: Mapping[str, str] | None) -> dict[str, str]:
    if not given:
        return {}
    headers = dict(given)
    if not all(isinstance(part, str) for pair in headers.items() for part in pair):
        raise InvalidInput.at("/headers", "type", "header names and values must be strings")
    for name, value in headers.items():
        check_text(name + value, "headers")
    if sum(len(part.encode("utf-8", "replace")) for pair in headers.items() for part in pair) > MAX_HEADERS:
        raise InvalidInput.at("/headers", "too_large", f"names and values together exceed {MAX_HEADERS:,} bytes")
    return headers


def _concurrency_key(plan: Plan, request: StartRequest) -> str:
    """Evaluates the definition's own key expression."""
    assert plan.concurrency_key is not None
    scope = {
        "input": msgspec.json.decode(request.input),
        "variables": {name: msgspec.json.decode(value) for name, value in request.variables.items()},
        "steps": {},
        "context": {"saga": plain_name(plan.definition.name), "version": plan.definition.version},
    }
    try:
        key = evaluate_key(plan.concurrency_key, scope)
    except ExpressionError as error:
        raise InvalidInput.at("", "concurrency_key", error.message) from None
    check_name(key, "concurrency_key")
    return key


def _digest(request: StartRequest) -> str:
    """Identifies what was asked for. Headers and the correlation id are left out: a caller's retry has its own.

    The concurrency key is the one that the caller gave. The one that a definition computes follows from the input.
    """
    variables = request.variables
    parts = [part for name in sorted(variables) for part in (name, bytes(variables[name]).decode())]
    if request.priority != "normal" or request.concurrency_key is not None or request.by_step:
        by_step = "by step" if request.by_step else ""
        parts.append(fingerprint(request.priority, request.concurrency_key or "", by_step, *sorted(request.each)))
    target = request.target or ("", "")
    return fingerprint(request.program.name, str(request.version or ""), bytes(request.input).decode(), *target, *parts)
