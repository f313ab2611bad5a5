"""Advances scopes: which children open, what follows a closed child, when the scope itself closes.

`advance` is called for the scope in which something changed, and works its way up. Everything it looks at is in the
state, so it may be called at any time: after a report, a timer, a resume.
"""

from .closing import (
    active_clones,
    cancel_step,
    close_scope,
    disposition,
    fail_child,
    fail_clone,
    fail_scope,
    give_up_planning,
    must_be_awaited,
    settle_fan,
)
from .outcomes import restart_point
from .progress import advance, advance_all, open_scopes

__all__ = [
    "active_clones",
    "advance",
    "advance_all",
    "cancel_step",
    "close_scope",
    "disposition",
    "fail_child",
    "fail_clone",
    "fail_scope",
    "give_up_planning",
    "must_be_awaited",
    "open_scopes",
    "restart_point",
    "settle_fan",
]
