"""Idempotent requests: a repeated request gets the response of the first."""

import hashlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Annotated

from fastapi import Header
from starlette.responses import Response

from tenuto.errors import IdempotencyConflict, InvalidInput, RequestInFlight
from tenuto.storage.registry import Answer

from .caller import Caller

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key", min_length=1, max_length=255, description="requests with the same key are one request"
    ),
]
REPLAYED = {"Idempotency-Replayed": "true"}
_UNNAMED = nullcontext()  # without a key


def unquoted_key(key: str | None) -> str | None:
    """The key without quotes: the header may be a structured field."""
    if key is None or len(key) < 2 or not key[0] == key[-1] == '"':
        return key
    if key == '""':
        raise InvalidInput.at("/header/Idempotency-Key", "empty", "the key is empty; omit the header instead")
    return key[1:-1]


def exclusive_start(caller: Caller, key: str | None) -> AbstractContextManager[None]:
    """Allows one start at a time for a key: a concurrent request gets 409, and the execution when it is sent again.

    This holds within one process. A request to another process waits in the database for the first and replays it.
    """
    return _UNNAMED if key is None else _exclusive_start(caller, key)


@contextmanager
def _exclusive_start(caller: Caller, key: str) -> Iterator[None]:
    at, starting = (caller.principal.tenant, key), caller.service.starting
    if at in starting:
        raise RequestInFlight
    starting.add(at)
    try:
        yield
    finally:
        starting.discard(at)


async def run_once(
    caller: Caller, endpoint: str, key: str | None, request: bytes, work: Callable[[], Awaitable[Response]]
) -> Response:
    """Does the work and stores its response if it succeeded. A failed request does not use up the key."""
    key = unquoted_key(key)
    if key is None:
        return await work()
    registry, tenant = caller.service.registry, caller.principal.tenant
    digest = hashlib.sha256(endpoint.encode() + b"\n" + request).hexdigest()
    claim = Answer(request_hash=digest, created_at=caller.engine.now_ms)
    known = await registry.begin_answer(tenant, endpoint, key, claim)
    if known is not None:
        return _again(known, digest)
    try:
        done = await work()
    except BaseException:
        await registry.drop_answer(tenant, endpoint, key)
        raise
    if done.status_code < 300:
        await registry.give_answer(tenant, endpoint, key, done.status_code, bytes(done.body))
    else:
        await registry.drop_answer(tenant, endpoint, key)
    return done


def _again(known: Answer, digest: str) -> Response:
    if known.request_hash != digest:
        raise IdempotencyConflict
    if known.status is None:
        raise RequestInFlight
    status = 200 if known.status == 201 else known.status
    return Response(known.body, status, REPLAYED, "application/json")
