"""A submission as a request. It always has a key, so that a start whose answer was lost is not made twice."""

import secrets
from typing import Any, Final

import msgspec

from tenuto.errors import InvalidInput
from tenuto.runtime.port import Submission

LONGEST: Final = 255


def start_request(submission: Submission, *, names_version: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """Body and headers. `names_version`: it is this process's own code, which is of one version."""
    version = submission.version
    if version is None and names_version:
        version = submission.program.version
    target = submission.target
    body = {
        "definition": submission.program.name,
        "version": version,
        "target": None if target is None else {"type": target[0], "id": target[1]},
        "priority": submission.priority,
        "concurrency_key": submission.concurrency_key,
        "variables": submission.variables,
        "headers": submission.headers,
        **_input(submission),
    }
    headers = {"Idempotency-Key": _key(submission.idempotency_key)}
    if submission.correlation_id:
        headers["X-Correlation-ID"] = _header(submission.correlation_id, "/correlation_id")
    return body, headers


def _input(submission: Submission) -> dict[str, Any]:
    if not submission.by_step:
        return {"input": submission.input}
    parts: dict[str, msgspec.Raw] = msgspec.json.decode(submission.input, type=dict[str, msgspec.Raw])
    return {"inputs": {step: _of_step(part, fans=step in submission.each) for step, part in parts.items()}}


def _of_step(part: msgspec.Raw, *, fans: bool) -> dict[str, Any]:
    if not fans:
        return {"value": part}
    found = msgspec.json.decode(part)
    return {"each": found["items"], "labels": found["labels"]}


def _key(given: str | None) -> str:
    if given is None:
        return f"auto-{secrets.token_hex(16)}"
    key = _header(given, "/idempotency_key")
    return f'"{key}"' if len(key) > 2 and key[0] == key[-1] == '"' else key  # one pair of quotes is the header's own


def _header(text: str, where: str) -> str:
    if not text.isascii() or not text.isprintable() or not 1 <= len(text) <= LONGEST or text != text.strip():
        raise InvalidInput.at(where, "header", f"over HTTP it is 1 to {LONGEST} printable characters of ASCII")
    return text
