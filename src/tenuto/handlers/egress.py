"""The egress guard: built-in handlers connect to public addresses, and to others only where settings allow it.

It is asked when a connection is made, not when a URL is read: the name is resolved once, every address it has is
looked at, and the connection goes to one of those very addresses. So a name that answers differently the next time
gains nothing, and neither does a redirect, which would be a connection like any other.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from typing import Final, TypeAlias

import httpcore2

from tenuto.errors import NonRetryableError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

# Global by the letter, and a way round to addresses that are not: all have an IPv4 address inside.
_DETOURS: Final = tuple(
    ipaddress.ip_network(text)
    for text in ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
)
# Site-local: given up long ago, and still routed inside some networks.
_INSIDE: Final = (ipaddress.ip_network("fec0::/10"),)
# The metadata services of clouds.
_METADATA: Final = tuple(ipaddress.ip_network(text) for text in ("169.254.169.254/32", "fd00:ec2::254/128"))


class Egress:
    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._allowed = tuple(ipaddress.ip_network(text) for text in allow)

    def permits(self, address: Address) -> bool:
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self._allowed):
            return True
        hidden = any(address in network for network in (*_DETOURS, *_INSIDE, *_METADATA))
        return address.is_global and not address.is_multicast and not hidden

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of a host, if all of them are permitted."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        for text in addresses:
            if not self.permits(ipaddress.ip_address(text.partition("%")[0])):
                told = "its address is not public, and TENUTO_EGRESS_ALLOW does not name a range that holds it"
                raise NonRetryableError(f"{host} may not be connected to: {told}", code="egress_denied")
        return addresses


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Makes connections for `httpcore2`, to addresses that the guard has seen. TLS still asks for the host's name."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._plain = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  (the signature is httpcore's)
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._egress.resolve(host, port)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(error) from error
        except (OSError, UnicodeError) as error:  # a name that nobody knows, or that is none
            raise httpcore2.ConnectError(error) from error
        for address in addresses[:-1]:
            try:
                return await self._plain.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._plain.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await self._plain.sleep(seconds)
