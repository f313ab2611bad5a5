"""The lifecycle of an execution: how a history continues, what prevents new attempts, how it ends."""

from tenuto.kernel import events as e
from tenuto.kernel.address import ROOT, Ref, clone_path, parent_of
from tenuto.kernel.definition import SUCCEED

from .invariants import Family, require
from .model import AUTOMATIC, Model, ModelScope, ModelStep
from .order import flow_target

AFTER_THE_END = (e.RunOpened, e.HoldChanged, e.ReviewResolved)
FINE = ("succeeded", "skipped")

family = Family("State machine")

G1 = family("G1", "Statuses change only along the arrows of the documented tables.")
G2 = family("G2", "A finished run never changes; only a recorded retry of a failed run opens the next one.")
G3 = family("G3", "A history begins with its start and has no gaps; every row can be read.")
G5 = family("G5", "An execution or a scope ends only after everything that runs in it has ended.")
G6 = family("G6", "Counters match what they count, and every row belongs to an existing execution.")
G7 = family("G7", "No new attempt starts during a pause, after a cancel, in a closing scope, or before admission.")


def granted(model: Model, ref: Ref, entry: e.Entry) -> None:
    require(not model.finished, G2, f"{ref} was granted after the end ({model.finished})")
    if _is_open(model, ref):
        return
    require(model.paused_at is None, G7, f"{ref} was granted during a pause")
    if ref.phase == "forward":
        require(model.admitted, G7, f"{ref} was granted before the execution was admitted")
    if ref.phase in ("forward", "plan"):
        require(not model.cancel, G7, f"{ref} was granted after a cancel")
        require(model.undo is None, G7, f"{ref} was granted during an undo")
        own = [model.scopes[ref.path]] if ref.phase == "plan" else []
        for scope in (*own, *model.ancestors(ref.path)):
            require(scope.status == "open", G7, f"{ref} was granted in {scope.path!r}, which is {scope.status}")
    elif ref.phase != "compensate":
        require(model.undo is None, G7, f"{ref} was granted during an undo")


def _is_open(model: Model, ref: Ref) -> bool:
    return ref in model.open_refs


def recorded(model: Model, entry: e.Entry) -> None:
    event = entry.event
    require(entry.seq == model.seq + 1, G3, f"entry {entry.seq} follows {model.seq}")
    is_start = isinstance(event, e.ExecutionStarted)
    require(is_start == (entry.seq == 1), G3, f"entry {entry.seq} is {type(event).__name__}")
    if model.finished:
        allowed = isinstance(event, AFTER_THE_END)
        require(allowed, G2, f"{type(event).__name__} was recorded after the end ({model.finished})")
    match event:
        case e.NodesClosed():
            _closed(model, event)
        case e.AttemptAbandoned(why="settled"):
            asked = [ref for ref in event.refs if ref.phase == "plan" and not model.scopes[ref.path].unasked]
            require(not asked, G5, f"{asked[:3]} were given up, and may have been under way")
        case e.ScopeRestarted():
            require(not model.cancel, G7, f"a round of {event.path!r} began after a cancel")
            inside = _open_in(model, event.path)
            require(not inside, G5, f"a round of {event.path!r} began while {inside[:3]} were open")
        case e.ScopeClosed() | e.ScopeRepeated():
            _scope_closed(model, event)
        case e.RunOpened():
            _run_opened(model, event)
        case e.ExecutionFinished():
            _finished(model, event)


def _closed(model: Model, event: e.NodesClosed) -> None:
    """Requires that no node with a running attempt is closed."""
    steps = [model.steps[path] for path in event.paths if path in model.steps]
    running = [step.open for step in steps if step.open and not step.never_begins and not step.is_unowned]
    require(not running, G5, f"closed while {running[:3]} were open")


def _run_opened(model: Model, event: e.RunOpened) -> None:
    require(model.finished == "failed", G2, f"run {event.run} was opened after {model.finished or 'nothing'}")
    require(event.run == model.run + 1, G2, f"run {event.run} follows {model.run}")
    for path, generation in event.redo:
        step = model.step(path)
        allowed = _next_generations(step, by_person=event.reason != AUTOMATIC)
        require(generation in allowed, G2, f"{path} begins generation {generation} after {step.generation}")


def _next_generations(step: ModelStep, *, by_person: bool) -> tuple[int, ...]:
    """Returns the allowed generations. It rises after a compensation, and may rise by a person's decision."""
    now = step.generation
    if step.undone_generation == now:
        return (now + 1,)
    return (now, now + 1) if by_person else (now,)


def _finished(model: Model, event: e.ExecutionFinished) -> None:
    require(not model.open_refs, G5, f"finished while {list(model.open_refs)[:3]} were open")
    require(event.status != "canceled" or model.cancel, G5, "canceled without a cancel command")
    require(event.status != "failed" or event.error is not None, G5, "failed without an error")
    if event.status == "succeeded":
        _complete(model, model.scopes[ROOT])


def _scope_closed(model: Model, event: e.ScopeClosed | e.ScopeRepeated) -> None:
    scope = model.scopes[event.path]
    inside = _open_in(model, event.path)
    require(not inside, G5, f"{event.path!r} closed while {inside[:3]} were open")
    if isinstance(event, e.ScopeRepeated) or (event.outcome in FINE and event.failure is None):
        _complete(model, scope)


def _open_in(model: Model, path: str) -> list[Ref]:
    """Returns the open attempts to plan this scope, of its children, or of the clones of this fan-out."""
    above = {ref: [ref.path, *(scope.path for scope in model.ancestors(ref.path))] for ref in model.open_refs}
    return [ref for ref, paths in above.items() if path in paths]


def _complete(model: Model, scope: ModelScope) -> None:
    """Requires that all children of a successful scope succeeded or were skipped."""
    waiting = list(scope.active)[:5]
    require(not waiting, G5, f"{scope.path!r} succeeded while {waiting} were not over")
    if scope.node.is_flow:
        target = flow_target(model, scope)
        require(target == SUCCEED, G5, f"{scope.path!r} succeeded, and the flow leads to {target}")
        return
    left = _clones_left(model, scope) if not scope.node.is_scope else _children_left(model, scope)
    require(not left, G5, f"{scope.path!r} succeeded without {left[:5]}")


def _children_left(model: Model, scope: ModelScope) -> list[str]:
    replaced = model.replaced(scope.path)
    ids = [node.id for node in model.children(scope.path) if node.id not in replaced]
    return [id for id in ids if scope.closed.get(id) not in FINE]


def _clones_left(model: Model, scope: ModelScope) -> list[str]:
    """Returns clones without a result. Completed ones are not run again; if the scope closes, some are canceled."""
    fine = FINE if model.scopes[parent_of(scope.path)].status == "open" else (*FINE, "canceled")
    closed = scope.closed
    paths = [clone_path(scope.path, index) for index in range(scope.count) if closed.get(str(index)) not in fine]
    return [path for path in paths if path not in model.steps or not model.steps[path].done]
