"""The application: wires the engine, the settings, the layers and the endpoints."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

import tenuto
from tenuto.access.principal import Authenticator
from tenuto.access.sign_in_sessions import SignInSessions
from tenuto.access.tokens import Tokens
from tenuto.api.engine import Engine
from tenuto.settings import Settings, load
from tenuto.values.durations import milliseconds

from . import executions, probes, sign_in
from .commands import documentation
from .commands import routes as commands
from .commands.gateway import Gateway
from .console_pages import BUILT, ConsolePages
from .http.authentication import Authentication
from .http.caller import Service, unless_closed
from .http.client_address import TrustedProxies
from .http.docs_page import docs_page, policy
from .http.error_responses import add_error_handlers
from .http.fast_path import FastPath
from .http.headers import ResponseHeaders
from .http.openapi import add_openapi
from .http.paths import ExactRoute
from .http.public_address import PublicAddress
from .http.request_body import BodyReader
from .http.request_deadline import RequestDeadline
from .http.request_limits import RequestLimiter
from .http.request_log import RequestLog
from .http.request_metrics import RequestMetrics
from .http.responses import json_response
from .http.session_cookie import SessionCookies
from .http.start_page import start_page, start_page_policy


class Application(FastAPI):
    """FastAPI with layers around its own, so that the fast path can skip the framework.

    Middleware that a user adds goes around all of them, as in any other application.
    """

    layers: Sequence[Callable[[ASGIApp], ASGIApp]] = ()  # the innermost first

    def build_middleware_stack(self) -> ASGIApp:
        added, self.user_middleware = self.user_middleware, []
        app = super().build_middleware_stack()
        self.user_middleware = added
        for layer in self.layers:
            app = layer(app)
        for kind, args, options in reversed(added):
            app = kind(app, *args, **options)
        return app


def create_app(engine: Engine, settings: Settings | None = None, *, console: Path = BUILT) -> FastAPI:
    """Creates the service for an open engine. It can be mounted in another application.

    `console` is the folder with the built console. A source tree without one serves the API alone.
    """
    settings = settings or load()
    app = Application(
        title="Tenuto",
        version=tenuto.__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would use the host that the request names
        lifespan=_lifespan,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # Tenuto has its own telemetry
    )
    limiter = RequestLimiter(settings.max_requests, engine)
    address = PublicAddress(settings.public_url, TrustedProxies(settings.trusted_proxies))
    sessions = SignInSessions(
        engine.registry.sign_ins,
        lambda: engine.now_ms,
        idle_ms=milliseconds(settings.console_idle),
        max_age_ms=milliseconds(settings.console_max_age),
    )
    gateway = Gateway(engine, settings)
    authenticator = Authenticator(
        engine.keys, Tokens(settings.jwt_issuers), sessions, gateway.tokens, lambda: engine.now_ms
    )
    authentication = Authentication(authenticator, SessionCookies(address), settings)
    app.state.service = Service(
        engine=engine,
        settings=settings,
        registry=engine.registry,
        authentication=authentication,
        sessions=sessions,
        limiter=limiter,
        commands=set(),
        engines={},
        starting=set(),
        gateway=gateway,
    )
    app.router.route_class = ExactRoute
    add_error_handlers(app)
    app.router.routes.extend(executions.routes())
    app.router.routes.extend(commands.routes())
    app.router.routes.extend(sign_in.router.routes)
    app.router.routes.extend(
        probes.router(engine, lambda: gateway.protocols.problem, dependencies=[Depends(unless_closed)]).routes
    )
    _add_own_routes(app)
    if settings.console and (console / "index.html").is_file():
        app.router.default = ConsolePages(console, address, app.router.default)
    else:
        _add_start_page(app, address)
    add_openapi(app, documentation.schemas(), documentation.EXAMPLES)
    layers: list[Callable[[ASGIApp], ASGIApp]] = [
        partial(FastPath, routes=executions.fast_routes()),
        limiter.hold_slot,
        partial(BodyReader, settings=settings, authentication=authentication),
        partial(RequestDeadline, seconds=settings.answer_seconds, body_seconds=settings.body_seconds),
        limiter.reject_early,
        RequestLog,
        ResponseHeaders,
    ]
    if engine.telemetry is not None:
        layers.append(partial(RequestMetrics, served=engine.telemetry.served))
    app.layers = layers
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    gateway: Gateway = app.state.service.gateway
    await gateway.open()
    try:
        yield
    finally:
        await gateway.close()


def _add_own_routes(app: FastAPI) -> None:
    """Adds the routes about the service itself, which show no tenant data."""
    options: dict[str, Any] = {"dependencies": [Depends(unless_closed)], "tags": ["service"]}

    @app.get("/openapi.json", operation_id="openapi", include_in_schema=False, **options)
    async def openapi() -> Response:
        return json_response(app.openapi())

    @app.get("/docs", operation_id="docs", include_in_schema=False, **options)
    async def docs() -> Response:
        return HTMLResponse(docs_page(app.openapi()), headers={"Content-Security-Policy": policy()})


def _add_start_page(app: FastAPI, address: PublicAddress) -> None:
    @app.get("/", operation_id="start_page", include_in_schema=False, dependencies=[Depends(unless_closed)])
    async def start(request: Request) -> Response:
        page = start_page(address.prefix(request.scope))
        return HTMLResponse(page, headers={"Content-Security-Policy": start_page_policy()})
