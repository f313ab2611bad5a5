"""The state machine: how a history goes on, what stops new attempts, how it ends."""

from tenuto.kernel import events as e
from tenuto.kernel.address import ROOT, Ref, clone_path, parent_of
from tenuto.kernel.definition import SUCCEED

from .books import Books
from .invariants import Family, require
from .order import flow_target
from .tracks import AUTOMATIC, Frame, Track

AFTER_THE_END = (e.RunOpened, e.HoldChanged, e.ReviewResolved)
FINE = ("succeeded", "skipped")

family = Family("State machine")

G1 = family("G1", "Statuses change only along the arrows of the documented tables.")
G2 = family("G2", "A terminal run never changes; only a recorded retry of a failed one opens the next.")
G3 = family("G3", "A history begins with its start and has no gaps; every row can be read.")
G5 = family("G5", "What runs is awaited: an execution or a scope ends when all of its parts have.")
G6 = family("G6", "Counters equal counts, and every row belongs to an execution that exists.")
G7 = family("G7", "Pause, cancel, a closing scope and a missing admission stop new attempts.")


def granted(books: Books, ref: Ref, entry: e.Entry) -> None:
    require(not books.finished, G2, f"{ref} was granted after the end ({books.finished})")
    if _is_open(books, ref):
        return
    require(books.paused_at is None, G7, f"{ref} was granted during a pause")
    if ref.phase == "forward":
        require(books.admitted, G7, f"{ref} was granted before the execution was admitted")
    if ref.phase in ("forward", "plan"):
        require(not books.cancel, G7, f"{ref} was granted after a cancel")
        require(books.undo is None, G7, f"{ref} was granted during an undo")
        own = [books.frames[ref.path]] if ref.phase == "plan" else []
        for frame in (*own, *books.ancestors(ref.path)):
            require(frame.status == "open", G7, f"{ref} was granted in {frame.path!r}, which is {frame.status}")
    elif ref.phase != "compensate":
        require(books.undo is None, G7, f"{ref} was granted during an undo")


def _is_open(books: Books, ref: Ref) -> bool:
    return ref in books.open_refs


def recorded(books: Books, entry: e.Entry) -> None:
    event = entry.event
    require(entry.seq == books.seq + 1, G3, f"entry {entry.seq} follows {books.seq}")
    is_start = isinstance(event, e.ExecutionStarted)
    require(is_start == (entry.seq == 1), G3, f"entry {entry.seq} is {type(event).__name__}")
    if books.finished:
        allowed = isinstance(event, AFTER_THE_END)
        require(allowed, G2, f"{type(event).__name__} was recorded after the end ({books.finished})")
    match event:
        case e.NodesClosed():
            _closed(books, event)
        case e.AttemptAbandoned(why="settled"):
            asked = [ref for ref in event.refs if ref.phase == "plan" and not books.frames[ref.path].unasked]
            require(not asked, G5, f"{asked[:3]} were given up, and may have been under way")
        case e.ScopeRestarted():
            require(not books.cancel, G7, f"a round of {event.path!r} began after a cancel")
            inside = _open_in(books, event.path)
            require(not inside, G5, f"a round of {event.path!r} began while {inside[:3]} were open")
        case e.ScopeClosed() | e.ScopeRepeated():
            _scope_closed(books, event)
        case e.RunOpened():
            _run_opened(books, event)
        case e.ExecutionFinished():
            _finished(books, event)


def _closed(books: Books, event: e.NodesClosed) -> None:
    """What runs is awaited, whoever closes around it."""
    tracks = [books.tracks[path] for path in event.paths if path in books.tracks]
    running = [track.open for track in tracks if track.open and not track.never_begins and not track.is_nobodys]
    require(not running, G5, f"closed while {running[:3]} were open")


def _run_opened(books: Books, event: e.RunOpened) -> None:
    require(books.finished == "failed", G2, f"run {event.run} was opened after {books.finished or 'nothing'}")
    require(event.run == books.run + 1, G2, f"run {event.run} follows {books.run}")
    for path, generation in event.redo:
        track = books.track(path)
        allowed = _next_generations(track, by_person=event.reason != AUTOMATIC)
        require(generation in allowed, G2, f"{path} begins generation {generation} after {track.generation}")


def _next_generations(track: Track, *, by_person: bool) -> tuple[int, ...]:
    """It rises after an undo, and may rise by a person's word."""
    now = track.generation
    if track.undone_generation == now:
        return (now + 1,)
    return (now, now + 1) if by_person else (now,)


def _finished(books: Books, event: e.ExecutionFinished) -> None:
    require(not books.open_refs, G5, f"finished while {list(books.open_refs)[:3]} were open")
    require(event.status != "canceled" or books.cancel, G5, "canceled, and nobody asked for it")
    require(event.status != "failed" or event.error is not None, G5, "failed without an error")
    if event.status == "succeeded":
        _complete(books, books.frames[ROOT])


def _scope_closed(books: Books, event: e.ScopeClosed | e.ScopeRepeated) -> None:
    frame = books.frames[event.path]
    inside = _open_in(books, event.path)
    require(not inside, G5, f"{event.path!r} closed while {inside[:3]} were open")
    if isinstance(event, e.ScopeRepeated) or (event.outcome in FINE and event.failure is None):
        _complete(books, frame)


def _open_in(books: Books, path: str) -> list[Ref]:
    """Open attempts to plan this scope, of what stands in it, or of the clones of this fan-out."""
    above = {ref: [ref.path, *(frame.path for frame in books.ancestors(ref.path))] for ref in books.open_refs}
    return [ref for ref, paths in above.items() if path in paths]


def _complete(books: Books, frame: Frame) -> None:
    """It went well: so did all that is in it, or it was passed over."""
    waiting = list(frame.active)[:5]
    require(not waiting, G5, f"{frame.path!r} succeeded while {waiting} were not over")
    if frame.node.is_flow:
        target = flow_target(books, frame)
        require(target == SUCCEED, G5, f"{frame.path!r} succeeded, and the flow leads to {target}")
        return
    left = _clones_left(books, frame) if not frame.node.is_scope else _children_left(books, frame)
    require(not left, G5, f"{frame.path!r} succeeded without {left[:5]}")


def _children_left(books: Books, frame: Frame) -> list[str]:
    replaced = books.replaced(frame.path)
    ids = [node.id for node in books.children(frame.path) if node.id not in replaced]
    return [id for id in ids if frame.closed.get(id) not in FINE]


def _clones_left(books: Books, frame: Frame) -> list[str]:
    """What an earlier round or run completed is not run again; where its scope closes, some are canceled."""
    fine = FINE if books.frames[parent_of(frame.path)].status == "open" else (*FINE, "canceled")
    closed = frame.closed
    paths = [clone_path(frame.path, index) for index in range(frame.count) if closed.get(str(index)) not in fine]
    return [path for path in paths if path not in books.tracks or not books.tracks[path].done]
