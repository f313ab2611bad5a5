"""The simulated world of one execution: a virtual clock, workers that die, a store that lies, people and strangers.

Two phases: first hostile, then quiet. Safety is checked after every decision; that the execution ends, or is surfaced
to somebody, when everything is quiet. Then people help, and it must end.
Everything is drawn from the seed, in one thread, so a seed is a run.
"""

import heapq
from collections.abc import Callable
from random import Random

import msgspec
from msgspec import Raw

from tenuto.checker.model import refs_of
from tenuto.kernel import codec
from tenuto.kernel import events as e
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.decide import Decision, decide
from tenuto.kernel.effects import DispatchAttempt, RequestAdmission, RequestHold, RunAttempt
from tenuto.kernel.state import Execution

from .effects import LEASE_MS, Call, Habits, Handlers, Oracle, draw_habits, node_of, undone_in_vain
from .faults import Faults, draw_rates
from .invariants import Monitor, portrait
from .outside import Outside, draw_manners
from .people import People
from .programs import draw_program
from .rules import require
from .situations import Situations
from .store import Envelope, Store
from .trace import Trace, short
from .worker import Item, Worker

EPOCH_MS = 1_000_000
HOSTILE_ACTIONS = (30, 80, 200, 400)
MAX_ACTIONS = 6_000
MAX_HELP = 120


class World:
    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        self.seed = seed
        self.rng = Random(f"world {seed}")
        self.program = draw_program(seed)
        self.trace = Trace(verbose=verbose)
        self.situations = Situations()
        self.sometimes = self.situations.sometimes
        self.time = EPOCH_MS
        self.offset = 0
        self.hostile = True
        self.actions = 0
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.planned = 0
        self.store = Store(self.program.plan)
        self.monitor = Monitor(self.program.plan, self.situations)
        self.oracle = Oracle()
        self.handlers = Handlers(self.rng, self._habits(), self.oracle, self.program.planned)
        self.faults = Faults(self, draw_rates(self.rng))
        self.outside = Outside(self, draw_manners(self.rng))
        self.people = People(self, self.rng)
        self.owner: Worker | None = None
        self.workers = 0
        self.claim_at: int | None = None
        self.asked: dict[str, None] = {}

    def _habits(self) -> Habits:
        habits = draw_habits(self.rng)
        in_vain = "rollback" in self.program.features
        return undone_in_vain(habits, Random(f"habits {self.seed}")) if in_vain else habits

    # -- Time ----------------------------------------------------------------------------------------------------------

    def clock(self) -> int:
        return self.time + self.offset

    def after(self, delay: int, action: Callable[[], None]) -> None:
        self.planned += 1
        heapq.heappush(self.queue, (self.time + max(delay, 0), self.planned, action))

    def latency(self) -> int:
        return self.rng.choice((0, 0, 1, 3, 20))

    def queue_delay(self) -> int:
        return self.rng.choice((0, 0, 1, 10, 150))

    def note(self, text: str) -> None:
        self.trace.note(self.time, text)

    # -- One seed ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.note(f"program {self.program.plan.hash} {sorted(self.program.features)}")
        self.start()
        self.after(self.rng.randint(0, 500), self.people.act)
        self.play(self.rng.choice(HOSTILE_ACTIONS))
        self.calm_down()
        self.play(MAX_ACTIONS)
        require(not self.queue, "every execution settles", "still busy after the quiet phase")
        self.check_quiet()
        for patience in range(MAX_HELP, 0, -1):
            if not self.people.help(self.seen(), patience - MAX_HELP + 10):
                break
            self.play(MAX_ACTIONS)
            self.check_quiet()
        state = self.seen()
        require(state.finished is not None, "people can end every execution", state.status)

    def play(self, limit: int) -> None:
        while self.queue and limit:
            limit -= 1
            self.time, _, action = heapq.heappop(self.queue)
            action()
            self.actions += 1
            if self.hostile:
                self.faults.strike()

    def calm_down(self) -> None:
        """No faults from now on. Whoever is frozen wakes up, whoever was killed is replaced."""
        self.note("--- quiet ---")
        self.hostile = False
        self.handlers.calm = True
        self.poke()

    def check_quiet(self) -> None:
        """Nothing is under way any more: it ended, or somebody is asked for something."""
        state = self.seen()
        self._check_doubts()
        require(not self.store.mailbox, "mail is consumed", self.store.mailbox)
        folded = self.store.load(from_snapshot=False)
        require(portrait(folded) == portrait(state), "state = fold(history)", "at quiescence")
        if state.finished is not None:
            return
        asks = [review for review in state.reviews.values() if review.kind != "dead_letter"]
        surfaced = state.pause is not None or asks or state.waits
        require(surfaced, "every execution ends or is surfaced", f"{state.status}, agenda {list(state.agenda)}")

    def _check_doubts(self) -> None:
        """Whoever terminates is told which unsafe effects may have been under way (K-5)."""
        model = self.monitor.model
        for ref in model.cut_off:
            begun = ref in self.oracle.refs
            require(not begun or ref.path in model.asked, "what was cut off unsafely is asked about", ref)

    # -- Starting ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        program = self.program
        owned = program.owned
        state = Execution(program.plan)
        if owned:
            self.store.epoch = 1
        worker = Worker(self, "w1", self.store.epoch, state)
        fact = f.Start(
            at=self.clock(),
            execution=f"x{self.seed}",
            tenant="t",
            input=Raw(msgspec.json.encode(program.input)),
            each=program.each,
            concurrency_key="key" if "admission" in program.features else None,
            admitted=program.admitted,
            owned=owned,
            hold=program.hold,
        )
        now = self.clock()
        decision = decide(state, fact, now)
        self.decided(worker, fact, decision, state, now)
        self.append(decision.entries, [])
        if owned:
            self.owner = worker
            self.workers = 1
            worker.let_out(list(state.agenda))
            self.watch_clock(worker)
        else:
            self.poke()

    # -- Ownership -----------------------------------------------------------------------------------------------------

    def seen(self) -> Execution:
        """The state as somebody outside may know it: of the owner, or as it was recorded."""
        return self.owner.state if self.owner is not None else self.store.committed

    def load(self) -> Execution:
        use = self.rng.random() < self.faults.rates.snapshot and self.store.snapshot is not None
        self.sometimes("loaded from a snapshot and a tail", use and self.store.snapshot is not None)
        return self.store.load(from_snapshot=use)

    def rewound(self, state: Execution) -> None:
        """What was decided and not committed never was."""
        self.forget_undecided()
        state.changed.clear()
        require(
            portrait(state) == portrait(self.monitor.shadow), "state = fold(history)", "after loading from the store"
        )

    def forget_undecided(self) -> None:
        if self.monitor.shadow.seq != len(self.store.history):
            self.monitor.rewind(self.store.read())
        self.monitor.in_hand = set(self.monitor.shadow.agenda)

    def poke(self) -> None:
        """Somebody looks for executions that nobody owns and that have something to do."""
        if self.owner is not None or self.claim_at is not None:
            return
        state = self.store.committed
        delay: int | None = None
        if self.store.mailbox or any(isinstance(effect, RunAttempt) for effect in state.agenda.values()):
            delay = self.rng.randint(0, 300)
        elif state.wake_at is not None:
            delay = max(state.wake_at - self.clock(), 0) + self.rng.randint(0, 20)
        if delay is not None:
            self.claim_at = self.time + delay
            self.after(delay, self.claim)

    def claim(self) -> None:
        self.claim_at = None
        if self.owner is not None:
            return
        self.store.epoch += 1
        self.workers += 1
        worker = Worker(self, f"w{self.workers}", self.store.epoch, self.load())
        self.owner = worker
        self.rewound(worker.state)
        self.note(f"{worker.name} claims, epoch {worker.epoch}")
        worker.took_over = False
        worker.handle(Envelope(f.Taken(at=self.clock(), epoch=worker.epoch, lease_ms=LEASE_MS), "local"))
        for envelope in list(self.store.mailbox):
            self.deliver(envelope)

    def crash(self, worker: Worker) -> None:
        self.note(f"{worker.name} crashes")
        self.sometimes("worker crashed")
        self.sometimes("worker crashed again before its takeover was recorded", not worker.took_over)
        between = [ref for ref in worker.state.agenda if isinstance(ref, Ref) and ref not in worker.calls]
        self.sometimes("worker crashed between commit and effect", bool(between))
        applied = [call for call in worker.calls.values() if self.oracle.applied[call.key]]
        self.sometimes("worker crashed after effect, before report", bool(applied))
        worker.die()
        self._abandoned()

    def freeze(self, worker: Worker) -> None:
        """It does nothing for longer than its lease, and does not know."""
        worker.frozen_until = self.time + self.rng.randint(LEASE_MS, 4 * LEASE_MS)
        self.note(f"{worker.name} freezes until {worker.frozen_until}")
        self._abandoned()

    def _abandoned(self) -> None:
        """Its lease runs out, then somebody takes over. What it had not committed is forgotten at once."""
        self.owner = None
        self.forget_undecided()
        self.claim_at = self.time + self.rng.randint(0, LEASE_MS)
        self.after(self.claim_at - self.time, self.claim)

    def released(self, worker: Worker) -> None:
        self.note(f"{worker.name} leaves")
        if self.owner is worker:
            self.owner = None
            self.poke()

    # -- Facts on their way --------------------------------------------------------------------------------------------

    def mail(self, fact: f.Fact) -> None:
        """Arrives now, is handled later: what counts is when it arrived."""
        envelope = Envelope(fact, "mail")
        self.store.mailbox.append(envelope)
        self.after(self.rng.choice((0, 0, 2, 50)), lambda: self.deliver(envelope))

    def deliver(self, envelope: Envelope) -> None:
        if envelope not in self.store.mailbox:
            return
        owner = self.owner
        if owner is not None:
            if self.time < owner.frozen_until:
                return
            if not any(item.envelope is envelope for item in (*owner.unacked, *owner.unsent)):
                envelope.fact = _as_decided_by(envelope.fact, owned=True)
                owner.handle(envelope)
        elif self.rng.random() < self.faults.rates.unowned_mail:
            self.receive(envelope)
        else:
            self.poke()

    def command(self, fact: f.Fact) -> None:
        """Somebody waits for the answer. It goes by mail, as everything that the owner does not report itself."""
        self.mail(fact)

    def receive(self, envelope: Envelope) -> None:
        """Nobody owns the execution: whoever received the mail locks it, decides, appends and lets go."""
        self.sometimes("mail decided while nobody owned the execution")
        state = self.load()
        self.rewound(state)
        receiver = Worker(self, "receiver", self.store.epoch, state)
        envelope.fact = _as_decided_by(envelope.fact, owned=False)
        now = self.clock()
        decision = decide(state, envelope.fact, now)
        self.decided(receiver, envelope.fact, decision, state, now)
        entries = list(decision.entries)
        granted = {ref for entry in entries for grant in entry.grants for ref in refs_of(grant)}
        refs = tuple(
            effect.ref for effect in state.agenda.values() if isinstance(effect, RunAttempt) and effect.ref in granted
        )
        if refs:
            back = f.Returned(at=now, refs=refs)
            returned = decide(state, back, now)
            self.decided(receiver, back, returned, state, now)
            entries += returned.entries
        if self.faults.commit() == "ok":
            self.append(entries, [envelope])
        else:
            self.forget_undecided()
            self.after(50, lambda: self.deliver(envelope))
        self.poke()

    # -- What happens --------------------------------------------------------------------------------------------------

    def decided(self, worker: Worker, fact: f.Fact, decision: Decision, state: Execution, now: int) -> None:
        self.note(f"{worker.name} {short(fact)} -> {short(decision.answer)}")
        for entry in decision.entries:
            grants = " ".join(f"+{'/'.join(map(str, ref.parts))}" for grant in entry.grants for ref in refs_of(grant))
            self.note(f"    {entry.seq} {short(entry.event)} {grants}")
        self.monitor.decided(fact, decision, state, now)

    def append(self, entries: list[e.Entry], consumed: list[Envelope]) -> None:
        """Committed. Directives, admissions and holds are rows of the same transaction."""
        self.store.append(entries, consumed)
        if not entries:
            return
        state = self.store.committed
        if self.rng.random() < self.faults.rates.snapshot / 4:
            self.store.snapshot = (state.seq, codec.encode_snapshot(state))
        for key, effect in state.agenda.items():
            match effect:
                case DispatchAttempt(ref):
                    self.outside.publish(state, ref)
                case RequestAdmission():
                    self._ask(f"{key} {state.run}", f.Admitted(at=0, key="key"))
                case RequestHold(amount, run):
                    granted = self.rng.random() < 0.6
                    admitted = state.concurrency_key is None or self.rng.random() < 0.5
                    answer = f.HoldGranted(at=0, amount=amount, admitted=admitted) if granted else f.HoldRefused(at=0)
                    self._ask(f"{key} {run}", answer)

    def _ask(self, question: str, answer: f.Fact) -> None:
        if question not in self.asked:
            self.asked[question] = None
            twice = self.hostile and self.rng.random() < 0.2
            for delay in (self.rng.randint(0, 800), 900)[: 1 + twice]:
                self.after(delay, lambda: self.mail(msgspec.structs.replace(answer, at=self.clock())))

    def acknowledged(self, worker: Worker, items: list[Item]) -> None:
        if worker.state.finished is not None and not worker.unsent and not worker.calls:
            worker.release()

    def was_granted(self, ref: Ref) -> bool:
        """Whether there was such an attempt: of one that there was, anybody may hold an answer."""
        step = self.monitor.model.steps.get(ref.path)
        return step is not None and ref.number <= step.number(ref.phase)

    def begins(self, state: Execution, ref: Ref, key: str, generation: int) -> None:
        node = node_of(state, ref.path)
        unsafe = not node.is_scope and node.step.safety == "NOT_SAFE_TO_RETRY"
        self.note(f"    begins {'/'.join(map(str, ref.parts))}")
        clearances = self.monitor.model.clearances[ref.path]
        self.oracle.begin(ref, key, generation, unsafe=unsafe, clearances=clearances)

    def applies(self, call: Call) -> None:
        self.note(f"    effect of {'/'.join(map(str, call.ref.parts))}")
        self.oracle.apply(call)

    def watch_clock(self, worker: Worker) -> None:
        """A tick when the next timer is due, or some time after."""
        wake_at = worker.state.wake_at
        if wake_at is None:
            return
        due = max(wake_at - self.offset, self.time)
        if worker.tick_at is not None and self.time < worker.tick_at <= due:
            return
        late = self.rng.randint(0, 600) if self.faults.happens(self.faults.rates.late_tick) else 0
        worker.tick_at = due + late
        worker.after(due + late - self.time, lambda: self._tick(worker))

    def _tick(self, worker: Worker) -> None:
        worker.tick_at = None
        if not worker.owns or self.owner is not worker:
            return
        wake_at = worker.state.wake_at
        if wake_at is not None and wake_at <= self.clock():
            worker.handle(Envelope(f.Tick(at=self.clock()), "clock"))
        else:
            self.watch_clock(worker)


def _as_decided_by(fact: f.Fact, *, owned: bool) -> f.Fact:
    """A new run is its decider's, if that is the owner, and otherwise waits for one."""
    return msgspec.structs.replace(fact, owned=owned) if isinstance(fact, f.Retry) else fact
