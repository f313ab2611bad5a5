"""Attempts and leases: who may try, who may report."""

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref

from .books import Books
from .invariants import Family, require
from .tracks import Frame, Track

family = Family("Attempts and leases")

L1 = family("L1", "A step has at most one open attempt at a time.")
L2 = family("L2", "The attempts of a step are numbered without gaps, for each phase, across runs.")
L3 = family("L3", "An attempt is granted once, unless it is known that nobody began it.")
L4 = family("L4", "The epoch of an execution never goes back.")
L5 = family(
    "L5",
    "Only an open attempt begins, is sent, reports, is lost or handed back; a late answer counts only while nothing "
    "else is known. Mail that was applied is recorded for the attempt that it names, with its lease.",
)
L9 = family("L9", "A completed step is not run again, unless it was undone or a person asked for it, under a new key.")


def granted(books: Books, ref: Ref, entry: e.Entry) -> None:
    if ref.phase == "plan":
        _granted_planning(books.frames[ref.path], ref)
        return
    track = books.track(ref.path)
    if track.open == ref:
        _granted_again(track, entry)
        return
    require(track.open is None, L1, f"{ref} was granted while {track.open} was open")
    require(ref.number == track.number(ref.phase) + 1, L2, f"{ref} follows number {track.number(ref.phase)}")
    if ref.phase == "forward":
        require(not track.done, L9, f"{ref} was granted after the step had completed")
        again = track.undone_generation < track.generation
        require(again, L9, f"{ref} was granted in generation {track.generation}, which was undone")


def _granted_planning(frame: Frame, ref: Ref) -> None:
    if frame.planning != ref:
        require(frame.planning is None, L1, f"{ref} was granted while {frame.planning} was open")
        require(ref.number == frame.plan_number + 1, L2, f"{ref} follows number {frame.plan_number}")


def _granted_again(track: Track, entry: e.Entry) -> None:
    assert track.open is not None
    handed_back = (track.returned or track.epoch == 0) and not track.sent
    nobody_began = handed_back or (track.open.phase == "forward" and track.never_begins)
    require(nobody_began, L3, f"{track.open} was granted again in epoch {entry.epoch}, and may have begun")


def recorded(books: Books, entry: e.Entry) -> None:
    require(entry.epoch >= books.epoch, L4, f"entry {entry.seq} has epoch {entry.epoch} after {books.epoch}")
    event = entry.event
    match event:
        case e.AttemptSucceeded() | e.AttemptFailed() | e.AttemptTimedOut() | e.ProbeAnswered():
            _reported(books, Ref(event.path, event.phase, event.number))
        case e.ChildrenAdded():
            _reported(books, Ref(event.scope, "plan", event.number))
        case e.AttemptBegun() | e.AttemptDispatched() | e.DispatchFailed() | e.AttemptAcked():
            _is_open(books, Ref(event.path, event.phase, event.number), "went on its way")
        case e.AttemptLost():
            for loss in event.losses:
                _is_open(books, Ref(loss.path, loss.phase, loss.number), "was lost")
        case e.AttemptsReturned() | e.AttemptAbandoned():
            for ref in event.refs:
                _is_open(books, ref, "was given up")


def _reported(books: Books, ref: Ref) -> None:
    if ref.phase == "plan":
        require(books.frames[ref.path].planning == ref, L5, f"{ref} reported and was not open")
        return
    track = books.track(ref.path)
    require(ref in (track.open, track.late), L5, f"{ref} reported; open is {track.open}, late {track.late}")


def _is_open(books: Books, ref: Ref, what: str) -> None:
    open = books.frames[ref.path].planning if ref.phase == "plan" else books.track(ref.path).open
    require(open == ref, L5, f"{ref} {what}; open is {open}")
