"""The planted bugs: each is a list of changes to the kernel. Where a function is used, not where it is written, it is
replaced: modules of the kernel import one another's functions by name.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from tenuto.kernel import codec, compensation, decide, definition, evolve, plan, retry
from tenuto.kernel import events as e
from tenuto.kernel import facts as f
from tenuto.kernel.address import parent_of
from tenuto.kernel.decide import cancel, ending, people, runs, timers
from tenuto.kernel.decide.attempts import dispatch, forward, losses, proposals, reports, steps
from tenuto.kernel.decide.scopes import closing, progress, rounds
from tenuto.kernel.decide.turn import Turn, may_start
from tenuto.kernel.evolve import attempts as evolve_attempts
from tenuto.kernel.evolve import lifecycle, nodes, parts, structure
from tenuto.kernel.evolve import people as evolve_people
from tenuto.kernel.plan import Plan
from tenuto.kernel.retry import Judgement
from tenuto.kernel.state import Execution, FanState, ScopeState, StepState

Change = tuple[Any, Any, Any]  # where, the name of an attribute or a key, what is there instead
Changes = Callable[[], list[Change]]


@dataclass(frozen=True)
class Mutant:
    name: str
    changes: Changes


MUTANTS: list[Mutant] = []

ATTEMPTS = (dispatch, forward, losses, proposals, reports, steps)


def in_attempts(name: str, instead: Any) -> list[Change]:
    """Replaces a name in all rules about attempts that use it."""
    changes = [(module, name, instead) for module in ATTEMPTS if name in vars(module)]
    assert changes, f"no rule about attempts uses {name}"
    return changes


def mutant(name: str) -> Callable[[Changes], Changes]:
    def register(changes: Changes) -> Changes:
        MUTANTS.append(Mutant(name, changes))
        return changes

    return register


# -- Safety ------------------------------------------------------------------------------------------------------------


def _judged(safety: str) -> list[Change]:
    judge = retry.judge

    def careless(step: definition.Step, *args: Any, **options: Any) -> Judgement:
        judgement = judge(step, *args, **options)
        if step.safety == safety and judgement.verdict in ("probe", "review") and options["may_repeat"]:
            return Judgement("retry")
        return judgement

    return in_attempts("judge", careless)


@mutant("a step that is not safe to retry is retried")
def _() -> list[Change]:
    return _judged("NOT_SAFE_TO_RETRY")


@mutant("a guard is not asked before a repetition")
def _() -> list[Change]:
    return _judged("SAFE_TO_RETRY_WITH_GUARD")


@mutant("a round repeats completed steps that are not safe to repeat")
def _() -> list[Change]:
    return [(structure, "repeats_nothing", lambda node: False)]


@mutant("a round repeats failed steps that are not safe to repeat")
def _() -> list[Change]:
    return [(progress, "tried_in_vain", lambda state, scope: False)]


@mutant("after a takeover what was under way simply runs again")
def _() -> list[Change]:
    return [(losses, "needs_begin", lambda node, ref: True)]


@mutant("a terminated unsafe attempt leaves no question")
def _() -> list[Change]:
    return [(cancel, "may_have_been_made", lambda step: False)]


@mutant("an unconfirmed directive is sent again whatever it does")
def _() -> list[Change]:
    return [(dispatch, "_after_refusal", lambda state, step, ref, failure: ("retry", None))]


# -- Attempts and leases -----------------------------------------------------------------------------------------------


@mutant("a forged lease is accepted")
def _() -> list[Change]:
    why_stale = reports._why_stale

    def trusting(state: Execution, holder: Any, fact: f.Reported) -> f.Ignored | None:
        return why_stale(state, holder, msgspec.structs.replace(fact, lease=None))

    return [(reports, "_why_stale", trusting)]


@mutant("a late answer is thrown away")
def _() -> list[Change]:
    why_stale = reports._why_stale

    def deaf(state: Execution, holder: Any, fact: f.Reported) -> f.Ignored | None:
        if getattr(holder, "late", None) == fact.ref:
            return f.Ignored("stale_attempt")
        return why_stale(state, holder, fact)

    return [(reports, "_why_stale", deaf)]


@mutant("losses are counted as tries")
def _() -> list[Change]:
    attempt_lost = evolve_attempts.attempt_lost

    def counting(state: Execution, event: e.AttemptLost) -> None:
        attempt_lost(state, event)
        for loss in event.losses:
            step = evolve.find_step(state, loss.path)
            if step is not None:
                step.tries += 1

    return [(evolve._APPLY, e.AttemptLost, counting)]


@mutant("losses are not bounded")
def _() -> list[Change]:
    judge = retry.judge

    def patient(step: definition.Step, how: Any, error_class: Any, **options: Any) -> Judgement:
        return judge(step, how, error_class, **{**options, "losses": 0})

    return in_attempts("judge", patient)


@mutant("one try too many")
def _() -> list[Change]:
    judge = retry.judge

    def generous(step: definition.Step, how: Any, error_class: Any, **options: Any) -> Judgement:
        return judge(step, how, error_class, **{**options, "tries": options["tries"] - 1})

    return in_attempts("judge", generous)


@mutant("classes that the policy does not name are retried")
def _() -> list[Change]:
    judge = retry.judge

    def eager(step: definition.Step, *args: Any, **options: Any) -> Judgement:
        policy = msgspec.structs.replace(step.retry_policy, retry_on_classes=definition.RETRIED_BY_DEFAULT)
        return judge(msgspec.structs.replace(step, retry_policy=policy), *args, **options)

    return in_attempts("judge", eager)


@mutant("back-off is not waited for")
def _() -> list[Change]:
    return in_attempts("delay_ms", lambda *args: 0)


@mutant("Retry-After is not read")
def _() -> list[Change]:
    delay_ms = retry.delay_ms

    def hasty(policy: Any, error_class: Any, tries: int, retry_after: int | None, *seed: str) -> int:
        return delay_ms(policy, error_class, tries, None, *seed)

    return in_attempts("delay_ms", hasty)


# -- Slots, order, wake-ups --------------------------------------------------------------------------------------------


@mutant("a slot is not freed")
def _() -> list[Change]:
    return [(evolve_attempts, "free_slot", lambda state, step: None)]


@mutant("a repetition ignores the concurrency limit")
def _() -> list[Change]:
    return in_attempts("has_slot", lambda state, step: True)


@mutant("what a person decided leads nowhere")
def _() -> list[Change]:
    return [(people, "go_on", lambda turn, step: None)]


@mutant("a freed slot is offered to nobody")
def _() -> list[Change]:
    return in_attempts("advance", lambda turn, scope: None if scope.busy else progress.advance(turn, scope))


@mutant("two layers begin together")
def _() -> list[Change]:
    layers_of = plan._layers

    def merged(children: tuple[plan.Node, ...]) -> tuple[tuple[int, ...], ...]:
        layers = layers_of(children)
        return (layers[0] + layers[1], *layers[2:]) if len(layers) > 1 else layers

    return [(plan, "_layers", merged)]


@mutant("a dependency is not waited for")
def _() -> list[Change]:
    leave_scope = nodes.leave_scope

    def early(state: Execution, scope: ScopeState, node: Any, path: str, status: Any, **options: Any) -> None:
        waiting = [index for index, left in enumerate(scope.unmet) if left == 2]
        leave_scope(state, scope, node, path, status, **options)
        for index in waiting:
            if scope.unmet[index] == 1:
                scope.ready.append(index)

    return [(nodes, "leave_scope", early), (structure, "leave_scope", early)]


@mutant("the cursor of a fan-out skips a clone")
def _() -> list[Change]:
    opened_clone = nodes.opened_clone

    def skipping(state: Execution, fan: FanState, index: int, path: str) -> StepState:
        step = opened_clone(state, fan, index, path)
        if fan.cursor == index + 1 == 2:
            fan.cursor += 1
        return step

    return [(nodes, "opened_clone", skipping)]


@mutant("clones of a flow's fan-out are not started one after another")
def _() -> list[Change]:
    drop_idle_fan = nodes.drop_idle_fan

    def forgetful(state: Execution, fan: FanState) -> None:
        drop_idle_fan(state, fan)
        scope = evolve.scope_at(state, parent_of(fan.path))
        if scope.node.is_flow:
            scope.fans.pop(fan.path, None)

    return [(nodes, "drop_idle_fan", forgetful)]


# -- Control -----------------------------------------------------------------------------------------------------------


def _may_start(**ignored: object) -> list[Change]:
    """`may_start` with a blind eye."""

    def blind(state: Execution) -> bool:
        saved = {name: getattr(state, name) for name in ignored}
        for name, value in ignored.items():
            setattr(state, name, value)
        try:
            return may_start(state)
        finally:
            for name, value in saved.items():
                setattr(state, name, value)

    return [(progress, "may_start", blind), *in_attempts("may_start", blind)]


@mutant("a pause does not stop new attempts")
def _() -> list[Change]:
    return _may_start(pause=None)


@mutant("nobody waits for admission")
def _() -> list[Change]:
    return _may_start(admitted=True)


@mutant("attempts are repeated in a closing scope and under a cancel")
def _() -> list[Change]:
    return in_attempts("may_repeat", lambda state, step: True)


@mutant("a pause does not hold probes")
def _() -> list[Change]:
    return [(timers, "HELD_BY_PAUSE", ("retry", "round", "wait"))]


@mutant("a pause does not shift deadlines")
def _() -> list[Change]:
    resumed = lifecycle.resumed
    return [(evolve._APPLY, e.Resumed, lambda state, event: resumed(state, e.Resumed(0)))]


@mutant("an ended execution can be paused")
def _() -> list[Change]:
    def pause(turn: Turn, fact: f.Pause) -> f.Answer:
        turn.emit(e.Paused(fact.reason, None))
        return f.APPLIED

    return [(decide._DECIDE, f.Pause, pause)]


@mutant("running attempts are not awaited when a scope closes")
def _() -> list[Change]:
    return [(closing, "must_be_awaited", lambda step: False)]


@mutant("the time of an event goes back with the clock")
def _() -> list[Change]:
    init = Turn.__init__

    def naive(self: Turn, state: Execution, now: int) -> None:
        init(self, state, now)
        self.now = now

    return [(Turn, "__init__", naive)]


@mutant("a message is handled before the timers that were due when it came")
def _() -> list[Change]:
    return [(decide, "min", lambda *moments: -1)]  # the moment up to which timers fire before the message


# -- Undo --------------------------------------------------------------------------------------------------------------


@mutant("undo goes forwards")
def _() -> list[Change]:
    undo_groups = compensation.undo_groups
    return [(ending, "undo_groups", lambda state: tuple(reversed(undo_groups(state))))]


@mutant("earlier undos do not wait for those that a person had tried again")
def _() -> list[Change]:
    return [(ending, "_tried_again", lambda undo: False)]


@mutant("half-done steps are not undone")
def _() -> list[Change]:
    completed = compensation._completed

    def only_whole(state: Execution) -> list[tuple[int, str]]:
        found = []
        for seq, path in completed(state):
            step = evolve.find_step(state, path)
            if step is None or not step.half_done:
                found.append((seq, path))
        return found

    return [(compensation, "_completed", only_whole)]


@mutant("an open breaker stops nothing")
def _() -> list[Change]:
    policy = compensation.POLICIES["CIRCUIT_BREAKER"]
    return [(compensation.POLICIES, "CIRCUIT_BREAKER", policy._replace(on_failure="go_on"))]


@mutant("a strict undo goes on after a failure")
def _() -> list[Change]:
    policy = compensation.POLICIES["STRICT_SEQUENTIAL"]
    return [(compensation.POLICIES, "STRICT_SEQUENTIAL", policy._replace(on_failure="go_on"))]


@mutant("a failed undo is not surfaced")
def _() -> list[Change]:
    return in_attempts("open_undo_failure", lambda turn, step: None)


@mutant("what was undone is made again under the old key")
def _() -> list[Change]:
    redo_list = runs._redo_list

    def same_keys(state: Execution, fact: f.Retry) -> Any:
        redo = redo_list(state, fact)
        return redo if isinstance(redo, f.Refused) else tuple((path, max(number - 1, 1)) for path, number in redo)

    return [(runs, "_redo_list", same_keys)]


# -- Credits, rounds ---------------------------------------------------------------------------------------------------


@mutant("the refund forgets what was charged")
def _() -> list[Change]:
    def generous(*args: Any) -> e.ExecutionFinished:
        finished = e.ExecutionFinished(*args)
        return msgspec.structs.replace(finished, refunded=finished.refunded + finished.charged)

    return [(ending, "ExecutionFinished", generous)]


@mutant("usage is charged beyond the hold")
def _() -> list[Change]:
    return in_attempts("charge", lambda state, usage: (usage if state.hold else 0, False))


@mutant("the retry budget is not spent")
def _() -> list[Change]:
    def unspent(path: str, round: int, budget_left: int, not_before: int) -> e.ScopeRestarted:
        return e.ScopeRestarted(path, round, budget_left + 1, not_before)

    return [(rounds, "ScopeRestarted", unspent)]


@mutant("rounds are not bounded")
def _() -> list[Change]:
    may_restart = closing._may_restart

    def again(state: Execution, scope: ScopeState, failure: e.Failure) -> bool:
        saved, scope.round = scope.round, 1
        try:
            return may_restart(state, scope, failure)
        finally:
            scope.round = saved

    return [(closing, "_may_restart", again)]


# -- Waits, timers, bookkeeping ----------------------------------------------------------------------------------------


@mutant("a signal that nobody waits for is dropped")
def _() -> list[Change]:
    signaled = people.signaled

    def dropping(turn: Turn, fact: f.Signal) -> f.Answer:
        waited_for = turn.state.finished is not None or fact.name in turn.state.waits
        return signaled(turn, fact) if waited_for else f.APPLIED

    return [(decide._DECIDE, f.Signal, dropping)]


@mutant("a kept signal is used twice")
def _() -> list[Change]:
    wait_ended = evolve_people.wait_ended

    def keeping(state: Execution, event: e.WaitEnded) -> None:
        name = parts.step_at(state, event.path).waits_for
        kept = list(state.signals.get(name or "", ()))
        wait_ended(state, event)
        if name is not None and kept and name not in state.signals:
            state.signals[name] = deque(kept)

    return [(evolve._APPLY, e.WaitEnded, keeping)]


@mutant("a wait has no timer")
def _() -> list[Change]:
    return [(evolve_people, "set_timer", lambda state, kind, path, due: None)]


@mutant("timers of a closed step go on")
def _() -> list[Change]:
    return [(nodes, "clear_timer", lambda state, kind, path: None)]


@mutant("an approval that timed out stays open")
def _() -> list[Change]:
    def emit(self: Turn, event: e.Event, emit: Any = Turn.emit) -> None:
        if not (isinstance(event, e.ReviewResolved) and event.reason == "nobody decided in time"):
            emit(self, event)

    return [(Turn, "emit", emit)]


@mutant("an ended attempt stays on the agenda")
def _() -> list[Change]:
    end_attempt = evolve_attempts.end_attempt

    def keeping(state: Execution, step: StepState) -> None:
        kept = step.open and (step.open.ref, state.agenda[step.open.ref])
        end_attempt(state, step)
        if kept and kept[0].phase == "guard":
            state.agenda[kept[0]] = kept[1]

    return [(evolve_attempts, "end_attempt", keeping), (structure, "end_attempt", keeping)]


@mutant("changes of the agenda are not told")
def _() -> list[Change]:
    grant_plan = evolve_attempts.grant_plan

    def silent(state: Execution, ref: Any) -> None:
        grant_plan(state, ref)
        state.changed.clear()

    return [(evolve_attempts, "grant_plan", silent)]


def _forgotten(name: str) -> list[Change]:
    decode = codec.decode_snapshot

    def forgetful(plan: Plan, data: bytes) -> Execution | None:
        state = decode(plan, data)
        if state is not None:
            setattr(state, name, getattr(Execution(plan), name))
        return state

    return [(codec, "decode_snapshot", forgetful)]


@mutant("a snapshot forgets what waits for signals")
def _() -> list[Change]:
    return _forgotten("waits")


@mutant("a snapshot forgets how much of the budget is left")
def _() -> list[Change]:
    return _forgotten("budget_left")


@mutant("evolve decides by the clock of whoever folds")
def _() -> list[Change]:
    emit = Turn.emit

    def restless(self: Turn, event: e.Event) -> None:
        emit(self, event)
        if isinstance(event, e.AttemptSucceeded):
            self.state.root.replans += 1

    return [(Turn, "emit", restless)]
