"""All that is wrong with what an author wrote, gathered before anything is said."""

from tenuto.errors import DefinitionError, Problem


class Problems:
    """Told all at once: who corrects one mistake should not have to run again to hear of the next."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, where: str, code: str, message: str) -> None:
        problem = Problem(where, code, message)
        if problem not in self.found:
            self.found.append(problem)

    def raise_any(self, about: str) -> None:
        if self.found:
            count = "a problem" if len(self.found) == 1 else f"{len(self.found)} problems"
            raise DefinitionError(f"{about} has {count}.", problems=self.found)
