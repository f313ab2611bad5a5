"""Paths, refs and keys (D1): every place has one name, every name one place, and a key never moves."""

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from tenuto.kernel.address import (
    PHASES,
    ROOT,
    Phase,
    Ref,
    child_path,
    clone_path,
    fan_of,
    fingerprint,
    idempotency_key,
    is_identifier,
    lease_id,
    parent_of,
    parse_segment,
    review_id,
    segments,
    step_id,
)

ids = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-]{0,12}", fullmatch=True)
indexes = st.integers(0, 100_000)
visits = st.none() | st.integers(1, 100)
parts = st.tuples(ids, st.none(), visits)
paths = st.lists(parts, min_size=1, max_size=4).map(
    lambda found: _joined([(id, clone, visit) for id, clone, visit in found])
)


def _joined(found: list[tuple[str, int | None, int | None]]) -> str:
    path = ROOT
    for id, clone, visit in found:
        path = child_path(path, id, clone=clone, visit=visit)
    return path


@pytest.mark.requirement("A7")
@pytest.mark.parametrize(
    ("path", "parent", "id"),
    [
        ("pay", "", "pay"),
        ("pay@2", "", "pay"),
        ("notify#3", "", "notify"),
        ("notify#3@2", "", "notify"),
        ("agents/writer/draft@2", "agents/writer", "draft"),
        ("loop@2/notify#7", "loop@2", "notify"),
    ],
)
def test_a_path_names_its_parent_and_its_step(path: str, parent: str, id: str) -> None:
    assert (parent_of(path), step_id(path)) == (parent, id)


def test_the_root_has_no_segments() -> None:
    assert segments(ROOT) == ()
    assert parent_of("pay") == ROOT


@for_all(st.lists(st.tuples(ids, st.none() | indexes, visits), min_size=1, max_size=4))
def test_a_path_says_where_it_came_from(found: list[tuple[str, int | None, int | None]]) -> None:
    assert [tuple(segment) for segment in segments(_joined(found))] == found


@for_all(st.lists(st.tuples(ids, st.none() | indexes, visits), min_size=1, max_size=3), st.data())
def test_two_places_never_share_a_path(found: list[tuple[str, int | None, int | None]], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.tuples(ids, st.none() | indexes, visits), min_size=1, max_size=3))
    assert (_joined(found) == _joined(other)) == (found == other)


@pytest.mark.requirement("E12")
@for_all(paths, indexes)
def test_a_clone_knows_its_fan_out(fan: str, index: int) -> None:
    assert fan_of(clone_path(fan, index)) == (fan, index)
    assert parent_of(clone_path(fan, index)) == parent_of(fan)
    assert step_id(clone_path(fan, index)) == step_id(fan)
    assert fan_of(fan) is None
    assert fan_of(child_path(clone_path(fan, index), "x")) is None


@pytest.mark.parametrize(
    ("text", "segment"),
    [("pay", ("pay", None, None)), ("pay@2", ("pay", None, 2)), ("n#0", ("n", 0, None)), ("n#0@1", ("n", 0, 1))],
)
def test_a_segment_is_an_id_a_clone_and_a_visit(text: str, segment: tuple[str, int | None, int | None]) -> None:
    assert tuple(parse_segment(text)) == segment


@pytest.mark.parametrize(
    ("text", "good"),
    [("pay", True), ("_x.y-z", True), ("", False), ("1st", False), ("a/b", False), ("a#1", False), ("a@1", False)],
)
def test_an_identifier_has_none_of_the_signs_that_paths_are_made_of(text: str, good: bool) -> None:
    assert is_identifier(text) is good


def test_an_identifier_is_bounded() -> None:
    assert is_identifier("x" * 128)
    assert not is_identifier("x" * 129)


# -- Keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("D1")
def test_fields_are_told_apart() -> None:
    assert fingerprint("a", "bc") != fingerprint("ab", "c")
    assert fingerprint("a") != fingerprint("a", "")


@pytest.mark.requirement("D1")
@for_all(st.lists(st.text(max_size=8), max_size=4), st.lists(st.text(max_size=8), max_size=4))
def test_a_fingerprint_is_injective(some: list[str], others: list[str]) -> None:
    assert (fingerprint(*some) == fingerprint(*others)) == (some == others)


@pytest.mark.requirement("D1")
def test_a_key_never_moves() -> None:
    """If this fails, every handler's deduplication breaks on the day of the upgrade."""
    assert idempotency_key("acme", "x1", "pay", "forward", 1) == (
        "4b511eb44c136b0690737079485590ff6760b5cb72ec6e3da0f8cddb9bf4a538"
    )


@pytest.mark.requirement("B15")
def test_every_part_of_a_key_matters() -> None:
    phases: tuple[Phase, ...] = PHASES
    keys = [
        idempotency_key(tenant, execution, path, phase, generation)
        for tenant in ("acme", "other")
        for execution in ("x1", "x2")
        for path in ("pay", "pay@2", "pay#1", "scope/pay")
        for phase in phases
        for generation in (1, 2)
    ]
    assert len(set(keys)) == len(keys) == 2 * 2 * 4 * 5 * 2


@pytest.mark.requirement("F7")
def test_a_lease_names_one_attempt() -> None:
    refs = [Ref(path, phase, number) for path in ("a", "b") for phase in PHASES for number in (1, 2)]
    assert len({lease_id("x1", ref) for ref in refs} | {lease_id("x2", ref) for ref in refs}) == 2 * len(refs)


def test_a_review_is_named_by_the_event_that_opened_it() -> None:
    assert review_id("x1", 7) == "x1.7"
