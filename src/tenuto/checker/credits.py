"""Credits, as far as the history records them: a hold is charged or released."""

from tenuto.kernel import events as e

from .invariants import Family, require
from .model import Model

family = Family("Credits")

C1 = family("C1", "When a run ends, its charges and refunds add up to its hold.")
C2 = family("C2", "A run is never charged more than its hold.")


def recorded(model: Model, entry: e.Entry) -> None:
    event = entry.event
    if isinstance(event, e.ExecutionFinished):
        require(event.charged == model.charged, C1, f"{event.charged} are settled, {model.charged} were charged")
        together = event.charged + event.refunded
        require(together == model.hold, C1, f"{together} are settled, {model.hold} were held")


def noted(model: Model) -> None:
    """Checks the model after an entry was applied."""
    require(0 <= model.charged <= model.hold, C2, f"{model.charged} were charged, and {model.hold} are held")
