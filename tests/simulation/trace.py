"""What happened in one seed, line by line: for people to read, and hashed to prove that a seed means one run."""

import hashlib
from collections import deque
from functools import lru_cache

import msgspec

TAIL = 60


class Violation(Exception):
    """An invariant does not hold. `law` names it; the rest says where."""

    def __init__(self, law: str, detail: str) -> None:
        super().__init__(f"{law}: {detail}")
        self.law = law
        self.detail = detail


class Trace:
    """Keeps the last lines only, unless it is to be printed; the hash is over all of them."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._digest = hashlib.sha256()
        self.lines: deque[str] = deque(maxlen=None if verbose else TAIL)

    def note(self, time: int, text: str) -> None:
        line = f"{time:>9}  {text}"
        self._digest.update(line.encode())
        self.lines.append(line)

    @property
    def hash(self) -> str:
        return self._digest.hexdigest()[:16]


@lru_cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, object], ...]:
    fields = msgspec.structs.fields(kind)
    return tuple((field.name, field.default) for field in fields if field.name not in ("at", "execution"))


def short(value: msgspec.Struct) -> str:
    """One line, without what is at its default: payloads have no `repr` that is the same in every process."""
    given = {name: given for name, default in _fields(type(value)) if (given := getattr(value, name)) != default}
    text = f"{type(value).__name__} {msgspec.json.encode(given, enc_hook=repr).decode()}"
    return text if len(text) < 300 else f"{text[:298]}…"
