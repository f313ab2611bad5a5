"""`tenuto jobs` and `tenuto protocols`: at a service, and without one."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.servers.http import serving

from .conftest import Site, command

EXAMPLE = Path(__file__).parents[2] / "examples" / "commands" / "protocols.json"


async def tenuto(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tenuto",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    return process.returncode or 0, told.decode()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("place", ["server", "database"])
async def test_jobs_are_listed_shown_and_cancelled(site: Site, place: str) -> None:
    client = await site.client("default")
    id = (await client.post("/v1/commands", json=command(tenant_id="default"))).json()["jobId"]
    message = await site.next("ocr")
    key = await site.engine.keys.create(tenant="default", roles=["admin"])
    async with serving(site.app) as server:
        at = ["--url", site.engine.url]
        if place == "server":
            at = ["--server", server]
        environment = {"TENUTO_API_KEY": key.token} if place == "server" else {}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            chosen = ("--status", "in_progress", "--protocol", "ingest", "--limit", "5")
            code, told = await tenuto(*at, "jobs", "ls", *chosen, "--json")
            assert (code, id in told) == (0, True), told
            code, told = await tenuto(*at, "jobs", "show", id)
            assert (code, "IN_PROGRESS" in told, "embedding" in told) == (0, True, True), told
            code, told = await tenuto(*at, "jobs", "cancel", id, "--reason", "twice")
            assert (code, "cancelling" in told) == (0, True), told
        assert await message.result() == "applied"
        while (await client.get(f"/v1/jobs/{id}")).json()["status"] != "CANCELLED":
            pass


async def test_a_protocol_configuration_is_checked_without_a_database(tmp_path: Path) -> None:
    assert await tenuto("protocols", "check", str(EXAMPLE)) == (0, "valid: ingest 1\n")
    at = ("--url", f"sqlite:///{tmp_path / 'keys.db'}", "keys", "create", "--role", "worker")
    for tenant, service in (("*", ["--service", "ocr"]), ("*", [])):
        code, told = await tenuto(*at, "--tenant", tenant, *service)
        assert (code == 0) == bool(service), told
    wrong = json.loads(EXAMPLE.read_text())
    del wrong["defaults"], wrong["step_types"]["EMBEDDING"]
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(wrong))
    code, told = await tenuto("protocols", "check", str(file))
    assert code != 0
    assert "/protocols/0/steps/1/service" in told
