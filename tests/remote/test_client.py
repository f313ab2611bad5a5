"""`Engine("http://…", api_key=…)`: the same methods, the same answers and the same errors as beside the database."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import pytest

from tenuto import Engine, ExpandEach, FromStep, Result, Saga, SagaBuilder, StepInputs, saga, step
from tenuto.errors import (
    ConcurrencyConflict,
    DefinitionConflict,
    DefinitionError,
    EngineClosed,
    ExecutionFailed,
    IdempotencyConflict,
    InvalidInput,
    InvalidTransition,
    NonRetryableError,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    NotSupported,
    ResultTimeout,
    TenantLimit,
    TenutoError,
)
from tenuto.storage.audit import Kept
from tests.service.documents import simple

from .conftest import MakePlace


@dataclass(frozen=True)
class Trip:
    city: str
    on: datetime


@dataclass(frozen=True)
class Flight:
    pnr: str


@dataclass(frozen=True)
class Charge:
    id: str
    when: datetime


@saga("book-trip", output="charge")
class BookTrip(Saga[Trip, Charge]):
    async def cancel_flight(self, flight: Annotated[Flight, Result]) -> str:
        return f"-{flight.pnr}"

    @step(compensate=cancel_flight)
    async def flight(self, trip: Trip) -> Flight:
        return Flight(f"{trip.city[:3].upper()}1")

    @step
    async def charge(self, trip: Trip, flight: Annotated[Flight, FromStep(flight)]) -> Charge:
        if trip.city == "Nowhere":
            raise NonRetryableError("there is no such place", code="no_place")
        return Charge(f"c-{flight.pnr}", trip.on)


NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
OSLO = Trip("Oslo", NOON)


async def work(n: int | None = None) -> int:
    return (n or 0) + 1


# -- Starting and results ----------------------------------------------------------------------------------------------


async def test_a_result_has_its_types_and_tells_what_the_worker_tells(make_place: MakePlace) -> None:
    place = await make_place(BookTrip())
    client = await place.client(BookTrip())
    result = await client.execute(BookTrip, OSLO)
    assert result.output == Charge("c-OSL1", NOON)
    assert result.result_of(BookTrip.flight) == Flight("OSL1")

    near, far = place.worker.get(result.execution_id), client.get(result.execution_id)
    assert (await far.result()).report().to_dict() == (await near.result()).report().to_dict()
    assert await far.history() == await near.history()
    recorded = msgspec.json.encode([event async for event in near.events()])
    assert [event async for event in far.events()] == msgspec.json.decode(recorded)
    assert {**await far.status(), "idempotency_key": None} == {**await near.status(), "idempotency_key": None}


async def test_what_failed_says_why_and_what_was_undone(make_place: MakePlace) -> None:
    place = await make_place(BookTrip())
    client = await place.client(BookTrip())
    result = await client.execute(BookTrip, Trip("Nowhere", NOON))
    assert result.compensated_steps == ["flight"]
    assert result.steps["flight"].compensation_result == "-NOW1"
    with pytest.raises(ExecutionFailed, match=r"NON_RETRYABLE.*there is no such place"):
        result.raise_for_status()


async def test_without_the_code_a_name_is_enough(make_place: MakePlace) -> None:
    place = await make_place(BookTrip())
    client = await place.client()
    handle = await client.start("book-trip", {"city": "Oslo", "on": "2026-11-16T12:00:00Z"}, correlation_id="c-1")
    assert await handle.output() == {"id": "c-OSL1", "when": "2026-11-16T12:00:00Z"}
    assert (await handle.status())["correlation_id"] == "c-1"


async def test_a_start_takes_all_that_a_start_takes(make_place: MakePlace) -> None:
    place = await make_place(SagaBuilder("s").step("a", work))
    client = await place.client()
    handle = await client.start(
        "s",
        1,
        idempotency_key='"k"',
        headers={"X-A": "b"},
        variables={"v": [1]},
        target=("Invoice", "i-1"),
        priority="high",
        concurrency_key="one",
        version=1,
    )
    assert (await handle.result()).output == 2
    document = await handle.status()
    assert (document["idempotency_key"], document["target_object_id"]) == ('"k"', "i-1")
    (started, *_) = [event async for event in handle.events()]
    assert started["data"]["priority"] == "high"
    assert (started["data"]["headers"], started["data"]["variables"]) == ({"X-A": "b"}, {"v": [1]})


async def test_inputs_by_step_and_fan_outs(make_place: MakePlace) -> None:
    async def notify(person: str) -> str:
        return f"to {person}"

    one = SagaBuilder("s").step("notify", notify).step("sum", work, depends_on=["notify"])
    place = await make_place(one)
    client = await place.client()
    inputs = StepInputs({"notify": ExpandEach(["ada", "bob"], suffix=str), "sum": 41})
    result = await client.execute("s", inputs)
    assert result.results_of("notify") == ["to ada", "to bob"]
    assert result.result_of("notify#bob") == "to bob"
    assert result.result_of("sum") == 42


async def test_the_same_key_is_the_same_execution(make_place: MakePlace) -> None:
    place = await make_place(SagaBuilder("s").step("a", work))
    client = await place.client()
    first = await client.start("s", 1, idempotency_key="k")
    again = await client.start("s", 1, idempotency_key="k")
    assert (first.created, again.created, again.id) == (True, False, first.id)
    with pytest.raises(IdempotencyConflict):
        await client.start("s", 2, idempotency_key="k")
    many = await asyncio.gather(*(client.start("s", 3, idempotency_key="m") for _ in range(5)))
    assert len({handle.id for handle in many}) == 1


async def test_many_at_once(make_place: MakePlace) -> None:
    place = await make_place(SagaBuilder("s").step("a", work))
    client = await place.client()
    batch = await client.start_many("s", range(40), key=lambda n: f"k{n}")
    assert [result.output async for result in batch.results()] == list(range(1, 41))
    again = await client.start_many("s", range(40), key=lambda n: f"k{n}")
    assert again.execution_ids == batch.execution_ids
    (*_, last) = [progress async for progress in again.progress()]
    assert (last.succeeded, last.total) == (40, 40)


async def test_a_tenant_that_is_full(make_place: MakePlace) -> None:
    place = await make_place(SagaBuilder("asks").approval("ok"))
    client = await place.client()
    await client.tenant_limit("default", max_in_flight=1)
    waits = await client.start("asks")
    await waits.result()
    with pytest.raises(TenantLimit):
        await client.start("asks")
    assert await client.tenant_limits() == [{"tenant": "default", "max_in_flight": 1, "in_flight": 1}]
    starting = asyncio.create_task(client.start_many("asks", [None]))
    await waits.approve("ok")
    assert len((await starting).execution_ids) == 1


async def test_waiting_no_longer_than_asked(make_place: MakePlace) -> None:
    place = await make_place(SagaBuilder("asks").approval("ok"))
    client = await place.client()
    handle = await client.start("asks")
    with pytest.raises(ResultTimeout):
        await handle.result(timeout="50ms", return_when="terminal")


# -- People and operations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["order:paid", "order/paid", "order:paid/now", "two\nlines", "% ? #"])
async def test_signals_and_limits_are_called_what_their_authors_call_them(make_place: MakePlace, name: str) -> None:
    client = await (await make_place(SagaBuilder("waits").signal("paid", name))).client()
    handle = await client.start("waits")
    await handle.signal(name, 5)
    assert (await handle.result()).result_of("paid") == 5
    await client.limit(name, concurrency=1)
    assert [row["name"] for row in await client.limits()] == [name]
    await client.limit(name)
    assert await client.limits() == []


async def test_people(make_place: MakePlace) -> None:
    place = await make_place(SagaBuilder("asks").approval("ok").signal("paid", "paid", depends_on=["ok"]))
    client = await place.client()
    handle = await client.start("asks")
    settled = await handle.result()
    assert settled.blocked is not None
    assert (settled.status, settled.blocked["reason"]) == ("waiting_approval", "approval")
    (review,) = [row async for row in client.reviews()]
    assert (review["execution_id"], review["step_id"]) == (handle.id, "ok")
    assert (await client.listing.reviews()).items == [review]
    await handle.approve("ok", comment="fine", data={"limit": 5})
    await handle.signal("paid", {"amount": 5}, id="p-1")
    result = await handle.result()
    assert (result.result_of("ok"), result.result_of("paid")) == ({"limit": 5}, {"amount": 5})
    assert [row async for row in client.reviews()] == []

    other = await client.start("asks")
    await other.pause(reason="lunch")
    assert (await other.status())["pause_reason"] == "lunch"
    await other.resume()
    await other.reject("ok", comment="no")
    assert (await other.result()).status == "failed"


async def test_dead_letters(make_place: MakePlace) -> None:
    left = [NonRetryableError("no")]

    async def fails_once() -> str:
        if left:
            raise left.pop()
        return "done"

    async def fails() -> None:
        raise NonRetryableError("never")

    place = await make_place(SagaBuilder("once").step("a", fails_once), SagaBuilder("never").step("a", fails))
    client = await place.client()
    once, never = (await client.execute("once")).execution_id, (await client.execute("never")).execution_id
    letters = {row["execution_id"]: row async for row in client.dlq()}
    assert letters.keys() == {once, never}
    assert [row["execution_id"] async for row in client.dlq(definition="once")] == [once]
    await client.resolve(letters[once]["id"], "retry", reason="try")
    assert (await client.get(once).result()).output == "done"
    await client.resolve(letters[never]["id"], "dismiss", reason="known")
    assert [row async for row in client.dlq()] == []
    assert (await client.listing.dead_letter(letters[never]["id"]))["state"] == "resolved"
    assert [row["execution_id"] for row in (await client.listing.dlq(resolved=True)).items] == [once, never]


async def test_dead_letters_are_tried_again_or_let_go_at_the_service(
    make_place: MakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenuto.api.bulk_commands.VERDICT_SECONDS", 60)  # however slow the machine is
    broken = True

    async def pay() -> str:
        if broken:
            raise NonRetryableError("no")
        return "paid"

    place = await make_place(SagaBuilder("pays").step("pay", pay))
    operator, viewer = await place.client(roles=("operator",)), await place.client(roles=("viewer",))
    ids = [(await operator.execute("pays")).execution_id for _ in range(4)]
    letters = [row["id"] async for row in operator.dlq()]
    for call in (
        lambda: viewer.letters.reprocess(letters[0], reason="r"),
        lambda: viewer.letters.discard("nothing.1", reason="r"),
        lambda: viewer.letters.reprocess_many(reason="r"),
    ):
        with pytest.raises(NotPermitted, match="`dlq:write`"):
            await call()

    broken = False
    let_go = await operator.letters.discard(ids[0], reason="known")
    assert (let_go["id"], let_go["state"]) == (letters[0], "resolved")
    with pytest.raises(InvalidTransition):
        await operator.letters.reprocess(letters[0], reason="after all")
    assert (await operator.letters.reprocess(letters[1], reason="mended"))["state"] == "resolved"
    some = await operator.letters.reprocess_many(definition="pays", limit=1, reason="mended")
    assert (some.done, some.pending, some.refused, some.next_cursor is None) == ([letters[2]], [], [], False)
    rest = await operator.letters.reprocess_many(definition="pays", limit=1, reason="mended", cursor=some.next_cursor)
    assert (rest.done, rest.next_cursor) == ([letters[3]], None)
    assert [(await operator.get(id).result()).status for id in ids] == ["failed", *["succeeded"] * 3]


async def test_lists_counts_and_workers(make_place: MakePlace) -> None:
    place = await make_place(SagaBuilder("s").step("a", work), SagaBuilder("asks").approval("ok"))
    client = await place.client()
    done = [(await client.execute("s", n, target=("T", f"t{n}"))).execution_id for n in range(3)]
    waits = (await client.execute("asks")).execution_id
    assert [handle.id async for handle in client.executions()] == [*done, waits]
    assert [handle.id async for handle in client.executions(target_id="t1")] == [done[1]]
    newest = [line["execution_id"] async for line in client.summaries(newest_first=True, status="succeeded")]
    assert newest == done[::-1]
    (blocked,) = [line async for line in client.summaries(blocked=True)]
    assert (blocked["execution_id"], blocked["blocked"] and blocked["blocked"]["reason"]) == (waits, "approval")
    ago = datetime.now(UTC) - timedelta(hours=1)
    assert [line async for line in client.summaries(blocked=True, before=ago)] == []
    assert await client.count() == {"succeeded": 3, "waiting_approval": 1}
    assert await client.count(group_by="definition") == {"s": 3, "asks": 1}
    assert await client.workers() == await place.worker.workers()


async def test_limits_are_the_deployments(make_place: MakePlace) -> None:
    place = await make_place(SagaBuilder("s").step("a", work))
    client, other = await place.client(), await place.client(tenant="acme")
    await client.limit("ses", rate="14/s", concurrency=20)
    (row,) = await client.limits()
    assert (row["name"], row["rate"], row["concurrency"]) == ("ses", "14/s", 20)
    for refused in (other.limit("ses"), other.tenant_limit("acme", max_in_flight=None)):
        with pytest.raises(NotPermitted):
            await refused
    await client.limit("ses")
    assert await client.limits() == []
    actions = [row["action"] async for row in client.audit.rows(object_id="ses")]
    assert actions == ["limit.lifted", "limit.set"]


async def test_the_audit(make_place: MakePlace) -> None:
    place = await make_place(SagaBuilder("asks").approval("ok"))
    client = await place.client()
    for _ in range(3):
        await (await client.start("asks")).cancel(reason="no more")
    near = [row async for row in place.worker.scoped(tenant="default", actor="x").audit.rows()]
    assert [row async for row in client.audit.rows()] == near
    first = await client.audit.page(limit=2)
    second = await client.audit.page(limit=2, cursor=first.next_cursor)
    assert [*first.items, *second.items] == near[:4]
    verified = await client.audit.verify()
    assert (verified.rows, verified.broken_at) == (len(near), None)
    chain = [row async for row in client.audit.export()]
    assert [row["n"] for row in chain] == list(range(1, len(near) + 1))
    assert chain == [row async for row in place.worker.scoped(tenant="default", actor="x").audit.export()]
    assert (await client.audit.verify(Kept(verified.rows, verified.head))).broken_at is None
    assert (await client.audit.verify(Kept(2, "0" * 64))).broken_at == 2


# -- Definitions -------------------------------------------------------------------------------------------------------


async def test_definitions_from_draft_to_deprecated(make_place: MakePlace) -> None:
    async def pay() -> str:
        return "paid"

    place = await make_place()
    place.worker.handler("pay", pay, tenants=["*"])
    client = await place.client()
    made, is_new = await client.catalog.draft(simple("mine"))
    assert (made["status"], is_new) == ("draft", True)
    assert (await client.catalog.draft(simple("mine")))[1] is False
    assert (await client.catalog.publish("mine", 1))["status"] == "published"
    with pytest.raises(DefinitionConflict) as immutable:
        await client.catalog.replace("mine", 1, simple("mine"))
    assert immutable.value.code == "definition_immutable"
    assert [row["name"] for row in (await client.catalog.list()).items] == ["mine"]
    (found,) = [each async for each in client.definitions()]
    (near,) = [each async for each in place.worker.definitions()]
    assert found == near
    await client.catalog.deprecate("mine", 1)
    with pytest.raises(TenutoError) as refused:
        await client.start("mine", version=1)
    assert refused.value.code == "definition_deprecated"


async def test_a_tenant_has_definitions_of_its_own(make_place: MakePlace) -> None:
    async def pay() -> str:
        return "paid"

    place = await make_place(SagaBuilder("shared").step("a", work))
    place.worker.handler("pay", pay, tenants=["*"])
    acme, other = await place.client(tenant="acme"), await place.client(tenant="other")
    await acme.apply(simple("mine"))
    result = await acme.execute("mine")
    assert (result.saga, result.succeeded, result.result_of("pay")) == ("mine", True, "paid")
    assert [row["step_id"] for row in await acme.get(result.execution_id).history()] == ["pay"]
    assert [each["name"] async for each in acme.definitions()] == ["mine", "shared"]
    assert [each["name"] async for each in other.definitions()] == ["shared"]
    assert (await other.execute("shared", 1)).output == 2
    with pytest.raises(NotFound):
        await other.start("mine")


async def test_apply_publishes_and_refuses_another_plan(make_place: MakePlace) -> None:
    place = await make_place()
    client = await place.client()
    document = {
        "name": "asks",
        "version": 1,
        "steps": [{"step_id": "ok", "type": "human_approval", "timeout_ms": 60_000}],
    }
    await client.apply(document)
    await client.apply(document)
    assert (await client.execute("asks")).status == "waiting_approval"
    with pytest.raises(DefinitionError) as changed:
        await client.apply({**document, "steps": [{**document["steps"][0], "timeout_ms": 1_000}]})  # type: ignore[index]  # of a plain document
    assert changed.value.code == "definition_changed"


async def test_code_that_is_not_the_services_is_not_started(make_place: MakePlace) -> None:
    place = await make_place(SagaBuilder("s").step("a", work))
    changed = await place.client(SagaBuilder("s").step("a", work).step("b", work))
    with pytest.raises(DefinitionError) as refused:
        await changed.start("s")
    assert refused.value.code == "definition_changed"
    unknown = await place.client(SagaBuilder("other").step("a", work))
    with pytest.raises(NotFound, match="tenuto worker"):
        await unknown.start("other")


# -- Errors ------------------------------------------------------------------------------------------------------------


async def test_errors_are_those_that_the_engine_raises(make_place: MakePlace) -> None:
    schema = {"type": "object", "required": ["amount"]}
    place = await make_place(
        SagaBuilder("asks").approval("ok"), SagaBuilder("alone", on_conflict="reject").approval("ok")
    )
    await place.worker.apply(
        {
            "name": "strict",
            "version": 1,
            "input_schema": schema,
            "steps": [{"step_id": "ok", "type": "human_approval", "timeout_ms": 60_000}],
        }
    )
    client = await place.client()
    near = place.worker.scoped(tenant="default", actor="near", roles=["admin"])
    done = (await client.start("asks")).id
    await client.get(done).approve("ok")
    waits = (await client.execute("asks")).execution_id
    await client.start("alone", concurrency_key="k")
    commands: list[tuple[type[TenutoError], Any]] = [
        (NotFound, lambda engine: engine.get("0" * 22).status()),
        (NotFound, lambda engine: engine.get("no/such").status()),
        (NotFound, lambda engine: engine.start("nothing")),
        (NotFound, lambda engine: engine.resolve("nothing", "retry", reason="x")),
        (InvalidTransition, lambda engine: engine.get(waits).approve("nobody")),
        (InvalidTransition, lambda engine: engine.get(done).pause()),
        (InvalidTransition, lambda engine: engine.get(done).retry(reason="x")),
        (InvalidTransition, lambda engine: engine.get(done).signal("paid")),
        (InvalidTransition, lambda engine: engine.get(done).approve("ok")),
        (ConcurrencyConflict, lambda engine: engine.start("alone", concurrency_key="k")),
        (InvalidInput, lambda engine: engine.start("strict", {"sum": 1})),
        (InvalidInput, lambda engine: engine.start("asks", priority="low")),
        (DefinitionError, lambda engine: engine.apply({"name": "bad", "steps": []})),
    ]
    for kind, command in commands:
        told: list[TenutoError] = []
        for engine in (near, client):
            with pytest.raises(kind) as error:
                await command(engine)
            told.append(error.value)
        assert type(told[1]) is type(told[0])
        assert told[1].code == told[0].code, kind
        assert getattr(told[1], "problems", ()) == getattr(told[0], "problems", ())


async def test_what_a_key_may_not(make_place: MakePlace) -> None:
    place = await make_place(SagaBuilder("asks").approval("ok"))
    admin, viewer = await place.client(), await place.client(roles=("viewer",))
    other = await place.client(tenant="acme")
    handle = await admin.start("asks")
    assert (await viewer.get(handle.id).status())["status"] in ("running", "waiting_approval")
    for refused in (viewer.start("asks"), viewer.get(handle.id).cancel(), viewer.audit.page()):
        with pytest.raises(NotPermitted):
            await refused
    with pytest.raises(NotFound):
        await other.get(handle.id).status()
    assert [line async for line in other.summaries()] == []
    async with Engine(place.address, api_key="tnt_wrong") as stranger:
        with pytest.raises(NotAuthenticated):
            await stranger.count()


async def test_what_a_client_does_not_do_it_says(make_place: MakePlace) -> None:
    place = await make_place(SagaBuilder("s").step("a", work))
    client = await place.client()
    for refused in (client.prune(older_than="1d"), client.outbox(), client.start("s", connection=object())):
        with pytest.raises(NotSupported) as error:
            await refused
        assert error.value.code == "not_over_http"
        assert error.value.hint
    with pytest.raises(NotSupported):
        client.inbox("c", "m")


async def test_a_client_decides_for_the_holder_of_its_key_alone(make_place: MakePlace) -> None:
    place = await make_place(SagaBuilder("s").approval("ok"))
    client = await place.client()
    handle = await client.start("s")
    blocked = (await handle.result()).blocked
    assert blocked is not None
    review = blocked["review_id"]
    assert review is not None
    for refused in (
        handle.approve("ok", actor="bob"),
        handle.reject("ok", actor="bob"),
        client.resolve(review, "approved", actor="bob"),
    ):
        with pytest.raises(NotSupported) as error:
            await refused
        assert "leave `actor` out" in str(error.value.hint)
    await handle.approve("ok")
    assert (await handle.result()).succeeded
    with pytest.raises(NotSupported):
        _ = client.keys
    with pytest.raises(NotSupported):
        client.scoped(tenant="default", actor="user:ann")
    with pytest.raises(InvalidInput, match="the API key decides the tenant"):
        await client.start("s", tenant="acme")
    with pytest.raises(InvalidInput, match="printable"):
        await client.start("s", idempotency_key="schlüssel")
    for options in ({"messages": ["*"]}, {"retention": "1d"}):
        with pytest.raises(NotSupported, match="client"):
            Engine(place.address, **options)


@pytest.mark.parametrize("url", ["http://", "https://key@example.org", "http://host:port"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(InvalidInput):
        Engine(url)


@pytest.mark.parametrize(
    ("url", "key", "warned"),
    [
        ("http://tenuto.example.org", "tnt_x", True),
        ("https://tenuto.example.org", "tnt_x", False),
        ("http://tenuto.example.org", None, False),
        ("http://127.0.0.1:8080", "tnt_x", False),
        ("http://localhost:8080", "tnt_x", False),
    ],
)
async def test_whoever_sends_a_key_unencrypted_is_warned(
    url: str, key: str | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with Engine(url, api_key=key):
        pass
    assert [getattr(record, "action", "") for record in caplog.records] == (["key_unencrypted"] if warned else [])
    assert "tnt_x" not in caplog.text


async def test_a_closed_client_says_so(make_place: MakePlace) -> None:
    place = await make_place(SagaBuilder("asks").approval("ok"))
    client = Engine(place.address, api_key=await place.key())
    with pytest.raises(EngineClosed):
        await client.count()
    async with client:
        handle = await client.start("asks")
        await handle.result()
        waiting = asyncio.create_task(handle.result(return_when="terminal"))
        following = asyncio.ensure_future(anext(handle.events(after=100)))
        while len(place.app.state.service.limiter.streams) < 2:  # both are heard
            await handle.status()
    for task in (waiting, following):
        with pytest.raises(EngineClosed):
            await task
    with pytest.raises(EngineClosed):
        await handle.status()
