"""`RunContext`: the attempt of a step of a run, with the credits that it uses."""

from tenuto.errors import InvalidInput
from tenuto.values.credits import Amount, decimal_text, millionths

from .context import SagaContext


class Usage:
    """What an attempt used so far: credits in millionths, and tokens."""

    __slots__ = ("credits", "tokens")

    def __init__(self) -> None:
        self.credits = 0
        self.tokens = 0


class RunContext(SagaContext):
    """One attempt of one step of a run, as its handler sees it."""

    __slots__ = ("_left", "agent_id", "attempt_number", "run_id", "task_id", "usage")

    run_id: str
    agent_id: str
    task_id: str
    attempt_number: int

    def in_run(self, usage: Usage, *, agent_id: str, task_id: str, attempt_number: int, left: int | None) -> None:
        """Sets what only steps of runs have. `left`: the millionths that are left of the reserve."""
        self.usage = usage
        self.run_id = self.execution_id
        self.agent_id = agent_id
        self.task_id = task_id
        self.attempt_number = attempt_number
        self._left = left

    def charge(self, amount: Amount) -> None:
        """Reports credits that this attempt used. It is charged whether it succeeds, fails or times out."""
        self.usage.credits += millionths(amount)

    def report_tokens(self, tokens: int) -> None:
        """Reports tokens that this attempt used. They are charged at the rate of the deployment."""
        if type(tokens) is not int or tokens < 0:
            raise InvalidInput.at("/tokens", "invalid_amount", f"{tokens!r} is not a number of tokens")
        self.usage.tokens += tokens

    @property
    def credits_left(self) -> str | None:
        """What was left of the run's reserve when this attempt began, as decimal text. None: credits are off."""
        return None if self._left is None else decimal_text(self._left)
