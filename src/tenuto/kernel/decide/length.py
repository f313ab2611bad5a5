"""Limits the length of a history.

A history may have to be read and folded as a whole, so its length bounds the cost of an execution. Commands that
lengthen it are refused before it is full, so that a sender cannot end an execution with signals. An execution that
fills its history by itself fails; its compensation may still add entries.
"""

from tenuto.kernel.definition import MAX_HISTORY_BYTES, MAX_HISTORY_EVENTS
from tenuto.kernel.events import Failure
from tenuto.kernel.facts import Refused
from tenuto.kernel.state import Execution

from .scopes import advance_all, close_scope
from .turn import Turn

# The share of both limits that commands may use. The rest is for the execution's own entries.
COMMANDS = 0.9


def refused_when_long(state: Execution) -> Refused | None:
    """Refuses optional commands. Cancels and decisions are never refused, because they lead to the end."""
    if state.seq < COMMANDS * MAX_HISTORY_EVENTS and state.size < COMMANDS * MAX_HISTORY_BYTES:
        return None
    text = f"the history of this execution is nearly full: {state.seq:,} events, {state.size:,} bytes"
    return Refused("history_limit", text, "cancel it, or let it end, and start a new execution")


def end_when_full(turn: Turn) -> None:
    """Fails an execution that has filled its history and is neither ending nor paused."""
    state = turn.state
    if state.seq < MAX_HISTORY_EVENTS and state.size < MAX_HISTORY_BYTES:
        return
    if state.finished is None and state.pause is None and state.root.status == "open":
        turn.cause = turn.actor = None
        limit = f"at most {MAX_HISTORY_EVENTS:,} events and {MAX_HISTORY_BYTES:,} bytes"
        failure = Failure("NON_RETRYABLE", "history_limit", f"the history is full: it holds {limit}")
        close_scope(turn, state.root, "failed", failure)
        advance_all(turn)
