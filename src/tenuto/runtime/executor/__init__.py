"""Performing one attempt: what its handler is given, how long it may take, and what came of it, as a fact.

Shared by all runtimes. Nothing is decided here: an exception becomes a class and a summary, a value becomes JSON, and
the kernel says what follows. A handler may do anything a program can: raise what it likes, never return, swallow its
cancellation, return what cannot be stored. None of that may reach the runtime.
"""

from .attempt import Attempt, Host, Payloads, Performer, Role, wanted
from .job import Ending, Job, Tasks, Threads
from .outcomes import Parked, answered, failed, succeeded

__all__ = [
    "Attempt",
    "Ending",
    "Host",
    "Job",
    "Parked",
    "Payloads",
    "Performer",
    "Role",
    "Tasks",
    "Threads",
    "answered",
    "failed",
    "succeeded",
    "wanted",
]
