"""The command gateway over HTTP: on memory, SQLite and PostgreSQL, with the embedded bus."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx2
import pytest

from tenuto import Engine
from tenuto.handlers.directives import BusSettings
from tenuto.service.app import create_app
from tenuto.settings import Settings
from tests.checking.soundness import assert_histories_sound, assert_sound
from tests.servers.databases import served

STORES = ["memory", "sqlite", "postgres"]
KEYS = ("k1:0123456789abcdef-secret",)

INGEST: dict[str, Any] = {
    "defaults": {"ack_timeout": "30s", "result_timeout": "10m", "max_attempts": 3, "safety": "SAFE_TO_RETRY"},
    "step_types": {
        "OCR": {"service": "ocr", "result_timeout": "20m"},
        "EMBEDDING": {"service": "embedding", "failure_policy": {"DEPENDENCY_FAILED": "FAIL"}},
        "SIS": {"service": "sis", "on_timeout": "FAIL"},
    },
    "protocols": [
        {
            "protocol_id": "ingest",
            "version": 1,
            "request_types": ["document.ingest"],
            "steps": [
                {
                    "step_id": "ocr",
                    "step_type": "OCR",
                    "payload": "${input.payload.ocr}",
                    "payload_schema": {"required": ["languages"]},
                },
                {
                    "step_id": "embedding",
                    "step_type": "EMBEDDING",
                    "payload": "${input.payload.embedding}",
                    "payload_schema": {"required": ["model"]},
                },
                {
                    "step_id": "sis",
                    "step_type": "SIS",
                    "payload": "${input.payload.sis}",
                    "payload_schema": {"required": ["index"]},
                },
            ],
        }
    ],
}


def command(**changed: Any) -> dict[str, Any]:
    """The worked example, with some fields changed; a field that is None is left out."""
    envelope: dict[str, Any] = {
        "tenant_id": "acme",
        "request_type": "document.ingest",
        "schema_version": "v1",
        "mode": "BURST",
        "doc_id": "doc-42",
        "input_ref": "s3://docs/acme/42.pdf",
        "output_ref": "s3://docs/acme/out/42",
        "payload": {
            "ocr": {"languages": ["en"]},
            "embedding": {"model": "small"},
            "sis": {"index": "contracts"},
        },
        "correlation_id": "case-7",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }
    return {name: value for name, value in {**envelope, **changed}.items() if value is not None}


@dataclass
class Message:
    """A directive that was received, and what its worker can do with it."""

    site: "Site"
    worker: httpx2.AsyncClient
    raw: dict[str, Any]

    @property
    def directive(self) -> dict[str, Any]:
        found: dict[str, Any] = self.raw["directive"]
        return found

    @property
    def bound(self) -> dict[str, Any]:
        return {name: self.directive[name] for name in ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")}

    async def post(self, kind: str, body: dict[str, Any], token: str | None = None) -> httpx2.Response:
        client = await self.site.bare(token or self.directive["callback_token"])
        return await client.post(f"/v1/callbacks/{kind}", json=body)

    async def ack(self, **more: Any) -> str:
        answer = await self.post("ack", {**self.bound, **more})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["verdict"])

    async def result(self, status: str = "SUCCEEDED", **more: Any) -> str:
        answer = await self.post("result", {**self.bound, "status": status, **more})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["verdict"])

    async def fail(self, error_class: str, code: str = "x") -> str:
        return await self.result("FAILED", error={"class": error_class, "code": code})

    async def settle(self, verb: str, **more: Any) -> int:
        body = {"lock_token": self.raw["lock_token"], **more}
        answer = await self.worker.post(f"/v1/bus/messages/{self.raw['id']}:{verb}", json=body)
        return answer.status_code


@dataclass
class Site:
    """A service with a worker in one process, and clients that hold keys for it."""

    engine: Engine
    app: Any
    stack: AsyncExitStack
    clients: dict[object, httpx2.AsyncClient] = field(default_factory=dict)

    async def bare(self, token: str | None = None) -> httpx2.AsyncClient:
        if token not in self.clients:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False)
            client = httpx2.AsyncClient(transport=transport, base_url="http://tenuto", headers=headers)
            self.clients[token] = await self.stack.enter_async_context(client)
        return self.clients[token]

    async def client(self, tenant: str = "acme", *roles: str, service: str | None = None) -> httpx2.AsyncClient:
        """A client with a key for these roles; an admin without."""
        at = (tenant, roles, service)
        if at not in self.clients:
            made = await self.engine.keys.create(tenant=tenant, roles=roles or ("admin",), service=service)
            self.clients[at] = await self.bare(made.token)
        return self.clients[at]

    async def send(self, **changed: Any) -> str:
        """Sends the command of the worked example, and returns the job's id."""
        answer = await (await self.client()).post("/v1/commands", json=command(**changed))
        assert answer.status_code == 202, answer.text
        return str(answer.json()["jobId"])

    async def receive(self, service: str, **body: Any) -> list[Message]:
        worker = await self.client("*", "worker", service=service)
        answer = await worker.post(f"/v1/bus/{service}:receive", json=body)
        assert answer.status_code == 200, answer.text
        return [Message(self, worker, raw) for raw in answer.json()["messages"]]

    async def next(self, service: str) -> Message:
        """The next directive of a service. The test's own timeout ends what never comes."""
        while not (found := await self.receive(service, max=1, wait_ms=5_000)):
            pass
        return found[0]

    async def job(self, id: str) -> dict[str, Any]:
        answer = await (await self.client()).get(f"/v1/jobs/{id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def until(self, id: str, **wanted: Any) -> dict[str, Any]:
        """The job, once it has these fields."""
        while True:
            job = await self.job(id)
            if all(job[name] == value for name, value in wanted.items()):
                return job
            assert job["status"] not in ("SUCCEEDED", "FAILED_FINAL", "CANCELLED"), job

    async def callbacks(self, id: str) -> list[tuple[str, str, str]]:
        answer = await (await self.client()).get(f"/v1/jobs/{id}/callbacks")
        return [(row["kind"], row["step_id"], row["verdict"]) for row in answer.json()["items"]]


class MakeSite(Protocol):
    async def __call__(self, protocols: Any = None, **options: Any) -> Site: ...


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgres":
        with served(request.getfixturevalue("postgres_server")) as place:
            yield place
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'tenuto.db'}"
    else:
        yield "memory://"


@pytest.fixture
async def make_site(url: str, tmp_path: Path) -> AsyncIterator[MakeSite]:
    sites: list[Site] = []
    async with AsyncExitStack() as stack:

        async def make(protocols: Any = None, **options: Any) -> Site:
            file = tmp_path / f"protocols-{len(sites)}.json"
            file.write_text(json.dumps(protocols or INGEST))
            engine_options = {"bus": BusSettings(public_url="https://t.example", callback_keys=KEYS)}
            settings = Settings(
                **{
                    "rate_per_second": 0.0,
                    "protocols": str(file),
                    "callback_keys": KEYS,
                    "public_url": "https://t.example",
                    "callback_hosts": ("acme.example",),
                    **options.pop("settings", {}),
                }
            )
            engine = Engine(url, **{"shutdown_grace": "1s", **engine_options, **options})
            await stack.enter_async_context(engine)
            app = create_app(engine, settings)
            await stack.enter_async_context(app.router.lifespan_context(app))
            sites.append(Site(engine, app, stack))
            return sites[-1]

        yield make
    if url.startswith("memory"):
        for site in sites:
            assert_histories_sound(site.engine)
    else:
        await assert_sound(url)


@pytest.fixture
async def site(make_site: MakeSite) -> Site:
    return await make_site()


@pytest.fixture
def site_operations() -> set[tuple[str, str]]:
    """The operations of the gateway, with `{}` in place of parameters."""
    document = create_app(Engine(), Settings()).openapi()
    return {
        (method.upper(), re.sub(r"\{\w+\}", "{}", path))
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if "commands" in operation["tags"]
    }
