"""The nodes of a definition with their surroundings."""

from tenuto.kernel.definition import Definition, Node, Scope, root_scope, run_policies

MAX_NODES = 10_000
MAX_NESTING = 32


class Place:
    """A node and its place. The root's pointer is empty; its children are the definition's `steps`."""

    __slots__ = ("by_id", "children", "index", "node", "parent", "pointer")

    def __init__(self, node: Node, pointer: str, parent: "Place | None", index: int) -> None:
        self.node = node
        self.pointer = pointer
        self.parent = parent
        self.index = index
        self.children: list[Place] = []
        self.by_id: dict[str, Place] = {}

    @property
    def scope(self) -> Scope:
        """The scope that contains it."""
        assert self.parent is not None
        assert isinstance(self.parent.node, Scope)
        return self.parent.node

    @property
    def repeats(self) -> bool:
        """Whether its children may run again, so that a later step can come before an earlier one."""
        scope = self.node
        return isinstance(scope, Scope) and (scope.mode == "flow" or scope.repeat_until is not None)

    def lineage(self) -> list["Place"]:
        found: list[Place] = [self]
        while found[-1].parent is not None:
            found.append(found[-1].parent)
        return found[::-1]


class Tree:
    """All nodes of a definition, in the order they are written, and by id."""

    def __init__(self, definition: Definition, *, are_agents: bool = False) -> None:
        self._unit_depth = 1 if are_agents else 2 if run_policies(definition) is not None else 0
        self.root = Place(root_scope(definition), "", None, 0)
        self.too_deep: list[Place] = []
        self.places = self._survey()
        self.by_id: dict[str, Place] = {}
        self.first_of: dict[str, Place] = {}  # by pointer, for those whose id was taken
        firsts: dict[tuple[str, str], Place] = {}
        for place in self.places:
            if self._is_task_of_one(place):  # its id means the step
                firsts[self.unit_of(place), place.node.id] = self.by_id[place.node.id] = place
                continue
            self.by_id.setdefault(place.node.id, place)
            first = firsts.setdefault((self.unit_of(place), place.node.id), place)
            if first is not place:
                self.first_of[place.pointer] = first
        self.has_planner = any(isinstance(p.node, Scope) and p.node.planner for p in (self.root, *self.places))

    def _is_task_of_one(self, place: Place) -> bool:
        """Returns whether a step of a run is alone in a task with its own id."""
        task = place.parent
        is_alone = task is not None and task.node.id == place.node.id and len(task.children) == 1
        return bool(self._unit_depth) and is_alone and not isinstance(place.node, Scope)

    def unit_of(self, place: Place) -> str:
        """Returns the pointer of the agent that contains a place. Agents of a run may use the same ids inside."""
        lineage = place.lineage()
        return lineage[self._unit_depth].pointer if self._unit_depth and len(lineage) > self._unit_depth + 1 else ""

    def nearest(self, id: str, reader: Place | None) -> Place | None:
        """Returns the node that an expression of the reader means: that of its own agent, if it has one."""
        if reader is not None and self._unit_depth and (unit := self.unit_of(reader)):
            own = [p for p in self.places if p.node.id == id and self.unit_of(p) == unit]
            if own:
                return own[-1]  # a task comes before the step that is alone in it
        return self.by_id.get(id)

    def _survey(self) -> list[Place]:
        found: list[Place] = []
        stack = [(self.root, 0)]
        while stack and len(found) <= MAX_NODES:
            place, depth = stack.pop()
            if place is not self.root:
                found.append(place)
            if isinstance(place.node, Scope):
                if depth > MAX_NESTING:
                    self.too_deep.append(place)
                    continue
                field = "children" if place is not self.root else "steps"
                place.children = [
                    Place(child, f"{place.pointer}/{field}/{index}", place, index)
                    for index, child in enumerate(place.node.children)
                ]
                place.by_id = {child.node.id: child for child in place.children}
                stack.extend((child, depth + 1) for child in reversed(place.children))
        return found
