"""Reviews, signals and messages: each question has one answer, and a refused command leaves no trace."""

from tenuto.kernel import events as e
from tenuto.kernel.address import review_id

from .invariants import Family, require
from .model import Model

family = Family("People and messages")

H2 = family("H2", "A review is opened once and resolved at most once.")
H5 = family("H5", "A signal ends one wait, and is buffered once.")
H6 = family("H6", "When a run ends, no open review can start an attempt.")


def recorded(model: Model, entry: e.Entry) -> None:
    match entry.event:
        case e.ReviewOpened(id=id):
            own = model.started is not None and id == review_id(model.started.execution, entry.seq)
            require(own, H2, f"review {id} was opened by entry {entry.seq}: it has the name of another")
        case e.ReviewResolved(id=id):
            require(id in model.reviews, H2, f"review {id} was resolved, and was not open")
        case e.SignalKept(id=id):
            require(id not in model.kept and id not in model.used, H5, f"signal {id} was kept, and is known")
        case e.WaitEnded(by=by) as event if by != "timer":
            require(by not in model.used, H5, f"signal {by} ended a second wait, {event.path}")
        case e.ExecutionFinished():
            _finished(model)


def _finished(model: Model) -> None:
    """Requires that reviews are closed at the end. Dead letters and the reviews of a termination may stay open."""
    left = {review.kind for review in model.reviews.values() if review.kind != "dead_letter"}
    allowed = {"indeterminate"} if model.cancel == "terminate" else set()
    require(left <= allowed, H6, f"finished with open reviews: {sorted(left)}")
