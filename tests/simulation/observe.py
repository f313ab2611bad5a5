"""Which situations a decision is: looked at before the monitor follows it."""

from tenuto.kernel import facts as f
from tenuto.kernel.decide import Decision

from .invariants import Monitor
from .situations import Situations


def observe(situations: Situations, monitor: Monitor, fact: f.Fact, decision: Decision, now: int) -> None:
    return
