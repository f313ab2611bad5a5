"""Creates the backend that a URL selects."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tenuto.authoring.programs import compile_document
from tenuto.authoring.step_overrides import DeploymentOverrides
from tenuto.errors import InvalidInput, NotSupported
from tenuto.runtime.clock import Environment
from tenuto.runtime.durable import DurableRuntime
from tenuto.runtime.observer import Observer
from tenuto.runtime.port import Runtime
from tenuto.storage import DATABASE_URLS, Store, make_store, unsupported
from tenuto.views.messages import Announced, Publish

from .backend import Backend
from .bulk_commands import LocalCommands
from .identity import LocalIdentity

if TYPE_CHECKING:
    from tenuto.client import ServiceClient
    from tenuto.telemetry import Telemetry

SHORTEST_LEASE_MS = 1_000

DURABLE = ("sqlite", "postgresql", "postgres")
REMOTE = ("https", "http")
LATER = ("temporal",)


def backend_for(
    url: str,
    environment: Environment,
    telemetry: "Telemetry | None",
    *,
    observers: Sequence[Observer],
    worker: bool,
    queues: Sequence[str],
    slots: int,
    threads: int,
    lease_ms: int,
    api_key: str | None,
    announced: Announced | None,
    publish: Publish | None,
    keep_ms: int | None,
    read_only: bool,
    overrides: DeploymentOverrides,
    serializable: bool = False,
) -> Backend:
    if read_only and (worker or url.partition(":")[0] not in DURABLE):
        raise NotSupported("`read_only` needs a database and `worker=False`.")
    if lease_ms < SHORTEST_LEASE_MS:
        raise InvalidInput.at(
            "/lease", "too_small", "must be at least 1s: the lease is renewed three times in that time"
        )
    scheme = url.partition(":")[0]
    metered = _unmetered if telemetry is None else telemetry.metered
    if telemetry is not None:
        observers = (*observers, *telemetry.observers)
    if (
        scheme == "memory"
    ):  # imported here, as the client is: a process uses one of the three, and commands start quickly
        from tenuto.runtime.memory import MemoryRuntime

        memory = MemoryRuntime(
            environment,
            observers=observers,
            worker=worker,
            queues=queues,
            slots=slots,
            threads=threads,
            logs_failures=telemetry is None,
            announced=announced,
            publish=publish,
            override=overrides.apply,
        )
        return _local(memory, environment, telemetry)
    if scheme in DURABLE:
        runtime = DurableRuntime(
            environment,
            metered(make_store(url, read_only=read_only, serializable=serializable)),
            lambda definition, schemas: compile_document(definition, {}, schemas),
            observers=observers,
            worker=worker,
            queues=queues,
            slots=slots,
            threads=threads,
            logs_failures=telemetry is None,
            lease_ms=lease_ms,
            announced=announced,
            publish=publish,
            override=overrides.apply,
            keep_ms=keep_ms,
            read_only=read_only,
        )
        return _local(runtime, environment, telemetry)
    if scheme in REMOTE:
        from tenuto.client import ServiceClient

        _check_client(observers=observers, announced=announced, publish=publish, retention=keep_ms, overrides=overrides)
        return _remote(
            ServiceClient(url, api_key, lambda definition: compile_document(definition, {}), environment.new_id)
        )
    if scheme in LATER:
        raise NotSupported(f"`{scheme}://` is not supported in this version.", hint="use sqlite:///file.db for now")
    raise unsupported(url, "memory://", *DATABASE_URLS, "https://…")


def _local(runtime: Runtime, environment: Environment, telemetry: "Telemetry | None") -> Backend:
    if telemetry is not None:
        telemetry.watch(runtime)
    return Backend(
        lifecycle=runtime,
        commands=runtime,
        composite=LocalCommands(runtime.executions, runtime.reviews),
        programs=runtime.programs,
        executions=runtime.executions,
        reviews=runtime.reviews,
        admission=runtime.admission,
        limits=runtime.limits,
        audit=runtime.audit,
        identity=LocalIdentity(runtime.operations, environment.now_ms),
        operations=runtime.operations,
        feed=runtime.feed,
        notices=runtime.notices,
        dispatch=runtime.dispatch,
        credits=lambda: runtime.credits,
        runs=lambda: runtime.runs,
    )


def _remote(client: "ServiceClient") -> Backend:
    return Backend(
        lifecycle=client,
        commands=client.commands,
        composite=client.commands,
        programs=client.programs,
        executions=client.executions,
        reviews=client.reviews,
        admission=client.admission,
        limits=client.limits,
        audit=client.audit,
        identity=client.identity,
        operations=client.operations,
        feed=client.feed,
        notices=None,
        dispatch=None,
        remote_jobs=client.jobs,
    )


def _check_client(**given: object) -> None:
    """Refuses options that only take effect where executions run."""
    names = {
        "observers": "events and telemetry",
        "announced": "messages",
        "publish": "publish",
        "retention": "retention",
        "overrides": "step_overrides",
    }
    unsupported = [names[name] for name, value in given.items() if value]
    if unsupported:
        raise NotSupported(
            f"A client of a service does not support {', '.join(unsupported)}.",
            code="not_over_http",
            hint="give them to the engine of the worker that runs the executions",
        )


def _unmetered(store: Store) -> Store:
    return store
