"""Queues, buses and those who answer from there: directives are published, lost, doubled, answered late or forged."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.definition import ErrorClass
from tenuto.kernel.state import Execution

from .effects import LEASE_MS, generation_of, node_of, timeout_of

if TYPE_CHECKING:
    from .world import World


NEVER_TAKES = 1.0  # a bus that refuses for ever, in the quiet phase too: its attempts end by their cap


@dataclass(frozen=True)
class Manners:
    """How the outside of this seed behaves."""

    refuses: float
    refusal: ErrorClass
    unconfirmed: float
    loses: float
    doubles: float
    forges: float
    slow: float


def draw_manners(rng: Random) -> Manners:
    return Manners(
        refuses=rng.choice((0.0, 0.0, 0.1, 0.4, 0.4, NEVER_TAKES)),
        refusal=rng.choice(("TRANSIENT", "TRANSIENT", "DEPENDENCY_FAILED", "NON_RETRYABLE")),
        unconfirmed=rng.choice((0.0, 0.05, 0.2)),
        loses=rng.choice((0.0, 0.1, 0.3)),
        doubles=rng.choice((0.0, 0.2)),
        forges=rng.choice((0.0, 0.1)),
        slow=rng.choice((0.0, 0.2, 0.6)),
    )


class Outside:
    """The relay that publishes directives, and the workers behind the bus. It outlives every worker of the engine."""

    def __init__(self, world: "World", manners: Manners) -> None:
        self.world = world
        self.manners = manners
        self.rng = world.rng
        self.published: dict[Ref, None] = {}
        self.answered: list[f.Reported] = []

    def _happens(self, share: float) -> bool:
        return self.world.hostile and self.rng.random() < share

    def _later(self, delay: int, action: Callable[[], None]) -> None:
        self.world.after(delay, action)

    def publish(self, state: Execution, ref: Ref) -> None:
        """The outbox row was written with the grant: from now on the directive is on its way."""
        if ref in self.published:
            return
        self.published[ref] = None
        delay = self.rng.randint(0, 30)
        unsafe = self._is_unsafe(state, ref)
        if self._happens(self.manners.refuses) or self.manners.refuses == NEVER_TAKES:
            failure = f.Failed(error_class=self.manners.refusal, code="nack")
            self._later(delay, lambda: self._mail(f.DispatchRefused(at=self.world.clock(), ref=ref, failure=failure)))
            return
        if self._happens(self.manners.unconfirmed):
            failure = f.Failed(error_class="INDETERMINATE", code="unconfirmed")
            self.world.sometimes("dispatch unconfirmed but delivered")
            self._later(delay, lambda: self._mail(f.DispatchRefused(at=self.world.clock(), ref=ref, failure=failure)))
        else:
            self._later(delay, lambda: self._mail(f.Dispatched(at=self.world.clock(), ref=ref)))
        generation = generation_of(state, ref.path)
        self._later(delay + self.rng.randint(0, 20), lambda: self._receive(state, ref, generation, unsafe=unsafe))

    def _is_unsafe(self, state: Execution, ref: Ref) -> bool:
        return ref.phase == "forward" and node_of(state, ref.path).step.safety == "NOT_SAFE_TO_RETRY"

    def _mail(self, fact: f.Fact) -> None:
        self.world.mail(fact)

    def _receive(self, state: Execution, ref: Ref, generation: int, *, unsafe: bool) -> None:
        """Somebody behind the bus takes the directive and works on it."""
        world = self.world
        call = world.handlers.script(state, ref)
        lease = lease_id(state.id, ref)
        world.begins(state, ref, call.key, generation)
        node = node_of(state, ref.path)
        callback = ref.phase == "forward" and not node.is_scope and node.step.completion == "callback"
        if callback and not self._happens(self.manners.loses):
            self._answer(self.rng.randint(0, 50), lambda: f.Acked(at=world.clock(), ref=ref, lease=lease))
        limit = timeout_of(state, ref)
        if not callback and self._happens(self.manners.loses):
            self.world.sometimes("worker of a queue lost")
            lost = self.rng.randint(0, limit) + LEASE_MS
            self._later(lost, lambda: self._mail(f.Lost(at=world.clock(), refs=(ref,), lease_ms=LEASE_MS)))
            return
        delay = min(call.duration, 2_500) if callback else call.duration
        if call.applies:
            self._later(min(call.apply_after, delay), lambda: world.applies(call))
        if not callback and call.duration > limit:
            outcome: f.Outcome = f.TimedOut()
            self._answer(limit, lambda: self._reported(ref, outcome, lease))
            return
        has_timer = callback and (node.step.result_timeout_ms is not None or node.step.ack_timeout_ms is not None)
        if has_timer and call.duration > 2_500 and node.step.result_timeout_ms is not None:
            return  # it hangs: the time-out will say so
        if has_timer and node.step.result_timeout_ms is not None and self._happens(self.manners.loses):
            return
        if self._happens(self.manners.slow):
            delay += self.rng.randint(0, 4_000)
        self._answer(delay, lambda: self._reported(ref, call.outcome, lease))

    def _reported(self, ref: Ref, outcome: f.Outcome, lease: str) -> f.Reported:
        fact = f.Reported(at=self.world.clock(), ref=ref, outcome=outcome, worker="outside", lease=lease)
        self.answered.append(fact)
        return fact

    def _answer(self, delay: int, make: Callable[[], f.Acked | f.Reported]) -> None:
        self._later(delay, lambda: self._mail(make()))
        if self._happens(self.manners.doubles):
            self.world.sometimes("callback doubled")
            self._later(delay + self.rng.randint(0, 2_000), lambda: self._mail(make()))
        if self._happens(self.manners.forges):
            self.world.sometimes("callback with a forged lease")
            self._later(delay, lambda: self._forge(make()))

    def _forge(self, fact: f.Acked | f.Reported) -> None:
        if isinstance(fact, f.Acked):
            self._mail(f.Acked(at=fact.at, ref=fact.ref, lease="forged"))
        else:
            self._mail(f.Reported(at=fact.at, ref=fact.ref, outcome=fact.outcome, lease="forged"))
