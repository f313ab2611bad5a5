"""Protocols: what their configuration must say, and how it is replaced while jobs run."""

import json
from pathlib import Path
from typing import Any

import pytest

from tenuto.errors import InvalidInput
from tenuto.service.commands.gateway import Gateway
from tenuto.service.commands.protocol_source import FileSource, SourceUnavailable
from tenuto.service.commands.protocols import compile_configuration
from tenuto.values.lanes import lane_of
from tests.examples.pages import ROOT, write_files

from .conftest import INGEST, MakeSite, Site


def with_step(**step: Any) -> dict[str, Any]:
    given = {"step_id": "ocr", "step_type": "OCR", **step}
    one = {"protocol_id": "scan", "version": 1, "request_types": ["scan"], "steps": [given]}
    return {"step_types": {"OCR": {"service": "ocr"}}, "protocols": [one]}


@pytest.mark.requirement("F5")
@pytest.mark.parametrize(
    ("key", "lane"),
    [("acme", 14), ("globex", 10), ("tenant-001", 8), ("acmedoc-42", 8), ("tenant-001doc-7", 11), ("ümlaut", 0)],
)
def test_lanes_never_move(key: str, lane: int) -> None:
    assert lane_of(key) == lane


BAD: list[tuple[dict[str, Any], str, str]] = [
    (with_step(), "/protocols/0/steps/0", "timeout_missing"),
    (with_step(ack_timeout="soon"), "/protocols/0/steps/0/ack_timeout", ""),
    (with_step(ack_timeout="1s", payload="${steps.a.result}"), "/protocols/0/steps/0/payload", "payload_reads"),
    (with_step(ack_timeout="1s", step_type="SCAN"), "/protocols/0/steps/0/service", "missing"),
    (with_step(ack_timeout="1s", payload_schema={"type": "nothing"}), "/protocols/0/steps/0/payload_schema", "schema"),
    (with_step(ack_timeout="1s", colour="red"), "/protocols/0/steps/0/colour", "unknown_field"),
    ({**INGEST, "protocols": INGEST["protocols"] * 2}, "/protocols/1/version", "duplicate"),
]


@pytest.mark.requirement("A15", "F11")
@pytest.mark.parametrize(("document", "pointer", "code"), BAD, ids=[code or pointer for _, pointer, code in BAD])
def test_a_configuration_is_refused_with_the_place(document: dict[str, Any], pointer: str, code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        compile_configuration(document)
    found = [(problem.path, problem.code) for problem in refused.value.problems]
    assert any(at == pointer and code in ("", known) for at, known in found), found


def test_settings_come_from_the_step_its_type_or_the_defaults() -> None:
    (protocol,) = compile_configuration(INGEST).protocols
    ocr, embedding, sis = protocol.document["steps"]
    assert (ocr["ack_timeout_ms"], ocr["result_timeout_ms"]) == (30_000, 20 * 60_000)
    assert "DEPENDENCY_FAILED" not in embedding["retry_policy"]["retry_on_classes"]
    assert sis["classify"] == {"TimeoutError": "NON_RETRYABLE"}
    assert [step["depends_on"] for step in (ocr, embedding, sis)] == [[], ["ocr"], ["embedding"]]


async def test_the_steps_of_a_group_run_at_once(make_site: MakeSite) -> None:
    first, *rest = INGEST["protocols"][0]["steps"]
    protocol = {**INGEST["protocols"][0], "steps": [first, {"parallel": rest}]}
    site = await make_site({**INGEST, "protocols": [protocol]})
    id = await site.send()
    assert await (await site.next("ocr")).result() == "applied"
    both = [await site.next("sis"), await site.next("embedding")]
    for message in both:
        assert await message.result() == "applied"
    await site.until(id, status="SUCCEEDED")


def _gateway(site: Site) -> Gateway:
    gateway: Gateway = site.app.state.service.gateway
    return gateway


@pytest.mark.requirement("A11", "A15")
async def test_a_changed_version_is_rejected_with_the_difference_and_the_last_valid_one_stays(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site = await make_site()
    file = tmp_path / "protocols-0.json"
    gateway = _gateway(site)
    changed = json.loads(json.dumps(INGEST))
    changed["protocols"][0]["steps"][0]["max_attempts"] = 5
    file.write_text(json.dumps(changed))
    await gateway.protocols.refresh()
    assert gateway.protocols.rejected == 1
    assert gateway.protocols.problem is not None
    assert (await site.send()) != ""
    changed["protocols"][0]["version"] = 2
    file.write_text(json.dumps(changed))
    await gateway.protocols.refresh()
    assert gateway.protocols.problem is None
    id = await site.send()
    assert (await site.job(id))["protocol_version"] == 2
    file.write_text("{")
    await gateway.protocols.refresh()
    assert (gateway.protocols.rejected, len(gateway.protocols.configuration.protocols)) == (2, 1)
    for job in (await (await site.client()).get("/v1/jobs")).json()["items"]:
        await (await site.client()).post(f"/v1/jobs/{job['job_id']}:cancel")


@pytest.mark.parametrize("place", ["guide", "example"])
def test_the_configurations_that_are_shown_compile(place: str, tmp_path: Path) -> None:
    file = ROOT / "examples" / "commands" / "protocols.json"
    if place == "guide":
        write_files(ROOT / "docs" / "guides" / "commands.md", tmp_path)
        file = tmp_path / "protocols.json"
    assert [each.protocol_id for each in compile_configuration(json.loads(file.read_text())).protocols] == ["ingest"]


async def test_the_files_of_a_folder_are_one_configuration(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"defaults": INGEST["defaults"], "protocols": []}))
    (tmp_path / "b.json").write_text(json.dumps({key: INGEST[key] for key in ("step_types", "protocols")}))
    source = FileSource(tmp_path)
    found = compile_configuration(await source.read())
    wanted = compile_configuration(INGEST)
    assert [each.document for each in found.protocols] == [each.document for each in wanted.protocols]
    assert await source.read() is None
    with pytest.raises(SourceUnavailable):
        await FileSource(tmp_path / "nowhere.json").read()


async def test_a_refused_configuration_leaves_the_service_ready_and_is_told(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site = await make_site()
    probe = await site.bare()
    assert (await probe.get("/readyz")).json() == {"status": "ready"}
    (tmp_path / "protocols-0.json").write_text("{")
    await _gateway(site).protocols.refresh()
    answer = await probe.get("/readyz")
    assert (answer.status_code, answer.json()["problem"]) == (200, "The protocol configuration is not valid.")
