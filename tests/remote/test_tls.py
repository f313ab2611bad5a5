"""A client and a service that does not speak TLS as it should. None of it gets better by being tried again."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tenuto import Engine
from tenuto.errors import NotAuthenticated, ServiceError
from tests.servers.tls import authority


@asynccontextmanager
async def listening(tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Answers every request with the statuses of no executions."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readline():
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n"
            writer.write(head + b'{"counts": {}}')
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def refused(address: str) -> ServiceError:
    async with Engine(address, api_key="tnt_key") as client:
        with pytest.raises(ServiceError) as error:
            await client.count()
    return error.value


async def test_a_certificate_of_nobody_known_is_not_trusted(tmp_path: Path) -> None:
    async with listening(authority(tmp_path)) as port:
        error = await refused(f"https://127.0.0.1:{port}")
    assert error.code == "service_unreachable"
    assert "self-signed certificate" in error.message
    assert error.hint is not None
    assert "SSL_CERT_FILE" in error.hint


async def test_a_certificate_for_another_name_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    async with listening(authority(tmp_path)) as port:
        assert "localhost" in (await refused(f"https://localhost:{port}")).message


async def test_an_authority_of_ones_own_is_named_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    async with listening(authority(tmp_path)) as port, Engine(f"https://127.0.0.1:{port}", api_key="tnt_key") as client:
        assert await client.count() == {}


async def test_what_does_not_speak_tls_is_named() -> None:
    async with listening(None) as port:
        error = await refused(f"https://127.0.0.1:{port}")
    assert error.code == "service_unreachable"
    assert error.hint is not None
    assert "http://" in error.hint


async def test_an_empty_key_is_none() -> None:
    with pytest.raises(NotAuthenticated, match="it is empty"):
        Engine("http://127.0.0.1:1", api_key="")
