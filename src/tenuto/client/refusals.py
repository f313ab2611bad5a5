"""Refuses what a client of a service cannot do."""

from typing import Final, NoReturn

from tenuto.errors import InvalidInput, NotSupported

OWN_TENANT: Final = "default"  # the default for callers; the credential decides the actual tenant


def refuse(what: str, hint: str) -> NoReturn:
    raise NotSupported(f"{what} is not available over HTTP.", code="not_over_http", hint=hint)


def check_tenant(tenant: str | None) -> None:
    if tenant not in (None, OWN_TENANT):
        raise InvalidInput.at("/tenant", "other_tenant", "over HTTP, the API key decides the tenant: leave it out")
