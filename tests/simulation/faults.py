"""How the engine's own parts fail: the store, the workers, the clock."""

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .world import World

CommitFault = Literal["ok", "failed", "unknown, applied", "unknown, not applied"]


@dataclass(frozen=True)
class Rates:
    """How often the engine's own parts fail in this seed."""

    commit: float
    crash: float
    freeze: float
    leave: float
    late_tick: float
    clock: float
    unowned_mail: float
    snapshot: float


def draw_rates(rng: Random) -> Rates:
    return Rates(
        commit=rng.choice((0.0, 0.02, 0.1, 0.3)),
        crash=rng.choice((0.0, 0.02, 0.1, 0.25)),
        freeze=rng.choice((0.0, 0.01, 0.05)),
        leave=rng.choice((0.0, 0.02, 0.1)),
        late_tick=rng.choice((0.0, 0.1, 0.5)),
        clock=rng.choice((0.0, 0.0, 0.02)),
        unowned_mail=rng.choice((0.0, 0.5, 1.0)),
        snapshot=rng.choice((0.0, 0.3, 1.0)),
    )


class Faults:
    def __init__(self, world: "World", rates: Rates) -> None:
        self.world = world
        self.rates = rates

    def happens(self, share: float) -> bool:
        return self.world.hostile and self.world.rng.random() < share

    def commit(self) -> CommitFault:
        if not self.happens(self.rates.commit):
            return "ok"
        return self.world.rng.choice(("failed", "unknown, applied", "unknown, not applied"))

    def strike(self) -> None:
        """Now and then, to whoever owns the execution, and to the clock."""
        world = self.world
        if self.happens(self.rates.clock):
            jump = world.rng.choice((-5_000, -200, 200, 5_000, 60_000))
            world.offset += jump
            world.sometimes("clock went back" if jump < 0 else "clock jumped ahead")
            world.note(f"clock jumps by {jump}")
            if world.owner is not None:
                world.watch_clock(world.owner)
        if world.owner is None:
            return
        if self.happens(self.rates.crash):
            world.crash(world.owner)
        elif self.happens(self.rates.freeze):
            world.freeze(world.owner)
        elif self.happens(self.rates.leave):
            world.sometimes("worker left in good order")
            world.owner.leave()
