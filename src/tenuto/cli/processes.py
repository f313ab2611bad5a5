"""`tenuto dev | serve | worker`: the processes of a deployment."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tenuto.values.redaction import redact_url

from .command import command, connection
from .connection import actor, check_database, open_engine
from .identity import has_console, sign_in_link
from .printer import Printer

if TYPE_CHECKING:
    import asyncio
    import socket

    from tenuto.api.engine import Engine
    from tenuto.errors import TenutoError
    from tenuto.handlers.directives import BusSettings
    from tenuto.settings import Settings

    from .connection import Connection

SECTION = "Processes"
# Python's collector looks at everything that lives whenever so much was made. Executions in flight live, in thousands,
# and hardly ever are in cycles: at its default of 700 it takes an eighth of a busy worker's time.
COLLECT_AFTER = (20_000, 10, 10)

App = Annotated[
    str | None,
    typer.Option(metavar="MODULE[:NAME]", help="Load your sagas and @handler functions. Default: TENUTO_APP."),
]
Queues = Annotated[
    list[str] | None, typer.Option("--queue", metavar="NAME", help="Run steps of this queue. Repeatable.")
]
Host = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Listen on this address. Default: TENUTO_HOST, or 127.0.0.1.")
]
Port = Annotated[
    int | None,
    typer.Option(metavar="NUMBER", help="Listen on this port; 0 is any free one. Default: TENUTO_PORT, or 8080."),
]


async def dev(
    context: typer.Context,
    app: App = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Listen on this address. Default: 127.0.0.1.")
    ] = None,
    port: Port = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a file of the app changes. Executions continue.")
    ] = False,
) -> None:
    """Run the API and a worker in one process, for development."""
    from tenuto.api.stop_signals import stopping
    from tenuto.service.server import address_of

    from .reloader import Reloaded

    where = connection(context)
    settings = _dev_settings(where, {"app": app, "host": host or "127.0.0.1", "port": port})
    reloaded = Reloaded.from_environment()
    if reload and reloaded is None:
        await _run_reloading(where, settings)
        return
    made_engine = make_engine(settings)  # before it listens: errors in the settings come first
    listener = _dev_listener(settings) if reloaded is None else reloaded.listener
    if made_engine.directives is not None and "public_url" not in settings.sources:
        made_engine.directives.public_url = address_of(listener)
    async with made_engine as engine:
        runs, lacks = await runnable(engine)
        with stopping() as stop:
            if reloaded is not None:
                reloaded.stop_with_parent(stop)
                Printer().text(f"{reloaded.word}: {_told(runs, lacks)}")
                await _serve(engine, settings, listener, stop)
                return
            async with _dev_key(engine, where, settings) as (token, sign_in):
                address = _announce_dev(settings, ("sagas", _told(runs, lacks)), listener, token, sign_in)
                await _serve(engine, settings, listener, stop)
    Printer().text(f"stopped: {address}")


def _dev_settings(where: "Connection", given: dict[str, object]) -> "Settings":
    from tenuto.handlers.settings import LOOPBACK

    settings = where.settings(**given)
    own: dict[str, object] = {} if "log_level" in settings.sources else {"log_level": "WARNING"}
    if not settings.egress_allow:
        own["egress_allow"] = LOOPBACK
    settings = where.settings(**given, **own)
    check_database(settings.url)
    return with_own_gateway(settings)


def _dev_listener(settings: "Settings") -> "socket.socket":
    return _listener(settings, any_port="port" not in settings.sources)


@asynccontextmanager
async def _dev_key(
    engine: "Engine", where: "Connection", settings: "Settings"
) -> AsyncIterator[tuple[str, str | None]]:
    """Creates an API key and, for the console, a sign-in link. Revokes the key at the end."""
    made = await engine.keys.create(tenant=where.tenant, roles=["admin"], name="tenuto dev", days=1)
    person = engine.scoped(tenant=where.tenant, actor=actor(), roles=["admin"])
    try:
        yield made.token, await person.sessions.link_token() if has_console(settings) else None
    finally:
        await engine.keys.revoke(made.row.id, actor="tenuto dev")


async def _run_reloading(where: "Connection", settings: "Settings") -> None:
    from tenuto.api.stop_signals import stopping
    from tenuto.errors import NotSupported

    from .reloader import AppFiles, Reloader

    if settings.url.startswith("memory:"):
        raise NotSupported(
            "--reload restarts the process, and executions in memory:// would be lost with it.",
            hint="name a database, as in --url sqlite:///tenuto.db",
        )
    files, listener = AppFiles(settings.app), _dev_listener(settings)
    async with open_engine(settings.url, reads=False) as engine, _dev_key(engine, where, settings) as (token, sign_in):
        with stopping() as stop:
            address = _announce_dev(settings, ("watches", str(files.folder)), listener, token, sign_in)
            await Reloader(files, listener).run(stop)
    Printer().text(f"stopped: {address}")


async def serve(context: typer.Context, app: App = None, host: Host = None, port: Port = None) -> None:
    """Run the API without a worker. On SIGTERM it answers open requests and stops."""
    from tenuto.api.stop_signals import stopping
    from tenuto.service.server import address_of

    settings = connection(context).settings(app=app, host=host, port=port)
    check_shared(settings.url)
    made = make_engine(settings, worker=False)
    listener = _listener(settings)
    async with made as engine:
        await store_definitions(engine)
        with stopping() as stop:
            Printer().text(f"serving on {address_of(listener)}, {redact_url(settings.url)}")
            await _serve(engine, settings, listener, stop)


async def worker(context: typer.Context, app: App = None, queue: Queues = None) -> None:
    """Run a worker without the API. On SIGTERM it finishes running steps and stops, at the latest after 30 s."""
    from tenuto.api.stop_signals import stopping

    settings = connection(context).settings(app=app, queues=tuple(queue) if queue else None)
    check_shared(settings.url)
    async with make_engine(settings) as engine:
        runs, lacks = await runnable(engine)
        if not settings.app and not runs:
            raise nothing_to_run(lacks)
        queues = f"queue{'s' * (len(settings.queues) > 1)} {', '.join(settings.queues)}"
        with stopping() as stop:
            Printer().text(f"worker on {redact_url(settings.url)}, {queues}: {_told(runs, lacks)}")
            await _answer_probes(engine, settings, stop)
            Printer().text("stopping: waiting for running steps")


def check_shared(url: str) -> None:
    """A service and its workers meet in a database. What starts without one would never hear of the others."""
    from tenuto.errors import NotSupported

    check_database(url)
    if url.startswith("memory:"):
        raise NotSupported(
            "Only its own process can see memory://: a service and its workers cannot share it.",
            hint="name a database, as in --url sqlite:///tenuto.db; or run both in one process with `tenuto dev`",
        )


def make_engine(settings: "Settings", *, worker: bool = True) -> "Engine":
    """An engine as the settings say, with the user's sagas and handlers."""
    from tenuto.api.engine import Engine
    from tenuto.handlers.settings import HandlerSettings
    from tenuto.telemetry import Telemetry, configure_logs

    check_messages(settings)
    configure_logs(settings.log_level, settings.log_format)
    gc.set_threshold(*COLLECT_AFTER)
    engine = Engine(
        settings.url,
        worker=worker,
        queues=settings.queues,
        lease=settings.lease,
        shutdown_grace=settings.shutdown_grace,
        slots=settings.slots,
        threads=settings.threads,
        retention=settings.retention or None,
        messages=settings.messages,
        step_overrides=dict(settings.step_overrides),
        outside=HandlerSettings.from_settings(settings),
        telemetry=Telemetry.from_settings(settings),
        bus=bus_settings(settings),
    )
    if settings.app:
        from .app_loader import load_app

        engine.register(*load_app(settings.app))
    return engine


def with_own_gateway(settings: "Settings") -> "Settings":
    """The command gateway of a development server needs no settings but its protocols."""
    import secrets
    from dataclasses import replace

    if not settings.protocols:
        return settings
    return replace(
        settings,
        public_url=settings.public_url or "http://127.0.0.1",  # until it listens
        callback_keys=settings.callback_keys or (f"dev:{secrets.token_urlsafe(32)}",),
    )


def bus_settings(settings: "Settings") -> "BusSettings | None":
    """How this process takes part in the command gateway; None if it does not."""
    from tenuto.errors import Problem, SettingsError
    from tenuto.handlers.directives import BusSettings
    from tenuto.settings import MEND, variable_of

    if not (settings.protocols or settings.bus_url or settings.callback_keys):
        return None
    made = BusSettings(url=settings.bus_url, public_url=settings.public_url, callback_keys=settings.callback_keys)
    problems = []
    try:
        if not made.tokens.can_sign:
            problems.append(
                Problem(variable_of("callback_keys"), "missing", "the command gateway needs a key: id:secret")
            )
    except ValueError as error:
        problems.append(Problem(variable_of("callback_keys"), "bad_value", str(error)))
    if not settings.public_url:
        problems.append(Problem(variable_of("public_url"), "missing", "platform workers call back there"))
    if problems:
        raise SettingsError(problems=problems, hint=MEND)
    return made


def check_messages(settings: "Settings") -> None:
    """Of all settings the one whose words are known above them."""
    from tenuto.errors import InvalidInput, Problem, SettingsError
    from tenuto.settings import MEND, variable_of
    from tenuto.views.messages import Announced

    try:
        Announced(settings.messages)
    except InvalidInput as error:
        where = variable_of("messages")
        problems = [Problem(where, "bad_value", each.message) for each in error.problems]
        raise SettingsError(problems=problems, hint=MEND) from None


async def store_definitions(engine: "Engine") -> None:
    """Publishes the registered sagas. A changed plan ends the command."""
    for refusal in await engine.catalog.refused():
        raise refusal


async def runnable(engine: "Engine") -> tuple[list[str], list[str]]:
    """Publishes the registered sagas. Returns the definitions that this process has all handlers of, and the others."""
    from tenuto.errors import NotFound

    await store_definitions(engine)
    runs: list[str] = []
    lacks: list[str] = []
    async for each in engine.definitions():
        try:
            found = await engine.catalog.validate(each["name"], each["version"])
        except NotFound:  # a tenant's own
            found = await engine.catalog.check(each["definition"])
        (lacks if found["missing_handlers"] else runs).append(f"{each['name']} {each['version']}")
    return runs, lacks


def nothing_to_run(lacks: list[str]) -> "TenutoError":
    from tenuto.errors import NotSupported

    stored = f" Only code can run what is stored: {', '.join(lacks)}." if lacks else " No definition is stored."
    return NotSupported(
        f"This worker has nothing to run: no app is given.{stored}",
        code="nothing_to_run",
        hint="name the module of your sagas with --app or TENUTO_APP; without one, a worker runs the definitions that "
        "consist of built-in handlers alone: store one with `tenuto apply FILE.json` first",
    )


def _listener(settings: "Settings", *, any_port: bool = False) -> "socket.socket":
    """Without a given port, it is no error if another process uses the default port."""
    from tenuto.errors import SettingsError
    from tenuto.service.server import bind

    try:
        return bind(settings.host, settings.port)
    except SettingsError:
        if not any_port:
            raise
        return bind(settings.host, 0)


async def _answer_probes(engine: "Engine", settings: "Settings", stop: "asyncio.Event") -> None:
    """Serves probes until the worker stops, if a port is set."""
    from tenuto.service.probes import create_app
    from tenuto.service.server import address_of, bind, serve

    if not settings.metrics_port:
        await stop.wait()
        return
    listener = bind(settings.host, settings.metrics_port, "TENUTO_HOST and TENUTO_METRICS_PORT")
    Printer().text(f"metrics on {address_of(listener)}/metrics")
    await serve(create_app(engine, settings), listener, stop, grace_seconds=1, settings=settings)


async def _serve(engine: "Engine", settings: "Settings", listener: "socket.socket", stop: "asyncio.Event") -> None:
    from tenuto.service.server import serve as answer
    from tenuto.values.durations import milliseconds

    grace = milliseconds(settings.shutdown_grace) / 1_000
    app = engine.asgi(settings)
    await app.state.service.gateway.open()  # before it answers: protocols that are not valid end the process
    await answer(app, listener, stop, grace_seconds=grace, settings=settings)


def _announce_dev(
    settings: "Settings", about: tuple[str, str], listener: "socket.socket", token: str, sign_in: str | None
) -> str:
    from tenuto.service.server import address_of

    address = address_of(listener)
    printer = Printer()
    printer.cells(("Tenuto is running. ", "bold"), "Ctrl-C stops it.")
    if sign_in is not None:
        link = sign_in_link(address, sign_in)
    elif settings.open_routes:
        link = f"{address}/docs#key={token}"  # no server, proxy or log sees what follows `#`
    else:  # a page that needs a key cannot be opened by a link: browsers send none for it
        link = f"{address} (TENUTO_OPEN_ROUTES has closed /docs)"
    printer.grid(
        [
            [("open", "dim"), (link, "cyan")],
            [("data", "dim"), redact_url(settings.url)],
            [(about[0], "dim"), about[1]],
        ]
    )
    printer.text("In another terminal:")
    printer.text(f"  export TENUTO_SERVER={address} TENUTO_API_KEY={token}", "")
    return address


def _told(runs: list[str], lacks: list[str]) -> str:
    told = ", ".join(runs) or "none; load yours with --app MODULE"
    return f"{told}; no code here for {', '.join(lacks)}" if lacks else told


def add_to(app: typer.Typer) -> None:
    for function in (dev, serve, worker):
        command(app, function.__name__, SECTION)(function)
