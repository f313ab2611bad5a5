"""Definitions as JSON: what is read, what is refused, and where."""

import json
from pathlib import Path
from typing import Any, get_args

import jsonschema_rs
import msgspec
import pytest

from tenuto.authoring.document import MAX_BYTES, check_definition, definition_schema, read_document
from tenuto.authoring.markers import FromStep
from tenuto.authoring.programs import bind_handler, compile_document
from tenuto.errors import DefinitionError
from tenuto.kernel import definition as kernel
from tenuto.kernel.definition import Definition, RetryPolicy, Scope, Step, to_document

TASK: dict[str, Any] = {"step_id": "a", "handler": "h", "idempotency_strategy": "SAFE_TO_RETRY"}
INVOICE: dict[str, Any] = {
    "$schema": "https://example.org/schema.json",
    "name": "invoice-approval",
    "version": 1,
    "input_schema": {"type": "object", "required": ["amount"]},
    "policies": {"timeout_ms": 86_400_000, "compensation": "STRICT_SEQUENTIAL"},
    "steps": [
        {
            "step_id": "check",
            "name": "Is it large?",
            "type": "decision",
            "branches": [{"when": "input.amount > 1000", "next": "approve"}],
            "default": "pay",
        },
        {
            "step_id": "approve",
            "type": "human_approval",
            "timeout_ms": 3_600_000,
            "on_success": "pay",
            "on_failure": "reject",
            "on_timeout": "reject",
        },
        {
            "step_id": "pay",
            "type": "external_call",
            "handler": "http",
            "with": {"method": "POST", "json": {"amount": "${input.amount}"}},
            "timeout_ms": 30_000,
            "idempotency_strategy": "SAFE_TO_RETRY",
            "retry_policy": {"backoff_strategy": "jittered", "initial_delay_ms": 200, "timeout_ms": 5_000},
        },
        {
            "step_id": "reject",
            "type": "notify",
            "handler": "webhook",
            "with": {"url": "x"},
        },
    ],
}


def refused(source: Any) -> list[tuple[str, str]]:
    with pytest.raises(DefinitionError) as error:
        read_document(source)
    return [(problem.path, problem.code) for problem in error.value.problems]


def told(source: Any) -> str:
    with pytest.raises(DefinitionError) as error:
        read_document(source)
    return str(error.value)


# -- Reading -----------------------------------------------------------------------------------------------------------


def test_a_document_is_read() -> None:
    found = read_document(INVOICE)
    assert (found.name, found.mode, len(found.steps)) == ("invoice-approval", "flow", 4)
    pay = found.steps[2]
    assert isinstance(pay, Step)
    assert pay.retry_policy == RetryPolicy(
        initial_delay_ms=200, timeout_ms=5_000, backoff_strategy="exponential", jitter=0.1
    )
    assert pay.with_ == {"method": "POST", "json": {"amount": "${input.amount}"}}


def test_it_may_be_a_mapping_a_text_or_a_file(tmp_path: Path) -> None:
    text = json.dumps(INVOICE)
    file = tmp_path / "invoice.json"
    file.write_text(text, encoding="utf-8")
    assert read_document(INVOICE) == read_document(text) == read_document(text.encode()) == read_document(file)


def test_a_definition_survives_its_document() -> None:
    found = read_document(INVOICE)
    document: Any = to_document(found)
    assert read_document(document) == found


def test_reading_changes_nothing_of_what_was_given() -> None:
    before = json.dumps(INVOICE)
    read_document(INVOICE)
    assert json.dumps(INVOICE) == before


def test_jitter_may_be_said_with_jittered() -> None:
    policy = {"backoff_strategy": "jittered", "jitter": 0.5}
    (step,) = read_document({"name": "d", "steps": [{**TASK, "retry_policy": policy}]}).steps
    assert isinstance(step, Step)
    assert (step.retry_policy.backoff_strategy, step.retry_policy.jitter) == ("exponential", 0.5)


def test_an_attempt_has_no_more_time_than_its_step() -> None:
    (step,) = read_document({"name": "d", "steps": [{**TASK, "timeout_ms": 10_000}]}).steps
    assert isinstance(step, Step)
    assert step.retry_policy.timeout_ms == 10_000


def test_scopes_nest() -> None:
    scope = {"step_id": "s", "type": "scope", "mode": "parallel", "children": [TASK]}
    (found,) = read_document({"name": "d", "steps": [scope]}).steps
    assert isinstance(found, Scope)
    assert isinstance(found.children[0], Step)


# -- What is no document -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("", "not_json"),
        ("{", "not_json"),
        ("invoice.json", "not_json"),
        ('{"name": "a", "name": "b"}', "not_json"),
        ('{"name": NaN}', "not_json"),
        (b"\xff", "not_json"),
        ({"name": object()}, "not_json"),
        ("[" * 100_000, "not_json"),
        ("[]", "type"),
        ("x" * (MAX_BYTES + 1), "too_large"),
        (Path("/nowhere/at/all.json"), "unreadable"),
    ],
    ids=range(11),
)
def test_what_is_no_document(source: Any, code: str) -> None:
    assert refused(source) == [("", code)]


def test_a_name_of_a_file_is_explained() -> None:
    assert "to read a file, pass a Path" in told("invoice.json")
    assert "the key 'name' occurs twice" in told('{"name": "a", "name": "b"}')


# -- The schema --------------------------------------------------------------------------------------------------------


def steps(*steps: Any) -> dict[str, Any]:
    return {"name": "d", "steps": list(steps)}


def task(**fields: Any) -> dict[str, Any]:
    return steps({**TASK, **fields})


def scope(*children: Any, **fields: Any) -> dict[str, Any]:
    return steps({"step_id": "s", "type": "scope", "children": list(children), **fields})


@pytest.mark.parametrize(
    ("document", "wrong"),
    [
        ({}, [("/name", "missing"), ("/steps", "missing")]),
        ({"name": "d", "steps": {}}, [("/steps", "type")]),
        (steps(3), [("/steps/0", "type")]),
        (steps({**TASK, "step_id": None}), [("/steps/0/step_id", "type")]),
        ({**task(), "name": "a b"}, [("/name", "bad_name")]),
        ({**task(), "color": 1}, [("/color", "unknown_field")]),
        (task(handlr="x"), [("/steps/0/handlr", "unknown_field")]),
        (task(type="job"), [("/steps/0/type", "unknown_word")]),
        (task(timeout_ms="5"), [("/steps/0/timeout_ms", "type")]),
        (task(retry_policy={"max_attempts": 0}), [("/steps/0/retry_policy/max_attempts", "minimum")]),
        (task(idempotency_strategy="safe"), [("/steps/0/idempotency_strategy", "unknown_word")]),
        (scope({**TASK, "step_id": 3}), [("/steps/0/children/0/step_id", "type")]),
        (scope(TASK, foreach="input.x"), [("/steps/0/foreach", "unknown_field")]),
        ({**task(), "policies": {"escalation": {"errors": 0}}}, [("/policies/escalation/errors", "minimum")]),
        (task(classify={"x": "BAD"}), [("/steps/0/classify/x", "unknown_word")]),
    ],
    ids=range(15),
)
def test_what_the_schema_refuses(document: Any, wrong: list[tuple[str, str]]) -> None:
    assert refused(document) == wrong


def test_fan_out_of_a_scope_is_explained() -> None:
    assert "a scope cannot be fanned out: put `foreach` on a step" in told(scope(TASK, foreach="input.x"))


def test_shape_and_sense_are_told_together() -> None:
    document = {"name": "a b", "steps": [{**TASK, "on_success": "x"}, {"step_id": "b", "handler": "h"}]}
    assert refused(document) == [
        ("/name", "bad_name"),
        ("/steps/1/idempotency_strategy", "missing"),
        ("/steps/0/on_success", "unknown_step"),
    ]


def test_all_mistakes_of_shape_and_sense_are_reported_in_one_run() -> None:
    document = {
        "name": "d",
        "version": "1",
        "steps": [
            {**TASK, "timeout_ms": "5 s", "on_success": "c"},
            {**TASK, "step_id": "b", "retry_policy": {"max_attempts": "x", "color": 1}, "when": "1 +"},
            {**TASK, "step_id": "b", "handler": 7},
        ],
    }
    assert refused(document) == [
        ("/steps/0/timeout_ms", "type"),
        ("/steps/1/retry_policy/color", "unknown_field"),
        ("/steps/1/retry_policy/max_attempts", "type"),
        ("/steps/2/handler", "type"),
        ("/version", "type"),
        ("/steps/0/on_success", "unknown_step"),
        ("/steps/1/when", "expression"),
        ("/steps/2/step_id", "duplicate_id"),
    ]


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"name": "d", "steps": [{**TASK, "on_success": "x"}, {**TASK, "step_id": 7}]}, "/steps/1/step_id"),
        ({"name": "d", "steps": [{**TASK, "type": "job", "branches": []}]}, "/steps/0/type"),
        ({"name": "d", "steps": [{**TASK, "on_success": 7}, {**TASK, "step_id": "b"}]}, "/steps/0/on_success"),
        ({"name": "d", "mode": "graph", "steps": [{**TASK, "depends_on": []}]}, "/mode"),
        ({"name": "d", "steps": [{**TASK, "on_success": "b"}, 3]}, "/steps/1"),
        ({"name": "d", "mode": "dag", "steps": [{**TASK, "depends_on": [3]}]}, "/steps/0/depends_on/0"),
    ],
)
def test_what_only_follows_from_another_mistake_is_not_reported(document: Any, path: str) -> None:
    assert [path for path, _ in refused(document)] == [path]


def test_dependencies_in_a_flow_are_refused_with_the_mode_they_need() -> None:
    pair = [TASK, {**TASK, "step_id": "b", "depends_on": [TASK["step_id"]]}]
    text = '`depends_on` needs `"mode": "dag"`, and this stands in a `flow`: put `"mode": "dag"`'
    assert f"/steps/1/depends_on: {text} beside `steps`, or remove `depends_on`" in told({"name": "d", "steps": pair})
    inner = scope(*pair, mode="flow")
    assert f"/steps/0/children/1/depends_on: {text} in scope 's', or remove `depends_on`" in told(inner)


def test_a_value_of_another_type_is_refused_with_both_types() -> None:
    assert "/steps/0/timeout_ms: must be int or None, not str" in told(task(timeout_ms="5 s"))


@pytest.mark.parametrize("kind", ["task", "external_call", "notify"])
def test_safety_must_be_declared_where_there_is_a_handler(kind: str) -> None:
    inner = {"step_id": "b", "type": kind, "handler": "h"}
    scope = {"step_id": "s", "type": "scope", "children": [inner]}
    assert refused({"name": "d", "steps": [scope]}) == [("/steps/0/children/0/idempotency_strategy", "missing")]


@pytest.mark.parametrize("handler", ["webhook", "email", "log"])
def test_what_notifies_by_a_handler_of_ours_is_safe_unless_it_says_otherwise(handler: str) -> None:
    plain = {"step_id": "tell", "type": "notify", "handler": handler}
    guarded = {**plain, "idempotency_strategy": "SAFE_TO_RETRY_WITH_GUARD", "guard_handler": "sent"}
    for step, safety in ((plain, "SAFE_TO_RETRY"), (guarded, "SAFE_TO_RETRY_WITH_GUARD")):
        document: Any = to_document(read_document({"name": "d", "steps": [step]}))
        assert document["steps"][0]["idempotency_strategy"] == safety
    for kind in ("task", "external_call"):
        assert refused({"name": "d", "steps": [{**plain, "type": kind}]}) == [
            ("/steps/0/idempotency_strategy", "missing")
        ]


def test_sense_is_checked_too() -> None:
    document = {**INVOICE, "steps": [*INVOICE["steps"], {**TASK, "step_id": "lost", "when": "1 +"}]}
    assert refused(document) == [("/steps/4/when", "expression"), ("/steps/4", "unreachable")]


@pytest.mark.parametrize(
    "schema",
    [{"type": "objekt"}, {"$ref": "http://169.254.169.254/latest"}, {"pattern": "("}, {"minimum": "x"}],
)
def test_schemas_are_checked_and_never_fetched(schema: Any) -> None:
    assert refused({"name": "d", "steps": [TASK], "input_schema": schema}) == [("/input_schema", "bad_schema")]
    step = {**TASK, "output_schema": schema}
    assert refused({"name": "d", "steps": [step]}) == [("/steps/0/output_schema", "bad_schema")]


def test_a_definition_can_be_checked_by_itself() -> None:
    check_definition(read_document(INVOICE))
    with pytest.raises(DefinitionError, match="Definition 'd' has a problem"):
        check_definition(Definition(name="d"))
    with pytest.raises(DefinitionError, match="Definition 'd' has a problem"):
        compile_document(Definition(name="d"), {})


def test_a_handler_must_not_read_steps_that_are_not_there() -> None:
    from typing import Annotated

    def handler(x: Annotated[int, FromStep("nothing")]) -> None: ...

    definition = read_document({"name": "d", "steps": [TASK]})
    with pytest.raises(
        DefinitionError, match="handler 'h': it reads step 'nothing', which does not exist; steps are a"
    ):
        compile_document(definition, {"h": bind_handler("h", handler)})


# -- The published schema ----------------------------------------------------------------------------------------------


def test_the_schema_is_a_schema() -> None:
    jsonschema_rs.meta.validate(definition_schema())


def test_the_schema_is_everybodys_own() -> None:
    definition_schema()["title"] = "changed"
    assert definition_schema()["title"] == "Tenuto definition"


STRUCTS: list[tuple[str | None, Any]] = [
    (None, Definition),
    ("step", Step),
    ("scope", Scope),
    ("branch", kernel.Branch),
    ("retry_policy", RetryPolicy),
    ("policies", kernel.Policies),
    ("escalation", kernel.Escalation),
    ("run", kernel.RunPolicies),
]


def part(name: str | None) -> dict[str, Any]:
    schema = definition_schema()
    found: dict[str, Any] = schema if name is None else schema["$defs"][name]
    return found


@pytest.mark.parametrize(("name", "struct"), STRUCTS, ids=[str(name) for name, _ in STRUCTS])
def test_the_schema_has_every_field_and_no_other(name: str | None, struct: Any) -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(struct)}
    assert set(part(name)["properties"]) - {"$schema"} == fields
    assert part(name)["additionalProperties"] is False


@pytest.mark.parametrize(("name", "struct"), STRUCTS, ids=[str(name) for name, _ in STRUCTS])
def test_the_schema_names_the_defaults_there_are(name: str | None, struct: Any) -> None:
    for field in msgspec.structs.fields(struct):
        schema = part(name)["properties"][field.encode_name]
        if "default" in schema:
            default = list(field.default) if isinstance(field.default, tuple) else field.default
            assert schema["default"] == default, field.encode_name


@pytest.mark.parametrize(("name", "struct"), STRUCTS, ids=[str(name) for name, _ in STRUCTS])
def test_everything_in_the_schema_is_described(name: str | None, struct: Any) -> None:
    for field, schema in part(name)["properties"].items():
        resolved = part(schema["$ref"].rpartition("/")[2]) if "$ref" in schema else schema
        assert resolved.get("description") or "const" in resolved, field


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (("step", "type"), kernel.StepType),
        (("step", "idempotency_strategy"), kernel.Safety),
        (("scope", "mode"), kernel.Mode),
        (("scope", "scheduling"), kernel.Scheduling),
        (("scope", "failure_mode"), kernel.FailureMode),
        (("policies", "compensation"), kernel.CompensationOrder),
        (("policies", "cancel"), kernel.CancelMode),
    ],
)
def test_the_schema_knows_the_kernels_words(place: tuple[str, str], words: Any) -> None:
    assert tuple(part(place[0])["properties"][place[1]]["enum"]) == get_args(words)


def test_the_schema_knows_the_error_classes() -> None:
    assert tuple(part("error_class")["enum"]) == kernel.ERROR_CLASSES
