"""Protocols: their configuration, and what it compiles to.

A protocol becomes a definition: each step is a callback step on the queue of the bus, whose handler publishes a
directive. Running jobs keep the version that they were started with.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from tenuto.errors import ExpressionError, InvalidInput, Problem
from tenuto.kernel.definition import RETRIED_BY_DEFAULT
from tenuto.kernel.expression import compile_template
from tenuto.values.durations import milliseconds
from tenuto.values.schema import Schema, schema_problem
from tenuto.views.jobs import BUS_QUEUE, DIRECTIVE, PROTOCOL_PREFIX

SCHEMA: Final[dict[str, Any]] = msgspec.json.decode(
    resources.files(__package__).joinpath("protocols.schema.json").read_bytes()
)
_SCHEMA = Schema(SCHEMA)
WHOLE_PAYLOAD: Final = "${input.payload}"
_PLACE = re.compile(r"\$\{input\.payload((?:\.[A-Za-z_][A-Za-z0-9_]*)*)\}")
_SETTINGS = (
    "service", "ack_timeout", "result_timeout", "max_attempts", "safety", "failure_policy", "on_timeout", "priority",
    "payload_schema",
)  # fmt: skip
_REFERENCE = re.compile(r"[a-z][a-z0-9+.-]*://\S+")
_INPUT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["request_type", "mode", "input_ref", "output_ref", "payload"],
    "properties": {"mode": {"enum": ["DEFAULT", "BURST"]}, "payload": {"type": "object"}},
}


class CompiledStep(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway checks of a step before a job exists. `pointer` is the payload's place below `/payload`."""

    step_id: str
    service: str
    payload: Any
    pointer: str
    schema: Schema | None


class CompiledProtocol(msgspec.Struct, frozen=True, kw_only=True):
    """A protocol and its definition. `owners` are the services of its steps, by step."""

    protocol_id: str
    version: int
    request_types: tuple[str, ...]
    steps: tuple[CompiledStep, ...]
    document: dict[str, Any]

    @property
    def definition(self) -> str:
        return f"{PROTOCOL_PREFIX}{self.protocol_id}"


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """All protocols of a deployment, and its reference policy."""

    protocols: tuple[CompiledProtocol, ...] = ()
    references: Mapping[str, Sequence[str]] = {}

    def protocol_for(self, request_type: object) -> CompiledProtocol | None:
        """Returns the newest version of the protocol that serves this request type."""
        found = [each for each in self.protocols if request_type in each.request_types]
        return max(found, key=lambda each: each.version, default=None)

    @property
    def services(self) -> tuple[str, ...]:
        return tuple(sorted({step.service for protocol in self.protocols for step in protocol.steps}))

    def why_refused(self, kind: str, reference: str, tenant: str) -> str | None:
        """Returns why the reference policy does not allow a reference; None if it does."""
        if _REFERENCE.fullmatch(reference) is None:
            return "it must be a URL with a scheme, such as s3://bucket/key"
        try:
            parts = urlsplit(reference)
        except ValueError:
            return "it is not a URL"
        if "@" in parts.netloc:
            return "it must not contain user info"
        decoded = reference.replace("%2e", ".").replace("%2E", ".").replace("%2f", "/").replace("%2F", "/")
        if ".." in re.split(r"[/\\]", decoded):
            return "it must not contain `..`"
        allowed = self.references.get(kind)
        prefixes = [prefix.replace("{tenant_id}", tenant) for prefix in allowed or ()]
        if allowed is None or any(reference.startswith(prefix) for prefix in prefixes):
            return None
        return f"the reference policy allows {', '.join(prefixes)}"


def compile_configuration(document: Any) -> Configuration:
    """Compiles a configuration. Raises `InvalidInput` with all of its problems."""
    problems = _SCHEMA.problems(document, msgspec.json.encode(document))
    if not problems:
        compiler = _Compiler(document)
        configuration = compiler.configuration()
        problems = compiler.problems
        if not problems:
            return configuration
    raise InvalidInput("The protocol configuration is not valid.", problems=problems, code="protocols_invalid")


class _Compiler:
    """Compiles protocols, and collects what is wrong with them."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._defaults: dict[str, Any] = document.get("defaults", {})
        self._types: dict[str, dict[str, Any]] = document.get("step_types", {})
        self.problems: list[Problem] = []

    def configuration(self) -> Configuration:
        protocols = [self._protocol(f"/protocols/{n}", each) for n, each in enumerate(self._document["protocols"])]
        self._check_unique(protocols)
        return Configuration(protocols=tuple(protocols), references=self._document.get("references", {}))

    def _report(self, at: str, code: str, text: str) -> None:
        self.problems.append(Problem(at, code, text))

    def _check_unique(self, protocols: Sequence[CompiledProtocol]) -> None:
        versions: set[tuple[str, int]] = set()
        owners: dict[str, str] = {}
        for number, protocol in enumerate(protocols):
            at = f"/protocols/{number}"
            if (key := (protocol.protocol_id, protocol.version)) in versions:
                self._report(f"{at}/version", "duplicate", f"protocol {key[0]!r} has version {key[1]} twice")
            versions.add(key)
            for request_type in protocol.request_types:
                owner = owners.setdefault(request_type, protocol.protocol_id)
                if owner != protocol.protocol_id:
                    text = f"{request_type!r} belongs to protocol {owner!r} already"
                    self._report(f"{at}/request_types", "duplicate", text)

    def _protocol(self, at: str, given: dict[str, Any]) -> CompiledProtocol:
        steps: list[dict[str, Any]] = []
        compiled: list[CompiledStep] = []
        before: list[str] = []
        for number, element in enumerate(given["steps"]):
            parallel = element.get("parallel")
            group = [element] if parallel is None else parallel
            for place, step in enumerate(group):
                where = f"{at}/steps/{number}" if parallel is None else f"{at}/steps/{number}/parallel/{place}"
                made = self._step(where, step, given["protocol_id"], before)
                if made is not None:
                    compiled.append(made[0])
                    steps.append(made[1])
            before = [step["step_id"] for step in group]
        self._check_steps(at, [step.step_id for step in compiled])
        document = {
            "name": f"{PROTOCOL_PREFIX}{given['protocol_id']}",
            "version": given["version"],
            "description": given.get("description", ""),
            "mode": "dag",
            "input_schema": _INPUT_SCHEMA,
            "policies": {"cancel": "drain"},
            "steps": steps,
        }
        return CompiledProtocol(
            protocol_id=given["protocol_id"],
            version=given["version"],
            request_types=tuple(given["request_types"]),
            steps=tuple(compiled),
            document=document,
        )

    def _check_steps(self, at: str, ids: Sequence[str]) -> None:
        for id in sorted({id for id in ids if ids.count(id) > 1}):
            self._report(f"{at}/steps", "duplicate", f"two steps have the id {id!r}")

    def _step(
        self, at: str, given: dict[str, Any], protocol_id: str, before: Sequence[str]
    ) -> tuple[CompiledStep, dict[str, Any]] | None:
        count = len(self.problems)
        settings = self._settings(at, given)
        payload = given.get("payload", WHOLE_PAYLOAD)
        self._check_payload(at, payload)
        schema = settings.get("payload_schema")
        if schema is not None and (why := schema_problem(schema)) is not None:
            self._report(f"{at}/payload_schema", "schema", why)
        for name, text in (("service", "the service that owns the step"),):
            if name not in settings:
                self._report(f"{at}/{name}", "missing", f"give {text}, here or in its step type")
        if "ack_timeout" not in settings and "result_timeout" not in settings:
            text = "give `ack_timeout`, `result_timeout` or both, here, in its step type or in `defaults`"
            self._report(at, "timeout_missing", text)
        if len(self.problems) > count:
            return None
        compiled = CompiledStep(
            step_id=given["step_id"],
            service=settings["service"],
            payload=payload,
            pointer=_place_of(payload),
            schema=None if schema is None else Schema(schema),
        )
        return compiled, _step_document(given, settings, payload, protocol_id, before)

    def _settings(self, at: str, given: dict[str, Any]) -> dict[str, Any]:
        """The settings of a step: its own, then those of its type, then the defaults."""
        kind = given["step_type"]
        unknown = sorted(set(given) - {"step_id", "step_type", "payload", *_SETTINGS})
        for name in unknown:
            self._report(f"{at}/{name}", "unknown_field", f"a step has no field {name!r}")
        own = {name: given[name] for name in _SETTINGS if name in given}
        for problem in _SETTINGS_SCHEMA.problems(own, msgspec.json.encode(own)):
            self._report(f"{at}{problem.path}", problem.code, problem.message)
        merged = {**self._defaults, **self._types.get(kind, {}), **own}
        policies = [part.get("failure_policy", {}) for part in (self._defaults, self._types.get(kind, {}), own)]
        return {**merged, "failure_policy": {name: what for part in policies for name, what in part.items()}}

    def _check_payload(self, at: str, payload: Any) -> None:
        try:
            template = compile_template(payload)
        except ExpressionError as error:
            self._report(f"{at}/payload", error.code, error.message)
            return
        if others := sorted(set(template.roots) - {"input"}):
            text = f"it reads {', '.join(others)}: a payload reads only the envelope, as ${{input…}}"
            self._report(f"{at}/payload", "payload_reads", text)


_SETTINGS_SCHEMA = Schema({**SCHEMA["$defs"]["settings"], "$defs": SCHEMA["$defs"]})


def _place_of(payload: Any) -> str:
    """Where in the envelope's payload a step's payload comes from, for pointers: `/ocr` of `${input.payload.ocr}`."""
    found = _PLACE.fullmatch(payload) if isinstance(payload, str) else None
    return "" if found is None else found[1].replace(".", "/")


def _step_document(
    given: dict[str, Any], settings: dict[str, Any], payload: Any, protocol_id: str, before: Sequence[str]
) -> dict[str, Any]:
    timeouts = {name: milliseconds(settings[name]) for name in ("ack_timeout", "result_timeout") if name in settings}
    policy = settings["failure_policy"]
    classes = [name for name in RETRIED_BY_DEFAULT if policy.get(name, "RETRY") == "RETRY"]
    safety = settings.get("safety", "SAFE_TO_RETRY")
    return {
        "step_id": given["step_id"],
        "type": "external_call",
        "handler": DIRECTIVE,
        "queue": BUS_QUEUE,
        "completion": "callback",
        "depends_on": list(before),
        **{f"{name}_ms": value for name, value in timeouts.items()},
        "idempotency_strategy": safety,
        **({"compensation_policy": "manual"} if safety == "NOT_SAFE_TO_RETRY" else {}),
        "retry_policy": {"max_attempts": settings.get("max_attempts", 3), "retry_on_classes": classes},
        **({"classify": {"TimeoutError": "NON_RETRYABLE"}} if settings.get("on_timeout") == "FAIL" else {}),
        "with": {
            "service": settings["service"],
            "step_type": given["step_type"],
            "protocol_id": protocol_id,
            "priority": settings.get("priority", "normal"),
            "answer_ms": sum(timeouts.values()),
            "payload": payload,
            "envelope": "${input}",
            "workspace_ref": "${context.workspace_ref}",
        },
    }


def merge_documents(documents: Sequence[tuple[str, Any]]) -> Any:
    """Merges the files of a folder into one configuration. The same setting may not have two values."""
    merged: dict[str, Any] = {"protocols": []}
    problems: list[Problem] = []
    for name, document in documents:
        if not isinstance(document, dict):
            problems.append(Problem(name, "type", "a configuration is a JSON object"))
            continue
        for key, value in document.items():
            if key == "protocols" and isinstance(value, list):
                merged["protocols"].extend(value)
            elif isinstance(value, dict) and isinstance(merged.get(key, {}), dict):
                problems.extend(_conflicts(name, key, merged.setdefault(key, {}), value))
                merged[key].update(value)
            else:
                merged[key] = value
    if problems:
        raise InvalidInput("The protocol configuration is not valid.", problems=problems, code="protocols_invalid")
    return merged


def _conflicts(name: str, key: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Problem]:
    for field in known.keys() & given.keys():
        if known[field] != given[field]:
            yield Problem(f"{name}/{key}/{field}", "conflict", "another file of the folder has another value")
