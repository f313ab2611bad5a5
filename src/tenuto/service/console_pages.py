"""Serves the console: the files that `make console` builds into `service/console`.

They contain no data of any tenant, so they need no credential. Every path that no route answers is a page of the
console if a browser asks for it; the console itself decides what to show there.
"""

import gzip
import re
import secrets
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Final

from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

import tenuto

from .http.headers import header
from .http.paths import FAST_ROUTE, path_of
from .http.public_address import PublicAddress

BUILT: Final = Path(__file__).parent / "console"

_ASSETS: Final = "/assets/"
_API: Final = re.compile(r"/(v1|api)(/|\Z)")  # unknown paths below these are problems, also for browsers
_IMMUTABLE: Final = "public, max-age=31536000, immutable"  # the names of assets contain a hash of their contents
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'"
)
_TYPES: Final = {  # browsers refuse scripts and styles of other types, and the types that a machine knows vary
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_SAME_ORIGIN: Final = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin"}
_STRICT_TRANSPORT: Final = {"Strict-Transport-Security": "max-age=31536000"}


class ConsolePages:
    """The ASGI application behind all routes: answers with a page or an asset, or passes the request on."""

    def __init__(self, folder: Path, address: PublicAddress, otherwise: ASGIApp) -> None:
        self._page = (folder / "index.html").read_text(encoding="utf-8")
        self._assets = {
            f"/{file.relative_to(folder).as_posix()}": Asset(file)
            for file in (folder / "assets").rglob("*")
            if file.is_file()
        }
        self._address = address
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = self._response(scope) if scope.get("method") in ("GET", "HEAD") else None
        await (response or self._otherwise)(scope, receive, send)

    def _response(self, scope: Scope) -> Response | None:
        path = path_of(scope)
        if path.startswith(_ASSETS):
            return self._asset(scope, path)
        return self._index(scope) if _is_page(scope, path) else None

    def _asset(self, scope: Scope, path: str) -> Response | None:
        asset = self._assets.get(path)
        if asset is None:
            return None
        scope[FAST_ROUTE] = f"{_ASSETS}{{name}}"
        return asset.response(header(scope, b"accept-encoding") or "")

    def _index(self, scope: Scope) -> Response:
        """The page with its place and a nonce. The policy forbids `<base>`, so the paths of assets get the prefix."""
        scope[FAST_ROUTE] = "/{page}"
        nonce = secrets.token_urlsafe(16)
        prefix = escape(self._address.prefix(scope))
        told = {"tenuto-prefix": prefix, "tenuto-version": escape(tenuto.__version__), "csp-nonce": nonce}
        metas = "".join(f'<meta name="{name}" content="{content}">' for name, content in told.items())
        page = self._page.replace('="./', f'="{prefix}/').replace("</head>", f"{metas}</head>", 1)
        headers = {"Content-Security-Policy": _POLICY.format(nonce=nonce), **_SAME_ORIGIN}
        if self._address.is_https(scope):
            headers |= _STRICT_TRANSPORT
        return HTMLResponse(page, headers=headers)


def _is_page(scope: Scope, path: str) -> bool:
    """A browser that opens a link accepts HTML. Other clients learn that there is nothing at their path."""
    if path in ("", "/"):
        return True
    return _API.match(path) is None and "text/html" in (header(scope, b"accept") or "")


class Asset:
    """A file of the build, compressed once if that makes it smaller."""

    def __init__(self, file: Path) -> None:
        self._content = file.read_bytes()
        self._type = _TYPES.get(file.suffix, "application/octet-stream")

    @cached_property
    def _compressed(self) -> bytes | None:
        smaller = gzip.compress(self._content, mtime=0)
        return smaller if len(smaller) < 0.9 * len(self._content) else None

    def response(self, accepted: str) -> Response:
        headers = {"Cache-Control": _IMMUTABLE, "Cross-Origin-Resource-Policy": "same-origin"}
        if self._compressed is None:
            return Response(self._content, headers=headers, media_type=self._type)
        headers["Vary"] = "Accept-Encoding"
        if "gzip" not in accepted.lower():
            return Response(self._content, headers=headers, media_type=self._type)
        headers["Content-Encoding"] = "gzip"
        return Response(self._compressed, headers=headers, media_type=self._type)
