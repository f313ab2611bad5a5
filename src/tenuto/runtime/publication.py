"""What is known under a name and a version: kept as it was published, and not started in every status."""

from dataclasses import dataclass

from tenuto.authoring.program import Program
from tenuto.errors import DefinitionConflict, DefinitionError, NotFound, Problem
from tenuto.kernel.definition import JSON, Definition, canonical, differences, plain_name, to_document
from tenuto.storage.catalog import DefinitionRow, DefinitionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A version of a definition, with its status and the hash of its plan."""

    definition: Definition
    status: DefinitionStatus
    plan_hash: str


def definition_row(program: Program, now: int) -> DefinitionRow:
    schemas = program.encode_input.schemas
    return DefinitionRow(
        name=program.name,
        version=program.version,
        status="published",
        hash=program.plan.hash,
        document=canonical(program.plan.definition),
        created_at=now,
        published_at=now,
        input_schemas=None if schemas is None else schemas.encoded,
        input_schemas_hash=None if schemas is None else schemas.hash,
    )


def check_startable(name: str, version: int, status: str) -> None:
    if status == "deprecated":
        raise DefinitionConflict(
            f"{plain_name(name)!r} in version {version} is deprecated: no more of it is started.",
            code="definition_deprecated",
            hint="start a newer version",
        )
    if status == "draft":
        raise NotFound(f"There is no definition {plain_name(name)!r} in version {version}.", hint="publish the draft")


def changed_plan(program: Program, known: JSON) -> DefinitionError:
    """`known` is the document that is kept under this version."""
    text = "it is not what is known under this version: give the definition a new version"
    places = differences(known, to_document(program.plan.definition))
    return DefinitionError(
        f"Definition {plain_name(program.name)!r}, version {program.version}, was changed.",
        problems=[Problem(place, "changed_plan", text) for place in places],
        code="definition_changed",
    )
