"""`/healthz`, `/readyz` and `/metrics`: about the process, and nothing of any tenant.

A probe gets one word. What is wrong is said in the log, by the name of the check: an answer that everybody may read
does not tell where a database is.
"""

import logging
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tenuto.access.principal import Authenticator
from tenuto.access.tokens import Tokens
from tenuto.api.engine import Engine
from tenuto.api.health import Health
from tenuto.errors import NotFound
from tenuto.settings import Settings
from tenuto.telemetry import CONTENT_TYPE_LATEST

from .http.error_responses import add_error_handlers
from .http.paths import ExactRoute
from .http.responses import json_response

logger = logging.getLogger("tenuto.service")


def router(engine: Engine, notice: Callable[[], str | None] = lambda: None, **options: Any) -> APIRouter:
    """`notice`: a problem that does not keep this process from its work, and is told all the same."""
    routes = APIRouter(tags=["service"], route_class=ExactRoute, **options)

    @routes.get("/healthz", operation_id="healthz", summary="Check liveness: restart the process if it fails")
    async def healthz() -> Response:
        return _told("ok", engine.alive())

    @routes.get(
        "/readyz", operation_id="readyz", summary="Check readiness: the database responds and the lease is valid"
    )
    async def readyz() -> Response:
        return _told("ready", await engine.ready(), notice())

    @routes.get(
        "/metrics",
        operation_id="metrics",
        summary="Get metrics in the Prometheus format",
        response_class=PlainTextResponse,
    )
    async def metrics() -> Response:
        if engine.telemetry is None:
            raise NotFound("This engine has no telemetry.", hint="create it with Engine(…, telemetry=Telemetry())")
        return Response(await engine.telemetry.render(), media_type=CONTENT_TYPE_LATEST)

    return routes


def create_app(engine: Engine, settings: Settings) -> FastAPI:
    """The three alone, for a worker: it has no API, and is asked how it does all the same."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    authenticator = Authenticator(engine.keys, Tokens(settings.jwt_issuers))

    async def unless_closed(request: Request) -> None:
        if not settings.open_routes:
            await authenticator.principal(request.headers.get("authorization"))

    app.router.routes.extend(router(engine, dependencies=[Depends(unless_closed)]).routes)
    add_error_handlers(app)
    return app


def _told(word: str, health: Health, notice: str | None = None) -> Response:
    if health.ok:
        return json_response({"status": word} if notice is None else {"status": word, "problem": notice})
    wrong = {check.name: check.detail for check in health.checks if not check.ok}
    logger.warning("A probe was answered with no.", extra={"action": f"not_{word}", "checks": wrong})
    return json_response({"status": f"not {word}", "checks": sorted(wrong)}, 503)
