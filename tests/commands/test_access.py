"""Who may do what with commands, jobs, callbacks and the bus."""

from typing import Any

import pytest

from tenuto.access.permission import GRANTS

from .conftest import Site, command

READERS = {"viewer", "operator", "approver", "author", "admin"}
MAY: dict[tuple[str, str], set[str]] = {
    ("POST", "/v1/commands"): {"operator", "author", "admin"},
    ("GET", "/v1/jobs"): READERS,
    ("GET", "/v1/jobs/{id}"): READERS,
    ("GET", "/v1/jobs/{id}/steps"): READERS,
    ("GET", "/v1/jobs/{id}/callbacks"): READERS,
    ("POST", "/v1/jobs/{id}:cancel"): {"operator", "admin"},
    ("POST", "/v1/callbacks/ack"): {"worker", "admin"},
    ("POST", "/v1/callbacks/result"): {"worker", "admin"},
    ("POST", "/v1/bus/{service}:receive"): {"worker", "admin"},
    ("POST", "/v1/bus/messages/{id}:complete"): {"worker", "admin"},
    ("POST", "/v1/bus/messages/{id}:abandon"): {"worker", "admin"},
    ("POST", "/v1/bus/messages/{id}:renew"): {"worker", "admin"},
    ("POST", "/v1/bus/messages/{id}:dead_letter"): {"worker", "admin"},
    ("GET", "/v1/bus"): set(),  # an admin of the deployment alone
}


def test_the_matrix_has_every_operation_of_the_gateway(site_operations: set[tuple[str, str]]) -> None:
    assert site_operations == {(method, path.replace("{id}", "{}").replace("{service}", "{}")) for method, path in MAY}


def body_of(path: str, bound: dict[str, Any]) -> dict[str, Any] | None:
    if path == "/v1/commands":
        return command(idempotency_key="of the matrix")
    if path.endswith("/ack"):
        return bound
    if path.endswith("/result"):
        return {**bound, "status": "FAILED_FINAL"}
    return {"lock_token": "x"} if "/messages/" in path else {}


@pytest.mark.requirement("F17", "F16")
@pytest.mark.parametrize("role", GRANTS)
@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_a_role_may_what_the_matrix_says(site: Site, role: str) -> None:
    id = await site.send()
    message = await site.next("ocr")
    client = await site.client("acme", role, service="ocr" if role == "worker" else None)
    nobody = await site.bare()
    for (method, path), roles in MAY.items():
        filled = path.replace("{id}", id).replace("{service}", "ocr")
        body = None if method == "GET" else body_of(path, message.bound)
        assert (await nobody.request(method, filled, json=body)).status_code == 401, path
        answer = await client.request(method, filled, json=body)
        assert (answer.status_code == 403) == (role not in roles), (path, answer.status_code, answer.text)
        assert answer.status_code < 500, path
