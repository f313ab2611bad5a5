"""Callback tokens: `v1.<key>.<claims>.<signature>`, bound to one attempt of one step.

A token is derived when a directive is delivered, and never stored. It is an HMAC over its tenant, job, step, attempt,
lease, service and expiry. The first signing key signs, all verify, so that keys can be rotated.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from tenuto.errors import NotAuthenticated

VERSION: Final = "v1"
_KEY = re.compile(r"([A-Za-z0-9_-]{1,32}):(\S{16,256})")
_FORM = re.compile(r"v1\.([A-Za-z0-9_-]{1,32})\.([A-Za-z0-9_-]{1,2048})\.([A-Za-z0-9_-]{43})")


class Claims(msgspec.Struct, frozen=True, array_like=True):
    """What a token is bound to. `expires_at` is in milliseconds."""

    tenant: str
    job: str
    step: str
    attempt: int
    lease: str
    service: str
    expires_at: int


class SigningKey(NamedTuple):
    id: str
    secret: str

    def __repr__(self) -> str:
        return f"SigningKey(id={self.id!r})"


def read_keys(given: Sequence[str]) -> tuple[SigningKey, ...]:
    """Reads `id:secret` texts. The error does not contain a secret."""
    found = []
    for number, text in enumerate(given, start=1):
        match = _KEY.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f"key {number} must be id:secret, with an id of letters, digits, `_` and `-`, "
                "and a secret of 16 to 256 characters"
            )
        found.append(SigningKey(match[1], match[2]))
    if len({key.id for key in found}) < len(found):
        raise ValueError("two keys have the same id")
    return tuple(found)


class CallbackTokens:
    """Signs and verifies tokens."""

    def __init__(self, keys: Sequence[SigningKey]) -> None:
        self._keys = {key.id: key.secret.encode() for key in keys}
        self._signing = keys[0] if keys else None

    @property
    def can_sign(self) -> bool:
        return self._signing is not None

    def sign(self, claims: Claims) -> str:
        assert self._signing is not None, "the settings were checked"
        signed = f"{VERSION}.{self._signing.id}.{_text(msgspec.json.encode(claims))}"
        return f"{signed}.{_signature(self._signing.secret.encode(), signed)}"

    @staticmethod
    def is_token(text: str) -> bool:
        """Returns whether a credential has the form of a callback token."""
        return text.startswith(f"{VERSION}.")

    def verify(self, token: str, now_ms: int) -> Claims:
        """Returns the claims of a token. Raises `NotAuthenticated` if it is forged, expired or of an unknown key."""
        form = _FORM.fullmatch(token)
        secret = None if form is None else self._keys.get(form[1])
        if form is None or secret is None:
            raise _refused("The callback token is not valid.")
        signed, _, signature = token.rpartition(".")
        if not hmac.compare_digest(_signature(secret, signed), signature):
            raise _refused("The callback token is not valid.")
        claims = msgspec.json.decode(_bytes(form[2]), type=Claims)
        if claims.expires_at <= now_ms:
            raise _refused("The callback token has expired.")
        return claims


def _refused(text: str) -> NotAuthenticated:
    return NotAuthenticated(text, hint="send the `callback_token` of the directive as `Authorization: Bearer …`")


def _signature(secret: bytes, signed: str) -> str:
    return _text(hmac.digest(secret, signed.encode(), hashlib.sha256))


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
