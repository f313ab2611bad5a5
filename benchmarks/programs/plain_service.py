"""The floor under the service: the same framework and server, and a route that does nothing but insert a row.

`python -m benchmarks.programs.plain_service URL PORT`. Rows that arrive while a commit is under way are committed
together, with the same durability as Tenuto's; nobody is authenticated, and nothing is decided.
"""

import argparse
import asyncio
import sys
import uuid
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeAlias

import apsw
import asyncpg
import msgspec
import uvloop
from fastapi import FastAPI, Header
from pydantic import BaseModel
from starlette.responses import Response

from tenuto.api.stop_signals import stopping
from tenuto.service.server import bind, serve

Row: TypeAlias = tuple[str, str, bytes]
Insert: TypeAlias = Callable[[list[Row]], Awaitable[None]]
TABLE = "CREATE TABLE executions (id text PRIMARY KEY, key text UNIQUE, body {})"


class StartBody(BaseModel):
    definition: str
    input: Any = None


class Committer:
    """One commit at a time; whatever came meanwhile is in the next."""

    def __init__(self, insert: Insert) -> None:
        self._insert = insert
        self._waiting: list[tuple[Row, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, row: Row) -> None:
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((row, done))
        if self._task is None:
            self._task = asyncio.create_task(self._commit())
        await done

    async def _commit(self) -> None:
        while self._waiting:
            taken, self._waiting = self._waiting, []
            await self._insert([row for row, _ in taken])
            for _, done in taken:
                done.set_result(None)
        self._task = None


def create_app(committer: Committer) -> FastAPI:
    app = FastAPI(openapi_url=None)

    @app.post("/v1/executions", status_code=201)
    async def start(body: StartBody, key: Annotated[str | None, Header(alias="Idempotency-Key")] = None) -> Response:
        id = uuid.uuid4().hex
        await committer.add((id, key or id, msgspec.json.encode(body.input)))
        answer = {"execution_id": id, "definition_id": body.definition, "input": body.input, "status": "running"}
        return Response(msgspec.json.encode(answer), 201, media_type="application/json")

    return app


async def open_sqlite(path: str) -> Insert:
    connection = apsw.Connection(path)
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.execute(TABLE.format("blob"))

    def work(rows: list[Row]) -> None:
        with connection:
            connection.executemany("INSERT INTO executions VALUES (?, ?, ?)", rows)

    async def insert(rows: list[Row]) -> None:
        await asyncio.to_thread(work, rows)

    return insert


async def open_postgres(dsn: str) -> Insert:
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLE.format("bytea"))
    query = "INSERT INTO executions SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[])"

    async def insert(rows: list[Row]) -> None:
        await connection.execute(query, *(list(column) for column in zip(*rows, strict=True)))

    return insert


async def main(url: str, port: int) -> None:
    scheme, _, rest = url.partition("://")
    insert = await (open_sqlite(rest.removeprefix("/")) if scheme == "sqlite" else open_postgres(url))
    with stopping() as stop:
        await serve(create_app(Committer(insert)), bind("127.0.0.1", port), stop, grace_seconds=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    sys.exit(uvloop.run(main(options.url, options.port)))
