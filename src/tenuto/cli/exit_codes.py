"""Exit codes, and how an error becomes one."""

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenuto.errors import TenutoError


class Exit(IntEnum):
    """What a command's exit code says; `MEANINGS` has it in words."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    WAITS_FOR_PERSON = 5
    LATER = 6
    UNREACHABLE = 7
    NOT_PERMITTED = 8
    INTERRUPTED = 130
    CUT_OFF = 141


MEANINGS: dict[Exit, str] = {
    Exit.OK: "It is done. Of an execution that was waited for: it succeeded.",
    Exit.FAILED: "It could not be done, or not for all; or the execution that was waited for failed or was canceled.",
    Exit.USAGE: "The command was not understood: an unknown option, a missing argument, an argument that is no JSON.",
    Exit.NOT_FOUND: "There is no such execution, review, definition or key, or it is another tenant's.",
    Exit.REFUSED: "Not allowed as things stand: the state forbids it, or a key is taken. Nothing was changed.",
    Exit.WAITS_FOR_PERSON: "The execution that was waited for cannot go on without a person.",
    Exit.LATER: "Not in time, or too much at once: the same command may succeed later.",
    Exit.UNREACHABLE: "The server or the database cannot be reached or used.",
    Exit.NOT_PERMITTED: "The API key is missing, wrong, or does not allow it.",
    Exit.INTERRUPTED: "Interrupted with Ctrl-C. What was started goes on.",
    Exit.CUT_OFF: "Whoever read the output has closed it, as `head` does. What was asked for may be done in part.",
}


def exit_code(error: "TenutoError") -> Exit:
    """The exit code of the error's class. The code `not_found` of another class counts too."""
    return Exit.NOT_FOUND if error.code == "not_found" else Exit(error.exit_code)


def exit_of_status(status: str, *, waits: bool = False) -> Exit:
    """What came of an execution that was waited for."""
    if status == "succeeded":
        return Exit.OK
    return Exit.WAITS_FOR_PERSON if waits or status == "waiting_approval" else Exit.FAILED
