"""Advances scopes: opens children, continues after closed children, closes the scope.

`advance` is called for the scope that changed, and continues with its parents. It depends only on the state, so it may
be called at any time: after a report, a timer, a resume.
"""

from .closing import (
    active_clones,
    cancel_step,
    close_scope,
    disposition,
    escalates_when_spent,
    fail_child,
    fail_clone,
    fail_scope,
    give_up_planning,
    must_be_awaited,
    settle_fan,
)
from .outcomes import restart_point
from .progress import advance, advance_all, advance_waiting, open_scopes

__all__ = [
    "active_clones",
    "advance",
    "advance_all",
    "advance_waiting",
    "cancel_step",
    "close_scope",
    "disposition",
    "escalates_when_spent",
    "fail_child",
    "fail_clone",
    "fail_scope",
    "give_up_planning",
    "must_be_awaited",
    "open_scopes",
    "restart_point",
    "settle_fan",
]
