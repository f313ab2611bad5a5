"""Stored definitions: published ones never change, and executions are pinned to one version."""

import hashlib
from functools import lru_cache

import msgspec

from tenuto.kernel import events as e
from tenuto.kernel.definition import Definition, from_document
from tenuto.kernel.plan import Plan
from tenuto.kernel.validation import problems
from tenuto.storage.port import DefinitionRow
from tenuto.storage.shared.records import ExecutionRecord
from tenuto.values.schema import Schema

from .invariants import Family, Violated, require

family = Family("Definitions")

D1 = family("D1", "A published definition never changes: its document has the hash that was published.")
D2 = family("D2", "An execution is pinned to one published version, which its row and its history agree on.")
D3 = family("D3", "A stored definition is well formed.")
D5 = family("D5", "The input of an execution conforms to the schema of its definition.")


def stored(row: DefinitionRow) -> Definition:
    """Decodes a stored definition. Raises `Violated` if it differs from the published one or cannot be decoded."""
    found = hashlib.sha256(row.document).hexdigest()
    require(found == row.hash, D1, f"{row.name}/{row.version}: the document has the hash {found}, not {row.hash}")
    try:
        definition = from_document(msgspec.json.decode(row.document))
    except (msgspec.DecodeError, TypeError, AttributeError) as error:
        raise Violated(D3, f"{row.name}/{row.version} cannot be read: {error}") from None
    same = (definition.name, definition.version) == (row.name, row.version)
    require(same, D3, f"{row.name}/{row.version} holds {definition.name}/{definition.version}")
    wrong = [f"{problem.path} {problem.code}" for problem in problems(definition)]
    require(not wrong, D3, f"{row.name}/{row.version}: {', '.join(wrong[:5])}")
    return definition


def pinned(row: ExecutionRecord, started: e.ExecutionStarted, definition: DefinitionRow) -> None:
    require(definition.status != "draft", D2, f"{definition.name}/{definition.version} is a draft")
    of_row, of_history = (row.definition, row.version), (started.definition, started.version)
    require(of_row == of_history, D2, f"the row names {of_row}, the history {of_history}")
    planned = started.plan_hash
    require(planned == definition.hash, D2, f"the history is of the plan {planned}, stored is {definition.hash}")


def input_is_valid(started: e.ExecutionStarted, definition: Definition) -> None:
    if definition.input_schema is None:
        return
    schema = _schema(msgspec.json.encode(definition.input_schema))
    wrong = [f"{flaw.path or '/'} {flaw.code}" for flaw in schema.problems_of(started.input, is_made=True)]
    require(not wrong, D5, f"the input does not fit: {', '.join(wrong[:5])}")


@lru_cache(maxsize=100)
def _schema(schema: bytes) -> Schema:
    return Schema(msgspec.json.decode(schema))


MOST = 200  # compiled definitions in memory


class Plans:
    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], DefinitionRow] = {}
        self._plans: dict[tuple[str, int], Plan] = {}

    def add(self, row: DefinitionRow) -> None:
        """Adds a definition.

        Raises `Violated` if it differs from the published one or is malformed. Drafts may be invalid.
        """
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
