"""Definitions as JSON: six types of steps, edges, loops, templates, and the example of the documentation."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenuto import Engine, NotDone, Outcome, SagaContext, handler
from tenuto.errors import DefinitionConflict, DefinitionError, InvalidInput, NonRetryableError, TransientError

from .conftest import MakeHarness
from .doubles import Stage, until, until_blocked


def task(id: str, **fields: Any) -> dict[str, Any]:
    return {"step_id": id, "type": "task", "handler": id, "idempotency_strategy": "SAFE_TO_RETRY", **fields}


def handlers(engine: Engine, stage: Stage, *names: str, **outcomes: Any) -> None:
    """Handlers that note their names; those named in `outcomes` come to something else first."""
    for name in names:
        engine.handler(name, stage.does(name))
    for name, outcome in outcomes.items():
        engine.handler(name, stage.does(name, *(outcome if isinstance(outcome, tuple) else (outcome,))))


async def test_the_last_handler_of_a_name_counts(engine: Engine) -> None:
    """Whether it was there before the definition or not, and also for what is under way."""
    stage = Stage()
    handlers(engine, stage, "a", "b")
    go = {"step_id": "go", "type": "wait", "with": {"signal": "go"}}
    await engine.apply({"name": "doc", "mode": "sequence", "steps": [task("a"), go, task("b")]})
    handle = await engine.start("doc")
    await until_blocked(handle, "signal")
    engine.handler("b", stage.does("another"))
    await handle.signal("go")
    assert (await handle.result()).output == "another"
    assert stage.log == ["a", "another"]


# The example of the documentation. Its handlers are doubles here: no service is needed to show what it promises.
INVOICE: dict[str, Any] = {
    "name": "invoice-approval",
    "version": 1,
    "input_schema": {"type": "object", "required": ["amount"]},
    "policies": {"timeout_ms": 86400000, "compensation": "STRICT_SEQUENTIAL"},
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
            "timeout_ms": 3600000,
            "on_success": "pay",
            "on_failure": "reject",
            "on_timeout": "reject",
        },
        {
            "step_id": "pay",
            "type": "external_call",
            "handler": "http",
            "with": {"method": "POST", "url": "http://bank.example/pay", "json": {"amount": "${input.amount}"}},
            "timeout_ms": 30000,
            "idempotency_strategy": "SAFE_TO_RETRY",
            "compensation_handler": "http",
            "compensation_with": {"method": "POST", "url": "http://bank.example/refund"},
            "retry_policy": {
                "max_attempts": 3,
                "backoff_strategy": "jittered",
                "initial_delay_ms": 200,
                "max_delay_ms": 5000,
                "timeout_ms": 5000,
                "retry_on_classes": ["TRANSIENT", "RATE_LIMITED", "RETRYABLE", "DEPENDENCY_FAILED"],
            },
        },
        {
            "step_id": "reject",
            "type": "notify",
            "handler": "webhook",
            "with": {"url": "http://erp.example/rejected", "json": {"amount": "${input.amount}"}},
        },
    ],
}


class Services:
    """What the example calls."""

    def __init__(self, engine: Engine) -> None:
        self.calls: list[Any] = []
        engine.handler("http", self.http)
        engine.handler("webhook", self.webhook)

    async def http(self, request: dict[str, Any], ctx: SagaContext) -> Any:
        self.calls.append(request)
        if ctx.attempt == 1:
            raise TransientError("503")
        return {"status": 200, "headers": {}, "body": {"paid": request["json"]["amount"]}}

    async def webhook(self, message: dict[str, Any]) -> None:
        self.calls.append(message)


async def test_the_documented_example_pays_a_small_invoice_at_once(make_harness: MakeHarness) -> None:
    t = await make_harness()
    services = Services(t)
    await t.apply(INVOICE)
    result = await t.execute("invoice-approval", {"amount": 900})

    assert result.output == {"status": 200, "headers": {}, "body": {"paid": 900}}
    assert services.calls == [{"method": "POST", "url": "http://bank.example/pay", "json": {"amount": 900}}] * 2
    assert [result.steps[id].status for id in ("check", "approve", "pay", "reject")] == [
        "succeeded",
        "skipped",
        "succeeded",
        "skipped",
    ]


@pytest.mark.parametrize("decision", ["approve", "reject", "nobody"])
async def test_the_documented_example_asks_about_a_large_invoice(make_harness: MakeHarness, decision: str) -> None:
    t = await make_harness()
    services = Services(t)
    await t.apply(INVOICE)
    handle = await t.start("invoice-approval", {"amount": 5000})
    await t.advance("1s")
    assert (await handle.status())["status"] == "waiting_approval"
    if decision == "nobody":
        await t.advance("61m")
    else:
        await getattr(handle, decision)("approve", comment="on the phone")
    result = await handle.result()

    assert result.succeeded, "a rejection leads to `reject`, and so it is no failure"
    paid = result.steps["pay"].status == "succeeded"
    assert paid is (decision == "approve")
    assert services.calls[-1] == (
        {"method": "POST", "url": "http://bank.example/pay", "json": {"amount": 5000}}
        if paid
        else {"url": "http://erp.example/rejected", "json": {"amount": 5000}}
    )
    assert (
        result.steps["approve"].status
        == {
            "approve": "succeeded",
            "reject": "failed",
            "nobody": "timed_out",
        }[decision]
    )


async def test_the_documented_example_refuses_what_its_schema_refuses(engine: Engine) -> None:
    await engine.apply(INVOICE)
    with pytest.raises(InvalidInput):
        await engine.start("invoice-approval", {"sum": 5})


async def test_a_document_comes_as_a_mapping_as_text_or_as_a_file(engine: Engine, tmp_path: Path) -> None:
    handlers(engine, Stage(), "a")
    document = {"name": "doc", "steps": [task("a")]}
    path = tmp_path / "doc.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    await engine.apply(document)
    await engine.apply(json.dumps(document))
    await engine.apply(path)  # the same each time: otherwise it would be refused
    assert (await engine.execute("doc")).succeeded
    for wrong in ("no json", "[]", '{"name": "a", "name": "b"}', tmp_path / "nothing.json"):
        with pytest.raises(DefinitionError):
            await engine.apply(wrong)


async def test_a_documents_problems_are_all_told_with_their_places(engine: Engine) -> None:
    document = {
        "name": "no good name!",
        "steps": [
            task("a", on_success="nobody", retry_policy={"max_attempts": 0, "retry_on_classes": ["NON_RETRYABLE"]}),
            {"step_id": "b", "type": "wait", "with": {"duration_ms": 5, "signal": "x"}},
            {"step_id": "c", "type": "sometimes"},
            {"step_id": "d", "type": "task", "handler": "d"},
        ],
        "colour": "red",
    }
    with pytest.raises(DefinitionError) as refused:
        await engine.apply(document)
    places = {problem.path for problem in refused.value.problems}
    assert places >= {"/name", "/colour", "/steps/2/type"}

    del document["colour"]
    document["name"] = "doc"
    document["steps"][2]["type"] = "decision"  # type: ignore[index]
    with pytest.raises(DefinitionError) as refused:
        await engine.apply(document)
    assert {problem.path for problem in refused.value.problems} >= {
        "/steps/0/on_success",
        "/steps/0/retry_policy/max_attempts",
        "/steps/0/retry_policy/retry_on_classes/0",
        "/steps/1/with",
        "/steps/2/branches",
        "/steps/3/idempotency_strategy",
    }
    assert all(problem.code and problem.message for problem in refused.value.problems)


# -- The six types -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("A8")
async def test_the_six_types_of_steps(engine: Engine) -> None:
    stage = Stage()
    handlers(engine, stage, "work", "tell")
    sent: list[SagaContext] = []

    async def send(ctx: SagaContext) -> None:
        sent.append(ctx)

    engine.handler("send", send)
    await engine.apply(
        {
            "name": "all-types",
            "steps": [
                task("work", on_success="which"),
                {
                    "step_id": "which",
                    "type": "decision",
                    "branches": [{"when": "steps.work.result == 'work'", "next": "paid"}],
                    "default": "$fail",
                },
                {"step_id": "paid", "type": "wait", "with": {"signal": "paid"}, "on_success": "remote"},
                {
                    "step_id": "remote",
                    "type": "external_call",
                    "handler": "send",
                    "completion": "callback",
                    "result_timeout_ms": 60_000,
                    "idempotency_strategy": "SAFE_TO_RETRY",
                    "on_success": "ok",
                },
                {"step_id": "ok", "type": "human_approval", "on_success": "tell"},
                {"step_id": "tell", "type": "notify", "handler": "tell", "idempotency_strategy": "SAFE_TO_RETRY"},
            ],
        }
    )
    handle = await engine.start("all-types")

    async def shown() -> list[str]:
        return [step["status"] for step in (await handle.status())["steps"]]

    await until_blocked(handle, "signal")
    await handle.signal("paid", 5)
    await until_blocked(handle, "callback")
    assert await shown() == ["succeeded", "succeeded", "succeeded", "running", "pending", "pending"]
    await handle.answer("remote", attempt=sent[0].attempt, lease=sent[0].lease_id, result="r")
    await until_blocked(handle, "approval")
    assert await shown() == ["succeeded"] * 4 + ["awaiting_approval", "pending"]
    await handle.approve("ok")

    result = await handle.result()
    assert (result.output, stage.log) == ("tell", ["work", "tell"])
    types = [step["type"] for step in (await handle.status())["steps"]]
    assert types == ["task", "decision", "wait", "external_call", "human_approval", "notify"]
    assert await shown() == ["succeeded"] * 6


@pytest.mark.requirement("A8")
async def test_a_field_that_a_type_does_not_have_is_refused(engine: Engine) -> None:
    wrong = {"step_id": "nap", "type": "wait", "with": {"duration_ms": 5}, "compensation_handler": "x"}
    with pytest.raises(DefinitionError) as refused:
        await engine.apply({"name": "doc", "steps": [wrong]})
    assert ("/steps/0/compensation_handler", "not_allowed") in [(p.path, p.code) for p in refused.value.problems]


# -- Edges -------------------------------------------------------------------------------------------------------------

EDGES: dict[str, tuple[Any, list[str], str]] = {
    "success": ("fine", ["work", "ok"], "succeeded"),
    "failure": (NonRetryableError("no"), ["work", "mend"], "succeeded"),
}


@pytest.mark.requirement("A9")
@pytest.mark.parametrize("edge", EDGES)
async def test_a_flow_follows_its_edges(engine: Engine, edge: str) -> None:
    outcome, log, status = EDGES[edge]
    stage = Stage()
    handlers(engine, stage, "ok", "mend", "late", work=outcome)
    steps = [
        task("work", on_success="ok", on_failure="mend", on_timeout="late"),
        task("ok"),
        task("mend"),
        task("late"),
    ]
    await engine.apply({"name": "flow", "steps": steps})
    result = await engine.execute("flow")
    assert (result.status, stage.log) == (status, log)


TIMEOUTS: dict[str, dict[str, Any]] = {
    "the step's deadline passed": {"timeout_ms": 10_000, "retry_policy": {"timeout_ms": 10_000}},
    "its last attempt timed out": {"retry_policy": {"timeout_ms": 1_000, "max_attempts": 2}},
}


@pytest.mark.requirement("A9")
@pytest.mark.parametrize("why", TIMEOUTS)
async def test_on_timeout_is_taken_when_time_is_over(make_harness: MakeHarness, why: str) -> None:
    stage = Stage()
    t = await make_harness()
    handlers(t, stage, "ok", "mend", "late")
    t.handler("work", stage.gate("work").pass_through)
    work = task("work", on_success="ok", on_failure="mend", on_timeout="late", **TIMEOUTS[why])
    await t.apply({"name": "flow", "steps": [work, task("ok"), task("mend"), task("late")]})
    handle = await t.start("flow")
    await t.advance("1h")
    result = await handle.result()
    assert (result.status, result.steps["work"].status, stage.log) == ("succeeded", "timed_out", ["late"])


@pytest.mark.requirement("A9")
async def test_without_an_edge_a_flow_ends_where_it_is(engine: Engine) -> None:
    """Well without `on_success`; without `on_failure` in failure, with a dead letter."""
    stage = Stage()
    handlers(engine, stage, "ok", fails=NonRetryableError("no"))
    await engine.apply({"name": "good", "steps": [task("ok")]})
    await engine.apply({"name": "bad", "steps": [task("fails", on_success="ok"), task("ok")]})
    assert (await engine.execute("good")).output == "ok"
    assert (await engine.execute("bad")).status == "failed"
    assert [row["step_id"].partition("@")[0] async for row in engine.dlq()] == ["fails"]


@pytest.mark.requirement("A9")
@pytest.mark.parametrize(("target", "status"), [("$succeed", "succeeded"), ("$fail", "failed")])
async def test_a_flow_can_end_in_the_middle(engine: Engine, target: str, status: str) -> None:
    stage = Stage()
    handlers(engine, stage, "a", "b")
    branch = {"when": "input.stop", "next": target}
    decide = {"step_id": "which", "type": "decision", "branches": [branch], "default": "b"}
    await engine.apply({"name": "flow", "steps": [task("a", on_success="which"), decide, task("b")]})
    assert (await engine.execute("flow", {"stop": True})).status == status
    assert stage.log == ["a"]


@pytest.mark.requirement("A9")
async def test_the_first_branch_that_holds_is_taken(engine: Engine) -> None:
    stage = Stage()
    handlers(engine, stage, "small", "medium", "large")
    branches = [{"when": "input < 10", "next": "small"}, {"when": "input < 100", "next": "medium"}]
    decide = {"step_id": "which", "type": "decision", "branches": branches, "default": "large"}
    await engine.apply({"name": "flow", "steps": [decide, task("small"), task("medium"), task("large")]})
    for amount in (5, 50, 500):
        await engine.execute("flow", amount)
    assert stage.log == ["small", "medium", "large"]


@pytest.mark.requirement("A9")
async def test_a_loop_is_bounded_and_its_visits_are_numbered(engine: Engine) -> None:
    stage = Stage()
    handlers(engine, stage, work=("no", "no", "yes"))
    decide = {
        "step_id": "enough",
        "type": "decision",
        "branches": [{"when": "steps.work.result == 'yes'", "next": "$succeed"}],
        "default": "work",
    }
    flow = {"name": "loop", "steps": [task("work", on_success="enough", max_visits=5), decide]}
    await engine.apply(flow)
    result = await engine.execute("loop")
    assert (result.status, stage.count("work")) == ("succeeded", 3)
    rows = await engine.get(result.execution_id).history()
    assert [row["path"] for row in rows if row["path"].startswith("work")] == ["work@1", "work@2", "work@3"]

    stage.log.clear()
    handlers(engine, stage, work=("no",) * 10)
    bounded = await engine.execute("loop")
    assert (bounded.status, bounded.error and bounded.error["code"]) == ("failed", "loop_limit")
    assert stage.count("work") == 5


@pytest.mark.requirement("A9")
@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ([task("a", on_success="b"), task("b", on_success="a")], "endless"),
        ([task("a"), task("b")], "unreachable"),
        ([task("a", depends_on=["a"])], "misplaced"),
    ],
)
async def test_a_flow_that_makes_no_sense_is_refused(engine: Engine, steps: list[Any], code: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        await engine.apply({"name": "flow", "steps": steps})
    assert code in [problem.code for problem in refused.value.problems]


# -- Running a flow again ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("B15")
async def test_a_flow_that_is_run_again_keeps_what_came_before(engine: Engine) -> None:
    """It begins at what failed; what it came through before that stays as it was, and can be read."""
    stage = Stage()
    seen: list[Any] = []

    async def each(item: Any) -> Any:
        return item * 10

    async def use(given: Any) -> Any:
        seen.append(given)
        if len(seen) == 1:
            raise NonRetryableError("not yet")
        return "done"

    engine.handler("each", each)
    engine.handler("use", use)
    handlers(engine, stage, first={"n": 1}, refused=NonRetryableError("no"), inner={"n": 2})
    read = {"first": "${steps.first.result.n}", "each": "${steps.each.result}", "inner": "${steps.inner.result.n}"}
    nested = {
        "step_id": "nested",
        "type": "scope",
        "mode": "flow",
        "children": [task("inner", on_success="use"), task("use", **{"with": read})],
    }
    steps = [
        task("first", on_success="each"),
        task("each", foreach="input", on_success="refused"),
        task("refused", on_failure="nested"),
        nested,
    ]
    await engine.apply({"name": "flow", "steps": steps, "output": {"n": "${steps.first.result.n}"}})
    handle = await engine.start("flow", [1, 2])
    assert (await handle.result()).status == "failed"
    await handle.retry(reason="now")
    result = await handle.result()

    assert (result.output, stage.log) == ({"n": 1}, ["first", "refused", "inner"])
    assert seen == [{"first": 1, "each": [10, 20], "inner": 2}] * 2
    assert {id: result.steps[id].status for id in result.steps} == {
        "first": "succeeded",
        "each": "succeeded",
        "refused": "failed",
        "inner": "succeeded",
        "use": "succeeded",
    }
    assert (result.result_of("first"), result.results_of("each"), result.result_of("inner")) == (
        {"n": 1},
        [10, 20],
        {"n": 2},
    )
    assert result.steps["refused"].error == "no"


# -- Templates ---------------------------------------------------------------------------------------------------------


async def test_a_template_keeps_the_type_of_a_value_that_stands_alone(engine: Engine) -> None:
    seen: list[Any] = []

    async def work(given: Any) -> Any:
        seen.append(given)
        return {"n": 3, "list": [1, 2]}

    engine.handler("work", work)
    templates = {
        "alone": "${input.n}",
        "in text": "n is ${input.n}",
        "nested": [{"deep": "${input.list}"}],
        "context": "${context.tenant}/${context.step_id}",
        "computed": "${input.n * 2 + 1}",
        "constant": 7,
    }
    steps = [
        task("first", handler="work", **{"with": templates}),
        task("second", handler="work", **{"with": {"r": "${steps.first.result.list}"}}),
    ]
    await engine.apply(
        {"name": "doc", "mode": "sequence", "steps": steps, "output": {"sum": "${steps.second.result.n}"}}
    )
    result = await engine.execute("doc", {"n": 5, "list": [1]}, tenant="acme")
    assert seen == [
        {
            "alone": 5,
            "in text": "n is 5",
            "nested": [{"deep": [1]}],
            "context": "acme/first",
            "computed": 11,
            "constant": 7,
        },
        {"r": [1, 2]},
    ]
    assert result.output == {"sum": 3}


async def test_a_template_that_cannot_be_rendered_fails_its_step(engine: Engine) -> None:
    handlers(engine, Stage(), "a")

    async def work(given: dict[str, Any]) -> Any:
        return given

    engine.handler("a", work)
    await engine.apply({"name": "doc", "steps": [task("a", **{"with": {"x": "${input.nothing.here}"}})]})
    result = await engine.execute("doc", {})
    assert (result.status, result.steps["a"].error_class) == ("failed", "NON_RETRYABLE")
    assert "input.nothing.here" in str(result.steps["a"].error)


# -- Scopes, and all the rest ------------------------------------------------------------------------------------------


async def test_scopes_nest_with_modes_of_their_own(engine: Engine) -> None:
    stage = Stage()
    handlers(engine, stage, "a", "b", "c", "d")
    both = {"step_id": "both", "type": "scope", "mode": "parallel", "children": [task("a"), task("b")]}
    graph = {
        "step_id": "graph",
        "type": "scope",
        "mode": "dag",
        "children": [task("d", depends_on=["c"]), task("c")],
    }
    await engine.apply({"name": "doc", "mode": "sequence", "steps": [both, graph]})
    assert (await engine.execute("doc")).succeeded
    assert (sorted(stage.log[:2]), stage.log[2:]) == (["a", "b"], ["c", "d"])


async def test_a_documents_fan_out_gives_each_clone_its_item(engine: Engine) -> None:
    seen: list[Any] = []

    async def work(given: Any) -> Any:
        seen.append(given)
        return given

    engine.handler("work", work)
    step = task("work", foreach="input.people", suffix="item.name", max_concurrency=1)
    await engine.apply(
        {"name": "doc", "mode": "dag", "steps": [{**step, "with": {"to": "${item.name}", "n": "${index}"}}]}
    )
    result = await engine.execute("doc", {"people": [{"name": "ann"}, {"name": "bob"}]})
    assert seen == [{"to": "ann", "n": 0}, {"to": "bob", "n": 1}]
    assert [clone.id for clone in result.steps["work"].clones] == ["work#ann", "work#bob"]


async def test_a_document_names_guards_reconciles_and_undos_as_handlers(engine: Engine) -> None:
    stage = Stage()

    async def look() -> Outcome[str]:
        stage.log.append("look")
        return NotDone()

    engine.handler("look", look)
    handlers(engine, stage, "undo", pay=(RuntimeError("who knows"), "paid"), ship=NonRetryableError())
    pay = {
        **task("pay"),
        "idempotency_strategy": "NOT_SAFE_TO_RETRY",
        "reconcile_handler": "look",
        "compensation_handler": "undo",
    }
    await engine.apply({"name": "doc", "mode": "sequence", "steps": [pay, task("ship")]})
    result = await engine.execute("doc")
    assert (result.status, stage.log) == ("failed", ["pay", "look", "pay", "ship", "undo"])


async def test_an_undo_of_a_document_is_given_its_own_rendered_input(engine: Engine) -> None:
    seen: list[Any] = []

    async def book(given: Any) -> Any:
        return {"id": f"b-{given['city']}"}

    async def cancel(given: Any) -> None:
        seen.append(given)

    engine.handler("book", book)
    engine.handler("cancel", cancel)
    handlers(engine, Stage(), fail=NonRetryableError())
    undo = {"compensation_handler": "cancel", "compensation_with": {"booking": "${steps.book.result.id}"}}
    steps = [task("book", **{"with": {"city": "${input.city}"}}, **undo), task("fail")]
    await engine.apply({"name": "doc", "mode": "sequence", "steps": steps})
    await engine.execute("doc", {"city": "Oslo"})
    assert seen == [{"booking": "b-Oslo"}]


@handler("shout")
async def shout(text: str) -> str:
    return text.upper()


@pytest.mark.requirement("A20")
async def test_a_decorated_function_is_registered_by_its_name(engine: Engine) -> None:
    engine.register(shout)
    await engine.apply({"name": "doc", "steps": [task("a", handler="shout")]})
    assert (await engine.execute("doc", "hello")).output == "HELLO"


async def test_a_step_can_be_performed_elsewhere(engine: Engine) -> None:
    """A queue that this engine does not serve: nobody here runs its steps."""
    stage = Stage()
    handlers(engine, stage, "a")
    await engine.apply({"name": "doc", "steps": [task("a", queue="gpu")]})
    handle = await engine.start("doc")
    await until(handle, lambda found: found["steps"][0]["status"] == "running")
    blocked = (await handle.status())["blocked"]
    assert (blocked and blocked["reason"], stage.log) == ("no_worker", [])
    await handle.cancel("terminate")


async def test_a_wait_of_a_document(make_harness: MakeHarness) -> None:
    t = await make_harness()
    steps = [
        {"step_id": "nap", "type": "wait", "with": {"duration_ms": 60_000}},
        {"step_id": "until", "type": "wait", "with": {"until": "2026-01-02T00:00:00Z"}},
        {"step_id": "computed", "type": "wait", "with": {"duration_ms": "${input.ms * 2}"}},
    ]
    await t.apply({"name": "doc", "mode": "sequence", "steps": steps})
    assert (await t.execute("doc", {"ms": 500})).succeeded
    assert t.elapsed == timedelta(days=1, seconds=1)


@pytest.mark.requirement("A2")
async def test_what_is_deprecated_stays_so_when_it_is_applied_again(engine: Engine) -> None:
    """Workers apply what runs of it still needs. That does not bring it back."""
    document = {"name": "old", "mode": "sequence", "steps": [{"step_id": "ok", "type": "human_approval"}]}
    await engine.apply(document)
    running = await engine.start("old")
    await engine.catalog.deprecate("old", 1)
    await engine.apply(document)
    for version in (1, None):
        with pytest.raises(DefinitionConflict) as refused:
            await engine.start("old", version=version)
        assert refused.value.code == "definition_deprecated"
    await until_blocked(running, "approval")
    await running.approve("ok")
    assert (await running.result()).status == "succeeded"


# -- What history tells ------------------------------------------------------------------------------------------------

LARGE = [{"when": f"input.items.exists(x, x + {n}.5 < 0.0)", "next": "a"} for n in range(300)]
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "decision": (
        {"type": "decision", "branches": [{"when": "input.amount > 1", "next": "a"}], "default": "a"},
        "expression_failed",
        "input.amount > 1",
    ),
    "costly decision": ({"type": "decision", "branches": LARGE, "default": "a"}, "expression_too_costly", "x + "),
    "foreach": (task("n", handler="a", foreach="input.amount"), "expression_failed", "input.amount"),
    "large foreach": (
        task("n", handler="a", foreach="input.items.map(x, input.text)"),
        "expression_too_large",
        "input.items.map(x, input.text)",
    ),
    "when": (task("n", handler="a", when="input.amount > 1"), "expression_failed", "input.amount > 1"),
    "wait": (
        {"type": "wait", "with": {"duration_ms": "${input.amount + 1}"}},
        "expression_failed",
        "input.amount + 1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_history_lists_a_step_whose_expression_fails(engine: Engine, name: str) -> None:
    stage = Stage()
    handlers(engine, stage, "a")
    step, code, expression = REFUSED[name]
    mode = "flow" if step["type"] == "decision" else "sequence"
    await engine.apply({"name": "doc", "mode": mode, "steps": [{**step, "step_id": "n"}, task("a")]})
    given = {"amount": "much", "items": list(range(2_500)), "text": "x" * 3_000}
    handle = await engine.start("doc", given)
    result = await handle.result()
    assert result.error is not None
    assert result.error["code"] == code
    [row] = await handle.history()
    found = (row["step_id"], row["kind"], row["status"], row["error_class"], row["error_code"])
    assert found == ("n", "forward", "failed", "NON_RETRYABLE", code)
    assert expression in (row["error_summary"] or "")
    assert row["finished_at"] is not None
    assert stage.log == []


async def test_an_attempt_whose_handler_is_nowhere_is_pending_and_keeps_its_number(engine: Engine) -> None:
    stage = Stage()
    await engine.apply({"name": "doc", "steps": [task("a")]})
    handle = await engine.start("doc")
    await until_blocked(handle, "no_worker")
    [row] = await handle.history()
    assert (row["status"], row["started_at"], row["attempt_number"]) == ("pending", None, 1)
    handlers(engine, stage, "a")
    assert (await handle.result()).succeeded
    [row] = await handle.history()
    assert (row["status"], row["attempt_number"]) == ("succeeded", 1)
    assert row["started_at"] is not None


async def test_a_step_whose_with_would_be_too_large_fails_without_being_called(engine: Engine) -> None:
    called: list[int] = []

    async def take(rows: list[Any]) -> None:
        called.append(len(rows))

    engine.handler("a", take)
    given = {"rows": "${input.map(x, input.map(y, input))}"}
    await engine.apply({"name": "doc", "steps": [task("a", **{"with": given})]})
    result = await engine.execute("doc", ["some text"] * 100)
    assert result.error is not None
    assert (result.error["error_class"], result.error["code"]) == ("NON_RETRYABLE", "expression_too_large")
    assert "input.map(x, input.map(y, input))" in result.error["summary"]
    assert called == []


async def test_waits_that_end_together_are_decided_in_as_many_turns_as_their_conditions_need(engine: Engine) -> None:
    stage = Stage()
    handlers(engine, stage, "s")
    steps: list[dict[str, Any]] = []
    for n in range(30):
        steps.append({"step_id": f"w{n}", "type": "wait", "with": {"until": "2020-01-01T00:00:00Z"}})
        steps.append(task(f"s{n}", handler="s", when="input.all(x, x + 0.5 > 0.0)", depends_on=[f"w{n}"]))
    await engine.apply({"name": "doc", "mode": "dag", "steps": steps})
    result = await engine.execute("doc", list(range(3_000)))
    assert result.succeeded
    assert stage.count("s") == 30
