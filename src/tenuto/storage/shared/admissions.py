"""Admission of starts, and the queue of a concurrency key: rules that both databases apply when they write a batch.

A start is refused when its idempotency key is known, when another execution has its concurrency key and it is not to
wait, or when its tenant has as many executions in flight as it may: in this order, and one after the other, so that of
two in one batch the second sees the first. What was refused is not written, and nothing is counted for it.

Executions with a concurrency key wait in a queue for each tenant, definition and key. The first one is admitted by a
message, once for each of its runs.
"""

from collections.abc import Collection, Sequence

from msgspec import Struct

from tenuto.kernel.codec import encode_fact
from tenuto.kernel.facts import Admitted
from tenuto.storage.port import NewExecution, Refusal
from tenuto.views.projections import Line


class Known(Struct):
    """What the database says of a batch of starts: keys and lines that are taken, and how many each tenant may add."""

    keys: Collection[tuple[str, str]] = ()
    lines: Collection[Line] = ()
    room: dict[str, int] = {}


def lock_name(*parts: str) -> str:
    """What is locked by name on PostgreSQL: the line of a concurrency key, or an idempotency key of a tenant."""
    return "\n".join(parts)


def line_of(start: NewExecution) -> Line | None:
    return None if start.concurrency_key is None else (start.tenant, start.definition, start.concurrency_key)


def refusals(starts: Sequence[NewExecution], known: Known) -> dict[str, Refusal]:
    keys, lines, room = set(known.keys), set(known.lines), dict(known.room)
    refused: dict[str, Refusal] = {}
    for start in starts:
        key = (start.tenant, start.key) if start.key is not None else None
        line = line_of(start)
        if key is not None and key in keys:
            refused[start.id] = "duplicate_key"
        elif start.reject_conflict and line is not None and line in lines:
            refused[start.id] = "conflict"
        elif room.get(start.tenant, 1) < 1:
            refused[start.id] = "tenant_limit"
        else:
            if key is not None:
                keys.add(key)
            if line is not None:
                lines.add(line)
            if start.tenant in room:
                room[start.tenant] -= 1
    return refused


def admission(execution: str, run: int, key: str, now: int) -> tuple[str, str, bytes, int]:
    """The mail that tells an execution that it is its turn: a row of the mailbox."""
    return f"admit:{execution}:{run}", execution, encode_fact(Admitted(at=now, key=key, run=run)), now
