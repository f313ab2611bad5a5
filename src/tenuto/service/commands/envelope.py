"""The envelope of a command: its schema, and its validation against a protocol. All problems are reported at once."""

from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from tenuto.errors import ExpressionError, InvalidInput, NotPermitted, Problem
from tenuto.kernel.expression import compile_template
from tenuto.values.lanes import Mode
from tenuto.values.schema import Schema

from .protocols import CompiledProtocol, Configuration

SCHEMA_VERSION: Final = "v1"
MODES: Final[tuple[Mode, ...]] = ("DEFAULT", "BURST")
_TEXT = {"type": "string", "minLength": 1, "maxLength": 256}
_REFERENCE = {"type": "string", "minLength": 1, "maxLength": 2_048}
_URL = {"type": "string", "minLength": 1, "maxLength": 2_048}

ENVELOPE: Final[dict[str, Any]] = {
    "title": "Command",
    "type": "object",
    "additionalProperties": False,
    "required": ["tenant_id", "request_type", "input_ref", "output_ref", "payload", "schema_version"],
    "properties": {
        "tenant_id": {**_TEXT, "description": "the tenant of the credential", "examples": ["acme"]},
        "request_type": {**_TEXT, "description": "selects the protocol", "examples": ["document.ingest"]},
        "schema_version": {**_TEXT, "description": "of this envelope: v1", "examples": [SCHEMA_VERSION]},
        "mode": {
            "type": "string",
            "description": "DEFAULT routes by tenant, BURST by tenant and document. Default: DEFAULT",
            "examples": ["BURST"],
        },
        "doc_id": {**_TEXT, "description": "the document; required for BURST", "examples": ["doc-42"]},
        "input_ref": {**_REFERENCE, "examples": ["s3://docs/acme/42.pdf"]},
        "output_ref": {**_REFERENCE, "examples": ["s3://docs/acme/out/42"]},
        "payload": {
            "type": "object",
            "examples": [
                {"ocr": {"languages": ["en"]}, "embedding": {"model": "small"}, "sis": {"index": "contracts"}}
            ],
        },
        "idempotency_key": {
            "type": "string",
            "minLength": 1,
            "maxLength": 255,
            "description": "commands of one request type with the same key are one job",
            "examples": ["ingest-42"],
        },
        "callback_urls": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"ack": _URL, "result": _URL, "completed": _URL},
            "description": "`completed` is called when the job ends. Hosts are those of TENUTO_CALLBACK_HOSTS.",
        },
        "correlation_id": {**_TEXT, "examples": ["case-7"]},
        "traceparent": {
            "type": "string",
            "maxLength": 255,
            "examples": ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
        },
    },
}
_SCHEMA = Schema(ENVELOPE)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A valid command: what starts its job."""

    protocol: CompiledProtocol
    request_type: str
    input: dict[str, Any]
    idempotency_key: str | None
    correlation_id: str | None
    traceparent: str | None


class Envelopes:
    """Validates envelopes against the protocols in force."""

    def __init__(self, callback_hosts: Sequence[str], *, allows_http: bool) -> None:
        self._hosts = callback_hosts
        self._allows_http = allows_http  # to loopback, for development

    def read(self, body: Any, tenant: str, header_key: str | None, configuration: Configuration) -> Command:
        """Returns the command, or raises with all problems of the envelope."""
        encoded = msgspec.json.encode(body)
        if not isinstance(body, dict):
            raise _invalid(_SCHEMA.problems(body, encoded))
        mode = body.get("mode", "DEFAULT")
        if isinstance(mode, str) and mode not in MODES:
            text = f"{mode!r} is not a mode. Modes are {', '.join(MODES)}"
            problems = [Problem("/mode", "unknown_mode", text)]
            raise _with_status(400, InvalidInput("The mode is not known.", problems=problems, code="unknown_mode"))
        named = body.get("tenant_id")
        if isinstance(named, str) and named and named != tenant:
            raise tenant_mismatch()
        problems = [*_SCHEMA.problems(body, encoded), *self._problems(body, mode, header_key)]
        protocol = configuration.protocol_for(body.get("request_type"))
        problems += _problems_with(body, tenant, protocol, configuration)
        if problems:
            raise _invalid(problems)
        assert protocol is not None
        return Command(
            protocol=protocol,
            request_type=body["request_type"],
            input=job_input(body, mode),
            idempotency_key=body.get("idempotency_key") or header_key,
            correlation_id=body.get("correlation_id"),
            traceparent=body.get("traceparent"),
        )

    def _problems(self, body: dict[str, Any], mode: object, header_key: str | None) -> Iterator[Problem]:
        if mode == "BURST" and "doc_id" not in body:
            yield Problem("/doc_id", "doc_id_missing", "BURST routes by document: give its `doc_id`")
        version = body.get("schema_version")
        if isinstance(version, str) and version and version != SCHEMA_VERSION:
            text = f"{version!r} is not a version of the envelope: use {SCHEMA_VERSION}"
            yield Problem("/schema_version", "unknown_schema_version", text)
        key = body.get("idempotency_key")
        if isinstance(key, str) and header_key is not None and key != header_key:
            text = "it differs from the header `Idempotency-Key`: give one of them, or the same in both"
            yield Problem("/idempotency_key", "idempotency_key_mismatch", text)
        urls = body.get("callback_urls")
        for kind, url in urls.items() if isinstance(urls, dict) else ():
            if isinstance(url, str) and url and (why := self._why_refused(url)) is not None:
                yield Problem(f"/callback_urls/{kind}", "callback_host_denied", why)

    def _why_refused(self, url: str) -> str | None:
        """Returns why a callback URL is not allowed."""
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            return "it is not a URL"
        if parts.username or parts.password:
            return "it must not contain a user or a password"
        is_loopback = host in ("localhost", "127.0.0.1", "::1")
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback and self._allows_http):
            return "it must begin with https://"
        if is_loopback and self._allows_http:
            return None
        named = {host, f"{host}:{port}"} if port else {host}
        return None if named & set(self._hosts) else f"the host {host!r} is not in TENUTO_CALLBACK_HOSTS"


def job_input(body: dict[str, Any], mode: str) -> dict[str, Any]:
    """The input of the job's execution: every field has a value, so that templates can read it."""
    fields = ("request_type", "schema_version", "input_ref", "output_ref", "payload", "doc_id", "callback_urls")
    return {**{name: body.get(name) for name in fields}, "mode": mode, "tenant_id": body["tenant_id"]}


def _problems_with(
    body: dict[str, Any], tenant: str, protocol: CompiledProtocol | None, configuration: Configuration
) -> Iterator[Problem]:
    request_type = body.get("request_type")
    if protocol is None and isinstance(request_type, str) and request_type:
        text = f"no protocol serves {request_type!r}"
        yield Problem("/request_type", "unknown_request_type", text)
    for name, kind in (("input_ref", "input"), ("output_ref", "output")):
        reference = body.get(name)
        if isinstance(reference, str) and reference:
            why = configuration.why_refused(kind, reference, tenant)
            if why is not None:
                yield Problem(f"/{name}", "reference_denied", why)
    if protocol is not None and isinstance(body.get("payload"), dict):
        yield from _payload_problems(body, protocol)


def _payload_problems(body: dict[str, Any], protocol: CompiledProtocol) -> Iterator[Problem]:
    """Renders the payload of each step, as its directive will have it, and checks it against the step's schema."""
    try:
        scope = {"input": job_input({"tenant_id": "", **body}, str(body.get("mode", "DEFAULT")))}
    except KeyError:
        return
    for step in protocol.steps:
        at = f"/payload{step.pointer}"
        try:
            payload = compile_template(step.payload).render(scope)
        except ExpressionError as error:
            yield Problem(at, "payload_invalid", f"step {step.step_id!r}: {error.message}")
            continue
        encoded = msgspec.json.encode(payload)
        for problem in step.schema.problems(payload, encoded) if step.schema is not None else ():
            yield Problem(f"{at}{problem.path}", "payload_invalid", f"step {step.step_id!r}: {problem.message}")


def tenant_mismatch() -> NotPermitted:
    text = "`tenant_id` is not the tenant of the credential."
    return NotPermitted(text, code="tenant_mismatch", hint="send the tenant that the credential belongs to")


def _with_status(status: int, error: InvalidInput) -> InvalidInput:
    error.http_status = status
    return error


def _invalid(problems: Sequence[Problem]) -> InvalidInput:
    return InvalidInput("The command is not valid.", problems=list(problems), code="command_invalid")
