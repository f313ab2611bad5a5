"""The address at which browsers reach the service, which may be mounted or behind a proxy."""

from urllib.parse import urlsplit

from starlette.types import Scope

from .client_address import TrustedProxies
from .headers import header


class PublicAddress:
    """`url` is TENUTO_PUBLIC_URL. Without it, a request tells the scheme, and a trusted proxy what it received."""

    def __init__(self, url: str, proxies: TrustedProxies) -> None:
        parts = urlsplit(url)
        self._scheme = parts.scheme
        self._path = parts.path.rstrip("/")
        self._proxies = proxies

    def prefix(self, scope: Scope) -> str:
        """The path in front of the service's own paths: where it is mounted, or what a proxy strips."""
        root: str = scope.get("root_path", "")
        return root.rstrip("/") or self._path

    def is_https(self, scope: Scope) -> bool:
        """Whether the browser's connection is encrypted."""
        if self._scheme:
            return self._scheme == "https"
        peer = scope["client"][0] if scope.get("client") else ""
        if self._proxies.trusts(peer) and (forwarded := header(scope, b"x-forwarded-proto")) is not None:
            return forwarded.strip().lower() == "https"
        return bool(scope.get("scheme") == "https")
