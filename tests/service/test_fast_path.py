"""The fast path of hot operations answers exactly as the framework does: whoever calls, and whatever they send."""

import json
import re
from typing import Any, NamedTuple, get_args

import httpx2
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.access.keys import DAY_MS, Keyring
from tenuto.access.permission import GRANTS
from tenuto.service import executions
from tenuto.service.app import create_app
from tenuto.service.http.endpoints import ANY_CREDENTIAL
from tenuto.settings import Settings
from tenuto.values.names import Role
from tests.service.conftest import MakeSite, Site
from tests.service.test_access import BODIES, routes

SAGA = SagaBuilder("asks").approval("ok")
SETTINGS = Settings(rate_per_second=0)
CREDENTIALS = (*get_args(Role), "invoices:approve", "none", "nonsense", "revoked", "expired", "another tenant")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


class Pair(NamedTuple):
    """One service with the fast path and one without it, on the same engine."""

    site: Site
    fast: httpx2.AsyncClient
    plain: httpx2.AsyncClient
    tokens: dict[str, str | None]

    async def new(self) -> str:
        handle = await self.site.engine.scoped(tenant="acme", actor="a").start("asks")
        await handle.result()
        return handle.id

    async def both(self, method: str, path: str, credential: str, **sent: Any) -> tuple[Answer, Answer]:
        """Each of them gets an execution of its own, because a command changes it."""
        token = self.tokens[credential]
        headers = {**({} if token is None else {"Authorization": token}), **sent.pop("headers", {})}
        answers = []
        for client in (self.fast, self.plain):
            id = await self.new()
            answer = await client.request(method, path.replace("{id}", id), headers=headers, **sent)
            answers.append(shown(answer, id))
        return answers[0], answers[1]


def shown(answer: httpx2.Response, id: str) -> Answer:
    """Without ids and times, which differ from request to request."""
    found = answer.text.replace(id, "ID")
    with_id = json.loads(found) if found and "json" in answer.headers.get("content-type", "") else found
    made = with_id.get("execution_id", "ID") if isinstance(with_id, dict) else "ID"
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", found.replace(made, "ID"))
    if isinstance(with_id, dict):
        with_id = json.loads(text)
        with_id.pop("request_id", None)
    headers = {name: value.replace(id, "ID").replace(made, "ID") for name, value in answer.headers.items()}
    for changing in ("x-request-id", "content-length", "retry-after"):
        headers.pop(changing, None)
    return Answer(answer.status_code, headers, with_id)


@pytest.fixture
def url(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path / 'tenuto.db'}"


@pytest.fixture
async def pair(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> Pair:
    site = await make_site(SAGA, settings=SETTINGS)
    with monkeypatch.context() as without:
        without.setattr(executions, "fast_routes", list)
        plain = Site(site.engine, create_app(site.engine, SETTINGS), site.stack)
    return Pair(site, await site.bare(), await plain.bare(), await tokens(site.engine))


async def tokens(engine: Engine) -> dict[str, str | None]:
    made: dict[str, str | None] = {"none": None, "nonsense": "Bearer nonsense"}
    for role in (*get_args(Role), "invoices:approve"):
        made[role] = f"Bearer {(await engine.keys.create(tenant='acme', roles=[role])).token}"
    made["another tenant"] = f"Bearer {(await engine.keys.create(tenant='other', roles=['admin'])).token}"
    revoked = await engine.keys.create(tenant="acme", roles=["admin"])
    await engine.keys.revoke(revoked.row.id)
    made["revoked"] = f"Bearer {revoked.token}"
    past = Keyring(engine.registry, lambda: engine.now_ms - 2 * DAY_MS)
    made["expired"] = f"Bearer {(await past.create(tenant='acme', roles=['admin'], days=1)).token}"
    return made


def test_the_two_hot_operations_have_one() -> None:
    assert {(short.method, short.template) for short in executions.fast_routes()} == {
        ("POST", "/v1/executions"),
        ("GET", "/v1/executions/{id}"),
    }


@pytest.mark.parametrize("credential", CREDENTIALS)
async def test_every_operation_answers_the_same(pair: Pair, credential: str) -> None:
    for route in routes(pair.site.app):
        permission = (route.openapi_extra or {}).get("x-permission")
        if permission is None:
            continue
        (method,) = route.methods or {""}
        body = BODIES.get(f"{method} {route.path_format}")
        path = re.sub(r"\{(?!id\})\w+\}", "1", route.path_format)
        sent = {"json": body} if body is not None else {}
        if path.endswith(("/events", "/feed")):
            path += "?follow=false"
        fast, plain = await pair.both(method, path, credential, **sent)
        if credential in ("none", "nonsense", "revoked", "expired"):
            assert fast.status == plain.status == 401, (method, path)
        elif permission == ANY_CREDENTIAL:
            assert 401 not in (fast.status, plain.status), (method, path)
        elif credential != "another tenant":
            granted = GRANTS.get(credential, frozenset())  # type: ignore[call-overload]  # any text may be asked for
            if not granted & set(permission.split(" or ")):
                assert fast.status == plain.status == 403, (method, path)
        if not is_repeatable(route.path_format, method):
            fast, plain = (Answer(each.status // 100 * 100, {}, None) for each in (fast, plain))
        assert fast == plain, (method, path)


def is_repeatable(path: str, method: str) -> bool:
    """Whether a second request finds what the first one found: lists grow with each execution that is made here."""
    return (method, path) in {("POST", "/v1/executions"), ("GET", "/v1/executions/{id}")}


STARTS: dict[str, dict[str, Any]] = {
    "plain": {"json": {"definition": "asks"}},
    "with everything": {
        "json": {"definition": "asks", "version": 1, "priority": "high", "variables": {"a": 1}, "headers": {"b": "c"}},
        "headers": {"X-Correlation-ID": "today", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"},
    },
    "unknown definition": {"json": {"definition": "nothing"}},
    "unknown field": {"json": {"definition": "asks", "prio": 1}},
    "wrong type": {"json": {"definition": 7}},
    "no body": {},
    "no object": {"json": [1]},
    "null": {"json": None},
    "no JSON": {"content": b"{", "headers": {"Content-Type": "application/json"}},
    "no media type": {"content": b'{"definition": "asks"}'},
    "a query": {"json": {"definition": "asks"}, "params": {"x": "y"}},
    "an empty key": {"json": {"definition": "asks"}, "headers": {"Idempotency-Key": ""}},
    "an empty key in quotes": {"json": {"definition": "asks"}, "headers": {"Idempotency-Key": '""'}},
    "a long key": {"json": {"definition": "asks"}, "headers": {"Idempotency-Key": "k" * 256}},
    "a long correlation": {"json": {"definition": "asks"}, "headers": {"X-Correlation-ID": "c" * 256}},
    "both inputs": {"json": {"definition": "asks", "input": 1, "inputs": {"ok": {"value": 1}}}},
}


@pytest.mark.parametrize("credential", ["operator", "viewer", "none"])
async def test_a_start_answers_the_same_whatever_is_sent(pair: Pair, credential: str) -> None:
    for name, sent in STARTS.items():
        fast, plain = await pair.both("POST", "/v1/executions", credential, **sent)
        assert fast == plain, name


async def test_a_repeated_start_is_the_same_on_both_ways(pair: Pair) -> None:
    token = pair.tokens["operator"]
    assert token is not None
    headers = {"Authorization": token, "Idempotency-Key": "k"}
    clients = (pair.fast, pair.plain, pair.fast)
    found = [await client.post("/v1/executions", json={"definition": "asks"}, headers=headers) for client in clients]
    assert [answer.status_code for answer in found] == [201, 200, 200]
    assert len({answer.json()["execution_id"] for answer in found}) == 1
    other = [await client.post("/v1/executions", json={"definition": "no"}, headers=headers) for client in clients[:2]]
    assert {(answer.status_code, answer.json()["code"]) for answer in other} in (
        {(404, "not_found")},
        {(422, "idempotency_conflict")},
    )


@pytest.mark.parametrize("path", ["{id}", "{id}?wait=settled", "{id}?x=y", "{id}/", "nothing", "%00", "{id}%0A", "a:b"])
async def test_a_read_answers_the_same_whatever_is_asked(pair: Pair, path: str) -> None:
    for credential in ("viewer", "worker", "another tenant", "none"):
        for method in ("GET", "HEAD", "POST", "DELETE"):
            fast, plain = await pair.both(method, f"/v1/executions/{path}", credential)
            assert fast == plain, (credential, method)
