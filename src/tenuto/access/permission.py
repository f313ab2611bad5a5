"""Permissions, and the roles that bundle them. What no role gives is forbidden."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, get_args

from tenuto.errors import InvalidInput
from tenuto.values.names import OWN_PERMISSION, Role

Permission = Literal[
    "executions:read",
    "executions:start",
    "executions:write",
    "definitions:read",
    "definitions:write",
    "dlq:read",
    "dlq:write",
    "reviews:read",
    "approvals:write",
    "callbacks:write",
    "audit:read",
    "keys:write",
    "limits:write",
    "effects:again",
]

_READS: frozenset[Permission] = frozenset({"executions:read", "definitions:read", "dlq:read", "reviews:read"})

GRANTS: dict[Role, frozenset[Permission]] = {
    "viewer": _READS,
    "operator": _READS | {"executions:start", "executions:write", "dlq:write"},
    "approver": _READS | {"approvals:write"},
    "author": _READS | {"executions:start", "definitions:write"},
    "worker": frozenset({"callbacks:write"}),
    "admin": frozenset(get_args(Permission)),
}


@lru_cache(1_024)
def permissions_of(roles: frozenset[str]) -> frozenset[str]:
    """What these roles permit. A word with a colon is a permission of the users' own, for their approvals."""
    found: set[str] = set()
    for role in roles:
        found |= GRANTS.get(role, frozenset({role} if is_own_word(role) else ()))  # type: ignore[call-overload]  # any text may be asked for
    return frozenset(found)


def is_own_word(role: str) -> bool:
    return OWN_PERMISSION.fullmatch(role) is not None and role not in get_args(Permission)


def check_roles(roles: Iterable[str]) -> tuple[str, ...]:
    """The roles, each once, if all are known or the users' own words; otherwise `InvalidInput`."""
    given = tuple(dict.fromkeys(roles))
    for role in given:
        if role not in GRANTS and not is_own_word(role):
            text = f"{role!r} is no role: there are {', '.join(GRANTS)}; your own have a colon: `invoices:approve`"
            raise InvalidInput.at("/roles", "unknown_role", text)
    if not given:
        raise InvalidInput.at("/roles", "missing", "at least one role")
    return given
