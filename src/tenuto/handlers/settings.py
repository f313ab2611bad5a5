"""Settings of the built-in handlers: permitted addresses, secrets, mail server.

Definitions are data. Their authors must not reach more than the operator of the service allows, so all of this comes
from the process's environment. A definition contains the name of a secret, never its value.
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

from tenuto.errors import InvalidInput, NonRetryableError
from tenuto.settings import Settings

LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
_SECRET: Final = "TENUTO_SECRET_"  # noqa: S105  (the beginning of a variable's name)
_HOSTS: Final = "_HOSTS"
_TENANTS: Final = "_TENANTS"


_PORTS: Final = {"http": 80, "https": 443}


class Target(NamedTuple):
    """The scheme, host and port of a request."""

    scheme: str
    host: str
    port: int

    @property
    def keeps_secrets(self) -> bool:
        """Whether the connection is encrypted or stays on the machine.

        The egress guard decides if loopback is permitted.
        """
        return self.scheme == "https" or is_loopback(self.host)

    def is_named_by(self, text: str) -> bool:
        host, port = _host_and_port(text)
        return (self.host.lower(), self.port) == (host, port or _PORTS.get(self.scheme))


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret and its permitted uses.

    `hosts` are the hosts that it may be sent to: `bank.example` (with the default port of the scheme) or
    `bank.example:8443`. If empty, definitions of the deployment may send it anywhere.

    `tenants` are the tenants whose own definitions may also use it, if it has `hosts`; `*` means all tenants.
    """

    value: str = field(repr=False)
    hosts: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for text in self.hosts:
            _host_and_port(text)

    def is_for(self, owner: str | None) -> bool:
        return owner is None or (bool(self.hosts) and (owner in self.tenants or "*" in self.tenants))


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSettings:
    """Settings of the built-in handlers.

    `egress_allow` are private address ranges that handlers may connect to, such as `10.1.0.0/16`.

    `open_limits` are limits that documents of tenants may name, such as `ses:acme` or, for all tenants, `ses:*`.

    `smtp_url` is `smtp://user:password@host:587` or `smtps://…`. `mail_from` is the default sender.
    """

    egress_allow: tuple[str, ...] = ()
    secrets: Mapping[str, Secret] = field(default_factory=dict, repr=False)
    smtp_url: str = field(default="", repr=False)
    mail_from: str = ""
    open_limits: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for text in self.open_limits:
            if not all(text.rpartition(":")):
                why = f"{text!r} is not a limit with a tenant, such as ses:acme or ses:*"
                raise InvalidInput.at("/open_limits", "limit", why)
        for text in self.egress_allow:
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                text = f"{text!r} is not an address range such as 10.1.0.0/16: {error}"
                raise InvalidInput.at("/egress_allow", "range", text) from None

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] | None = None) -> Self:
        """Reads `TENUTO_EGRESS_ALLOW`, `TENUTO_OPEN_LIMITS`, `TENUTO_SMTP_URL`, `TENUTO_MAIL_FROM` and secrets."""
        given = os.environ if variables is None else variables
        return cls(
            egress_allow=_listed(given.get("TENUTO_EGRESS_ALLOW", "")),
            secrets=_secrets(given),
            smtp_url=given.get("TENUTO_SMTP_URL", ""),
            mail_from=given.get("TENUTO_MAIL_FROM", ""),
            open_limits=_listed(given.get("TENUTO_OPEN_LIMITS", "")),
        )

    @classmethod
    def from_settings(cls, settings: Settings, variables: Mapping[str, str] | None = None) -> Self:
        """Converts the settings of a process. Secrets come only from the environment."""
        return cls(
            egress_allow=settings.egress_allow,
            secrets=_secrets(os.environ if variables is None else variables),
            smtp_url=settings.smtp_url,
            mail_from=settings.mail_from,
            open_limits=settings.open_limits,
        )

    def secret(self, name: str, target: Target, owner: str | None, *, is_sent: bool = True) -> str:
        """Returns a secret for a target. Otherwise the step fails with the name of the variable to set.

        `owner` is the tenant that owns the definition, or None. A secret that a tenant may not use is reported as
        missing. A secret that only signs (`is_sent=False`) may be used over plain HTTP.
        """
        variable = f"{_SECRET}{_as_variable(name)}"
        found = self.secrets.get(_as_variable(name))
        if found is not None and not found.is_for(owner):
            text = (
                f"there is no secret named {name!r} for definitions of {owner}: set {variable}{_TENANTS} and {_HOSTS}"
            )
            raise NonRetryableError(text, code="secret_missing")
        if found is None:
            text = f"there is no secret named {name!r}: set {variable} where the worker runs"
            raise NonRetryableError(text, code="secret_missing")
        if found.hosts and not any(target.is_named_by(text) for text in found.hosts):
            place = f"{target.host} on port {target.port}"
            text = f"the secret {name!r} may not be sent to {place}: {variable}{_HOSTS} does not name it"
            raise NonRetryableError(text, code="secret_denied")
        if is_sent and not target.keeps_secrets:
            text = f"the secret {name!r} is sent over https only: change the URL of {target.host}"
            raise NonRetryableError(text, code="secret_denied")
        return found.value

    def has_secret(self, name: str, owner: str | None) -> bool:
        found = self.secrets.get(_as_variable(name))
        return found is not None and found.is_for(owner)


def _host_and_port(text: str) -> tuple[str, int | None]:
    try:
        return str(ipaddress.ip_address(text)), None
    except ValueError:
        pass
    try:
        parts = urlsplit(f"//{text}")
        if parts.hostname and parts.netloc == text and "@" not in text:
            return parts.hostname, parts.port
    except ValueError:
        pass
    why = f"{text!r} is not a host such as bank.example or bank.example:8443"
    raise InvalidInput.at("/hosts", "host", why)


def _secrets(variables: Mapping[str, str]) -> dict[str, Secret]:
    named = {name.removeprefix(_SECRET): value for name, value in variables.items() if name.startswith(_SECRET)}
    beside = {name: _listed(value) for name, value in named.items() if name.endswith((_HOSTS, _TENANTS))}
    return {
        name: Secret(
            value,
            tuple(host.lower() for host in beside.get(f"{name}{_HOSTS}", ())),
            beside.get(f"{name}{_TENANTS}", ()),
        )
        for name, value in named.items()
        if name not in beside
    }


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _as_variable(name: str) -> str:
    return name.upper().replace("-", "_").replace(".", "_")
