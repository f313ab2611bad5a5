"""Where things are: paths of nodes, refs of attempts, and the keys made from them.

A path is text: segments joined by "/", each `id[#clone][@visit]`, so the index of every ancestor is in it:
"agents/writer/draft@2", "notify#3". The root scope's path is the empty text. Clones are addressed by their index;
what authors call a clone (`notify#ann@example.org`) is a label, and never in a path (see `naming`).
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
    """One attempt: the number rises for ever within a path and phase, across rounds and runs."""

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
    """The clone of a fan-out. A fan-out inside a loop is `id@visit`, its clones `id#index@visit`."""
    at = fan_path.rfind("@")
    if at > fan_path.rfind("/"):
        return f"{fan_path[:at]}#{index}{fan_path[at:]}"
    return f"{fan_path}#{index}"


@lru_cache(maxsize=4096)  # asked nine times for each clone that runs, and of those few run at once
def fan_of(path: str) -> tuple[str, int] | None:
    """The fan-out and the index that a clone's path names, or None when the path is no clone's."""
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
    """The author's id of the node at this path, without its indexes."""
    last = path[path.rfind("/") + 1 :]
    return last.partition("@")[0].partition("#")[0]


def fingerprint(*fields: str) -> str:
    """SHA-256 over length-prefixed fields: ("a", "bc") and ("ab", "c") differ."""
    digest = hashlib.sha256()
    for field in fields:
        raw = field.encode()
        digest.update(len(raw).to_bytes(4, "big"))
        digest.update(raw)
    return digest.hexdigest()


def idempotency_key(tenant: str, execution: str, path: str, phase: Phase, generation: int) -> str:
    """The key a handler sends: one per step and phase, whatever the attempt, the round or the run.

    The generation rises only when an effect is deliberately made again: after its compensation, or by a person's word.
    """
    return fingerprint(tenant, execution, path, phase, str(generation))


def lease_id(execution: str, ref: Ref) -> str:
    """Names one attempt outside the process. No secret: callbacks carry a signed token beside it."""
    return fingerprint("lease", execution, ref.path, ref.phase, str(ref.number))[:32]


def review_id(execution: str, seq: int) -> str:
    """A review is named by the event that opened it."""
    return f"{execution}.{seq}"


def chance(*fields: str) -> float:
    """A number in [0, 1) that looks random and is the same in every runtime: what jitter is made of."""
    return int(fingerprint(*fields)[:13], 16) / float(1 << 52)
