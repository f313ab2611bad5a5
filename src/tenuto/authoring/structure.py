"""The tree of a saga: which group a step is in, which step a reference means, and what each step depends on."""

from dataclasses import dataclass, field

from .context import step_name
from .markers import StepRef
from .problems import Problems
from .saga_source import SagaSource, StepSource
from .settings import GroupSettings

ROOT = ""


@dataclass(slots=True)
class Structure:
    """The tree of a saga. `members` lists the steps of each group; the root lists the steps outside of any group."""

    steps: dict[str, StepSource]
    problems: Problems
    parent: dict[str, str] = field(default_factory=dict)
    members: dict[str, list[str]] = field(default_factory=dict)
    depends_on: dict[str, dict[str, None]] = field(default_factory=dict)  # ordered, without repetitions

    def find(self, ref: StepRef) -> str | None:
        """Returns the id of the step that `ref` means, with `#index` for one clone, or None if there is none."""
        if isinstance(ref, str):
            return ref if ref.partition("#")[0] in self.steps else None
        found = self._running(ref)
        if not found:
            name = step_name(ref)
            return name if name in self.steps else None
        return found[0] if len(found) == 1 else None

    def id_of(self, ref: StepRef, where: str) -> str | None:
        """Like `find`, but reports a problem if there is no such step."""
        found = self.find(ref)
        if found is None:
            self.problems.add(where, "unknown_step", self._unknown(ref))
        elif "#" in found and not found.partition("#")[2].isdecimal():
            text = f"{found!r} does not name a clone: name clones by index, as in {found.partition('#')[0] + '#0'!r}"
            self.problems.add(where, "unknown_step", text)
            return None
        return found

    def _running(self, function: object) -> list[str]:
        """Returns the steps that run this function. A bound method means the steps of that object only."""
        plain = getattr(function, "__func__", function)
        exact = [id for id, step in self.steps.items() if step.function == function]
        return exact or [id for id, step in self.steps.items() if step.origin is plain]

    def _unknown(self, ref: StepRef) -> str:
        if not isinstance(ref, str) and len(self._running(ref)) > 1:
            return "several steps run that function: name the step by its id instead"
        name = ref if isinstance(ref, str) else getattr(ref, "__qualname__", repr(ref))
        return f"step {name!r} does not exist; steps are {', '.join(self.steps) or 'none'}"

    def lineage(self, id: str) -> list[str]:
        """Returns the groups that contain the step, outermost first, and the step itself."""
        found = [id]
        while (parent := self.parent[found[-1]]) != ROOT:
            found.append(parent)
        return found[::-1]

    def wait_for(self, reader: str, read: str, where: str) -> None:
        """Makes `reader` depend on `read`. The edge joins their outermost ancestors that differ."""
        ours, theirs = self.lineage(reader), self.lineage(read)
        shared = sum(a == b for a, b in zip(ours, theirs, strict=False))
        if shared in (len(ours), len(theirs)):
            self.problems.add(
                where, "cycle", f"it depends on {read!r}, which cannot complete before it: remove the dependency"
            )
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
            text = f'it depends on {earlier!r}, but both run at the same time in group {scope!r}: use mode="dag"'
            self.problems.add(where, "not_before", text)
        elif order.index(earlier) > order.index(later):
            text = f"it depends on {earlier!r}, which comes later in group {scope!r}: change their order"
            self.problems.add(where, "not_before", text)

    def _may_repeat(self, groups: list[str]) -> bool:
        found = [self._group(id) for id in groups]
        return any(group is not None and group.repeat_until is not None for group in found)

    def _group(self, id: str) -> GroupSettings | None:
        settings = self.steps[id].settings if id != ROOT else None
        return settings if isinstance(settings, GroupSettings) else None


def structure_of(source: SagaSource, problems: Problems) -> Structure:
    structure = Structure(_by_id(source, problems), problems)
    structure.parent = dict.fromkeys(structure.steps, ROOT)
    for id, step in structure.steps.items():
        if isinstance(step.settings, GroupSettings):
            structure.members[id] = list(_members(id, step.settings, structure))
    _break_cycles(structure)
    structure.members[ROOT] = [id for id in structure.steps if structure.parent[id] == ROOT]
    return structure


def _by_id(source: SagaSource, problems: Problems) -> dict[str, StepSource]:
    found: dict[str, StepSource] = {}
    for step in source.steps:
        if step.id in found:
            problems.add(f"step {step.id!r}", "duplicate_id", "two steps have this id: rename one of them")
        found.setdefault(step.id, step)
    for id in source.compensations:
        if id not in found:
            text = f"@compensation_step names step {id!r}, which does not exist; steps are {', '.join(found) or 'none'}"
            problems.add("", "unknown_step", text)
    return found


def _members(group: str, settings: GroupSettings, structure: Structure) -> list[str]:
    where = f"group {group!r}"
    found: dict[str, None] = {}
    for ref in settings.members:
        id = structure.id_of(ref, where)
        if id is None:
            continue
        if structure.parent.get(id, ROOT) != ROOT or id in found:
            structure.problems.add(
                where, "two_groups", f"step {id!r} is listed twice: a step belongs to one group, once"
            )
            continue
        structure.parent[id] = group
        found[id] = None
    return list(found)


def _break_cycles(structure: Structure) -> None:
    """Reports a group that contains itself, and takes it out of the tree."""
    for id in structure.members:
        seen = {id}
        current = id
        while (current := structure.parent[current]) != ROOT:
            if current in seen:
                structure.problems.add(
                    f"group {id!r}", "cycle", "the group contains itself: remove it from its own members"
                )
                structure.members[structure.parent[id]].remove(id)
                structure.parent[id] = ROOT
                break
            seen.add(current)
