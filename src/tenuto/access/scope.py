"""The scope of an engine: the tenant whose objects it sees, and its permissions."""

from dataclasses import dataclass
from functools import cached_property

from tenuto.errors import NotPermitted
from tenuto.kernel.facts import Authority
from tenuto.settings import FourEyes
from tenuto.values.names import DEFAULT_TENANT

from .permission import GRANTS, Permission, permissions_of


@dataclass(frozen=True)
class Scope:
    """A tenant of None sees all tenants. Roles of None permit everything, for programs that embed the engine."""

    tenant: str | None = None
    actor: str | None = None
    roles: frozenset[str] | None = None
    four_eyes: frozenset[FourEyes] = frozenset()

    @cached_property
    def permissions(self) -> frozenset[str] | None:
        return None if self.roles is None else permissions_of(self.roles)

    @property
    def is_deployment(self) -> bool:
        """Whether the scope covers objects of all tenants."""
        return self.tenant in (None, DEFAULT_TENANT)

    @property
    def is_bounded(self) -> bool:
        """Whether some operations are forbidden or need a second person."""
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
        """Returns the authority for a review decision. Admins have every permission, including user-defined ones."""
        everything = self.permissions is None or "admin" in (self.roles or ())
        permissions = None if everything else tuple(sorted(self.permissions or ()))
        return Authority(permissions=permissions, four_eyes="approvals" in self.four_eyes)
