"""What a hostile run must meet. One that never meets a kind of fault has proved nothing about it."""

from collections import Counter

FAULTS = (
    "fails before",
    "applied, but an error",
    "applied after the error",
    "gave way to another",
    "slow",
    "read-only",
    "full",
    "out of reach",
    "answer is old when it comes",
)
SITUATIONS = (
    *FAULTS,
    "commit: fails before",
    "commit: applied, but an error",
    "commit: applied after the error",
    "claim: applied, but an error",
    "claim: applied after the error",
    "limit: applied after the error",
    "let go, late, of what it has again",
    "renewal lost",
    "session taken for dead",
    "hint lost",
    "hint doubled",
    "letter posted twice",
    "letters out of order",
    "more letters than are read at once",
    "clock went back",
    "clock jumped ahead",
    "worker killed",
    "worker killed with an effect under way",
    "worker frozen beyond its lease",
    "worker closed in good order",
    "worker closed with an effect under way",
    "worker started again",
    "caller killed, and its letters are there",
    "start repeated with its key",
    "start with an unknown outcome",
    "signal repeated with its id",
    "command with an unknown outcome",
    "unsafe step begun",
    "unsafe step looked for",
    "unsafe step begun again",
    "undone",
    "attempt lost",
    "attempt of a queue",
    "task given back, late, that is taken again",
    "answer heard late, when the next attempt is under way",
    "progress told late, when the next attempt is under way",
    "snapshot taken",
    "message published twice",
    "waited for a key",
    "under a limit",
    "canceled",
    "failed, and tried again",
    "paused",
    "review opened",
    "directive received",
    "directive lost",
    "directive sent again",
    "directive answered",
    "answer that changed nothing",
    "answer under a forged lease",
    "batch started",
    "batch started again",
    "start refused: the tenant is full",
    "limit of a tenant changed",
    "all succeeded",
)


class Situations:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def sometimes(self, name: str, happened: object = True) -> None:
        assert name in _NAMES, f"{name!r} is not a declared situation"
        if happened:
            self.counts[name] += 1


def never_met(counts: Counter[str]) -> list[str]:
    return [name for name in SITUATIONS if not counts[name]]


_NAMES = frozenset(SITUATIONS)
