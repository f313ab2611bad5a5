"""What is known under a name and a version: kept as it was published, and not started in every status."""

from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches

from tenuto.authoring.plan_changes import describe_changes
from tenuto.authoring.program import Program
from tenuto.errors import DefinitionConflict, DefinitionError, NotFound
from tenuto.kernel.definition import JSON, Definition, canonical, owner_of, plain_name, to_document
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


SHOWN_NAMES = 10


def unknown_definition(name: str, version: int | None, known: Collection[tuple[str, int]]) -> NotFound:
    """Returns the error for a definition that does not exist, with what the caller may have meant.

    `known` are names and versions. Those of other tenants are not shown.
    """
    plain = plain_name(name)
    versions = sorted(number for other, number in known if plain_name(other) == plain and _is_visible(other, name))
    if version is not None and versions:
        text = ", ".join(map(str, versions[-SHOWN_NAMES:]))
        return NotFound(f"There is no definition {plain!r} in version {version}.", hint=f"its versions are: {text}")
    names = sorted({plain_name(other) for other, _ in known if _is_visible(other, name)})
    which = f"named {plain!r}" if version is None else f"{plain!r} in version {version}"
    return NotFound(f"There is no definition {which}.", hint=_meant(plain, names))


def _is_visible(other: str, name: str) -> bool:
    return owner_of(other) in (None, owner_of(name))


def _meant(name: str, names: list[str]) -> str:
    register = "register or apply it first"
    if not names:
        return f"{register}; no definition is registered yet"
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    registered = f"registered: {', '.join(names[:SHOWN_NAMES])}{more}"
    close = get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}? If not, {register}; {registered}" if close else f"{register}; {registered}"


def changed_plan(program: Program, known: JSON) -> DefinitionError:
    """`known` is the document that is kept under this version."""
    return DefinitionError(
        f"Definition {plain_name(program.name)!r}, version {program.version}, was changed.",
        problems=describe_changes(known, to_document(program.plan.definition), is_saga=program.encode_input.has_code),
        code="definition_changed",
    )
