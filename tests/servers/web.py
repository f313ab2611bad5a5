"""A web server for tests: answers what it is told to, and keeps what it was asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Web:
    """`answers` are taken in turn; None hangs up without one. After the last, every request is answered with 200."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str], bytes] | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.requests.append((method, path, headers, body))
            answer = (
                self.answers.pop(0) if self.answers else (200, {"content-type": "application/json"}, b'{"ok":true}')
            )
            if answer is not None:
                status, extra, text = answer
                lines = [f"HTTP/1.1 {status} X", f"content-length: {len(text)}", "connection: close"]
                lines += [f"{name}: {value}" for name, value in extra.items()]
                writer.write("\r\n".join([*lines, "", ""]).encode() + text)
                await writer.drain()
        except ConnectionError:  # whoever asked did not wait for all of the answer
            return
        finally:
            writer.close()


@asynccontextmanager
async def running() -> AsyncIterator[Web]:
    web = Web()
    listener = await asyncio.start_server(web.serve, "127.0.0.1", 0)
    async with listener:
        web.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        yield web
