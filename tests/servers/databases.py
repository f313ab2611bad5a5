"""Databases with the engine's schema in place, each for one test, on a server that all of them share."""

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from uuid import uuid4

import psycopg

from tenuto.storage import grant, make_store

from .postgres import Server

SERVICE = "tenuto_service"  # a role that owns nothing


@contextmanager
def database(server: Server) -> Iterator[str]:
    """A copy of one that was migrated once: that takes much less time than to migrate each."""
    with _copy_of(_template(server.dsn(), server.dsn("migrated")), server) as url:
        yield url


@contextmanager
def empty_database(server: Server) -> Iterator[str]:
    """A database without the schema, for tests of migrations."""
    with _copy_of("template1", server) as url:
        yield url


@contextmanager
def _copy_of(template: str, server: Server) -> Iterator[str]:
    name = f"test_{os.getpid()}_{uuid4().hex[:12]}"
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE {template} STRATEGY FILE_COPY')
        try:
            yield server.dsn(name)
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def served(server: Server) -> Iterator[str]:
    """The same as a service should reach it: under a role that owns nothing."""
    with database(server) as place:
        yield place.replace("postgres@", f"{SERVICE}@")


@cache
def _template(server: str, url: str) -> str:
    name = url.rpartition("/")[2]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        connection.execute(f"CREATE ROLE {SERVICE} LOGIN NOINHERIT")
    with ThreadPoolExecutor(1) as thread:  # whoever asks may have a loop of his own
        thread.submit(asyncio.run, _migrate(url)).result()
    return name


async def _migrate(url: str) -> None:
    store = make_store(url)
    await store.open(migrate=True)
    await store.close()
    await grant(url, SERVICE, prunes=True)
