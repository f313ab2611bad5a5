"""Definitions (A1, A3, A4): one text, one hash, and back again without a loss."""

import msgspec
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from tenuto.kernel.definition import (
    Definition,
    Node,
    Scope,
    Step,
    canonical,
    content_hash,
    differences,
    from_document,
    names_in_filter,
    node_from_document,
    root_scope,
    to_document,
)

from .build import approval, decision, definition, pause_for, scope, step, unsafe

EXAMPLES = [
    definition(step("a")),
    definition(step("a", undo=True), approval("b"), pause_for("c", 5), name="other"),
    definition(decision("d", ("true", "a"), default="$fail"), step("a", on_success="$succeed"), mode="flow"),
    definition(scope("s", step("a"), scope("t", unsafe("b", undo=True)), mode="parallel"), step("c"), output={"x": 1}),
    definition(step("a", foreach="[1, 2]", suffix="item"), retry_budget=3, compensation="BEST_EFFORT_PARALLEL"),
]


@pytest.mark.requirement("A1")
@pytest.mark.parametrize("made", EXAMPLES, ids=lambda made: content_hash(made)[:6])
def test_a_document_reads_as_the_definition_it_was_written_from(made: Definition) -> None:
    document = to_document(made)
    assert isinstance(document, dict)
    again = from_document(document)
    assert again == made
    assert canonical(again) == canonical(made)


@pytest.mark.requirement("A3")
def test_the_hash_is_of_the_content() -> None:
    assert len({content_hash(made) for made in EXAMPLES}) == len(EXAMPLES)
    assert content_hash(definition(step("a"))) == content_hash(definition(step("a")))
    assert content_hash(definition(step("a"))) != content_hash(definition(step("a", tries=4)))


def test_defaults_are_written_out_so_that_a_definition_has_one_text() -> None:
    short = from_document({"name": "d", "steps": [{"step_id": "a", "handler": "h"}]})
    document = to_document(short)
    assert isinstance(document, dict)
    assert isinstance(document["steps"], list)
    assert isinstance(document["steps"][0], dict)
    assert document["steps"][0]["retry_policy"] == {
        "max_attempts": 3,
        "backoff_strategy": "exponential",
        "initial_delay_ms": None,
        "max_delay_ms": None,
        "jitter": 0.1,
        "timeout_ms": 30_000,
        "retry_on_classes": ["TRANSIENT", "RETRYABLE", "RATE_LIMITED", "DEPENDENCY_FAILED"],
    }
    assert content_hash(from_document(document)) == content_hash(short)


def test_a_definition_without_steps_is_read_and_left_to_the_validator() -> None:
    assert from_document({"name": "d"}).steps == ()


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="surprise"):
        node_from_document({"step_id": "a", "surprise": 1})


def test_the_root_is_the_definition_seen_as_a_scope() -> None:
    made = definition(step("a"), mode="parallel", max_concurrency=2, failure_mode="continue", timeout_ms=5)
    root = root_scope(made)
    assert (root.id, root.mode, root.max_concurrency, root.failure_mode, root.timeout_ms) == (
        "",
        "parallel",
        2,
        "continue",
        5,
    )


names = st.from_regex(r"[a-z]{1,5}", fullmatch=True)
steps = st.builds(
    Step,
    id=names,
    handler=names,
    with_=st.none() | st.dictionaries(names, st.integers() | st.text(max_size=5), max_size=2),
    type=st.sampled_from(["task", "notify", "external_call"]),
    safety=st.sampled_from(["SAFE_TO_RETRY", "NOT_SAFE_TO_RETRY"]),
    timeout_ms=st.none() | st.integers(1, 10_000),
)


def _scopes(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.builds(
        Scope,
        id=names,
        mode=st.sampled_from(["sequence", "parallel", "dag", "flow"]),
        children=st.lists(children, max_size=3).map(tuple),
    )


nodes: st.SearchStrategy[Node] = st.recursive(steps, _scopes, max_leaves=6)


@for_all(st.lists(nodes, max_size=4))
def test_any_tree_survives_its_text(found: list[Node]) -> None:
    made = Definition(name="d", steps=tuple(found))
    document = to_document(made)
    assert isinstance(document, dict)
    assert from_document(document) == made


def differing(old: Definition, new: Definition) -> list[str]:
    return differences(to_document(old), to_document(new))


@pytest.mark.requirement("A3")
def test_where_two_definitions_differ_is_told_by_the_ids_of_steps() -> None:
    old = definition(step("a"), scope("s", step("b")))
    assert differing(old, definition(step("a", tries=5), scope("s", step("b")))) == [
        "/steps/a/retry_policy/max_attempts"
    ]
    assert differing(old, definition(step("a"), scope("s", step("b", undo=True)))) == [
        "/steps/s/children/b/compensation_handler"
    ]
    assert differing(old, definition(step("a"), scope("s", step("b")), step("c"))) == ["/steps/c"]
    assert differing(old, definition(scope("s", step("b")), step("a"))) == ["/steps"], "only their order"
    other = definition(step("a", on=("TRANSIENT",)), scope("s", step("b")))
    assert differing(old, other)[0].startswith("/steps/a/retry_policy/retry_on_classes/")


def test_a_name_means_the_tenants_own_or_the_one_for_all() -> None:
    assert names_in_filter("mine", "acme") == ["acme/mine", "mine"]
    assert names_in_filter("acme/mine", "acme") == ["acme/acme/mine"], "how it is called among all is no name"
    assert names_in_filter("acme/mine", None) == ["acme/mine"]
