"""Faults that can be switched on by HTTP, for one operation of a service and, if wanted, one order."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from fastapi import APIRouter, HTTPException
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

Kind = Literal["refuse", "slow", "error", "timeout", "pending", "duplicate", "reset"]
Effect = Callable[[], Awaitable[Response]]
Delay = Callable[["Fault"], Awaitable[Response]]


class Fault(BaseModel):
    """`POST /faults {"operation": "pay", "kind": "timeout"}`: the next payment is made, and not answered in time."""

    operation: str
    kind: Kind
    order_id: str | None = None  # None: any order
    times: int = 1
    seconds: float = 30  # how long a slow answer takes, or one that comes too late
    polls: int = 2  # how often a pending payment is looked at before it is final
    final: Literal["paid", "declined"] = "paid"


class Faults:
    """The faults that are switched on for the operations of a service, oldest first."""

    def __init__(self, *operations: str) -> None:
        self._operations = operations
        self._waiting: list[Fault] = []
        self.router = APIRouter()
        self.router.add_api_route("/faults", self.switch_on, methods=["POST"], status_code=201)
        self.router.add_api_route("/faults", self.listed, methods=["GET"])
        self.router.add_api_route("/faults", self.switch_off, methods=["DELETE"], status_code=204)

    async def switch_on(self, fault: Fault) -> Fault:
        if fault.operation not in self._operations:
            raise HTTPException(422, f"There is no operation {fault.operation!r}. Use {', '.join(self._operations)}.")
        self._waiting.append(fault)
        return fault

    async def listed(self) -> list[Fault]:
        return self._waiting

    async def switch_off(self) -> None:
        self._waiting.clear()

    async def around(
        self, operation: str, order_id: str, effect: Effect, refuse: Effect, delay: Delay | None = None
    ) -> Response:
        """Answers a request: with its effect, or with the fault that is switched on for it.

        `delay` makes a pending effect. Without it, a pending request has no effect until it is sent again.
        """
        match self._take(operation, order_id):
            case Fault(kind="pending") as fault if delay is not None:
                return await delay(fault)
            case Fault(kind="pending"):
                return JSONResponse({"status": "pending"}, 202)
            case Fault(kind="refuse"):
                return await refuse()
            case Fault(kind="error"):
                return JSONResponse({"code": "unavailable"}, 503)
            case Fault(kind="slow", seconds=seconds):
                await asyncio.sleep(seconds)
            case Fault(kind="timeout", seconds=seconds):
                await effect()
                await asyncio.sleep(seconds)
            case Fault(kind="duplicate"):
                await effect()
            case Fault(kind="reset"):
                await effect()
                return _Reset()
        return await effect()

    def _take(self, operation: str, order_id: str) -> Fault | None:
        """The first fault for this operation and order. Each fault happens `times` times."""
        for fault in self._waiting:
            if fault.operation == operation and fault.order_id in (None, order_id):
                fault.times -= 1
                if fault.times <= 0:
                    self._waiting.remove(fault)
                return fault
        return None


class _Reset(Response):
    """Announces a body and closes the connection instead of sending it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        raise ConnectionResetError
