"""Sign-in sessions: opened with a key or a link, held by a cookie, ended at once, and useless to other sites."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.access.sign_in_sessions import IDLE_MS, LINK_MS, MAX_AGE_MS, SignInSessions
from tenuto.errors import NotAuthenticated
from tenuto.service.app import create_app
from tenuto.settings import Settings
from tests.servers.http import serving
from tests.service.browser import SAME_ORIGIN, browser
from tests.service.conftest import MakeSite, Site
from tests.service.test_access import routes
from tests.service.test_revocation import change, listen

SAGA = SagaBuilder("s").approval("ok")
MINUTE_MS = 60_000


async def signed_in(client: httpx2.AsyncClient, token: str) -> httpx2.Response:
    """Signs in with a key, and sends the session's token with every later write."""
    answer = await client.post("/v1/session", json={"key": token})
    assert answer.status_code == 201, answer.text
    client.headers["X-Tenuto-CSRF"] = answer.json()["csrf_token"]
    return answer


async def test_a_session_acts_as_the_key_that_opened_it(make_site: MakeSite) -> None:
    site = await make_site(SAGA)
    key = await site.engine.keys.create(tenant="acme", roles=["operator"], name="ann")
    async with browser(site) as client:
        opened = await signed_in(client, key.token)
        me = (await client.get("/v1/me")).json()
        started = await client.post("/v1/executions", json={"definition": "s"})
        refused = await client.get("/v1/audit")
    assert {**me, "expires_at": ""} == {**opened.json(), "expires_at": ""}
    assert (me["actor"], me["tenant"], me["roles"]) == (f"key:ann:{key.row.id}", "acme", ["operator"])
    assert (me["method"], "executions:write" in me["permissions"]) == ("session", True)
    assert (started.status_code, started.json()["tenant_id"], refused.status_code) == (201, "acme", 403)
    chain = site.engine.scoped(tenant="acme", actor="a").audit
    assert [row["actor"] async for row in chain.rows(action="session.opened")] == [me["actor"]]


async def test_the_identity_of_a_key_has_no_session(make_site: MakeSite) -> None:
    site = await make_site()
    client = await site.client("acme", "viewer")
    me = (await client.get("/v1/me")).json()
    assert (me["method"], me["csrf_token"], me["expires_at"], me["roles"]) == ("key", None, None, ["viewer"])


@pytest.mark.parametrize(
    ("base", "settings", "name", "is_secure"),
    [
        ("http://127.0.0.1:8080", Settings(), "tenuto_session_8080", False),
        ("http://localhost", Settings(), "tenuto_session_80", False),
        ("http://[::1]:9000", Settings(), "tenuto_session_9000", False),
        ("https://tenuto.example", Settings(), "__Host-tenuto_session", True),
        ("http://tenuto.example", Settings(public_url="https://tenuto.example"), "__Host-tenuto_session", True),
    ],
)
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_the_cookie_is_as_safe_as_the_address_allows(
    make_site: MakeSite, base: str, settings: Settings, name: str, is_secure: bool
) -> None:
    site = await make_site(settings=settings)
    key = await site.engine.keys.create(tenant="acme", roles=["viewer"])
    async with browser(site, base) as client:
        cookie = (await signed_in(client, key.token)).headers["set-cookie"]
    assert cookie.startswith(f"{name}=")
    assert cookie.partition("; ")[2] == f"Path=/; HttpOnly; SameSite=Lax{'; Secure' * is_secure}"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_there_is_no_sign_in_over_plain_http_on_a_network(make_site: MakeSite) -> None:
    site = await make_site()
    key = await site.engine.keys.create(tenant="acme", roles=["viewer"])
    async with browser(site, "http://tenuto.example:8080") as client:
        answer = await client.post("/v1/session", json={"key": key.token})
    assert (answer.status_code, answer.json()["code"]) == (403, "https_required")
    assert await site.app.state.service.sessions.list() == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"key": "tnt_nothing"}, 401, "unauthenticated"),
        ({"token": "nothing"}, 401, "sign_in_link_invalid"),
        ({}, 422, "request_invalid"),
        ({"key": "a", "token": "b"}, 422, "request_invalid"),
        ({"key": "x" * 9_000}, 413, "too_large"),
    ],
)
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_what_is_no_credential_opens_no_session(
    make_site: MakeSite, body: dict[str, str], status: int, code: str
) -> None:
    site = await make_site()
    async with browser(site) as client:
        answer = await client.post("/v1/session", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert "set-cookie" not in answer.headers
        assert (await client.get("/v1/me")).status_code == 401


async def test_failed_sign_ins_are_limited_by_address(make_site: MakeSite) -> None:
    site = await make_site(settings=Settings(rate_per_second=0.001, rate_burst=2))
    async with browser(site) as client:
        answers = [(await client.post("/v1/session", json={"key": "tnt_nothing"})).status_code for _ in range(3)]
    assert answers == [401, 401, 429]


async def test_a_link_signs_in_once(make_site: MakeSite) -> None:
    site = await make_site()
    token = await site.app.state.service.sessions.make_link(tenant="acme", actor="cli:ann", roles=["admin"])
    async with browser(site) as client:
        first = await client.post("/v1/session", json={"token": token})
        second = await client.post("/v1/session", json={"token": token})
    assert (first.status_code, first.json()["actor"], first.json()["tenant"]) == (201, "cli:ann", "acme")
    assert (second.status_code, second.json()["code"]) == (401, "sign_in_link_invalid")


# -- Time --------------------------------------------------------------------------------------------------------------


class Time:
    def __init__(self) -> None:
        self.now = int(time.time() * 1_000)


@pytest.fixture
async def timed(url: str) -> AsyncIterator[tuple[SignInSessions, Engine, Time]]:
    async with Engine(url, worker=False) as engine:
        clock = Time()
        yield SignInSessions(engine.registry.sign_ins, lambda: clock.now), engine, clock


async def test_a_link_expires_after_ten_minutes(timed: tuple[SignInSessions, Engine, Time]) -> None:
    sessions, _, clock = timed
    token = await sessions.make_link(tenant="acme", actor="cli:ann", roles=["admin"])
    clock.now += LINK_MS
    with pytest.raises(NotAuthenticated):
        await sessions.open_with_link(token)


async def test_a_session_ends_when_it_is_not_used_and_lasts_while_it_is(
    timed: tuple[SignInSessions, Engine, Time],
) -> None:
    sessions, _, clock = timed
    token, opened = await sessions.open_with_link(await sessions.make_link(tenant="a", actor="b", roles=["admin"]))
    assert opened.expires_at == clock.now + IDLE_MS
    clock.now += IDLE_MS - 1
    used = await sessions.use(token)
    assert used is not None
    assert used.expires_at == clock.now + IDLE_MS
    clock.now += IDLE_MS - 1
    assert await sessions.find(token, 0.0) is not None  # an open stream looks at it, and does not use it
    clock.now += 1
    assert await sessions.find(token, 0.0) is None
    assert await sessions.use(token) is None
    assert await sessions.list() == []


async def test_a_session_that_is_used_all_the_time_ends_after_twelve_hours(
    timed: tuple[SignInSessions, Engine, Time],
) -> None:
    sessions, _, clock = timed
    token, opened = await sessions.open_with_link(await sessions.make_link(tenant="a", actor="b", roles=["admin"]))
    end = clock.now + MAX_AGE_MS
    uses = 0
    while (session := await sessions.use(token)) is not None:
        assert session.expires_at == min(clock.now + IDLE_MS, end)
        clock.now += 10 * MINUTE_MS
        uses += 1
    assert (opened.id, uses, clock.now) == (opened.id, MAX_AGE_MS // (10 * MINUTE_MS), end)


async def test_expired_sessions_and_links_are_removed(timed: tuple[SignInSessions, Engine, Time]) -> None:
    sessions, engine, clock = timed
    await sessions.open_with_link(await sessions.make_link(tenant="a", actor="b", roles=["admin"]))
    await sessions.make_link(tenant="a", actor="b", roles=["admin"])
    await engine.registry.forget(clock.now + MAX_AGE_MS)
    assert len(await engine.registry.sign_ins.list(None)) == 1
    await engine.registry.forget(clock.now + MAX_AGE_MS + 1)
    assert await engine.registry.sign_ins.list(None) == []


# -- The end of a session ----------------------------------------------------------------------------------------------


async def test_signing_out_takes_effect_with_the_next_request(make_site: MakeSite) -> None:
    site = await make_site()
    key = await site.engine.keys.create(tenant="acme", roles=["viewer"])
    async with browser(site) as client:
        await signed_in(client, key.token)
        cookies = dict(client.cookies)
        out = await client.delete("/v1/session")
        assert (out.status_code, "Max-Age=0" in out.headers["set-cookie"], dict(client.cookies)) == (204, True, {})
        client.cookies.update(cookies)
        answer = await client.get("/v1/me")
    assert (answer.status_code, answer.json()["code"]) == (401, "signed_out")


async def test_signing_in_again_ends_the_session_before(make_site: MakeSite) -> None:
    site = await make_site()
    key = await site.engine.keys.create(tenant="acme", roles=["viewer"])
    async with browser(site) as client:
        await signed_in(client, key.token)
        ((name, first),) = client.cookies.items()
        await signed_in(client, key.token)
        assert client.cookies[name] != first
        assert (await client.get("/v1/me")).status_code == 200
        client.cookies.clear()
        assert (await client.get("/v1/me", headers={"Cookie": f"{name}={first}"})).status_code == 401
    assert len(await site.app.state.service.sessions.list("acme")) == 1


async def test_signing_in_again_with_the_same_key_replaces_the_session(make_site: MakeSite) -> None:
    site = await make_site()
    key = await site.engine.keys.create(tenant="acme", roles=["viewer"], name="ann")
    async with browser(site) as client:
        opened = await signed_in(client, key.token)
        ((name, first),) = client.cookies.items()
        (before,) = await site.app.state.service.sessions.list("acme")
        answer = await client.post("/v1/session:reauthenticate", json={"key": key.token})
        assert answer.status_code == 200, answer.text
        assert client.cookies[name] != first
        assert answer.json()["csrf_token"] != opened.json()["csrf_token"]
        assert answer.json()["actor"] == opened.json()["actor"]
        client.headers["X-Tenuto-CSRF"] = answer.json()["csrf_token"]
        (after,) = await site.app.state.service.sessions.list("acme")
        assert (after.id != before.id, after.created_at >= before.created_at) == (True, True)
        assert (await client.delete("/v1/session")).status_code == 204
        assert (await client.get("/v1/me", headers={"Cookie": f"{name}={first}"})).status_code == 401


async def test_only_the_key_of_the_same_principal_reauthenticates(make_site: MakeSite) -> None:
    site = await make_site()
    keys = site.engine.keys
    ann = await keys.create(tenant="acme", roles=["viewer"], name="ann")
    others = [
        await keys.create(tenant="acme", roles=["admin"], name="ben"),
        await keys.create(tenant="globex", roles=["viewer"], name="ann"),
    ]
    async with browser(site) as client:
        await signed_in(client, ann.token)
        cookies = dict(client.cookies)
        for other in others:
            refused = await client.post("/v1/session:reauthenticate", json={"key": other.token})
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
            assert other.token not in refused.text
        unknown = await client.post("/v1/session:reauthenticate", json={"key": "tnt_nothing"})
        assert (unknown.status_code, unknown.json()["code"]) == (401, "unauthenticated")
        assert (await client.post("/v1/session:reauthenticate", json={})).status_code == 422
        assert dict(client.cookies) == cookies
        assert (await client.get("/v1/me")).json()["actor"] == f"key:ann:{ann.row.id}"
    admin = await site.client("acme", "admin")
    no_session = await admin.post("/v1/session:reauthenticate", json={"key": ann.token})
    assert (no_session.status_code, no_session.json()["code"]) == (403, "forbidden")
    assert len(await site.app.state.service.sessions.list("acme")) == 1


End = Callable[[Site, str, str], Awaitable[None]]


async def revoke_the_session(site: Site, key: str, url: str) -> None:
    admin = await site.client("acme", "admin")
    (session,) = (await admin.get("/v1/sessions")).json()["items"]
    assert (await admin.post(f"/v1/sessions/{session['id']}:revoke")).status_code == 204


async def revoke_the_key_elsewhere(site: Site, key: str, url: str) -> None:
    async with Engine(url, worker=False) as other:
        await other.keys.revoke(key)


async def change_the_roles(site: Site, key: str, url: str) -> None:
    site.is_tampered = True
    change(url, b"UPDATE api_keys SET roles = '[\"worker\"]'")


@pytest.mark.parametrize(
    ("end", "status"), [(revoke_the_session, 401), (revoke_the_key_elsewhere, 401), (change_the_roles, 403)]
)
async def test_an_ended_session_is_refused_at_the_next_request_and_its_streams_end(
    make_site: MakeSite, url: str, end: End, status: int
) -> None:
    site = await make_site(SAGA)
    key = await site.engine.keys.create(tenant="acme", roles=["operator"])
    handle = await site.engine.scoped(tenant="acme", actor="a").start("s")
    async with (
        serving(site.app) as address,
        httpx2.AsyncClient(base_url=address, headers=SAME_ORIGIN, timeout=60, trust_env=False) as client,
    ):
        await signed_in(client, key.token)
        opening = asyncio.Event()
        stream = asyncio.create_task(listen(client, handle.id, opening))
        await opening.wait()
        await end(site, key.row.id, url)
        assert (await client.get(f"/v1/executions/{handle.id}")).status_code == status
        assert "end" not in await stream


async def test_everyone_sees_and_ends_their_own_sessions_and_admins_those_of_their_tenant(make_site: MakeSite) -> None:
    site = await make_site()
    ann, ben, eve = [
        await site.engine.keys.create(tenant=tenant, roles=["viewer"], name=name)
        for tenant, name in (("acme", "ann"), ("acme", "ben"), ("globex", "eve"))
    ]
    async with browser(site) as a, browser(site) as b, browser(site) as e:
        for client, key in ((a, ann), (b, ben), (e, eve)):
            await signed_in(client, key.token)
        own = (await a.get("/v1/sessions")).json()["items"]
        assert [(row["actor"], row["current"]) for row in own] == [(f"key:ann:{ann.row.id}", True)]
        admin = await site.client("acme", "admin")
        all_of_acme = (await admin.get("/v1/sessions")).json()["items"]
        assert {(row["actor"].split(":")[1], row["current"]) for row in all_of_acme} == {("ann", False), ("ben", False)}
        (of_ben,) = [row["id"] for row in all_of_acme if "ben" in row["actor"]]
        (of_eve,) = [row["id"] for row in (await e.get("/v1/sessions")).json()["items"]]
        assert (await a.post(f"/v1/sessions/{of_ben}:revoke")).status_code == 404
        assert (await admin.post(f"/v1/sessions/{of_eve}:revoke")).status_code == 404
        assert (await b.get("/v1/me")).status_code == 200
        assert (await a.post(f"/v1/sessions/{own[0]['id']}:revoke")).status_code == 204
        assert (await a.get("/v1/me")).status_code == 401
        assert (await admin.post(f"/v1/sessions/{of_ben}:revoke")).status_code == 204
        assert (await b.get("/v1/me")).status_code == 401


# -- Other sites -------------------------------------------------------------------------------------------------------


def writes() -> list[tuple[str, str]]:
    found = [
        (method, route.path_format)
        for route in routes(create_app(Engine(), Settings()))
        for method in route.methods or ()
    ]
    return sorted((method, path) for method, path in found if method not in ("GET", "HEAD"))


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_no_write_with_a_cookie_comes_from_elsewhere_or_without_the_sessions_token(make_site: MakeSite) -> None:
    site = await make_site()
    key = await site.engine.keys.create(tenant="default", roles=["admin"])
    before = len([row async for row in site.engine.scoped(tenant="default", actor="a").audit.rows()])
    async with browser(site) as client:
        await signed_in(client, key.token)
        right = client.headers.pop("X-Tenuto-CSRF")
        del client.headers["Sec-Fetch-Site"]
        wrong: list[dict[str, str]] = [
            {},
            {"Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "same-origin", "X-Tenuto-CSRF": right[:-1] + ("0" if right[-1] != "0" else "1")},
            {"X-Tenuto-CSRF": right},
            {"Sec-Fetch-Site": "cross-site", "X-Tenuto-CSRF": right},
            {"Sec-Fetch-Site": "same-site", "X-Tenuto-CSRF": right},
            {"Sec-Fetch-Site": "none", "X-Tenuto-CSRF": right},
        ]
        tried = [each for each in writes() if each != ("POST", "/v1/session")]
        assert len(tried) > 20
        for method, path in tried:
            for headers in wrong:
                answer = await client.request(method, path, json={}, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (403, "csrf_rejected"), (method, path, headers)
        foreign = await client.post("/v1/session", json={"key": key.token}, headers={"Sec-Fetch-Site": "cross-site"})
        assert (foreign.status_code, foreign.json()["code"]) == (403, "csrf_rejected")
        assert (await client.get("/v1/me")).status_code == 200
    after = [row["action"] async for row in site.engine.scoped(tenant="default", actor="a").audit.rows()]
    assert after == ["session.opened"] + ["key.created"] * before


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_requests_with_a_key_need_no_token_of_a_session(make_site: MakeSite) -> None:
    site = await make_site(SAGA)
    key = await site.engine.keys.create(tenant="acme", roles=["operator"])
    async with browser(site) as client:
        await signed_in(client, key.token)
        del client.headers["X-Tenuto-CSRF"]
        headers = {"Authorization": f"Bearer {key.token}", "Sec-Fetch-Site": "cross-site"}
        assert (await client.post("/v1/executions", json={"definition": "s"}, headers=headers)).status_code == 201
        wrong = {**headers, "Authorization": "Bearer tnt_nothing"}
        assert (await client.get("/v1/executions", headers=wrong)).status_code == 401  # the cookie does not stand in
