"""Requests that may be sent twice: the second gets the answer of the first."""

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
    Header(alias="Idempotency-Key", min_length=1, max_length=255, description="the same key twice is one request"),
]
REPLAYED = {"Idempotency-Replayed": "true"}
_UNNAMED = nullcontext()  # of whoever gives no key


def unquoted_key(key: str | None) -> str | None:
    """The header may be a structured field: a text in quotes."""
    if key is None or len(key) < 2 or not key[0] == key[-1] == '"':
        return key
    if key == '""':
        raise InvalidInput.at("/header/Idempotency-Key", "empty", "an empty key is none: leave it out")
    return key[1:-1]


def exclusive_start(caller: Caller, key: str | None) -> AbstractContextManager[None]:
    """One start at a time with a key: whoever comes meanwhile gets 409, and the execution when he comes again.

    That holds for this process. One that comes through another waits in the database for the first, and replays it.
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
    """Does it, and remembers the answer if it was a success. A refused or failed request uses nothing up."""
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
