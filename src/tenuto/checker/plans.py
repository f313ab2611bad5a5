"""The plans of the definitions that were read, compiled when an execution needs them."""

from tenuto.kernel.plan import Plan
from tenuto.storage.port import DefinitionRow

from .definitions import stored

MOST = 200  # compiled ones that are kept


class Plans:
    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], DefinitionRow] = {}
        self._plans: dict[tuple[str, int], Plan] = {}

    def add(self, row: DefinitionRow) -> None:
        """`Violated` if it is not what was published, or not well formed. A draft may be anything yet."""
        self._rows[row.name, row.version] = row
        if row.status != "draft":
            stored(row)

    def row(self, name: str, version: int) -> DefinitionRow | None:
        return self._rows.get((name, version))

    def plan(self, row: DefinitionRow) -> Plan:
        at = (row.name, row.version)
        plan = self._plans.get(at)
        if plan is None:
            if len(self._plans) >= MOST:
                self._plans.clear()
            plan = self._plans[at] = Plan(stored(row))
        return plan
