"""Which runtime a URL names."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tenuto.authoring.programs import compile_document
from tenuto.client import RemoteRuntime
from tenuto.errors import InvalidInput, NotSupported
from tenuto.runtime.clock import Environment
from tenuto.runtime.durable import DurableRuntime
from tenuto.runtime.memory import MemoryRuntime
from tenuto.runtime.port import Observer, Runtime
from tenuto.storage import Store, make_store
from tenuto.values.redaction import redact_url
from tenuto.views.messages import Announced, Publish

if TYPE_CHECKING:
    from tenuto.telemetry import Telemetry

SHORTEST_LEASE_MS = 1_000

DURABLE = ("sqlite", "postgresql", "postgres")
REMOTE = ("https", "http")
LATER = ("temporal",)


def runtime_for(
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
) -> Runtime:
    if read_only and (worker or url.partition(":")[0] not in DURABLE):
        raise NotSupported("Only an engine on a database, with `worker=False`, can be opened to read only.")
    if lease_ms < SHORTEST_LEASE_MS:
        raise InvalidInput.at("/lease", "too_small", "at least 1s: it is renewed three times in its length")
    scheme = url.partition(":")[0]
    metered = _as_it_is if telemetry is None else telemetry.metered
    if telemetry is not None:
        observers = (*observers, *telemetry.observers)
    if scheme == "memory":
        return MemoryRuntime(
            environment,
            observers=observers,
            worker=worker,
            queues=queues,
            slots=slots,
            threads=threads,
            announced=announced,
            publish=publish,
        )
    if scheme in DURABLE:
        return DurableRuntime(
            environment,
            metered(make_store(url, read_only=read_only)),
            lambda definition: compile_document(definition, {}),
            observers=observers,
            worker=worker,
            queues=queues,
            slots=slots,
            threads=threads,
            lease_ms=lease_ms,
            announced=announced,
            publish=publish,
            keep_ms=keep_ms,
            read_only=read_only,
        )
    if scheme in REMOTE:
        _check_client(observers=observers, announced=announced, publish=publish, retention=keep_ms)
        return RemoteRuntime(environment, url, api_key, lambda definition: compile_document(definition, {}))
    if scheme in LATER:
        raise NotSupported(f"`{scheme}://` is not built yet in this version.", hint="use sqlite:///file.db meanwhile")
    raise NotSupported(
        f"{redact_url(url)!r} names no runtime.", hint="memory://, sqlite:///…, postgresql://… or https://…"
    )


def _check_client(**given: object) -> None:
    """What happens where executions run is not heard of here: better said now than never."""
    names = {
        "observers": "events and telemetry",
        "announced": "messages",
        "publish": "publish",
        "retention": "retention",
    }
    unheard = [names[name] for name, value in given.items() if value]
    if unheard:
        raise NotSupported(
            f"A client of a service has no {', '.join(unheard)}.",
            code="not_over_http",
            hint="give them to the engine of a worker, which runs the executions",
        )


def _as_it_is(store: Store) -> Store:
    return store
