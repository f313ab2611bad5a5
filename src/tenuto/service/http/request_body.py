"""Request bodies: read and checked before any route, and only for authenticated callers.

An unknown client is rejected by the head of its request, and its body is discarded unread, except if it signs in.
"""

import json
import math
from collections.abc import Iterable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenuto.errors import TenutoError
from tenuto.settings import Settings

from .authentication import Authentication
from .error_responses import RequestRejected, error_response, rejection_response
from .fast_path import BODY
from .headers import header
from .paths import path_of
from .request_deadline import sending

MAX_KEY_LENGTH = 256
MAX_TEXT_BYTES = 128 * 1024
MAX_SIGN_IN_BYTES = 8 * 1024  # of a client that is not known yet
MAX_INTEGER = 2**53  # a floating-point reader would change larger numbers
_WITH_BODY = ("POST", "PUT", "PATCH")
_SIGN_IN = ("POST", "/v1/session")


class BodyReader:
    """Authenticates the caller, reads and checks the body, and passes it on unchanged."""

    def __init__(self, app: ASGIApp, settings: Settings, authentication: Authentication) -> None:
        self._app = app
        self._settings = settings
        self._authentication = authentication

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            await rejection_response(RequestRejected(400, "The address has characters that cannot be stored."))(
                scope, receive, send
            )
            return
        if scope["method"] not in _WITH_BODY:
            await self._app(scope, receive, send)
            return
        answer = _and_close(send) if header(scope, b"expect") is not None else send
        try:
            limit = self._settings.max_body_bytes
            if (scope["method"], path_of(scope)) == _SIGN_IN:
                self._authentication.count_unknown(scope)
                limit = min(limit, MAX_SIGN_IN_BYTES)
            else:
                await self._authentication.authenticate(scope)
            answer = send
            with sending(scope):
                body = await _read(scope, receive, limit)
            if body is None:
                return
            scope[BODY] = check_body(body, header(scope, b"content-type") or "", self._settings)
        except RequestRejected as refusal:
            await rejection_response(refusal)(scope, receive, answer)
            return
        except TenutoError as error:
            await error_response(error)(scope, receive, answer)
            return
        await self._app(scope, _replay(body, receive), send)


async def _read(scope: Scope, receive: Receive, limit: int) -> bytes | None:
    """The body, or None if the client disconnected."""
    declared = header(scope, b"content-length") or ""
    if declared.isdecimal() and int(declared) > limit:
        raise RequestRejected(413, f"A body has at most {limit:,} bytes.")
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise RequestRejected(413, f"A body has at most {limit:,} bytes.")
        if not message.get("more_body", False):
            return b"".join(parts)


def check_body(body: bytes, content_type: str, settings: Settings) -> Any:
    """Parses and checks the JSON of a body. Returns None if there is no body."""
    if not body:
        return None
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise RequestRejected(415)
    try:
        value = _JSON.decode(body.decode())
    except (ValueError, RecursionError) as error:
        told = str(error) if isinstance(error, _Unfit) else "The body is not JSON."
        raise RequestRejected(400, told) from None
    _measure(value, settings.max_json_depth, settings.max_json_nodes)
    return value


class _Unfit(ValueError):
    """JSON that two parsers could read differently."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Unfit("An object in the body has one key twice.")
    return found


def _no_constant(name: str) -> None:
    raise _Unfit(f"{name} is not JSON.")


def _number(text: str) -> int:
    if len(text) > 4_000:
        raise _Unfit("A number in the body is too long.")
    number = int(text)
    if abs(number) > MAX_INTEGER:
        raise _Unfit("A whole number in the body is beyond 2^53: send it as text.")
    return number


_JSON = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant, parse_int=_number)


def _measure(value: Any, depth: int, nodes: int) -> None:
    """Checks a value level by level, without recursion."""
    level: list[Any] = [value]
    while level:
        if depth < 0:
            raise RequestRejected(400, "The body is nested too deeply.")
        nodes -= len(level)
        if nodes < 0:
            raise RequestRejected(400, "The body holds too many values.")
        below: list[Any] = []
        for each in level:
            if isinstance(each, str):
                _check_text(each)
            elif isinstance(each, dict):
                _check_keys(each)
                below.extend(each.values())
            elif isinstance(each, list):
                below.extend(each)
            elif isinstance(each, float) and not math.isfinite(each):
                raise RequestRejected(400, "A number in the body is too large.")
        level = below
        depth -= 1


def _check_keys(keys: Iterable[str]) -> None:
    for key in keys:
        _check_text(key)
        if len(key) > MAX_KEY_LENGTH:
            raise RequestRejected(400, f"A key has at most {MAX_KEY_LENGTH} characters.")


def _check_text(text: str) -> None:
    """Rejects NUL characters and lone surrogates, which no database can store."""
    if len(text) <= MAX_KEY_LENGTH and text.isascii() and "\0" not in text:  # the common case
        return
    try:
        raw = text.encode()
        storable = b"\0" not in raw
    except UnicodeEncodeError:
        raw, storable = b"", False
    if len(raw) > MAX_TEXT_BYTES:
        raise RequestRejected(400, f"A text in the body has at most {MAX_TEXT_BYTES:,} bytes.")
    if not storable:
        raise RequestRejected(400, "A text in the body has characters that cannot be stored.")


def _and_close(send: Send) -> Send:
    """Closes the connection after the response: a client that sent `Expect` may or may not send its body."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        await send(message)

    return answer


def _replay(body: bytes, receive: Receive) -> Receive:
    done = False

    async def replay() -> Message:
        nonlocal done
        if done:
            return await receive()
        done = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
