"""Which messages are to be read.

A query for unread mail takes time, and a message that it finds may have been answered meanwhile. If a message were read
twice, its command would act twice. So a message is read only if this process is not reading it and has not answered it
since the query began, and if this process has held its execution since before that: an earlier owner may have answered.
"""


class UnreadMail:
    def __init__(self) -> None:
        self.unchecked: dict[str, None] = {}  # executions that may have mail: they are not released before it is read
        self._queries = 0
        self._under_way: dict[int, None] = {}
        self._since: dict[str, int] = {}  # executions, and how many queries had begun when they were taken
        self._reading: dict[str, str] = {}  # messages, and their executions
        self._answered: dict[str, int] = {}  # messages, and how many queries had begun when they were answered

    def begin(self) -> int:
        self._queries += 1
        self._under_way[self._queries] = None
        return self._queries

    def end(self, query: int) -> None:
        """Forgets the answers that no query under way can contradict."""
        del self._under_way[query]
        oldest = min(self._under_way, default=self._queries + 1)
        self._answered = {message: begun for message, begun in self._answered.items() if begun >= oldest}

    def taken(self, execution: str) -> None:
        """This process holds the execution from now on. Earlier queries are out of date about its mail."""
        self.unchecked[execution] = None
        self._since[execution] = self._queries

    def left(self, execution: str) -> None:
        """This process no longer holds the execution."""
        self._since.pop(execution, None)
        if execution in self._reading.values():
            self._reading = {message: of for message, of in self._reading.items() if of != execution}

    def is_new(self, query: int, message: str, execution: str) -> bool:
        known = message in self._reading or message in self._answered
        return not known and self.were_asked_for(query, execution)

    def were_asked_for(self, query: int, execution: str) -> bool:
        """Whether this process has held the execution since before this query began."""
        return self._since.get(execution, 0) < query

    def read(self, message: str, execution: str) -> None:
        self._reading[message] = execution

    def answer(self, message: str) -> None:
        self._reading.pop(message, None)
        self._answered[message] = self._queries

    def settle(self, message: str, fate: str) -> None:
        """The commit of its verdict is settled."""
        if fate == "committed":
            self.answer(message)
        else:
            self._reading.pop(message, None)

    def clear(self) -> None:
        """Other processes own all executions now."""
        self.unchecked.clear()
        self._since.clear()
        self._reading.clear()
