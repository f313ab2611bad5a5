"""Credits, as far as an execution's own history keeps them: what was held is charged or given back."""

from tenuto.kernel import events as e

from .books import Books
from .invariants import Family, require

family = Family("Credits")

C1 = family("C1", "When a run ends, what was charged and what was refunded add up to what was held.")
C2 = family("C2", "A run is never charged more than it holds.")


def recorded(books: Books, entry: e.Entry) -> None:
    event = entry.event
    if isinstance(event, e.ExecutionFinished):
        require(event.charged == books.charged, C1, f"{event.charged} are settled, {books.charged} were charged")
        together = event.charged + event.refunded
        require(together == books.hold, C1, f"{together} are settled, {books.hold} were held")


def noted(books: Books) -> None:
    """After an entry was noted."""
    require(0 <= books.charged <= books.hold, C2, f"{books.charged} were charged, and {books.hold} are held")
