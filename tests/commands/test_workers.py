"""The example's workers: separate programs without our code, over real HTTP, well-behaved and not."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.servers.http import serving

from .conftest import Site, command

WORKER = Path(__file__).parents[2] / "examples" / "commands" / "worker.py"
FAULTS = ["none", "no-ack", "duplicate", "stale", "forged"]


async def work(site: Site, server: str, service: str, fault: str) -> str:
    key = await site.engine.keys.create(tenant="*", roles=["worker"], service=service)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(WORKER),
        service,
        server,
        key.token,
        "--fault",
        fault,
        "--count",
        "1",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    return told.decode()


@pytest.mark.requirement("F13", "D6")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("fault", FAULTS)
async def test_workers_without_our_code_complete_a_job(site: Site, fault: str) -> None:
    async with serving(site.app) as server:
        assert site.engine.directives is not None
        site.engine.directives.public_url = server
        client = await site.client()
        id = (await client.post("/v1/commands", json=command())).json()["jobId"]
        services = ("ocr", "embedding", "sis")
        told = await asyncio.gather(*(work(site, server, service, fault) for service in services))
        await site.until(id, status="SUCCEEDED")
    for service, text in zip(services, told, strict=True):
        assert text.count("did its work") == 1
        assert f"{service}: {service} applied" in text
    verdicts = {verdict for _, _, verdict in await site.callbacks(id)}
    assert verdicts <= {"applied", "duplicate", "terminal"}
    assert fault != "duplicate" or "duplicate" in verdicts
