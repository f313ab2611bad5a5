"""Checked after every decision, and when all is quiet. The monitor keeps a second state, folded entry by entry."""

import json

import msgspec

from tenuto.checker import compensation, counters, waking
from tenuto.checker.history import Follower
from tenuto.checker.model import Model
from tenuto.kernel import codec
from tenuto.kernel import events as e
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, parent_of
from tenuto.kernel.decide import Decision, decide
from tenuto.kernel.evolve import find_step, scope_at
from tenuto.kernel.plan import Node, Plan
from tenuto.kernel.state import CLOSED, Execution, TimerKey
from tenuto.kernel.transitions import STEP_TRANSITIONS
from tests.checking.mailbox_facts import Mailed

from .answers import check_answer
from .observe import Watcher
from .rules import require
from .situations import Situations

SHIFTED = ("deadline", "reconcile", "scope", "execution", "review", "pending")
DERIVED = {"plan", "agenda", "timers", "timer_heap", "changed"}  # of the state: compared in another form, or not at all


def portrait(state: Execution) -> bytes:
    """Everything that a state holds, by its slots and not by what the codec knows of them."""
    fields = {name: getattr(state, name) for name in Execution.__slots__ if name not in DERIVED}
    fields["timers"] = sorted(state.timers.items())
    fields["agenda"] = sorted(map(repr, state.agenda.values()))
    return msgspec.json.encode(fields, enc_hook=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Node):
        return value.id
    return list(value)  # type: ignore[call-overload]  # a deque or an array


def difference(ours: bytes, theirs: bytes) -> str:
    left, right = json.loads(ours), json.loads(theirs)
    found = []
    for name in left:
        if left[name] != right[name]:
            if name == "nodes":
                for path in {**left[name], **right[name]}:
                    a, b = left[name].get(path), right[name].get(path)
                    if a != b and a is not None and b is not None:
                        found.append(f"{path!r}: " + str({k: (a[k], b.get(k)) for k in a if a[k] != b.get(k)}))
                    elif a != b:
                        found.append(f"{path!r}: {a} / {b}")
            else:
                found.append(f"{name}: {left[name]} / {right[name]}")
    return "; ".join(found) or "the order of keys"


class Shadow(Follower):
    """The checker's own follower: it stops at the first violation, and looks at what no row shows."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, lambda rule, *arguments: rule(*arguments))
        self.touched: dict[str, None] = {}  # steps, since the last decision

    def _record(self, entry: e.Entry) -> None:
        before, timers = self._statuses(), dict(self.state.timers)
        paused_at = self.model.paused_at
        super()._record(entry)
        if isinstance(entry.event, e.Resumed):
            assert paused_at is not None
            self._check_shift(timers, entry.at - paused_at)
        self._check_statuses(before, entry)

    def _grant(self, grant: e.Grant, entry: e.Entry) -> None:
        before = self._statuses()
        super()._grant(grant, entry)
        self._check_statuses(before, entry)

    def _ask_statuses(self, event: e.Event) -> None:
        self.touched |= dict.fromkeys(self.model.touched)
        super()._ask_statuses(event)

    def _check_shift(self, before: dict[TimerKey, int], paused: int) -> None:
        """Deadlines shift by the length of the pause, and nothing else does."""
        for (kind, path), due in before.items():
            if kind != "pause":
                wanted = due + paused if kind in SHIFTED else due
                require(self.state.timers.get((kind, path)) == wanted, "a pause shifts deadlines", f"{kind} {path!r}")

    def _statuses(self) -> dict[str, str]:
        return {step.path: step.status for step in waking.steps_of(self.state)}

    def _check_statuses(self, before: dict[str, str], entry: e.Entry) -> None:
        for path, status in self._statuses().items():
            was = before.get(path, "pending")
            legal: dict[str, tuple[str, ...]] = dict(STEP_TRANSITIONS)  # type: ignore[arg-type]  # keys are texts
            require(
                was == status or status in legal[was], "only legal transitions", f"{path}: {was} -> {status} {entry}"
            )


class Monitor:
    """Follows one execution. `rewind` when what was decided was not committed."""

    def __init__(self, plan: Plan, situations: Situations) -> None:
        self.plan = plan
        self.situations = situations
        self.follower = Shadow(plan)
        self.mailed = Mailed()
        self.in_hand: set[Ref | str] = set()

    @property
    def shadow(self) -> Execution:
        return self.follower.state

    @property
    def model(self) -> Model:
        return self.follower.model

    def rewind(self, history: list[e.Entry]) -> None:
        self.follower = Shadow(self.plan)
        for entry in history:
            self.follower.follow(entry)
        self.mailed.rewind(history)
        self.in_hand = set(self.shadow.agenda)

    def decided(self, fact: f.Fact, decision: Decision, state: Execution, now: int) -> None:
        if isinstance(decision.answer, f.Ignored | f.Refused):
            self._check_nothing_changed(fact, decision, now)
        check_answer(self.shadow, self.model, fact, decision)
        self.follower.touched = {}
        watcher = Watcher(self.situations, self.model, self.shadow, now)
        watcher.fact(fact, decision)
        for entry in decision.entries:
            self._check_wait(fact, entry)
            watcher.entry(entry)
            self.follower.follow(codec.decode_entry(codec.encode_entry(entry)))
        self.mailed.decided(state.id, fact, decision)
        self._check_agenda(state)
        if not decision.entries:
            return
        self._check_folds(state)
        waking.at_rest(state)
        counters.at_rest(state)
        compensation.at_rest(self.model)
        self._check_counts(state)

    # -- Entries -------------------------------------------------------------------------------------------------------

    def _check_nothing_changed(self, fact: f.Fact, decision: Decision, now: int) -> None:
        """A fact that was refused or ignored leaves what time alone would have left."""
        if not decision.entries:
            return
        twin = codec.decode_snapshot(self.plan, codec.encode_snapshot(self.shadow))
        assert twin is not None
        timers = decide(twin, f.Tick(at=fact.at), now).entries
        same = [entry.event for entry in timers] == [entry.event for entry in decision.entries]
        require(same, "what is refused changes nothing", f"{fact} gave {decision.entries}")

    def _check_wait(self, fact: f.Fact, entry: e.Entry) -> None:
        if isinstance(entry.event, e.WaitEnded):
            arriving = (fact.id,) if isinstance(fact, f.Signal) else ()
            known = entry.event.by in ("timer", *arriving, *self.model.kept)
            require(known, "a kept signal is used once", entry.event)

    # -- States --------------------------------------------------------------------------------------------------------

    def _check_folds(self, state: Execution) -> None:
        ours, folded = portrait(state), portrait(self.shadow)
        if ours != folded:
            require(False, "state = fold(history)", difference(ours, folded))
        require(state.wake_at == self.shadow.wake_at, "state = fold(history)", "wake_at")
        again = codec.decode_snapshot(self.plan, codec.encode_snapshot(state))
        assert again is not None
        restored = portrait(again)
        if ours != restored:
            require(False, "a snapshot holds everything", difference(ours, restored))
        require(state.wake_at == again.wake_at, "a snapshot holds everything", "wake_at")

    def _check_agenda(self, state: Execution) -> None:
        """The agenda kept equals the agenda recomputed, and the changes told add up to it."""
        require(state.agenda == codec.agenda_of(state), "the agenda kept is the agenda recomputed", state.agenda)
        for key in state.changed:
            if key in state.agenda:
                self.in_hand.add(key)
            else:
                self.in_hand.discard(key)
        state.changed.clear()
        require(self.in_hand == set(state.agenda), "changes of the agenda are told", self.in_hand ^ set(state.agenda))

    def _check_counts(self, state: Execution) -> None:
        """The kernel's counters of attempts are those of the history, and so are the signals that it keeps."""
        kept_signals = sorted(signal.id for signals in state.signals.values() for signal in signals)
        require(kept_signals == sorted(self.model.kept), "a kept signal is used once", kept_signals)
        for path in self.follower.touched:
            counted_step = self.model.steps[path]
            step = find_step(state, path)
            if step is None or path in scope_at(state, parent_of(path)).superseded:
                continue  # a clone that is closed keeps no counters, a step that was replaced needs none
            kept = (step.number, step.generation, step.open and step.open.ref)
            counted = (counted_step.number("forward"), counted_step.generation, counted_step.open)
            require(kept == counted, "counters equal counts", f"{path}: kept {kept}, counted {counted}")
            tried = (step.tries, step.losses), (len(counted_step.failures), counted_step.losses)
            over = step.status in CLOSED  # nobody counts on
            require(over or tried[0] == tried[1], "counters equal counts", f"{path}: kept, counted {tried}")
            kept_undo = (step.undo_number, step.undo_tries, step.undo_losses)
            counted_undo = (counted_step.number("compensate"), counted_step.undo_failures, counted_step.undo_losses)
            over = step.undo not in ("running", "retrying")
            require(over or kept_undo == counted_undo, "counters equal counts", f"{path}: {kept_undo}, {counted_undo}")
