"""The egress guard: built-in handlers connect only to public addresses and to ranges that settings allow.

The guard checks when a connection is made, not when a URL is read. It resolves the name once, checks every address, and
connects to one of exactly these addresses. So DNS rebinding has no effect, and a redirect would be checked like any
other connection.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from typing import Final, TypeAlias

import httpcore2

from tenuto.errors import NonRetryableError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

# `is_global` differs between Python releases, so these ranges decide. They include everything that any release calls
# not global, and global addresses that lead to internal systems: relays, translators, cloud services.
_DENIED: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; 100.100.100.200 is Alibaba Cloud's metadata service
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's platform services, and its metadata
        "169.254.0.0/16",  # link-local, and the metadata services of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; 192.0.0.192 is Oracle Cloud's metadata service
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, with an IPv4 address inside
        "3fff::/20",  # documentation
    )
)
# Global unicast. All other IPv6 is reserved, local (fc00::/7, fe80::/10, fec0::/10), multicast, a translation of IPv4
# (::/96, ::ffff:0:0:0/96, 64:ff9b::/96, 64:ff9b:1::/48), or segment routing (5f00::/16).
_GLOBAL_V6: Final = ipaddress.ip_network("2000::/3")


class Egress:
    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._allowed = tuple(ipaddress.ip_network(text) for text in allow)

    def permits(self, address: Address) -> bool:
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self._allowed):
            return True
        if address.version == 6 and address not in _GLOBAL_V6:
            return False
        return address.is_global and not any(address in network for network in _DENIED)

    async def resolve(self, host: str, port: int) -> list[str]:
        """Returns the addresses of a host if all of them are permitted."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        for text in addresses:
            if not self.permits(ipaddress.ip_address(text.partition("%")[0])):
                why = "its address is not public, and TENUTO_EGRESS_ALLOW does not include it"
                raise NonRetryableError(f"{host} may not be connected to: {why}", code="egress_denied")
        return addresses


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Connects `httpcore2` to addresses that the guard has checked. TLS still verifies the host name."""

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
        except (OSError, UnicodeError) as error:  # an unknown or invalid name
            raise httpcore2.ConnectError(error) from error
        for address in addresses[:-1]:
            try:
                return await self._plain.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._plain.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await self._plain.sleep(seconds)
