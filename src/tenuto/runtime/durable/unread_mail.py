"""Which letters are to be read.

A query for unread mail takes its time, and what it saw may have been answered meanwhile. A letter that is read twice is
a command that acts twice, or one whose caller is told of the second reading. So a letter that a query brings is read
only if nobody here is reading it or has answered it since the query began, and if its execution was in our hands by
then: before that, somebody else may have answered.
"""


class UnreadMail:
    def __init__(self) -> None:
        self._queries = 0
        self._under_way: dict[int, None] = {}
        self._since: dict[str, int] = {}  # executions, and how many queries had begun when they came into our hands
        self._reading: dict[str, str] = {}  # letters, and their executions
        self._answered: dict[str, int] = {}  # letters, and how many queries had begun when they were answered

    def begin(self) -> int:
        self._queries += 1
        self._under_way[self._queries] = None
        return self._queries

    def end(self, query: int) -> None:
        """Forgets the answers that no query under way can contradict."""
        del self._under_way[query]
        oldest = min(self._under_way, default=self._queries + 1)
        self._answered = {letter: begun for letter, begun in self._answered.items() if begun >= oldest}

    def taken(self, execution: str) -> None:
        """It came into our hands: what earlier queries know of its mail is out of date."""
        self._since[execution] = self._queries

    def left(self, execution: str) -> None:
        """It is not ours any more, and neither are its letters."""
        self._since.pop(execution, None)
        if execution in self._reading.values():
            self._reading = {letter: of for letter, of in self._reading.items() if of != execution}

    def is_new(self, query: int, letter: str, execution: str) -> bool:
        known = letter in self._reading or letter in self._answered
        return not known and self.were_asked_for(query, execution)

    def were_asked_for(self, query: int, execution: str) -> bool:
        """Whether it has been in our hands since before this query began."""
        return self._since.get(execution, 0) < query

    def read(self, letter: str, execution: str) -> None:
        self._reading[letter] = execution

    def answer(self, letter: str) -> None:
        self._reading.pop(letter, None)
        self._answered[letter] = self._queries

    def settle(self, letter: str, fate: str) -> None:
        """What became of a verdict that stands alone."""
        if fate == "committed":
            self.answer(letter)
        else:
            self._reading.pop(letter, None)

    def clear(self) -> None:
        """All executions are in other hands."""
        self._since.clear()
        self._reading.clear()
