"""Reads the body of an HTTP response: decoded, and never more than a given number of bytes.

A response may be of any size, and a compressed one is small until it is decoded. So decoded bytes are counted while
they arrive, and reading stops at the limit. Only `identity` and one layer of `gzip` are accepted.
"""

import zlib
from typing import Final, NamedTuple

import httpx2

ACCEPTED: Final = "gzip, identity"  # for the header Accept-Encoding
_GZIP: Final = ("gzip", "x-gzip")
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS


class Unreadable(ValueError):
    """The body of a response cannot be decoded."""


class Body(NamedTuple):
    content: bytes
    is_cut: bool  # there was more


async def read_body(response: httpx2.Response, limit: int) -> Body:
    """The first `limit` bytes of a response that was requested as a stream; `Unreadable` if they cannot be decoded."""
    if response.is_stream_consumed:  # of a transport that holds all of it, as those of tests do
        content = await response.aread()
        return Body(content[:limit], len(content) > limit)
    decoder = _Gzip() if is_encoded(response) else None
    kept = bytearray()
    received = 0
    async for part in response.aiter_raw():
        received += len(part)
        kept += part if decoder is None else decoder.decode(part, limit + 1 - len(kept))
        # An endless sequence of empty gzip members never adds to `kept`.
        if len(kept) > limit or received > 2 * limit + 1_024:
            return Body(bytes(kept[:limit]), is_cut=True)
    if decoder is not None and not decoder.is_complete:
        raise Unreadable("the gzip stream ends too early")
    return Body(bytes(kept), is_cut=False)


def is_encoded(response: httpx2.Response) -> bool:
    """Whether the body is compressed with gzip; `Unreadable` if it is encoded in any other way."""
    encodings = [name for part in _encodings(response) if (name := part.strip().lower()) not in ("", "identity")]
    if not encodings:
        return False
    if len(encodings) > 1 or encodings[0] not in _GZIP:
        raise Unreadable("its content-encoding is neither identity nor one layer of gzip")
    return True


def _encodings(response: httpx2.Response) -> list[str]:
    found: str = response.headers.get("content-encoding", "")
    return found.split(",")


def with_body(response: httpx2.Response, content: bytes) -> httpx2.Response:
    """The same response with this decoded body, and without the headers that describe the encoded one."""
    headers = response.headers.copy()
    if headers.pop("content-encoding", None) is not None:
        headers.pop("content-length", None)
    made = httpx2.Response(
        response.status_code,
        headers=headers,
        content=content,
        request=response.request,
        extensions=response.extensions,
        history=response.history,
        default_encoding=response.default_encoding,
    )
    made.next_request = response.next_request
    return made


class _Gzip:
    """Decodes a gzip stream, which may have several members, up to a number of bytes at a time."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._began = False

    @property
    def is_complete(self) -> bool:
        return self._member.eof or not self._began

    def decode(self, part: bytes, room: int) -> bytes:
        """At most `room` bytes. If it is that many, there may be more, which is lost."""
        decoded = b""
        while part and len(decoded) < room:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP_WINDOW)
            self._began = True
            try:
                decoded += self._member.decompress(part, room - len(decoded))
            except zlib.error:
                raise Unreadable("it is not gzip, though its content-encoding says so") from None
            part = self._member.unused_data
        return decoded
