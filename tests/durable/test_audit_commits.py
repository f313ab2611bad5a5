"""A change that is audited and its row in the audit are one commit: there is never the one without the other."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tenuto import Engine
from tenuto.errors import StorageError
from tests.servers import sqlite


def _run(url: str, statement: str) -> None:
    if url.startswith("sqlite"):
        connection = sqlite.connect(url)
        connection.execute(statement)
        connection.close()
        return
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(statement.encode())


@contextmanager
def _without_audit(url: str) -> Iterator[None]:
    """Nothing can be written into the audit."""
    _run(url, "ALTER TABLE audit RENAME TO audit_elsewhere")
    try:
        yield
    finally:
        _run(url, "ALTER TABLE audit_elsewhere RENAME TO audit")


async def test_a_limit_that_cannot_be_audited_is_not_changed(url: str) -> None:
    async with Engine(url, worker=False) as engine:
        operator = engine.scoped(tenant="default", actor="user:ann")
        await operator.limit("kept", concurrency=1)
        await operator.tenant_limit("kept", max_in_flight=1)
        with _without_audit(url):
            for change in (
                operator.limit("kept", concurrency=2),
                operator.limit("kept"),
                operator.limit("new", rate="1/s"),
                operator.tenant_limit("kept", max_in_flight=2),
                operator.tenant_limit("kept", max_in_flight=None),
                operator.tenant_limit("new", max_in_flight=1),
            ):
                with pytest.raises(StorageError):
                    await change
        assert [(row["name"], row["concurrency"]) for row in await engine.limits()] == [("kept", 1)]
        assert [(row["tenant"], row["max_in_flight"]) for row in await engine.tenant_limits()] == [("kept", 1)]


async def test_every_change_is_in_the_audit_and_lifting_nothing_is_none(url: str) -> None:
    async with Engine(url, worker=False) as engine:
        operator = engine.scoped(tenant="default", actor="user:ann")
        await operator.limit("a", concurrency=1)
        await operator.limit("a")
        await operator.limit("a")
        await operator.tenant_limit("b", max_in_flight=1)
        await operator.tenant_limit("b", max_in_flight=None)
        await operator.tenant_limit("b", max_in_flight=None)
        await asyncio.gather(*(engine.limit(name, concurrency=1) for name in "cd"))  # in nobody's name
        noted = [row["action"] for row in (await operator.audit.page()).items]
    assert noted == ["tenant_limit.lifted", "tenant_limit.set", "limit.lifted", "limit.set"]


STEP = {
    "step_id": "log",
    "type": "external_call",
    "handler": "log",
    "with": {"message": "paid"},
    "idempotency_strategy": "SAFE_TO_RETRY",
}
DOCUMENT = {"name": "pay", "version": 1, "steps": [STEP]}


@pytest.mark.parametrize("is_draft", [False, True])
async def test_a_definition_that_cannot_be_audited_is_not_published(url: str, is_draft: bool) -> None:
    async with Engine(url, worker=False) as engine:
        author = engine.scoped(tenant="default", actor="user:ann")
        if is_draft:
            await author.catalog.draft(DOCUMENT)
        with _without_audit(url), pytest.raises(StorageError):
            await author.apply(DOCUMENT)
        found = await engine.catalog.list()
        assert [row["status"] for row in found.items] == (["draft"] if is_draft else [])
        await author.apply(DOCUMENT)
        noted = [row["action"] for row in (await author.audit.page()).items]
    assert noted == ["definition.published", *(["definition.drafted"] if is_draft else [])]
