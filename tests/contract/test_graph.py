"""The graph of an execution: its steps, what follows what, and how far each has come, now and after each event."""

from typing import Any

import pytest

from tenuto import SagaBuilder
from tenuto.errors import InvalidInput, NonRetryableError, NotFound
from tenuto.views.graph import GraphDocument, GraphNode

from .conftest import MakeEngine


async def reserve() -> str:
    return "r-1"


async def release() -> str:
    return "released"


async def decline() -> str:
    raise NonRetryableError("card declined", code="declined")


async def each(n: int) -> int:
    return n


def nodes(graph: GraphDocument) -> dict[str, GraphNode]:
    return {node["id"]: node for node in graph["nodes"]}


def edges(graph: GraphDocument, kind: str) -> set[tuple[str, str]]:
    return {(edge["from"], edge["to"]) for edge in graph["edges"] if edge["kind"] == kind}


def trip() -> object:
    return (
        SagaBuilder("trip")
        .step("flight", reserve, compensate=release)
        .step("hotel", reserve, compensate=release, depends_on=["flight"])
        .step("charge", decline, depends_on=["hotel"])
        .build()
    )


async def test_the_graph_shows_each_step_and_the_order_of_the_rollback(make_engine: MakeEngine) -> None:
    engine = await make_engine(trip())
    handle = await engine.start("trip")
    await handle.result()
    graph = await handle.graph()
    assert graph["seq"] == len([event async for event in handle.events()])
    assert edges(graph, "dependency") == {("flight", "hotel"), ("hotel", "charge")}
    assert edges(graph, "compensation") == {("hotel", "flight")}
    found = nodes(graph)
    assert {id: (node["status"], node["phase"], node["compensation_status"]) for id, node in found.items()} == {
        "flight": ("succeeded", "compensation", "done"),
        "hotel": ("succeeded", "compensation", "done"),
        "charge": ("failed", "forward", None),
    }
    assert found["charge"]["error"] == {"class": "NON_RETRYABLE", "code": "declined", "summary": "card declined"}
    for node in found.values():
        assert node["started_at"] is not None
        assert node["ended_at"] is not None
        assert node["started_at"] <= node["ended_at"]
    assert [(scope["path"], scope["parent"]) for scope in graph["scopes"]] == [("", None)]


async def test_the_graph_after_an_event_is_the_one_of_that_time(make_engine: MakeEngine) -> None:
    engine = await make_engine(trip())
    handle = await engine.start("trip")
    await handle.result()
    last = (await handle.graph())["seq"]
    first = await handle.graph(at=1)
    assert (first["seq"], nodes(first)["flight"]["status"], nodes(first)["charge"]["status"]) == (
        1,
        "running",
        "pending",
    )
    assert edges(first, "compensation") == set()
    assert [(await handle.graph(at=seq))["seq"] for seq in range(1, last + 1)] == list(range(1, last + 1))
    for wrong in (0, last + 1):
        with pytest.raises(InvalidInput, match="/at"):
            await handle.graph(at=wrong)
    with pytest.raises(NotFound):
        await engine.get("nothing").graph()


async def test_a_fan_out_is_one_node_with_counts(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("fans").step("each", each, foreach="input").build())
    handle = await engine.start("fans", [1, 2, 3])
    await handle.result()
    (node,) = (await handle.graph())["nodes"]
    assert (node["kind"], node["status"], node["clones"]) == (
        "fan_out",
        "succeeded",
        {"total": 3, "by_status": {"succeeded": 3}},
    )


APPROVAL: dict[str, Any] = {
    "name": "asks",
    "version": 1,
    "steps": [
        {"step_id": "ok", "type": "human_approval", "timeout_ms": 60_000, "on_success": "paid", "on_timeout": "lost"},
        {"step_id": "paid", "type": "notify", "handler": "log", "with": {"message": "paid"}, "on_failure": "lost"},
        {"step_id": "lost", "type": "notify", "handler": "log", "with": {"message": "lost"}},
    ],
}


async def test_a_flow_shows_where_it_can_go_and_what_a_step_waits_for(make_engine: MakeEngine) -> None:
    engine = await make_engine()
    await engine.apply(APPROVAL)
    handle = await engine.start("asks")
    await handle.result()
    graph = await handle.graph()
    assert (edges(graph, "success"), edges(graph, "timeout"), edges(graph, "failure")) == (
        {("ok", "paid")},
        {("ok", "lost")},
        {("paid", "lost")},
    )
    found = nodes(graph)
    assert (found["ok"]["status"], found["ok"]["blocked"]) == ("awaiting_approval", "approval")
    assert (found["paid"]["status"], found["paid"]["started_at"]) == ("pending", None)
    assert (graph["scopes"][0]["mode"], graph["scopes"][0]["status"]) == ("flow", "running")
