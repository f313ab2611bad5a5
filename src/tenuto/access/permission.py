"""Permissions, and the roles that grant them. Without a role that grants it, an operation is forbidden."""

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
    "sessions:write",
    "limits:write",
    "effects:again",
    "runs:read",
    "runs:write",
    "credits:read",
    "credits:write",
]

_READS: frozenset[Permission] = frozenset(
    {"executions:read", "definitions:read", "dlq:read", "reviews:read", "runs:read", "credits:read"}
)

GRANTS: dict[Role, frozenset[Permission]] = {
    "viewer": _READS,
    "operator": _READS | {"executions:start", "executions:write", "dlq:write", "runs:write"},
    "approver": _READS | {"approvals:write"},
    "author": _READS | {"executions:start", "definitions:write"},
    "worker": frozenset({"callbacks:write"}),
    "admin": frozenset(get_args(Permission)),
}


@lru_cache(1_024)
def permissions_of(roles: frozenset[str]) -> frozenset[str]:
    """Returns the permissions of these roles. A word with a colon is a user-defined permission for approvals."""
    found: set[str] = set()
    for role in roles:
        found |= GRANTS.get(role, frozenset({role} if is_own_word(role) else ()))  # type: ignore[call-overload]  # any text may be asked for
    return frozenset(found)


def is_own_word(role: str) -> bool:
    return OWN_PERMISSION.fullmatch(role) is not None and role not in get_args(Permission)


def check_roles(roles: Iterable[str]) -> tuple[str, ...]:
    """Returns the roles without duplicates. Raises `InvalidInput` if one is neither built in nor user-defined."""
    given = tuple(dict.fromkeys(roles))
    for role in given:
        if role not in GRANTS and not is_own_word(role):
            roles = ", ".join(GRANTS)
            text = f"{role!r} is not a role. Roles are {roles}; own permissions have a colon: `invoices:approve`"
            raise InvalidInput.at("/roles", "unknown_role", text)
    if not given:
        raise InvalidInput.at("/roles", "missing", "at least one role")
    return given
