"""In whose name an engine acts: whose executions are seen, and what may be done to them."""

from dataclasses import dataclass
from functools import cached_property

from tenuto.errors import NotPermitted
from tenuto.kernel.facts import Authority
from tenuto.settings import FourEyes
from tenuto.values.names import DEFAULT_TENANT

from .permission import GRANTS, Permission, permissions_of


@dataclass(frozen=True)
class Scope:
    """A tenant of None sees all. Roles of None permit all: the program that embeds the engine answers for it."""

    tenant: str | None = None
    actor: str | None = None
    roles: frozenset[str] | None = None
    four_eyes: frozenset[FourEyes] = frozenset()

    @cached_property
    def permissions(self) -> frozenset[str] | None:
        return None if self.roles is None else permissions_of(self.roles)

    @property
    def is_deployment(self) -> bool:
        """Whether what holds for all tenants is its to see and to set."""
        return self.tenant in (None, DEFAULT_TENANT)

    @property
    def is_bounded(self) -> bool:
        """Whether there is anything that its holder may not do alone."""
        return self.roles is not None or bool(self.four_eyes)

    def permits(self, permission: str) -> bool:
        return self.permissions is None or permission in self.permissions

    def require(self, *permissions: Permission) -> None:
        """Raises `NotPermitted` unless the scope has one of these permissions."""
        if not any(self.permits(permission) for permission in permissions):
            roles = ", ".join(role for role, granted in GRANTS.items() if not granted.isdisjoint(permissions))
            needed = " or ".join(f"`{permission}`" for permission in permissions)
            raise NotPermitted(f"This needs the permission {needed}.", hint=f"roles that have it: {roles}")

    def authority(self) -> Authority:
        """What a decision on a review is sent with. Admins have every permission, also those of the users' own."""
        everything = self.permissions is None or "admin" in (self.roles or ())
        permissions = None if everything else tuple(sorted(self.permissions or ()))
        return Authority(permissions=permissions, four_eyes="approvals" in self.four_eyes)
