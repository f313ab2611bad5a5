"""Queues, buses and those who answer from there: directives are published, lost, doubled, answered late or forged."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import msgspec

from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.definition import ErrorClass
from tenuto.kernel.state import Execution

from .effects import LEASE_MS, Call, generation_of, key_of, node_of, timeout_of

if TYPE_CHECKING:
    from .world import World


LONGEST_CALLBACK_MS = 2_500
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


@dataclass(frozen=True)
class Directive:
    """What is published: all that somebody behind the bus knows of the attempt."""

    ref: Ref
    key: str
    generation: int
    lease: str
    timeout: int
    callback: bool
    awaited: bool  # whether a time-out will say so if no result comes


def directive(state: Execution, ref: Ref) -> Directive:
    node = node_of(state, ref.path)
    callback = ref.phase == "forward" and not node.is_scope and node.step.completion == "callback"
    return Directive(
        ref=ref,
        key=key_of(state, ref, ref.phase),
        generation=generation_of(state, ref.path),
        lease=lease_id(state.id, ref),
        timeout=timeout_of(state, ref),
        callback=callback,
        awaited=callback and node.step.result_timeout_ms is not None,
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

    def _mail(self, delay: int, make: Callable[[], f.Fact]) -> None:
        """Sent in a while, and stamped when it arrives."""
        self.world.after(delay, lambda: self.world.mail(make()))

    # -- The relay -----------------------------------------------------------------------------------------------------

    def publish(self, state: Execution, ref: Ref) -> None:
        """The outbox row was written with the grant: from now on the directive is on its way."""
        if ref in self.published:
            return
        self.published[ref] = None
        delay = self.rng.randint(0, 30)
        if self._happens(self.manners.refuses) or self.manners.refuses == NEVER_TAKES:
            self._refuse(delay, ref, f.Failed(error_class=self.manners.refusal, code="nack"))
            return
        if self._happens(self.manners.unconfirmed):
            self.world.sometimes("dispatch unconfirmed but delivered")
            self._refuse(delay, ref, f.Failed(error_class="INDETERMINATE", code="unconfirmed"))
        else:
            self._mail(delay, lambda: f.Dispatched(at=self.world.clock(), ref=ref))
        sent = directive(state, ref)
        self.world.after(delay + self.rng.randint(0, 20), lambda: self._receive(state, sent))

    def _refuse(self, delay: int, ref: Ref, failure: f.Failed) -> None:
        self._mail(delay, lambda: f.DispatchRefused(at=self.world.clock(), ref=ref, failure=failure))

    # -- Behind the bus ------------------------------------------------------------------------------------------------

    def _receive(self, state: Execution, sent: Directive) -> None:
        """Somebody takes the directive and works on it; unless it was taken out of its queue with a cancel."""
        world = self.world
        if self._is_unwanted(sent) and self.rng.random() < 0.5:
            world.sometimes("taken out of its queue by a cancel")
            self._mail(self.rng.randint(0, 50), lambda: f.Returned(at=world.clock(), refs=(sent.ref,)))
            return
        call = world.handlers.script(state, sent.ref)
        call.key = sent.key
        world.begins(state, sent.ref, sent.key, sent.generation)
        if sent.callback:
            self._work_for_callback(sent, call)
        elif self._happens(self.manners.loses):
            world.sometimes("worker of a queue lost")
            lost = self.rng.randint(0, sent.timeout) + LEASE_MS
            self._mail(lost, lambda: f.Lost(at=world.clock(), refs=(sent.ref,), lease_ms=LEASE_MS))
        else:
            self._work_for_queue(sent, call)

    def _is_unwanted(self, sent: Directive) -> bool:
        state = self.world.store.committed
        forward = sent.ref.phase in ("forward", "plan") and not sent.callback
        return forward and state.cancel is not None and sent.ref in state.agenda

    def _work_for_callback(self, sent: Directive, call: Call) -> None:
        clock = self.world.clock
        if not self._happens(self.manners.loses):
            acked = self.rng.randint(0, 50)
            self._answer(acked, lambda: f.Acked(at=clock(), ref=sent.ref, lease=sent.lease))
        delay = min(call.duration, LONGEST_CALLBACK_MS)
        self._apply(call, delay)
        hangs = call.duration > LONGEST_CALLBACK_MS or self._happens(self.manners.loses)
        if not (hangs and sent.awaited):
            delay += self.rng.randint(0, 4_000) if self._happens(self.manners.slow) else 0
            self._answer(delay, lambda: self._reported(sent, call.outcome))

    def _work_for_queue(self, sent: Directive, call: Call) -> None:
        self._apply(call, call.duration)
        if call.duration > sent.timeout:
            self._answer(sent.timeout, lambda: self._reported(sent, f.TimedOut()))
            return
        delay = call.duration + (self.rng.randint(0, 4_000) if self._happens(self.manners.slow) else 0)
        self._answer(delay, lambda: self._reported(sent, call.outcome))

    def _apply(self, call: Call, duration: int) -> None:
        if call.applies:
            self.world.after(min(call.apply_after, duration), lambda: self.world.applies(call))

    def _reported(self, sent: Directive, outcome: f.Outcome) -> f.Reported:
        fact = f.Reported(at=self.world.clock(), ref=sent.ref, outcome=outcome, worker="outside", lease=sent.lease)
        self.answered.append(fact)
        return fact

    def _answer(self, delay: int, make: Callable[[], f.Acked | f.Reported]) -> None:
        """Once, or twice, or once more by somebody who has no lease."""
        self._mail(delay, make)
        if self._happens(self.manners.doubles):
            self.world.sometimes("callback doubled")
            self._mail(delay + self.rng.randint(0, 2_000), make)
        if self._happens(self.manners.forges):
            self.world.sometimes("callback with a forged lease")
            self._mail(delay, lambda: msgspec.structs.replace(make(), lease="forged"))
