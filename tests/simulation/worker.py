"""A simulated worker around the kernel: it decides facts, commits entries, lets effects out, and may die at any point.

It follows the rules of the durable runtime: facts are decided on the newest state; effects leave, and callers are
answered, when the commit of their event is acknowledged; after a failed commit the state in memory is thrown away.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tenuto.checker.model import refs_of
from tenuto.kernel import events as e
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.decide import Decision, decide
from tenuto.kernel.effects import RunAttempt
from tenuto.kernel.retry import needs_begin
from tenuto.kernel.state import Execution

from .effects import Call, generation_of, node_of, timeout_of
from .store import Envelope

if TYPE_CHECKING:
    from .world import World


@dataclass(eq=False)
class Item:
    """A decided fact whose entries are not acknowledged yet."""

    envelope: Envelope
    decision: Decision
    then: Callable[[], None] | None = None


@dataclass(eq=False)
class Worker:
    world: "World"
    name: str
    epoch: int
    state: Execution
    alive: bool = True
    owns: bool = True
    leaving: bool = False
    frozen_until: int = 0
    calls: dict[Ref, Call] = field(default_factory=dict)
    unsent: list[Item] = field(default_factory=list)
    unacked: list[Item] = field(default_factory=list)
    commit_due: bool = False
    took_over: bool = True
    tick_at: int | None = None

    # -- Time ----------------------------------------------------------------------------------------------------------

    def after(self, delay: int, action: Callable[[], None]) -> None:
        """Does this in a while, unless the process is dead by then; a frozen one does it when it wakes up."""

        def act() -> None:
            if not self.alive:
                return
            if self.world.time < self.frozen_until:
                self.world.after(self.frozen_until - self.world.time, act)
                return
            action()

        self.world.after(delay, act)

    # -- Deciding ------------------------------------------------------------------------------------------------------

    def handle(self, envelope: Envelope, then: Callable[[], None] | None = None) -> Decision:
        world = self.world
        now = world.clock()
        decision = decide(self.state, envelope.fact, now, self.epoch)
        if world.owner is self:  # one that woke up after its lease decides on what it remembers: it will be fenced
            world.decided(self, envelope.fact, decision, self.state, now)
        self.unsent.append(Item(envelope, decision, then))
        if not self.commit_due:
            self.commit_due = True
            self.after(world.latency(), self.commit)
        world.watch_clock(self)
        return decision

    def commit(self) -> None:
        if not self.owns:
            return
        if self.unacked:  # one commit is under way: the next batch gathers
            self.after(1, self.commit)
            return
        self.commit_due = False
        if not self.unsent:  # what was to be sent was thrown away in the meantime
            return
        self.unacked, self.unsent = self.unsent, []
        world = self.world
        if world.store.epoch != self.epoch:
            self.fenced()
            return
        fault = world.faults.commit()
        entries = [entry for item in self.unacked for entry in item.decision.entries]
        if fault in ("ok", "unknown, applied"):
            world.append(entries, [item.envelope for item in self.unacked])
        match fault:
            case "ok":
                self.after(world.latency(), self.acknowledged)
            case "unknown, applied" | "unknown, not applied":
                world.sometimes(f"commit {fault}")
                finishes = any(isinstance(entry.event, e.ExecutionFinished) for entry in entries)
                world.sometimes("commit unknown on finish", finishes)
                self.after(world.latency(), self.read_back)
            case "failed":
                world.sometimes("commit failed")
                self.after(world.latency(), self.refused)

    def refused(self) -> None:
        """The store said no: nothing of the batch is there."""
        if self.world.store.epoch != self.epoch:
            self.fenced()
            return
        self.world.sometimes("commit failed with facts decided on top of it", bool(self.unsent))
        self.start_over()

    def read_back(self) -> None:
        """After an unknown outcome: never assume, look."""
        world = self.world
        if world.store.epoch != self.epoch:
            self.fenced()
            return
        first = next((entry for item in self.unacked for entry in item.decision.entries), None)
        if first is None:
            world.append([], [item.envelope for item in self.unacked])  # nothing but mail that changed nothing
        if first is None or first.seq <= len(world.store.history):
            self.acknowledged()
        else:
            self.start_over()

    def start_over(self) -> None:
        """What was decided is not recorded: throw the state away, load it again, and bring the facts once more."""
        world = self.world
        lost = [*self.unacked, *self.unsent]
        self.unacked, self.unsent = [], []
        self.state = world.load()
        world.rewound(self.state)
        self.let_out(list(self.state.agenda))
        for item in lost:
            fact = item.envelope.fact
            if item.envelope.source == "mail":
                self.after(world.latency(), partial(world.deliver, item.envelope))
            elif item.envelope.source == "local" and not isinstance(fact, f.Begun):
                self.handle(item.envelope, item.then)
        world.watch_clock(self)

    def acknowledged(self) -> None:
        done, self.unacked = self.unacked, []
        granted = [ref for item in done for entry in item.decision.entries for g in entry.grants for ref in refs_of(g)]
        self.took_over = True
        for item in done:
            if item.then is not None:
                item.then()
        self.let_out([ref for ref in granted if ref in self.state.agenda])
        self.stop_unwanted()
        if self.unsent and not self.commit_due:
            self.commit_due = True
            self.after(0, self.commit)
        self.world.acknowledged(self, done)
        self.leave_if_idle()

    def fenced(self) -> None:
        """Somebody else owns the execution: what this process decided never was."""
        self.world.sometimes("frozen worker woke up fenced")
        self.owns = False
        self.unacked, self.unsent = [], []

    # -- Effects -------------------------------------------------------------------------------------------------------

    def let_out(self, keys: list[Ref | str]) -> None:
        """Starts what this worker is to run; what goes outside or to an account is the world's part."""
        for key in keys:
            effect = self.state.agenda.get(key)
            if isinstance(effect, RunAttempt) and effect.ref not in self.calls:
                self.after(self.world.queue_delay(), partial(self.begin, effect.ref))

    def begin(self, ref: Ref) -> None:
        if not self.owns or self.leaving or ref in self.calls or ref not in self.state.agenda:
            return
        holder = node_of(self.state, ref.path)
        if not needs_begin(holder, ref):
            self.call(ref)
        elif not any(isinstance(i.envelope.fact, f.Begun) and i.envelope.fact.ref == ref for i in self._pending()):
            fact = f.Begun(at=self.world.clock(), ref=ref, worker=self.name)
            self.handle(Envelope(fact, "local"), lambda: self.call(ref))

    def _pending(self) -> list[Item]:
        return [*self.unacked, *self.unsent]

    def call(self, ref: Ref) -> None:
        if not self.owns or ref in self.calls or ref not in self.state.agenda:
            return
        world = self.world
        call = world.handlers.script(self.state, ref)
        call.started_at = world.clock()
        self.calls[ref] = call
        world.begins(self.state, ref, call.key, generation_of(self.state, ref.path))
        if call.applies:
            self.after(call.apply_after, lambda: world.applies(call))
        limit = timeout_of(self.state, ref)
        if call.duration <= limit:
            self.after(call.duration, lambda: self.report(call, call.outcome))
            return
        self.after(limit, lambda: self.report(call, f.TimedOut(usage=world.rng.choice((0, 2)))))
        if world.rng.random() < world.handlers.habits.late:
            self.after(limit + world.rng.randint(0, 3_000), lambda: self.report_late(call))

    def report(self, call: Call, outcome: f.Outcome) -> None:
        if self.calls.get(call.ref) is not call:
            return
        world = self.world
        del self.calls[call.ref]
        fact = f.Reported(at=world.clock(), ref=call.ref, outcome=outcome, started_at=call.started_at, worker=self.name)
        if self.owns:
            self.handle(Envelope(fact, "local"))
            self.leave_if_idle()
        elif world.rng.random() < 0.7:  # it lost its lease: its answer is mail like any other's
            world.mail(fact)

    def report_late(self, call: Call) -> None:
        outcome = call.outcome
        fact = f.Reported(at=self.world.clock(), ref=call.ref, outcome=outcome, worker=self.name)
        self.world.mail(fact)

    def stop_unwanted(self) -> None:
        """What left the agenda while it was under way is to be stopped; not every handler can be."""
        for ref in list(self.calls):
            if ref not in self.state.agenda and self.world.rng.random() < 0.7:
                del self.calls[ref]

    # -- Leaving -------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Starts nothing more, waits for what runs, hands the rest back."""
        self.leaving = True
        self.leave_if_idle()

    def leave_if_idle(self) -> None:
        if not self.leaving or self.calls or self._pending() or not self.owns:
            return
        refs = tuple(effect.ref for effect in self.state.agenda.values() if isinstance(effect, RunAttempt))
        world = self.world
        if refs:
            world.sometimes("attempt handed back before it began")
            self.handle(Envelope(f.Returned(at=world.clock(), refs=refs), "local"), self.release)
        else:
            self.release()

    def release(self) -> None:
        if self._pending():  # something came in while it left
            return
        self.owns = False
        self.world.released(self)

    def die(self) -> None:
        self.alive = self.owns = False
