"""The cookie of a sign-in session, and the protection of writes against cross-site requests.

Over HTTPS the cookie is `Secure` and has the `__Host-` prefix, so no other host can set it. On loopback over plain
HTTP, browsers accept neither. There the port is part of the name, because browsers send a cookie to every port of a
host. Other addresses over plain HTTP get no session: the network could read the cookie.
"""

import hashlib
import hmac
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Final

from starlette.types import Scope

from tenuto.errors import NotPermitted

from .headers import header
from .public_address import PublicAddress

CSRF_HEADER: Final = "X-Tenuto-CSRF"
SECURE_NAME: Final = "__Host-tenuto_session"
_SAFE: Final = ("GET", "HEAD", "OPTIONS")


class SessionCookies:
    """Reads and writes the cookie of a session, as the address of the service allows."""

    def __init__(self, address: PublicAddress) -> None:
        self._address = address

    def read(self, scope: Scope) -> str | None:
        """The token in a request's cookie."""
        given, name = header(scope, b"cookie"), self._name(scope)
        if given is None or name is None:
            return None
        try:
            found = SimpleCookie(given).get(name)
        except CookieError:
            return None
        return None if found is None else found.value or None

    def check_address(self, scope: Scope) -> None:
        """Raises `NotPermitted` if browsers would send the cookie in clear text over a network."""
        if self._name(scope) is None:
            raise NotPermitted(
                "Sign-in needs HTTPS: over plain HTTP, others could read the session's cookie.",
                code="https_required",
                hint="use https, or a loopback address; behind a proxy with TLS, set TENUTO_PUBLIC_URL=https://…",
            )

    def written(self, scope: Scope, token: str) -> str:
        """The `Set-Cookie` header. It has no lifetime: the service ends the session, or the browser forgets it."""
        return f"{self._name(scope)}={token}; {self._attributes(scope)}"

    def cleared(self, scope: Scope) -> str:
        return f"{self._name(scope) or SECURE_NAME}=; Max-Age=0; {self._attributes(scope)}"

    def _attributes(self, scope: Scope) -> str:
        return f"Path=/; HttpOnly; SameSite=Lax{'; Secure' if self._address.is_https(scope) else ''}"

    def _name(self, scope: Scope) -> str | None:
        if self._address.is_https(scope):
            return SECURE_NAME
        host, port = _host(scope)
        return f"tenuto_session_{port}" if _is_loopback(host) else None


def csrf_token(token: str) -> str:
    """The token that writes of a session must repeat in a header. Other sites cannot read it."""
    return hashlib.sha256(f"csrf {token}".encode()).hexdigest()


def check_same_origin(scope: Scope, token: str) -> None:
    """Raises `NotPermitted` for a write with this session's cookie that the console itself did not send."""
    if scope["method"] in _SAFE:
        return
    given = header(scope, CSRF_HEADER.lower().encode()) or ""
    if not hmac.compare_digest(given.encode("latin-1"), csrf_token(token).encode()):
        raise _rejected(f"A write with a session's cookie needs the session's token in the header {CSRF_HEADER}.")
    if header(scope, b"sec-fetch-site") != "same-origin":
        raise _rejected("A write with a session's cookie must come from the console's own origin.")


def check_sign_in(scope: Scope) -> None:
    """Raises `NotPermitted` if another site tries to sign its visitor in."""
    if header(scope, b"sec-fetch-site") not in (None, "same-origin"):
        raise _rejected("Sign-in must come from the console's own origin.")


def _rejected(message: str) -> NotPermitted:
    return NotPermitted(message, code="csrf_rejected", hint="programs authenticate with `Authorization`, not a cookie")


def _host(scope: Scope) -> tuple[str, str]:
    """The name and the port that the browser used, by the `Host` header."""
    given = header(scope, b"host") or ""
    if given.startswith("["):
        host, _, rest = given[1:].partition("]")
        return host, rest.removeprefix(":") or "80"
    host, _, port = given.partition(":")
    return host, port or "80"


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
