"""Reads the body of an HTTP response, decoded, up to a given number of bytes.

A response may have any size, and a compressed body may expand greatly. Decoded bytes are therefore counted while they
arrive, and reading stops at the limit. Only `identity` and one layer of `gzip` are accepted.
"""

import zlib
from typing import Final, NamedTuple

import httpx2

ACCEPTED: Final = "gzip, identity"  # value of the Accept-Encoding header
_GZIP: Final = ("gzip", "x-gzip")
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS


class Unreadable(ValueError):
    """The body of a response cannot be decoded."""


class Body(NamedTuple):
    content: bytes
    is_cut: bool  # the body is longer than the limit


async def read_body(response: httpx2.Response, limit: int) -> Body:
    """Returns the first `limit` bytes of a streamed response. Raises `Unreadable` if they cannot be decoded."""
    if response.is_stream_consumed:  # in-memory transports, such as those of tests, have read it all
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
    """Returns whether the body is compressed with gzip. Raises `Unreadable` for any other encoding."""
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
    """Returns the response with a decoded body, without the headers that describe the encoded one."""
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
    """Decodes a gzip stream of one or more members, with a limit per call."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._began = False

    @property
    def is_complete(self) -> bool:
        return self._member.eof or not self._began

    def decode(self, part: bytes, room: int) -> bytes:
        """Returns at most `room` decoded bytes. If it returns that many, the rest of `part` is discarded."""
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
