"""What the built-in handlers may do outside: where they connect to, which secrets they send, who carries their mail.

Definitions are data, and anybody who may write one must not be able to reach more than whoever runs the service allows.
So all of this comes from the process's surroundings; a definition names a secret, and never holds one.
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from tenuto.errors import InvalidInput, NonRetryableError
from tenuto.settings import Settings

LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
_SECRET: Final = "TENUTO_SECRET_"  # noqa: S105  (the beginning of a variable's name)
_HOSTS: Final = "_HOSTS"


@dataclass(frozen=True, slots=True)
class Secret:
    """`hosts`: where it may be sent to; none named, anywhere that a definition says."""

    value: str = field(repr=False)
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSettings:
    """`egress_allow` are ranges that are not public and may be connected to all the same, as in `10.1.0.0/16`.

    `smtp_url` is `smtp://user:password@host:587` or `smtps://…`; `mail_from` is who mail is from unless a step says so.
    """

    egress_allow: tuple[str, ...] = ()
    secrets: Mapping[str, Secret] = field(default_factory=dict, repr=False)
    smtp_url: str = field(default="", repr=False)
    mail_from: str = ""

    def __post_init__(self) -> None:
        for text in self.egress_allow:
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                text = f"{text!r} is no range of addresses such as 10.1.0.0/16: {error}"
                raise InvalidInput.at("/egress_allow", "range", text) from None

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] | None = None) -> Self:
        """`TENUTO_EGRESS_ALLOW`, `TENUTO_SMTP_URL`, `TENUTO_MAIL_FROM`, `TENUTO_SECRET_<NAME>` and `…_HOSTS`."""
        given = os.environ if variables is None else variables
        return cls(
            egress_allow=_listed(given.get("TENUTO_EGRESS_ALLOW", "")),
            secrets=_secrets(given),
            smtp_url=given.get("TENUTO_SMTP_URL", ""),
            mail_from=given.get("TENUTO_MAIL_FROM", ""),
        )

    @classmethod
    def from_settings(cls, settings: Settings, variables: Mapping[str, str] | None = None) -> Self:
        """What is in force for a process; secrets come from the environment alone."""
        return cls(
            egress_allow=settings.egress_allow,
            secrets=_secrets(os.environ if variables is None else variables),
            smtp_url=settings.smtp_url,
            mail_from=settings.mail_from,
        )

    def secret(self, name: str, host: str) -> str:
        """The secret of this name, for this host; otherwise the step fails, saying which variable to set."""
        variable = f"{_SECRET}{_as_variable(name)}"
        found = self.secrets.get(_as_variable(name))
        if found is None:
            text = f"there is no secret named {name!r}: set {variable} where the worker runs"
            raise NonRetryableError(text, code="secret_missing")
        if found.hosts and host.lower() not in found.hosts:
            text = f"the secret {name!r} may not be sent to {host}: {variable}{_HOSTS} does not name it"
            raise NonRetryableError(text, code="secret_denied")
        return found.value

    def has_secret(self, name: str) -> bool:
        return _as_variable(name) in self.secrets


def _secrets(variables: Mapping[str, str]) -> dict[str, Secret]:
    named = {name.removeprefix(_SECRET): value for name, value in variables.items() if name.startswith(_SECRET)}
    hosts = {name: value for name, value in named.items() if name.endswith(_HOSTS)}
    return {
        name: Secret(value, tuple(host.lower() for host in _listed(hosts.get(f"{name}{_HOSTS}", ""))))
        for name, value in named.items()
        if name not in hosts
    }


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _as_variable(name: str) -> str:
    return name.upper().replace("-", "_").replace(".", "_")
