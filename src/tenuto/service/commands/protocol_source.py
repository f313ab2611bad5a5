"""Where protocol configuration comes from: a file, a folder of files, or an https URL.

A source is one function of a port, so a configuration service is one more class here.
"""

from pathlib import Path
from typing import Any, Protocol

import httpx2
import msgspec

from tenuto.errors import InvalidInput, Problem

from .protocols import merge_documents

FETCH_SECONDS = 10.0
MOST_BYTES = 10 * 1024 * 1024


class SourceUnavailable(Exception):
    """The source cannot be read. The message says why, without secrets."""


class ProtocolSource(Protocol):
    async def read(self) -> Any | None:
        """Returns the configuration, or None if it has not changed. Raises `SourceUnavailable` or `InvalidInput`."""


def source_for(place: str) -> ProtocolSource:
    if place.startswith("https://"):
        return UrlSource(place)
    return FileSource(Path(place))


class FileSource:
    """A JSON file, or a folder of them, which are one configuration."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: list[tuple[str, bytes]] | None = None

    async def read(self) -> Any | None:
        try:
            files = sorted(self._path.glob("*.json")) if self._path.is_dir() else [self._path]
            found = [(file.name, file.read_bytes()) for file in files]
        except OSError as error:
            raise SourceUnavailable(f"{self._path} cannot be read: {error.strerror}") from None
        if not found:
            raise SourceUnavailable(f"{self._path} has no *.json files")
        if found == self._last:
            return None
        self._last = found
        documents = [(name, _decode(name, text)) for name, text in found]
        return documents[0][1] if len(documents) == 1 else merge_documents(documents)


class UrlSource:
    """An https URL, fetched with the ETag of the last answer."""

    def __init__(self, url: str, client: httpx2.AsyncClient | None = None) -> None:
        self._url = url
        self._client = client
        self._etag: str | None = None
        self._last: bytes | None = None

    async def read(self) -> Any | None:
        headers = {} if self._etag is None else {"If-None-Match": self._etag}
        try:
            if self._client is not None:
                answer = await self._client.get(self._url, headers=headers, timeout=FETCH_SECONDS)
            else:
                async with httpx2.AsyncClient(follow_redirects=False, trust_env=False) as client:
                    answer = await client.get(self._url, headers=headers, timeout=FETCH_SECONDS)
        except httpx2.HTTPError as error:
            raise SourceUnavailable(f"the protocol URL cannot be fetched: {type(error).__name__}") from None
        if answer.status_code == 304:
            return None
        if answer.status_code != 200 or len(answer.content) > MOST_BYTES:
            raise SourceUnavailable(f"the protocol URL answered {answer.status_code}")
        self._etag = answer.headers.get("etag")
        if answer.content == self._last:
            return None
        self._last = answer.content
        return _decode("protocols", answer.content)


def _decode(name: str, text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        problems = [Problem(name, "malformed", f"it is not JSON: {error}")]
        raise InvalidInput(
            "The protocol configuration is not valid.", problems=problems, code="protocols_invalid"
        ) from None
