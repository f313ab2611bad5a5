"""Where steps stand among groups, what they are named by, and what each has to wait for."""

from dataclasses import dataclass, field

from .context import step_name
from .gather import Material, Piece
from .markers import StepRef
from .problems import Problems
from .settings import GroupSettings

ROOT = ""


@dataclass(slots=True)
class Structure:
    """The tree of a saga: `members` by group, the root's being those of no group."""

    pieces: dict[str, Piece]
    problems: Problems
    parent: dict[str, str] = field(default_factory=dict)
    members: dict[str, list[str]] = field(default_factory=dict)
    depends_on: dict[str, dict[str, None]] = field(default_factory=dict)  # ordered, without repetitions

    def find(self, ref: StepRef) -> str | None:
        """The id of the step that is meant, with `#index` if it is one clone; None if there is none."""
        if isinstance(ref, str):
            return ref if ref.partition("#")[0] in self.pieces else None
        found = self._running(ref)
        if not found:
            name = step_name(ref)
            return name if name in self.pieces else None
        return found[0] if len(found) == 1 else None

    def id_of(self, ref: StepRef, where: str) -> str | None:
        """`find`, with a problem told where there is none."""
        found = self.find(ref)
        if found is None:
            self.problems.add(where, "unknown_step", self._unknown(ref))
        elif "#" in found and not found.partition("#")[2].isdecimal():
            text = (
                f"{found!r} does not name a clone: clones are read by index, as in {found.partition('#')[0] + '#0'!r}"
            )
            self.problems.add(where, "unknown_step", text)
            return None
        return found

    def _running(self, function: object) -> list[str]:
        """The steps of a function: of a method, those of that very object; of what stands in a class, its own."""
        plain = getattr(function, "__func__", function)
        exact = [id for id, piece in self.pieces.items() if piece.function == function]
        return exact or [id for id, piece in self.pieces.items() if piece.origin is plain]

    def _unknown(self, ref: StepRef) -> str:
        if not isinstance(ref, str) and len(self._running(ref)) > 1:
            return "several steps run that function: name the step by its id"
        name = ref if isinstance(ref, str) else getattr(ref, "__qualname__", repr(ref))
        return f"there is no step {name!r} in this saga; there are {', '.join(self.pieces) or 'none'}"

    def lineage(self, id: str) -> list[str]:
        """The step and the groups around it, outermost first."""
        found = [id]
        while (parent := self.parent[found[-1]]) != ROOT:
            found.append(parent)
        return found[::-1]

    def wait_for(self, reader: str, read: str, where: str) -> None:
        """`reader` begins only when `read` has ended. The edge is drawn where their lines of groups part."""
        ours, theirs = self.lineage(reader), self.lineage(read)
        shared = sum(a == b for a, b in zip(ours, theirs, strict=False))
        if shared in (len(ours), len(theirs)):
            self.problems.add(where, "cycle", f"it would wait for {read!r}, which cannot end before it")
            return
        scope = ours[shared - 1] if shared else ROOT
        later, earlier = ours[shared], theirs[shared]
        group = self._group(scope)
        if group is None or group.mode == "dag":
            self.depends_on.setdefault(later, {})[earlier] = None
        elif not self._may_repeat(ours[:shared]):
            self._check_order(group.mode, scope, later, earlier, where)

    def _check_order(self, mode: str, scope: str, later: str, earlier: str, where: str) -> None:
        order = self.members[scope]
        if mode == "parallel":
            text = f'it waits for {earlier!r}, but both run at the same time in group {scope!r}: use mode="dag"'
            self.problems.add(where, "not_before", text)
        elif order.index(earlier) > order.index(later):
            text = f"it waits for {earlier!r}, which comes later in group {scope!r}: change their order"
            self.problems.add(where, "not_before", text)

    def _may_repeat(self, groups: list[str]) -> bool:
        found = [self._group(id) for id in groups]
        return any(group is not None and group.repeat_until is not None for group in found)

    def _group(self, id: str) -> GroupSettings | None:
        settings = self.pieces[id].settings if id != ROOT else None
        return settings if isinstance(settings, GroupSettings) else None


def structure_of(material: Material, problems: Problems) -> Structure:
    structure = Structure(_by_id(material, problems), problems)
    structure.parent = dict.fromkeys(structure.pieces, ROOT)
    for id, piece in structure.pieces.items():
        if isinstance(piece.settings, GroupSettings):
            structure.members[id] = list(_members(id, piece.settings, structure))
    _break_circles(structure)
    structure.members[ROOT] = [id for id in structure.pieces if structure.parent[id] == ROOT]
    return structure


def _by_id(material: Material, problems: Problems) -> dict[str, Piece]:
    found: dict[str, Piece] = {}
    for piece in material.pieces:
        if piece.id in found:
            problems.add(f"step {piece.id!r}", "duplicate_id", "two steps have this id: rename one")
        found.setdefault(piece.id, piece)
    for step in material.compensations:
        if step not in found:
            problems.add("", "unknown_step", f"a compensation is declared for step {step!r}, which this saga has not")
    return found


def _members(group: str, settings: GroupSettings, structure: Structure) -> list[str]:
    where = f"group {group!r}"
    found: dict[str, None] = {}
    for ref in settings.members:
        id = structure.id_of(ref, where)
        if id is None:
            continue
        if structure.parent.get(id, ROOT) != ROOT or id in found:
            structure.problems.add(where, "two_groups", f"step {id!r} is named twice: a step is in one group, once")
            continue
        structure.parent[id] = group
        found[id] = None
    return list(found)


def _break_circles(structure: Structure) -> None:
    """A group that is in itself has no outermost: it is told, and taken out."""
    for id in structure.members:
        seen = {id}
        current = id
        while (current := structure.parent[current]) != ROOT:
            if current in seen:
                structure.problems.add(f"group {id!r}", "cycle", "the group contains itself")
                structure.members[structure.parent[id]].remove(id)
                structure.parent[id] = ROOT
                break
            seen.add(current)
