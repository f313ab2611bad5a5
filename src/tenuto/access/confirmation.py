"""Four-eyes confirmation: a command is carried out when a second person requests the same."""

from tenuto.errors import NotPermitted
from tenuto.kernel.address import fingerprint
from tenuto.settings import FourEyes
from tenuto.storage.registry import REQUESTED, VALID_MS, Registry
from tenuto.values.names import DEFAULT_TENANT
from tenuto.views.projections import AuditRow

from .scope import Scope


async def confirm(
    registry: Registry, scope: Scope, now: int, kind: FourEyes, about: tuple[str, str], reason: str, *what: str
) -> None:
    """Returns if this is the second person's request. Otherwise stores the request with its reason, and raises.

    `about` is the type and id of the object. A second request matches if `kind`, `about` and `what` are equal; the
    reason may differ.
    """
    tenant, actor = scope.tenant or DEFAULT_TENANT, scope.actor or "unknown"
    digest = fingerprint(kind, *about, *what)
    note = AuditRow(
        tenant=tenant,
        at=now,
        actor=actor,
        action=f"{kind}{REQUESTED}",
        object_type=about[0],
        object_id=about[1],
        reason=reason,
    )
    if await registry.ask(tenant, digest, actor, now, now - VALID_MS, note):
        return
    raise NotPermitted(
        "A second person must ask for the same; this request was noted.",
        code="four_eyes",
        hint="another admin sends the same command within 24 hours",
    )
