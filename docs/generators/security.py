"""The tables of `security.md` that state what the code does: roles and limits."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, get_args

from tenuto.access.keys import FRESH_S
from tenuto.access.permission import GRANTS, Permission
from tenuto.access.tokens import ALGORITHMS, LEEWAY_SECONDS, MAX_TOKEN
from tenuto.authoring.document import MAX_BYTES as MAX_DOCUMENT
from tenuto.handlers.request import MAX_ANSWER
from tenuto.kernel.definition import (
    FAN_OUT_LIMIT,
    MAX_EARLY_SIGNAL_BYTES,
    MAX_EARLY_SIGNALS,
    MAX_HISTORY_BYTES,
    MAX_HISTORY_EVENTS,
)
from tenuto.kernel.validation.tree import MAX_NESTING, MAX_NODES
from tenuto.runtime.start_request import MAX_HEADERS as MAX_EXECUTION_HEADERS
from tenuto.service import connection, server
from tenuto.service.http.request_body import MAX_TEXT_BYTES
from tenuto.service.http.request_limits import MAX_STREAMS
from tenuto.service.http.responses import MAX_PAGE
from tenuto.settings import Settings
from tenuto.values.writing import DEFAULT_LIMIT

PAGE = Path(__file__).parent.parent / "security.md"

_MEANINGS: dict[Permission, str] = {
    "executions:read": "read executions, their steps, history and events",
    "executions:start": "start executions",
    "executions:write": "pause, resume, cancel, retry, signal",
    "definitions:read": "read definitions",
    "definitions:write": "draft, publish and deprecate definitions",
    "dlq:read": "read dead letters",
    "dlq:write": "reprocess, discard and resolve dead letters",
    "reviews:read": "read reviews",
    "approvals:write": "approve, reject, and resolve all other reviews",
    "callbacks:write": "acknowledge and complete callback steps",
    "audit:read": "read, export and verify the audit log",
    "keys:write": "manage API keys",
    "sessions:write": "list and revoke the sign-in sessions of the tenant",
    "limits:write": "set limits",
    "effects:again": "repeat an effect (`again`), retry a step that is not safe to retry",
    "runs:read": "read runs, their agents, tasks, steps and usage",
    "runs:write": "create, start, pause, resume, cancel, retry, unstick and delete runs",
    "credits:read": "read the account and the ledger",
    "credits:write": "top up, adjust and reverse credits",
}


def roles() -> str:
    head = f"| permission | allows to | {' | '.join(GRANTS)} |\n|---|---|{'---|' * len(GRANTS)}\n"
    return head + "".join(f"| `{each}` | {_MEANINGS[each]} | {_marks(each)} |\n" for each in get_args(Permission))


def _marks(permission: Permission) -> str:
    return " | ".join("✓" if permission in granted else "" for granted in GRANTS.values())


class _Limit(NamedTuple):
    what: str
    value: str
    beyond: str


def limits() -> str:
    head = "| limit | default | beyond it |\n|---|---|---|\n"
    return head + "".join(f"| {each.what} | {each.value} | {each.beyond} |\n" for each in _limits())


def _limits() -> list[_Limit]:
    closed = "the connection is closed"
    return [
        _Limit(
            "connections of a process", f"{connection.MOST:,}, or fewer if the process may open fewer files", closed
        ),
        _Limit("connections from one client address", _set("max_connections_per_address"), closed),
        _Limit("request line and headers", _bytes(connection.MAX_HEAD_BYTES), "431 `head_too_large`"),
        _Limit("number of headers", str(connection.MAX_HEADERS), "431 `head_too_large`"),
        _Limit("time to send the head", _seconds(connection.HEAD_SECONDS), closed),
        _Limit("requests pipelined on a connection", str(connection.MAX_PIPELINED), closed),
        _Limit("time without reading a response", _seconds(connection.DRAIN_SECONDS), closed),
        _Limit("idle connection", _seconds(server.IDLE_SECONDS), closed),
        _Limit("request body", _set("max_body_bytes", _bytes), "413"),
        _Limit("time to send the body", _set("body_seconds", _seconds), "408"),
        _Limit("nesting of a JSON body", _set("max_json_depth"), "400"),
        _Limit("values in a JSON body", _set("max_json_nodes"), "400"),
        _Limit("one text in a JSON body", _bytes(MAX_TEXT_BYTES), "400"),
        _Limit("headers of an execution", _bytes(MAX_EXECUTION_HEADERS), "refused"),
        _Limit("items of a page", str(MAX_PAGE), "422"),
        _Limit("concurrent requests of a process", _set("max_requests"), "429"),
        _Limit("event streams and waiting reads of a process", f"{MAX_STREAMS:,}", "429"),
        _Limit("requests per second of a credential", _set("rate_per_second"), "429"),
        _Limit("burst of a credential", _set("rate_burst"), "429"),
        _Limit("requests per second of a tenant", _set("tenant_rate_per_second"), "429"),
        _Limit("burst of a tenant", _set("tenant_rate_burst"), "429"),
        _Limit("time to answer a request", _set("answer_seconds", _seconds), "503"),
        _Limit("lifetime of a new API key", _set("key_days", _days), "401"),
        _Limit("revoked or expired credential still accepted", _seconds(FRESH_S), "401; streams and waiting reads end"),
        _Limit("JWT", _bytes(MAX_TOKEN), "401"),
        _Limit("clock difference to an issuer", _seconds(LEEWAY_SECONDS), "401"),
        _Limit("signature algorithms of a JWT", ", ".join(ALGORITHMS), "401"),
        _Limit("input, result or signal", _bytes(DEFAULT_LIMIT), "refused"),
        _Limit("response of a service to `http`, decoded", _bytes(MAX_ANSWER), "the body is omitted"),
        _Limit("definition document", _bytes(MAX_DOCUMENT), "refused at publish"),
        _Limit("steps of a definition", f"{MAX_NODES:,}", "refused at publish"),
        _Limit("nesting of steps", str(MAX_NESTING), "refused at publish"),
        _Limit("clones of a fan-out", f"{FAN_OUT_LIMIT:,}", "the step fails"),
        _Limit(
            "signals sent before a step waits for them",
            f"{MAX_EARLY_SIGNALS:,} and {_bytes(MAX_EARLY_SIGNAL_BYTES)} per execution",
            "409 `too_many_signals`",
        ),
        _Limit(
            "history of an execution",
            f"{MAX_HISTORY_EVENTS:,} events and {_bytes(MAX_HISTORY_BYTES)}",
            "409 `history_limit`; an execution that fills its history fails",
        ),
    ]


def _set(name: str, form: Callable[[int], str] = "{:,.0f}".format) -> str:
    """A default that a setting changes."""
    return f"{form(getattr(Settings(), name))} (`TENUTO_{name.upper()}`)"


def _bytes(count: int) -> str:
    return f"{count // 1024**2} MiB" if count % 1024**2 == 0 else f"{count // 1024} KiB"


def _seconds(seconds: float) -> str:
    return f"{seconds:g} s"


def _days(days: int) -> str:
    return f"{days} days"


TABLES = {"roles": roles, "limits": limits}


def filled(text: str) -> str:
    """The page with its tables as the code has them."""
    for name, table in TABLES.items():
        begin, end = f"<!-- begin {name}: made by `make docs` -->\n", f"<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        after = rest.partition(end)[2]
        text = f"{before}{begin}\n{table()}\n{end}{after}"
    return text
