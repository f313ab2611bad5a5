"""Who runs next when there are fewer slots than work."""

from collections import Counter

from tenuto.runtime.executor.limits import LocalLimits
from tenuto.runtime.executor.slots import NORMAL, UNDO, Lane
from tenuto.testing import VirtualClock


class Place:
    """A lane with one slot that is taken: what enters waits until `serve` lets it in, one after the other."""

    def __init__(self, slots: int = 1) -> None:
        self.started: list[str] = []
        self.clock = VirtualClock()
        self.limits = LocalLimits(self.clock)
        self.lane: Lane[str, str] = Lane(slots, self.limits, self._start)
        for _ in range(slots):
            self.lane.enter("other", "other", NORMAL, (), "first")
        self.started.clear()

    def _start(self, item: str) -> bool:
        self.started.append(item)
        return item != "out of date"

    def add(self, tenant: str, owner: str, item: str, *limits: str, rank: int = NORMAL) -> None:
        self.lane.enter(tenant, owner, rank, limits, item)

    def serve(self, turns: int) -> list[str]:
        before = len(self.started)
        for _ in range(turns):
            self.lane.leave(())
            self.lane.pump()
        return self.started[before:]


def test_executions_of_a_tenant_take_turns_whatever_the_number_of_their_clones() -> None:
    place = Place()
    for clone in range(1_000):
        place.add("t", "wide", f"wide {clone}")
    place.add("t", "small", "small")
    assert place.serve(3) == ["wide 0", "small", "wide 1"]


def test_tenants_take_turns_whatever_the_number_of_their_executions() -> None:
    place = Place()
    for number in range(1_000):
        place.add("large", f"execution {number}", "large")
    for number in range(3):
        place.add("small", f"other {number}", "small")
    assert place.serve(8) == ["large", "small"] * 3 + ["large"] * 2


def test_within_its_turn_each_execution_of_a_tenant_has_one() -> None:
    place = Place()
    for owner in ("a", "b"):
        for _ in range(2):
            place.add("t", owner, owner)
            place.add("u", f"{owner} of u", f"{owner} of u")
    assert place.serve(8) == ["a", "a of u", "b", "b of u"] * 2


def test_an_undo_goes_before_all_tenants() -> None:
    place = Place()
    place.add("t", "a", "forward")
    place.add("u", "b", "undo", rank=UNDO)
    assert place.serve(2) == ["undo", "forward"]


def test_what_names_a_limit_takes_turns_with_what_names_none() -> None:
    """Neither waits until the others are through: not within one tenant, and not between two."""
    place = Place()
    for clone in range(100):
        place.add("t", "wide", f"wide {clone}")
    for number in range(3):
        place.add("t", "limited", f"limited {number}", "mail")
    assert place.serve(6) == ["wide 0", "limited 0", "wide 1", "limited 1", "wide 2", "limited 2"]


def test_a_tenant_does_not_gain_turns_by_naming_many_limits() -> None:
    place = Place()
    for _ in range(40):
        place.add("many", "a", "many")
        place.add("many", "b", "many", "mail")
        place.add("many", "c", "many", "mail", "bank")
        place.add("one", "d", "one")
    assert Counter(place.serve(40)) == {"many": 20, "one": 20}


def test_what_waits_for_a_spent_limit_holds_up_nobody_else() -> None:
    place = Place(slots=2)
    place.limits.set("mail", None, 1)
    for _ in range(2):
        place.add("t", "a", "mail", "mail")
    place.add("t", "b", "free")
    assert place.serve(1) == ["mail"]
    assert place.serve(1) == ["free"], "there is a slot, and the limit is spent"


def test_what_is_out_of_date_takes_neither_slot_nor_limit() -> None:
    place = Place()
    place.limits.set("mail", (2, 1_000), 1)
    for _ in range(3):
        place.add("t", "a", "out of date", "mail")
    place.add("t", "a", "mail", "mail")
    assert place.serve(1) == ["out of date"] * 3 + ["mail"]
    assert place.limits.spent(("mail",)) == "mail"
    place.limits.leave(("mail",))
    assert place.limits.spent(("mail",)) is None, "of two starts in a second one is left"


def test_a_limit_counts_what_runs_already_when_it_is_set() -> None:
    place = Place(slots=3)
    for _ in range(2):
        place.add("t", "a", "mail", "mail")
    place.serve(2)
    place.limits.set("mail", None, 2)
    assert place.limits.spent(("mail",)) == "mail"
    place.limits.leave(("mail",))
    assert place.limits.spent(("mail",)) is None


def test_how_much_is_wanted_of_limits_is_bounded_by_the_slots_there_are() -> None:
    place = Place(slots=5)
    for name in ("bank", "mail", "both"):
        place.limits.set(name, (1, 1_000), None)
        place.limits.take((name,))
    for _ in range(4):
        place.add("t", "a", "mail", "mail")
        place.add("t", "b", "bank", "bank", rank=UNDO)
    assert place.lane.wanted() == {}
    for _ in range(5):
        place.lane.leave(())
    assert place.lane.wanted() == {("bank",): 4, ("mail",): 1}
