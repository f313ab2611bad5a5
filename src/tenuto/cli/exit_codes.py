"""Exit codes of commands."""

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenuto.errors import TenutoError


class Exit(IntEnum):
    """The exit code of a command; see `MEANINGS`."""

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
    Exit.OK: "The command succeeded. If it waited for an execution, the execution succeeded.",
    Exit.FAILED: "The command failed, at least in part, or the execution that it waited for failed or was canceled.",
    Exit.USAGE: "The command line is not valid: an unknown option, a missing argument, or invalid JSON.",
    Exit.NOT_FOUND: "The execution, review, definition or key does not exist, or belongs to another tenant.",
    Exit.REFUSED: "Refused in the current state, or a key is already used. Nothing was changed.",
    Exit.WAITS_FOR_PERSON: "The execution that the command waited for needs a person.",
    Exit.LATER: "A timeout or a rate limit: the same command may succeed later.",
    Exit.UNREACHABLE: "The service or the database is unreachable or unusable.",
    Exit.NOT_PERMITTED: "The API key is missing, not valid, or lacks the permission.",
    Exit.INTERRUPTED: "Interrupted with Ctrl-C. Started executions continue.",
    Exit.CUT_OFF: "The reader of the output closed it, as `head` does. The command may be done in part.",
}


def exit_code(error: "TenutoError") -> Exit:
    """The exit code of the error's class. The code `not_found` of another class counts too."""
    return Exit.NOT_FOUND if error.code == "not_found" else Exit(error.exit_code)


def exit_of_status(status: str, *, waits: bool = False) -> Exit:
    """The exit code after waiting for an execution."""
    if status == "succeeded":
        return Exit.OK
    return Exit.WAITS_FOR_PERSON if waits or status == "waiting_approval" else Exit.FAILED
