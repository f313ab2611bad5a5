"""The console's files: at every deep link, below a prefix, behind a proxy, with a policy that runs nothing else."""

import base64
import gzip
import hashlib
import re
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI

import tenuto
from tenuto import Engine
from tenuto.service.app import create_app
from tenuto.settings import Settings
from tenuto.telemetry import Telemetry

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PAGES = ("/", "/executions", "/executions/1a1e1c763e38d8d06329bb", "/reviews", "/dead-letters", "/overview", "/sign-in")
SCRIPT = "console.log('tenuto');" * 100
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tenuto</title>
<link rel="stylesheet" href="./assets/index-1a2b.css"><script type="module" src="./assets/index-3c4d.js"></script>
</head><body><div id="root"></div></body></html>"""


@pytest.fixture
def built(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text(PAGE)
    (tmp_path / "manifest.sha256.json").write_text("{}")
    (tmp_path / "assets" / "index-1a2b.css").write_text("body { color: red }")
    (tmp_path / "assets" / "index-3c4d.js").write_text(SCRIPT)
    (tmp_path / "assets" / "inter-5e6f.woff2").write_bytes(bytes(range(256)))
    return tmp_path


def client_of(app: FastAPI, base: str = "http://127.0.0.1:8080", **options: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app, client=("10.0.0.1", 1), **options),  # type: ignore[arg-type]  # as they are
        base_url=base,
        headers=BROWSER,
    )


def metas(page: str) -> dict[str, str]:
    return dict(re.findall(r'<meta name="([a-z-]+)" content="([^"]*)">', page))


@pytest.mark.parametrize("path", PAGES)
async def test_a_browser_gets_the_console_at_every_page(built: Path, path: str) -> None:
    async with client_of(create_app(Engine(), Settings(), console=built)) as client:
        answer = await client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    found = metas(answer.text)
    assert (found["tenuto-prefix"], found["tenuto-version"]) == ("", tenuto.__version__)
    assert 'src="/assets/index-3c4d.js"' in answer.text
    assert answer.headers["cache-control"] == "no-store"


async def test_the_policy_allows_the_page_its_own_files_and_styles_with_its_nonce(built: Path) -> None:
    async with client_of(create_app(Engine(), Settings(), console=built)) as client:
        first, second = await client.get("/"), await client.get("/executions")
    nonces = [metas(answer.text)["csp-nonce"] for answer in (first, second)]
    assert nonces[0] != nonces[1]
    assert first.headers["content-security-policy"] == (
        f"default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonces[0]}'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "object-src 'none'"
    )
    assert first.headers["x-content-type-options"] == "nosniff"
    assert first.headers["referrer-policy"] == "no-referrer"
    assert first.headers["cross-origin-opener-policy"] == "same-origin"
    assert "strict-transport-security" not in first.headers


@pytest.mark.parametrize(
    ("base", "settings", "headers", "is_strict"),
    [
        ("https://tenuto.example", Settings(), {}, True),
        ("http://tenuto.example", Settings(), {"X-Forwarded-Proto": "https"}, False),  # anybody can send this header
        ("http://tenuto.example", Settings(trusted_proxies=("10.0.0.1",)), {"X-Forwarded-Proto": "https"}, True),
        ("http://tenuto.example", Settings(trusted_proxies=("10.0.0.1",)), {}, False),
        ("http://tenuto.example", Settings(public_url="https://tenuto.example"), {}, True),
        ("https://tenuto.example", Settings(public_url="http://tenuto.example"), {}, False),
    ],
)
async def test_strict_transport_follows_the_browsers_connection(
    built: Path, base: str, settings: Settings, headers: dict[str, str], is_strict: bool
) -> None:
    async with client_of(create_app(Engine(), settings, console=built), base) as client:
        answer = await client.get("/", headers=headers)
    assert ("strict-transport-security" in answer.headers) is is_strict


@pytest.mark.parametrize("path", ["/", "/executions/1a1e1c763e38d8d06329bb"])
async def test_a_mounted_console_knows_its_prefix(built: Path, path: str) -> None:
    outer = FastAPI()
    outer.mount("/tenuto", create_app(Engine(), Settings(), console=built))
    async with client_of(outer) as client:
        page = await client.get(f"/tenuto{path}")
        asset = await client.get("/tenuto/assets/index-3c4d.js")
        beside = await client.get(path)
    assert metas(page.text)["tenuto-prefix"] == "/tenuto"
    assert 'src="/tenuto/assets/index-3c4d.js"' in page.text
    assert (asset.status_code, asset.text, beside.status_code) == (200, SCRIPT, 404)


async def test_behind_a_proxy_that_strips_it_the_prefix_is_that_of_the_public_url(built: Path) -> None:
    settings = Settings(public_url='https://example.org/a"b/')
    async with client_of(create_app(Engine(), settings, console=built)) as client:
        page = await client.get("/executions")
    assert metas(page.text)["tenuto-prefix"] == "/a&quot;b"
    assert 'src="/a&quot;b/assets/index-3c4d.js"' in page.text


async def test_assets_are_cached_for_ever_and_compressed_where_that_helps(built: Path) -> None:
    async with client_of(create_app(Engine(), Settings(), console=built)) as client:
        script = await client.get("/assets/index-3c4d.js", headers={"Accept-Encoding": "gzip"})
        plain = await client.get("/assets/index-3c4d.js", headers={"Accept-Encoding": "identity"})
        font = await client.get("/assets/inter-5e6f.woff2")
    assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert script.headers["content-type"].startswith("text/javascript")
    assert (script.headers["content-encoding"], script.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert int(script.headers["content-length"]) == len(gzip.compress(SCRIPT.encode(), mtime=0)) < len(SCRIPT)
    assert ("content-encoding" in plain.headers, plain.text) == (False, SCRIPT)
    assert (font.headers["content-type"], "content-encoding" in font.headers) == ("font/woff2", False)


@pytest.mark.parametrize(
    ("method", "path", "accept", "status"),
    [
        ("GET", "/v1/nothing", BROWSER["Accept"], 404),
        ("GET", "/v1", BROWSER["Accept"], 404),
        ("GET", "/api/v1/nothing", BROWSER["Accept"], 404),
        ("GET", "/assets/gone-0000.js", BROWSER["Accept"], 404),
        ("GET", "/assets/%2e%2e/index.html", BROWSER["Accept"], 404),
        ("GET", "/manifest.sha256.json", "application/json", 404),
        ("GET", "/tenuto/v1/executions", "*/*", 404),
        ("POST", "/nothing", BROWSER["Accept"], 401),
        ("DELETE", "/executions", BROWSER["Accept"], 404),
        ("GET", "/v1/executions", BROWSER["Accept"], 401),
        ("POST", "/healthz", BROWSER["Accept"], 401),
        ("DELETE", "/healthz", BROWSER["Accept"], 405),
    ],
)
async def test_what_is_no_page_is_answered_with_a_problem(
    built: Path, method: str, path: str, accept: str, status: int
) -> None:
    async with Engine() as engine, client_of(create_app(engine, Settings(), console=built)) as client:
        answer = await client.request(method, path, headers={"Accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


async def test_without_the_setting_or_a_build_there_is_no_console(built: Path, tmp_path: Path) -> None:
    for app in (
        create_app(Engine(), Settings(console=False), console=built),
        create_app(Engine(), Settings(), console=tmp_path / "nothing"),
    ):
        async with client_of(app) as client:
            answer = await client.get("/executions")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("root", ["", "/tools/tenuto"])
async def test_without_a_console_a_page_links_to_what_there_is(tmp_path: Path, root: str) -> None:
    async with Engine(telemetry=Telemetry()) as engine:
        app = create_app(engine, Settings(), console=tmp_path / "nothing")
        async with client_of(app, root_path=root) as client:
            page = await client.get(f"{root}/")
            links = re.findall(r"href='([^']*)'", page.text)
            answers = [(await client.get(link)).status_code for link in links]
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert links == [f"{root}/{path}" for path in ("docs", "openapi.json", "healthz", "readyz", "metrics")]
    assert answers == [200] * len(links)
    (style,) = re.findall(r"<style>(.*?)</style>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in page.headers["content-security-policy"]


async def test_the_page_without_a_console_is_closed_with_the_other_open_routes(tmp_path: Path) -> None:
    async with Engine() as engine:
        app = create_app(engine, Settings(open_routes=False), console=tmp_path / "nothing")
        async with client_of(app) as client:
            assert (await client.get("/")).status_code == 401
