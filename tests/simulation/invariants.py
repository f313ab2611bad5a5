"""Checked after every decision, and when all is quiet. The monitor keeps a second state, folded entry by entry."""

import json

import msgspec

from tenuto.kernel import codec
from tenuto.kernel import events as e
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, parent_of
from tenuto.kernel.decide import Decision, decide
from tenuto.kernel.evolve import apply, apply_grant, evolve, find_step, scope_at
from tenuto.kernel.plan import Node, Plan
from tenuto.kernel.state import CLOSED, EXECUTION_TRANSITIONS, STEP_TRANSITIONS, Execution, TimerKey

from .answers import check_answer
from .laws import check_state, steps_of
from .model import Model, refs_of
from .observe import Watcher
from .rules import check_charges, check_concurrency, check_event, check_grant, require
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


class Monitor:
    """Follows one execution. `rewind` when what was decided was not committed."""

    def __init__(self, plan: Plan, situations: Situations) -> None:
        self.plan = plan
        self.situations = situations
        self.shadow = Execution(plan)
        self.model = Model(plan)
        self.in_hand: set[Ref | str] = set()

    def rewind(self, history: list[e.Entry]) -> None:
        self.shadow = Execution(self.plan)
        self.model = Model(self.plan)
        for entry in history:
            self._follow(entry, check=False)
        self.in_hand = set(self.shadow.agenda)
        self.shadow.changed.clear()

    def decided(self, fact: f.Fact, decision: Decision, state: Execution, now: int) -> None:
        if isinstance(decision.answer, f.Ignored | f.Refused):
            self._check_nothing_changed(fact, decision, now)
        check_answer(self.shadow, self.model, fact, decision)
        self.model.touched = {}
        self.model.arriving = fact.id if isinstance(fact, f.Signal) else ""
        watcher = Watcher(self.situations, self.model, self.shadow, now)
        watcher.fact(fact, decision)
        for entry in decision.entries:
            self._check_entry(entry)
            watcher.entry(entry)
            self._follow(codec.decode_entry(codec.encode_entry(entry)))
        self._check_agenda(state)
        if not decision.entries:
            return
        self._check_folds(state)
        check_state(state)
        check_charges(self.model)
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

    def _check_entry(self, entry: e.Entry) -> None:
        shadow = self.shadow
        require(entry.seq == shadow.seq + 1, "a history has no gaps", entry)
        require(entry.at >= shadow.at, "time never goes back", entry)
        require(entry.epoch >= shadow.epoch, "epochs never go back", entry)

    def _follow(self, entry: e.Entry, *, check: bool = True) -> None:
        """`evolve`, one change after another, so that each can be looked at."""
        shadow, model = self.shadow, self.model
        if not check:
            evolve(shadow, entry)
            model.apply(entry)
            for ref in (ref for grant in entry.grants for ref in refs_of(grant)):
                model.grant(ref, entry)
            return
        before = self._statuses()
        timers = dict(shadow.timers)
        check_event(model, entry)
        shadow.seq, shadow.at, shadow.epoch = entry.seq, entry.at, entry.epoch
        apply(shadow, entry.event)
        if isinstance(entry.event, e.Resumed):
            self._check_shift(timers, entry)
        model.apply(entry)
        before = self._check_statuses(before, entry)
        if isinstance(entry.event, e.ScopeOpened):
            check_concurrency(model, entry.event.path)
        for grant in entry.grants:
            for ref in refs_of(grant):
                check_grant(model, ref, entry)
                model.grant(ref, entry)
                if ref.phase == "forward":
                    check_concurrency(model, ref.path)
            apply_grant(shadow, grant)
            before = self._check_statuses(before, entry)

    def _check_shift(self, before: dict[TimerKey, int], entry: e.Entry) -> None:
        """Deadlines shift by the length of the pause, and nothing else does."""
        assert self.model.paused_at is not None
        paused = entry.at - self.model.paused_at
        for (kind, path), due in before.items():
            if kind != "pause":
                wanted = due + paused if kind in SHIFTED else due
                require(self.shadow.timers.get((kind, path)) == wanted, "a pause shifts deadlines", f"{kind} {path!r}")

    def _statuses(self) -> dict[str, str]:
        statuses: dict[str, str] = {step.path: step.status for step in steps_of(self.shadow)}
        statuses["*"] = self.shadow.status
        return statuses

    def _check_statuses(self, before: dict[str, str], entry: e.Entry) -> dict[str, str]:
        after = self._statuses()
        for path, status in after.items():
            was = before.get(path, "running" if path == "*" else "pending")
            if was == status:
                continue
            table: dict[str, tuple[str, ...]] = dict(EXECUTION_TRANSITIONS if path == "*" else STEP_TRANSITIONS)  # type: ignore[arg-type]
            require(status in table[was], "only legal transitions", f"{path}: {was} -> {status} by {entry.event}")
            if path == "*" and was == "failed":
                require(isinstance(entry.event, e.RunOpened), "terminal states never change", entry.event)
        return after

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
        for path, track in self.model.touched.items():
            step = find_step(state, path)
            if step is None or path in scope_at(state, parent_of(path)).superseded:
                continue  # a clone that is closed keeps no counters, a step that was replaced needs none
            kept = (step.number, step.generation, step.open and step.open.ref)
            counted = (track.numbers["forward"], track.generation, track.open)
            require(kept == counted, "counters equal counts", f"{path}: kept {kept}, counted {counted}")
            tried = (step.tries, step.losses), (len(track.failures), track.losses)
            over = step.status in CLOSED  # nobody counts on
            require(over or tried[0] == tried[1], "counters equal counts", f"{path}: kept, counted {tried}")
            kept_undo = (step.undo_number, step.undo_tries, step.undo_losses)
            counted_undo = (track.numbers["compensate"], track.undo_failures, track.undo_losses)
            over = step.undo not in ("running", "retrying")
            require(over or kept_undo == counted_undo, "counters equal counts", f"{path}: {kept_undo}, {counted_undo}")
