"""Four eyes: what one person asks for is done when a second one asks for the same."""

from tenuto.errors import NotPermitted
from tenuto.kernel.address import fingerprint
from tenuto.names import DEFAULT_TENANT
from tenuto.projection import AuditRow
from tenuto.settings import FourEyes
from tenuto.storage.registry import Registry

from .scope import Scope

VALID_MS = 24 * 3_600_000


async def confirm(registry: Registry, scope: Scope, now: int, kind: FourEyes, execution_id: str, *what: str) -> None:
    """Returns if this is the second person. Otherwise it notes the first, and raises."""
    tenant, actor = scope.tenant or DEFAULT_TENANT, scope.actor or "unknown"
    digest = fingerprint(kind, execution_id, *what)
    note = AuditRow(
        tenant=tenant,
        at=now,
        actor=actor,
        action=f"{kind}.requested",
        object_type="execution",
        object_id=execution_id,
        reason=", ".join(part for part in what if part),
    )
    if await registry.ask(tenant, digest, actor, now, now - VALID_MS, note):
        return
    raise NotPermitted(
        "A second person must ask for the same; this request was noted.",
        code="four_eyes",
        hint="another admin sends the same command within 24 hours",
    )
