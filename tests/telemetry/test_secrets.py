"""Secrets that are put wherever somebody might put one come out nowhere: no log, metric, span, summary, audit."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tenuto import Engine, SagaBuilder, SagaContext
from tenuto.checker import export_lines
from tenuto.errors import NonRetryableError, TenutoError
from tenuto.handlers.settings import LOOPBACK, HandlerSettings, Secret
from tenuto.telemetry import Telemetry, configure_logs
from tenuto.telemetry.traces import Tracing
from tests.servers import smtp, web

CANARY = "c4n4ry"
KEY = f"whsec_{CANARY}{CANARY}"  # which is base64, as it happens


class Told:
    """Everything that an engine says to people and to programs that watch it."""

    def __init__(self) -> None:
        self.log = StringIO()
        self._exporter = InMemorySpanExporter()
        self.telemetry = Telemetry(traces=Tracing(SimpleSpanProcessor(self._exporter)))
        self.more: list[str] = []

    async def everything(self, engine: Engine) -> str:
        said = [self.log.getvalue(), (await self.telemetry.render()).decode(), *self.more]
        said += [span.to_json() for span in self._exporter.get_finished_spans()]
        async for row in engine.dlq():
            said.append(json.dumps(row))
        async for review in engine.reviews():
            said.append(json.dumps(review))
        async for record in engine.audit.export():
            said.append(json.dumps(record))
        return "\n".join(said)


@pytest.fixture
def told() -> Any:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    found = Told()
    configure_logs("DEBUG", "json", found.log)
    yield found
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
async def server() -> AsyncIterator[web.Web]:
    async with web.running() as found:
        yield found


async def leaks(request: dict[str, Any], ctx: SagaContext) -> None:
    raise RuntimeError(f"refused: password={CANARY}, Authorization: Bearer {CANARY}-1 at https://u:{CANARY}@host/")


async def quotes(request: dict[str, Any]) -> None:
    raise ValueError(f"cannot parse 'api_key={request['api_key']}'")


def step(id: str, handler: str, given: dict[str, Any]) -> dict[str, Any]:
    return {
        "step_id": id,
        "type": "external_call",
        "handler": handler,
        "with": given,
        "idempotency_strategy": "SAFE_TO_RETRY",
        "retry_policy": {"max_attempts": 2, "initial_delay_ms": 1, "max_delay_ms": 1},
    }


def places(server: web.Web, mail: smtp.Mail) -> dict[str, dict[str, Any]]:
    """Steps that fail with a canary at hand."""
    userinfo = server.url.replace("http://", f"http://user:{CANARY}@")
    down = "http://127.0.0.1:9"
    return {
        "exception": step("a", "leaks", {}),
        "input": step("a", "quotes", {"api_key": "${input.key}"}),
        "url": step(
            "a", "http", {"method": "POST", "url": f"{userinfo}/x?token={CANARY}", "headers": {"X-Key": CANARY}}
        ),
        "unreachable": step("a", "http", {"url": f"{down}/x?token={CANARY}", "secret_headers": {"X-Key": "bank"}}),
        "webhook": step("a", "webhook", {"url": f"{server.url}/{CANARY}", "data": {"k": CANARY}, "secret": "hook"}),
        "signed": step("a", "webhook", {"url": f"{server.url}/{CANARY}", "data": {"k": CANARY}, "secret": "good"}),
        "bad": step("a", "http", {"url": "ftp://${input.key}", "method": "${input.key}"}),
        "email": step("a", "email", {"to": f"{CANARY}@example.org", "subject": CANARY, "text": CANARY}),
    }


@pytest.mark.requirement("I10")
@pytest.mark.parametrize("place", ["exception", "input", "url", "unreachable", "webhook", "signed", "bad", "email"])
async def test_no_secret_escapes(told: Told, server: web.Web, place: str) -> None:
    server.answers += [(400, {"x-echo": CANARY}, CANARY.encode())] * 4
    async with smtp.running() as mail:
        mail.answers[f"RCPT {CANARY}@example.org"] = f"550 no {CANARY}"
        outside = HandlerSettings(
            egress_allow=LOOPBACK,
            secrets={"BANK": Secret(CANARY), "HOOK": Secret(f"whsec_{CANARY}!"), "GOOD": Secret(KEY)},
            smtp_url=f"smtp://127.0.0.1:{mail.port}",
            mail_from="us@example.org",
        )
        async with Engine("memory://", telemetry=told.telemetry, outside=outside) as whole:
            whole.handler("leaks", leaks)
            whole.handler("quotes", quotes)
            await whole.apply({"name": "s", "version": 1, "steps": [places(server, mail)[place]]})
            engine = whole.scoped(tenant="default", actor="user:ann")
            handle = await engine.start(
                "s", {"key": CANARY}, headers={"Authorization": f"Bearer {CANARY}", "X-Api-Key": CANARY}
            )
            result = await handle.result()
            assert result.status == "failed"
            await handle.retry(reason="once more")
            await handle.result()
            told.more += [str(result.report()), json.dumps(await handle.history(), default=str)]
            said = await told.everything(engine)
    assert "execution_finished" in said
    assert "saga.step" in said
    assert "execution.retried" in said
    assert CANARY not in said


async def test_a_problem_does_not_repeat_what_was_given(told: Told) -> None:
    async with Engine("memory://", telemetry=told.telemetry) as engine:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
        await engine.apply(
            {"name": "s", "version": 1, "input_schema": schema, "steps": [step("a", "log", {"message": "x"})]}
        )
        with pytest.raises(TenutoError) as refused:
            await engine.start("s", {"n": CANARY})
        told.more.append(str(refused.value))
        assert CANARY not in await told.everything(engine)


class Shy(BaseException):
    """Ends a program, where it is not caught."""


def _chained() -> BaseException:
    error = RuntimeError(f"cannot connect to postgres://app:{CANARY}@db/shop")
    error.__cause__ = ValueError(f"token={CANARY}")
    return error


def _noted() -> BaseException:
    error = ValueError("refused")
    error.add_note(f"password={CANARY}")
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "chained": _chained,
    "noted": _noted,
    "in a group": lambda: ExceptionGroup("several", [ValueError(f"api_key: {CANARY}"), KeyError(f"secret={CANARY}")]),
    "that would end a program": lambda: Shy(f"Authorization: Bearer {CANARY}-0000"),
    "of ours": lambda: NonRetryableError(f"refused: password={CANARY}, Authorization: Bearer {CANARY}"),
    "in its code": lambda: NonRetryableError("refused", code=f"token={CANARY}"),
    "in bytes": lambda: ValueError({"headers": [(b"x-api-key", CANARY.encode())]}),
    "in JSON that is text": lambda: ValueError(json.dumps(json.dumps({"password": CANARY}))),
    "in a key": lambda: ValueError(f"-----BEGIN PRIVATE KEY-----\nMIIE{CANARY}\n-----END PRIVATE KEY-----"),
    "in a query": lambda: RuntimeError(f"404 for https://host/x?se=1&sig={CANARY}&page=2"),
    "with arguments": lambda: OSError(13, f"denied: passwd={CANARY}", f"https://me:{CANARY}@host/"),
}


@pytest.mark.requirement("I10")
@pytest.mark.parametrize("in_thread", [False, True])
async def test_no_secret_of_an_exception_is_told_or_stored(told: Told, tmp_path: Path, in_thread: bool) -> None:
    """Neither in what is said, nor in the file: the whole record of it is looked through."""

    async def in_loop(what: str) -> None:
        raise ERRORS[what]()

    def beside(what: str) -> None:
        raise ERRORS[what]()

    url = f"sqlite:///{tmp_path}/x.db"
    async with Engine(url, telemetry=told.telemetry) as whole:
        whole.register(SagaBuilder("s").step("a", beside if in_thread else in_loop, retry=0))
        engine = whole.scoped(tenant="default", actor="user:ann")
        for what in ERRORS:
            result = await engine.execute("s", what)
            assert result.status == "failed"
            told.more.append(str(result.report()))
        said = await told.everything(engine)
    stored = b"".join([line async for line in export_lines(url, "")])
    assert b"PermissionError" in stored
    assert "execution.failed" in said  # which is in the audit
    assert CANARY not in said
    assert CANARY.encode() not in stored
