"""`/healthz`, `/readyz` and `/metrics`: what a probe is told, and what it is not."""

import asyncio
import socket
from pathlib import Path

import httpx2
import pytest

from tenuto import Engine
from tenuto.service.app import create_app
from tenuto.service.probes import create_app as probes_alone
from tenuto.service.server import bind
from tenuto.settings import Settings
from tenuto.telemetry import Telemetry
from tests.servers import sqlite


def client(app: object) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://service")  # type: ignore[arg-type]  # FastAPI


@pytest.mark.parametrize("alone", [False, True])
async def test_a_probe_is_told_one_word(tmp_path: Path, alone: bool) -> None:
    file = tmp_path / "canary.db"
    async with Engine(f"sqlite:///{file}", telemetry=Telemetry()) as engine:
        app = probes_alone(engine, Settings()) if alone else create_app(engine, Settings())
        async with client(app) as http:
            assert (await http.get("/healthz")).json() == {"status": "ok"}
            assert (await http.get("/readyz")).json() == {"status": "ready"}
            metrics = await http.get("/metrics")
            assert metrics.headers["content-type"].startswith("text/plain")
            assert "tenuto_executions_started_total 0.0" in metrics.text

            database = sqlite.connect(str(file))
            database.execute("INSERT INTO tenuto_migrations VALUES (9999, 'later', 'x', 0)")
            database.close()
            unready = await http.get("/readyz")
            assert (unready.status_code, unready.json()) == (503, {"status": "not ready", "checks": ["database"]})
            assert (await http.get("/healthz")).status_code == 200


@pytest.mark.parametrize("alone", [False, True])
async def test_an_engine_that_counts_nothing_says_so(alone: bool) -> None:
    engine = Engine()
    async with engine, client(probes_alone(engine, Settings()) if alone else create_app(engine, Settings())) as http:
        assert (await http.get("/metrics")).status_code == 404
        assert (await http.get("/readyz")).status_code == 200
    async with client(probes_alone(engine, Settings())) as http:
        assert (await http.get("/healthz")).status_code == 503


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_a_setting_closes_them(path: str, alone: bool) -> None:
    engine = Engine(telemetry=Telemetry())
    make = probes_alone if alone else create_app
    async with engine, client(make(engine, Settings(open_routes=False))) as http:
        refused = await http.get(path)
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
        key = await engine.keys.create(tenant="acme", roles=["viewer"])
        answered = await http.get(path, headers={"Authorization": f"Bearer {key.token}"})
        assert answered.status_code == 200


async def test_figures_name_no_tenant_and_nothing_that_is_a_tenants_own() -> None:
    engine = Engine(telemetry=Telemetry(logs=False))
    async with engine, client(create_app(engine, Settings())) as http:
        key = await engine.keys.create(tenant="canary-tenant", roles=["admin"])
        http.headers["Authorization"] = f"Bearer {key.token}"
        step = {"step_id": "canary-step", "type": "task", "handler": "log", "idempotency_strategy": "SAFE_TO_RETRY"}
        document = {"name": "canary-name", "version": 1, "steps": [{**step, "with": {"message": "hello"}}]}
        at = (await http.post("/v1/definitions", json=document)).headers["location"]
        assert (await http.post(f"{at}:publish")).status_code == 200
        started = await http.post("/v1/executions", json={"definition": "canary-name"})
        result = await engine.get(started.json()["execution_id"]).result()
        assert result.succeeded

        figures = (await http.get("/metrics")).text
        assert "canary" not in figures
        assert 'saga_flow_transitions_total{saga="owned",step="task",to="succeeded"} 1.0' in figures
        assert 'saga_flow_transitions_total{saga="owned",step="",to="succeeded"} 1.0' in figures


async def test_small_packets_do_not_wait_for_one_another() -> None:
    """Else an answer's body waits until its headers are acknowledged: 40 ms on most systems."""
    asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted = transport.get_extra_info("socket")
            asked.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.close()

    listener = bind("127.0.0.1", 0)
    server = await asyncio.get_running_loop().create_server(Protocol, sock=listener)
    _, writer = await asyncio.open_connection(*listener.getsockname())
    assert await asked != 0
    writer.close()
    server.close()
    await server.wait_closed()
