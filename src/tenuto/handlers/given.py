"""The types of `with` for the built-in handlers."""

import re
from email.errors import NonASCIILocalPartDefect, ObsoleteHeaderDefect
from email.headerregistry import Address
from email.policy import SMTP as SMTP_POLICY
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field

from tenuto.kernel.definition import ErrorClass


class HttpRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """`with` of `http`. The values of `secret_headers` are names of secrets: `{"Authorization": "bank"}`."""

    url: str
    method: str = "GET"
    headers: dict[str, str] = {}
    secret_headers: dict[str, str] = {}
    query: dict[str, str | int | float | bool] = {}
    json: Any = msgspec.UNSET
    text: str | None = None
    classify: dict[str, ErrorClass] = {}


class Webhook(Struct, forbid_unknown_fields=True, kw_only=True):
    """`with` of `webhook`. `secret` is the name of a secret.

    `data` is the payload, by default the execution's identity. `json` replaces the whole body.
    """

    url: str
    type: str | None = None
    data: Any = msgspec.UNSET
    json: Any = msgspec.UNSET
    secret: str | None = None
    headers: dict[str, str] = {}
    classify: dict[str, ErrorClass] = {}


class Email(Struct, forbid_unknown_fields=True, kw_only=True):
    """`with` of `email`."""

    to: str | list[str]
    subject: str
    text: str | None = None
    html: str | None = None
    cc: str | list[str] = []
    bcc: str | list[str] = []
    reply_to: str | None = None
    sender: str | None = field(default=None, name="from")

    @property
    def recipients(self) -> list[str]:
        return [*each(self.to), *each(self.cc), *each(self.bcc)]


def each(addresses: str | list[str]) -> list[str]:
    """Returns a list of addresses. A single address may be written without brackets."""
    return [addresses] if isinstance(addresses, str) else addresses


def one_address(text: str) -> Address | None:
    """Parses a text that is exactly one address, with or without a name; None for anything else.

    Headers and the envelope are built from the parsed address, never from the text. Otherwise a list, a group or an
    ambiguous text could pass a check of its first address.
    """
    if _CONTROL.search(text) is not None:
        return None
    try:
        header = SMTP_POLICY.header_factory("From", text)
        (group,) = header.groups
        (found,) = group.addresses
        is_sound = all(isinstance(defect, _HARMLESS) for defect in header.defects)
        if not is_sound or group.display_name is not None or not found.username or not found.domain:
            return None
        return Address(found.display_name, found.username, found.domain)
    except (ValueError, IndexError):  # several addresses, none, or a text that the parser fails on
        return None


_HARMLESS: Final = (ObsoleteHeaderDefect, NonASCIILocalPartDefect)


class Line(Struct, forbid_unknown_fields=True, kw_only=True):
    """`with` of `log`. Secrets in it are masked."""

    message: str
    level: Literal["debug", "info", "warning", "error"] = "info"
    fields: dict[str, Any] = {}


_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def header_problem(name: str, value: str) -> str | None:
    """Returns why a header cannot be sent; None if it can."""
    if _HEADER_NAME.fullmatch(name) is None:
        return "not a valid header name"
    return "a header is one line, without control characters" if _CONTROL.search(value) else None


# These headers determine the target and the length of a request. The others belong to one connection.
_RESERVED: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def reserved_problem(name: str) -> str | None:
    """Returns why a definition may not set a header; None if it may."""
    return "it is set by the connection, and not by a definition" if name.lower() in _RESERVED else None


SHAPES: dict[str, type[Struct]] = {"http": HttpRequest, "webhook": Webhook, "email": Email, "log": Line}
