"""Situations that a simulation must reach. A run that never meets one of them has proved nothing about it.

`sometimes` counts; a run of the default size fails if a name was never counted.
"""

from collections import Counter

SITUATIONS = (
    # The store and the workers
    "commit failed",
    "commit unknown, applied",
    "commit unknown, not applied",
    "commit unknown on finish",
    "commit failed with facts decided on top of it",
    "worker crashed",
    "worker crashed between commit and effect",
    "worker crashed after effect, before report",
    "worker crashed again before its takeover was recorded",
    "frozen worker woke up fenced",
    "worker left in good order",
    "attempt handed back before it began",
    "loaded from a snapshot and a tail",
    "mail decided while nobody owned the execution",
    "clock went back",
    "clock jumped ahead",
    # Attempts
    "attempt lost and repeated",
    "attempt lost to its bound",
    "lost NOT_SAFE before it began",
    "lost NOT_SAFE after it began",
    "lost undo",
    "lost probe",
    "lost planner",
    "late truth applied: success",
    "late truth applied: failure",
    "late answer stale",
    "answer after the end",
    "tries spent",
    "retry-after honoured",
    "attempt timed out",
    "step deadline passed",
    "guard said done",
    "guard said not done",
    "reconcile said done",
    "reconcile said not done",
    "probe pending",
    "probe gave up",
    "reconcile time over",
    # Outside
    "callback acknowledged",
    "acknowledgement timed out",
    "result timed out",
    "callback doubled",
    "callback with a forged lease",
    "callback from an older attempt",
    "message about an attempt that never was",
    "dispatch refused",
    "dispatch refused to its cap",
    "dispatch unconfirmed but delivered",
    "worker of a queue lost",
    "taken out of its queue by a cancel",
    # Structure
    "fan-out over an earlier result",
    "fan-out of nothing",
    "clone failed",
    "concurrency limit reached",
    "condition skipped a step",
    "expression failed",
    "output failed",
    "dependents of a failed step skipped",
    "scope round",
    "round kept a result",
    "retry budget exhausted",
    "loop taken",
    "loop limit",
    "scope repeated itself",
    "scope timed out",
    "execution timed out",
    "pending too long",
    "effect marked as done before",
    "planned",
    "re-plan",
    # Waits and people
    "timer waited",
    "signal kept",
    "kept signal used",
    "signal doubled",
    "signal after the end",
    "approved",
    "rejected",
    "approval won against its time-out",
    "approval lost to its time-out",
    "approval decided twice",
    "approval while paused",
    "review: indeterminate",
    "review: compensation",
    "review: compensation_failed",
    "review retried",
    "review completed",
    "review dismissed",
    "review asked for undo",
    "review again with a new key",
    "escalation",
    # Control
    "paused and resumed",
    "pause over a deadline",
    "pause limit",
    "report while paused",
    "cancel: drain",
    "cancel: terminate",
    "cancel: compensate",
    "cancel during compensation",
    "cancel while an outcome is unknown",
    "terminated under an unsafe attempt",
    "cancel before admission",
    "admitted late",
    # Undo
    "undone in reverse",
    "undone by layers",
    "undone together",
    "undo retried",
    "undo failed",
    "two undos of one group tried again at once",
    "earlier undos waited for one tried again",
    "undo stopped",
    "breaker open",
    "manual undo approved",
    "manual undo refused",
    "clone undone",
    "half-done step undone",
    "step of an earlier round undone",
    # Runs and credits
    "run retried",
    "run retried from a step",
    "run retried again with new keys",
    "retry refused",
    "reused results in a new run",
    "undone step made again",
    "flow begun again",
    "automatic run after a granted hold",
    "hold refused",
    "charged and refunded",
    "credits exhausted",
    "estimate above what is left",
)


class Situations:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def sometimes(self, name: str, happened: bool = True) -> None:
        assert name in _NAMES, f"{name!r} is not a declared situation"
        if happened:
            self.counts[name] += 1


def never_reached(counts: Counter[str]) -> list[str]:
    return [name for name in SITUATIONS if not counts[name]]


_NAMES = frozenset(SITUATIONS)
