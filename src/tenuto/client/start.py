"""A `StartRequest` as an HTTP request.

It always carries an idempotency key, so a start whose answer was lost can be sent again.
"""

import secrets
from typing import Any, Final

import msgspec

from tenuto.errors import InvalidInput
from tenuto.runtime.start_request import StartRequest

MAX_HEADER_LENGTH: Final = 255


def start_body(request: StartRequest, version: int | None) -> dict[str, Any]:
    target = request.target
    return {
        "definition": request.program.name,
        "version": version,
        "target": None if target is None else {"type": target[0], "id": target[1]},
        "priority": request.priority,
        "concurrency_key": request.concurrency_key,
        "variables": request.variables,
        "headers": request.headers,
        **_input(request),
    }


def start_headers(request: StartRequest) -> dict[str, str]:
    headers = {"Idempotency-Key": _key(request.idempotency_key)}
    if request.correlation_id:
        headers["X-Correlation-ID"] = _header(request.correlation_id, "/correlation_id")
    return headers


def _input(request: StartRequest) -> dict[str, Any]:
    if not request.by_step:
        return {"input": request.input}
    parts: dict[str, msgspec.Raw] = msgspec.json.decode(request.input, type=dict[str, msgspec.Raw])
    return {"inputs": {step: _step_input(part, is_fan_out=step in request.each) for step, part in parts.items()}}


def _step_input(part: msgspec.Raw, *, is_fan_out: bool) -> dict[str, Any]:
    if not is_fan_out:
        return {"value": part}
    found = msgspec.json.decode(part)
    return {"each": found["items"], "labels": found["labels"]}


def _key(given: str | None) -> str:
    if given is None:
        return f"auto-{secrets.token_hex(16)}"
    key = _header(given, "/idempotency_key")
    return f'"{key}"' if len(key) > 2 and key[0] == key[-1] == '"' else key  # the service strips one pair of quotes


def _header(text: str, where: str) -> str:
    if not text.isascii() or not text.isprintable() or not 1 <= len(text) <= MAX_HEADER_LENGTH or text != text.strip():
        raise InvalidInput.at(
            where,
            "header",
            f"over HTTP, must be 1 to {MAX_HEADER_LENGTH} printable ASCII characters, without outer blanks",
        )
    return text
