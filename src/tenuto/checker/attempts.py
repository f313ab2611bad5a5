"""Attempts and leases: which attempts may start, and which owner may report."""

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref

from .invariants import Family, require
from .model import Model, ModelScope, ModelStep

family = Family("Attempts and leases")

L1 = family("L1", "A step has at most one open attempt at a time.")
L2 = family("L2", "The attempts of a step are numbered without gaps, for each phase, across runs.")
L3 = family("L3", "An attempt is granted once, unless it is known that no worker began it.")
L4 = family("L4", "The epoch of an execution never decreases.")
L5 = family(
    "L5",
    "Only an open attempt begins, is dispatched, reports, is lost or is returned; a late report counts only while the "
    "outcome is unknown. An applied message is recorded for the attempt that it names, with its lease.",
)
L9 = family("L9", "A completed step runs again only if it was compensated or a person asked for it, under a new key.")


def granted(model: Model, ref: Ref, entry: e.Entry) -> None:
    if ref.phase == "plan":
        _granted_planning(model.scopes[ref.path], ref)
        return
    step = model.step(ref.path)
    if step.open == ref:
        _granted_again(step, entry)
        return
    require(step.open is None, L1, f"{ref} was granted while {step.open} was open")
    require(ref.number == step.number(ref.phase) + 1, L2, f"{ref} follows number {step.number(ref.phase)}")
    if ref.phase == "forward":
        require(not step.done, L9, f"{ref} was granted after the step had completed")
        again = step.undone_generation < step.generation
        require(again, L9, f"{ref} was granted in generation {step.generation}, which was undone")


def _granted_planning(scope: ModelScope, ref: Ref) -> None:
    if scope.planning != ref:
        require(scope.planning is None, L1, f"{ref} was granted while {scope.planning} was open")
        require(ref.number == scope.plan_number + 1, L2, f"{ref} follows number {scope.plan_number}")


def _granted_again(step: ModelStep, entry: e.Entry) -> None:
    assert step.open is not None
    handed_back = (step.returned or step.epoch == 0) and not step.sent
    nobody_began = handed_back or (step.open.phase == "forward" and step.never_begins)
    require(nobody_began, L3, f"{step.open} was granted again in epoch {entry.epoch}, and may have begun")


def recorded(model: Model, entry: e.Entry) -> None:
    require(entry.epoch >= model.epoch, L4, f"entry {entry.seq} has epoch {entry.epoch} after {model.epoch}")
    event = entry.event
    match event:
        case e.AttemptSucceeded() | e.AttemptFailed() | e.AttemptTimedOut() | e.ProbeAnswered():
            _reported(model, Ref(event.path, event.phase, event.number))
        case e.ChildrenAdded():
            _reported(model, Ref(event.scope, "plan", event.number))
        case e.AttemptBegun() | e.AttemptDispatched() | e.DispatchFailed() | e.AttemptAcked():
            _is_open(model, Ref(event.path, event.phase, event.number), "went on its way")
        case e.AttemptLost():
            for loss in event.losses:
                _is_open(model, Ref(loss.path, loss.phase, loss.number), "was lost")
        case e.AttemptsReturned() | e.AttemptAbandoned():
            for ref in event.refs:
                _is_open(model, ref, "was given up")


def _reported(model: Model, ref: Ref) -> None:
    if ref.phase == "plan":
        require(model.scopes[ref.path].planning == ref, L5, f"{ref} reported and was not open")
        return
    step = model.step(ref.path)
    require(ref in (step.open, step.late), L5, f"{ref} reported; open is {step.open}, late {step.late}")


def _is_open(model: Model, ref: Ref, what: str) -> None:
    open = model.scopes[ref.path].planning if ref.phase == "plan" else model.step(ref.path).open
    require(open == ref, L5, f"{ref} {what}; open is {open}")
