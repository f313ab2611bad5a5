"""The address a request came from: the peer of the connection, or what a trusted proxy says about it."""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from starlette.types import Scope

UNKNOWN = ""  # no address: a Unix socket, or a server that reports none
IPV6_PREFIX = 64  # bits that a provider gives to one customer
_FORWARDED_FOR = b"x-forwarded-for"


class TrustedProxies:
    """Reads `X-Forwarded-For`, but only from proxies in the given networks.

    Every proxy appends the address it received the request from. So the header is read from the right, and the first
    address that is not a trusted proxy is the client: all entries to the left of it may be made up.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = tuple(ip_network(network) for network in networks)

    def trusts(self, peer: str) -> bool:
        address = _parsed(peer)
        return address is not None and any(address in network for network in self._networks)

    def client_of(self, scope: Scope) -> str:
        """The key to count a client's requests by."""
        client = scope["client"][0] if scope.get("client") else UNKNOWN
        if self._networks:
            hops = [hop for name, value in scope["headers"] if name == _FORWARDED_FOR for hop in value.split(b",")]
            while hops and self.trusts(client):
                hop = _without_port(hops.pop().decode("latin-1").strip())
                if _parsed(hop) is None:  # "unknown", or nonsense: count it by the proxy that accepted it
                    break
                client = hop
        return counted_as(client)


def counted_as(address: str) -> str:
    """One key for each client: an IPv6 client has a whole /64, and an IPv4 address may be written as IPv6."""
    found = _parsed(address)
    if isinstance(found, IPv6Address):
        return str(ip_network((int(found) >> IPV6_PREFIX << IPV6_PREFIX, IPV6_PREFIX)))
    return address if found is None else str(found)


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def _without_port(hop: str) -> str:
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
