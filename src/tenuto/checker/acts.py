"""What the audit says of executions: its rows, found by what they are about."""

from collections import defaultdict

import msgspec

from tenuto.storage.registry import AuditEntry
from tenuto.storage.shared.records import ActRecord, ExecutionRecord, Reader, ReviewRecord, select
from tenuto.views.projections import AuditRow, execution_of

AT_ONCE = 200

Acts = dict[str, list[ActRecord]]


async def acts_of(reader: Reader, after: str, page: list[ExecutionRecord]) -> Acts:
    """Of each execution of the page, in the order in which they were written."""
    tenants = {row.id: row.tenant for row in page}
    objects: defaultdict[str, list[str]] = defaultdict(list)
    for row in page:
        objects[row.tenant].append(row.id)
    query = select(ReviewRecord, "t.execution > $1 AND t.execution <= $2")
    async for review in reader.rows(ReviewRecord, query, after, page[-1].id):
        if (tenant := tenants.get(review.execution)) is not None:
            objects[tenant].append(review.id)
    found: defaultdict[str, list[ActRecord]] = defaultdict(list)
    for tenant, ids in objects.items():
        for first in range(0, len(ids), AT_ONCE):
            for entry in await _about(reader, tenant, ids[first : first + AT_ONCE]):
                act = ActRecord(execution=_execution_of(entry), **msgspec.structs.asdict(entry))
                found[act.execution].append(act)
    return found


async def _about(reader: Reader, tenant: str, objects: list[str]) -> list[AuditEntry]:
    marks = ", ".join(f"${number + 2}" for number in range(len(objects)))
    query = select(
        AuditEntry, f"t.tenant = $1 AND t.object_id IN ({marks}) AND t.object_type IN ('execution', 'review')"
    )
    return [row async for row in reader.rows(AuditEntry, query, tenant, *objects)]


def _execution_of(entry: AuditEntry) -> str:
    fields = {name: getattr(entry, name) for name in AuditRow.__struct_fields__}
    return execution_of(AuditRow(**fields))
