"""Four eyes: what one person asks for is done when a second one asks for the same."""

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
    """Returns if this is the second person. Otherwise it notes the first, and why he asks, and raises.

    `about` is what it is done to, by its type and its id; with `what`, the same is asked for. The reason may differ.
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
