"""Due times according to the history, by kind and path."""

from typing import Literal

from tenuto.kernel import events as e

Kind = Literal[
    "execution", "pending", "pause", "scope", "deadline", "review", "reconcile", "wait", "ack", "result",
    "retrying", "resuming",
]  # fmt: skip

# A pause stops these. Each is stored as if there had been no pause.
STOPPED: tuple[Kind, ...] = (
    "execution", "pending", "scope", "deadline", "review", "reconcile", "retrying", "resuming",
)  # fmt: skip
OF_ROUND: tuple[Kind, ...] = ("deadline", "reconcile")


class Dues:
    def __init__(self) -> None:
        self._due: dict[tuple[Kind, str], int] = {}
        self._paused = 0  # total duration of all pauses

    def of(self, kind: Kind, path: str) -> int | None:
        due = self._due.get((kind, path))
        return None if due is None else due + self._stood(kind)

    def set(self, kind: Kind, path: str, due: int | None) -> None:
        if due is None:
            self._due.pop((kind, path), None)
        else:
            self._due[kind, path] = due - self._stood(kind)

    def begin(self, kind: Kind, path: str, due: int) -> None:
        """Starts a time limit unless it is already running."""
        if (kind, path) not in self._due:
            self.set(kind, path, due)

    def _stood(self, kind: Kind) -> int:
        return self._paused if kind in STOPPED else 0

    def new_round(self, prefix: str) -> None:
        """Resets the time limits inside a scope, because its steps are pending again."""
        for kind, path in [key for key in self._due if key[0] in OF_ROUND and key[1].startswith(prefix)]:
            del self._due[kind, path]

    def note(self, event: e.Event) -> None:
        match event:
            case e.ExecutionStarted() | e.RunOpened():
                self.set("execution", "", event.deadline)
                self.set("pending", "", event.pending_until)
                self.set("retrying", "", event.retry_until if isinstance(event, e.RunOpened) else None)
            case e.RunEntered():
                self.set("resuming", "", None)
                self.set("pending", "", event.pending_until)
                if event.deadline is not None:
                    self.set("execution", "", event.deadline)
            case e.Paused():
                self.set("pause", "", event.limit_at)
            case e.Resumed():
                self._paused += event.shift
                self.set("resuming", "", event.resume_until)
            case e.ScopeOpened():
                self.set("scope", event.path, event.deadline)
            case e.WaitOpened():
                self.set("wait", event.path, event.due_at)
                self.set("deadline", event.path, event.deadline)
            case e.ReviewOpened(kind="approval"):
                self.set("review", event.path, event.due_at)
            case e.AttemptDispatched():  # it may have been acknowledged before the send was recorded
                if event.ack_due is not None:
                    self.set("ack", event.path, event.ack_due)
                if event.result_due is not None:
                    self.set("result", event.path, event.result_due)
            case e.AttemptAcked():
                self.set("ack", event.path, None)
                self.set("result", event.path, event.result_due)
