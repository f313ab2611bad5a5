"""Paths of nodes, refs of attempts, and the keys derived from them.

A path is text: segments joined by "/", each `id[#clone][@visit]`, so that the index of every ancestor is in it:
"agents/writer/draft@2", "notify#3". The path of the root scope is empty. Clones are addressed by index; the author's
name of a clone (`notify#ann@example.org`) is a label and never part of a path (see `naming`).
"""

import hashlib
import re
from functools import lru_cache
from typing import Literal, NamedTuple

from msgspec import Struct

Phase = Literal["forward", "compensate", "guard", "reconcile", "plan"]
PHASES: tuple[Phase, ...] = ("forward", "compensate", "guard", "reconcile", "plan")

ROOT = ""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,127}")


class Ref(Struct, frozen=True, order=True, array_like=True, gc=False):
    """One attempt. Its number increases within a path and phase, across rounds and runs."""

    path: str
    phase: Phase
    number: int

    @property
    def parts(self) -> tuple[str, Phase, int]:
        return self.path, self.phase, self.number


class Segment(NamedTuple):
    id: str
    clone: int | None
    visit: int | None


def is_identifier(text: str) -> bool:
    return _IDENTIFIER.fullmatch(text) is not None


@lru_cache(maxsize=4096)
def child_path(parent: str, id: str, *, clone: int | None = None, visit: int | None = None) -> str:
    segment = id
    if clone is not None:
        segment = f"{segment}#{clone}"
    if visit is not None:
        segment = f"{segment}@{visit}"
    return f"{parent}/{segment}" if parent else segment


def clone_path(fan_path: str, index: int) -> str:
    """Returns the path of a clone. A fan-out inside a loop is `id@visit`, its clones `id#index@visit`."""
    at = fan_path.rfind("@")
    if at > fan_path.rfind("/"):
        return f"{fan_path[:at]}#{index}{fan_path[at:]}"
    return f"{fan_path}#{index}"


@lru_cache(maxsize=4096)  # called nine times per running clone, and few run at once
def fan_of(path: str) -> tuple[str, int] | None:
    """Returns the fan-out and the index of a clone's path; None if the path is not that of a clone."""
    if "#" not in path:
        return None
    hash_at = path.rfind("#")
    if hash_at <= path.rfind("/"):
        return None
    visit_at = path.find("@", hash_at)
    end = len(path) if visit_at < 0 else visit_at
    index = path[hash_at + 1 : end]
    return (path[:hash_at] + path[end:], int(index)) if index.isdecimal() else None


@lru_cache(maxsize=4096)
def parent_of(path: str) -> str:
    cut = path.rfind("/")
    return path[:cut] if cut >= 0 else ROOT


def parse_segment(text: str) -> Segment:
    body, _, visit = text.partition("@")
    id, _, clone = body.partition("#")
    return Segment(id, int(clone) if clone else None, int(visit) if visit else None)


def segments(path: str) -> tuple[Segment, ...]:
    return tuple(parse_segment(part) for part in path.split("/")) if path else ()


@lru_cache(maxsize=4096)
def step_id(path: str) -> str:
    """Returns the author's id of the node at this path, without indexes."""
    last = path[path.rfind("/") + 1 :]
    return last.partition("@")[0].partition("#")[0]


def fingerprint(*fields: str) -> str:
    """Hashes length-prefixed fields with SHA-256, so that ("a", "bc") and ("ab", "c") differ."""
    digest = hashlib.sha256()
    for field in fields:
        raw = field.encode()
        digest.update(len(raw).to_bytes(4, "big"))
        digest.update(raw)
    return digest.hexdigest()


def idempotency_key(tenant: str, execution: str, path: str, phase: Phase, generation: int) -> str:
    """Returns the idempotency key that a handler sends: one per step and phase, for all attempts, rounds and runs.

    The generation rises only when an effect is deliberately made again: after its compensation, or by a person's
    decision.
    """
    return fingerprint(tenant, execution, path, phase, str(generation))


def lease_id(execution: str, ref: Ref) -> str:
    """Returns the external id of one attempt. It is not a secret: callbacks also carry a signed token."""
    return fingerprint("lease", execution, ref.path, ref.phase, str(ref.number))[:32]


def attempt_span(execution: str, path: str, phase: Phase, number: int) -> int:
    """Returns the id of an attempt's span in traces: also of one that a receiver elsewhere continues."""
    return int(fingerprint("span", execution, path, phase, str(number))[:16], 16) or 1


def review_id(execution: str, seq: int) -> str:
    """Returns the id of a review, derived from the event that opened it."""
    return f"{execution}.{seq}"


def chance(*fields: str) -> float:
    """Returns a pseudo-random number in [0, 1) that is the same in every runtime, for jitter."""
    return int(fingerprint(*fields)[:13], 16) / float(1 << 52)
