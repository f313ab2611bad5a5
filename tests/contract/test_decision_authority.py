"""Who may decide a review: on every runtime, whether its owner hears the decision at once or from the mailbox."""

from collections.abc import Callable
from typing import Any

import pytest

from tenuto import Engine, Handle, SagaBuilder
from tenuto.errors import InvalidTransition, NotPermitted
from tenuto.kernel import facts as f
from tenuto.kernel.address import review_id
from tenuto.runtime.clock import Timer
from tests.seams import environment_of, runtime_of

from .conftest import MakeEngine
from .doubles import until_blocked

OWN = "invoices:approve"
STARTER, OTHER = "user:ann", "user:bob"


class LateClock:
    """A clock whose time passes and whose callbacks never come: whatever is due stays due until a fact arrives."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def now_ms(self) -> int:
        return self.now

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return self

    def cancel(self) -> None:
        pass


def gated(permission: str | None = OWN) -> object:
    builder = SagaBuilder("gated", output="gate").wait("pause", "5ms")
    return builder.approval("gate", permission=permission, depends_on=["pause"])


async def due(make_engine: MakeEngine, runtime: str, permission: str | None = OWN) -> tuple[Engine, Handle[Any]]:
    """An execution whose approval is opened by a timer that is due, and that no worker has fired."""
    clock = LateClock() if runtime == "memory" else None
    options: dict[str, Any] = {"worker": False} if clock is None else {"clock": clock}
    engine = await make_engine(gated(permission), **options)
    handle = await _as(engine, STARTER, "admin").start("gated")
    if clock is not None:
        clock.now += 1_000
    started = environment_of(engine).now_ms()
    while clock is None and environment_of(engine).now_ms() < started + 20:
        await handle.status()
    (before,) = [step for step in (await handle.status())["steps"] if step["step_id"] == "gate"]
    assert before["status"] == "pending"
    return engine, handle


def _as(engine: Engine, actor: str, *roles: str, four_eyes: bool = False) -> Engine:
    return engine.scoped(
        tenant="default", actor=actor, roles=roles or None, four_eyes=["approvals"] if four_eyes else []
    )


@pytest.mark.parametrize("verb", ["approve", "reject", "by id"])
async def test_nothing_is_sent_for_a_review_that_is_not_open_yet(
    make_engine: MakeEngine, runtime: str, verb: str
) -> None:
    engine, handle = await due(make_engine, runtime)
    for decider in (_as(engine, OTHER, "approver"), _as(engine, OTHER, "admin"), engine):
        decision = (
            decider.resolve(review_id(handle.id, 4), "approved")
            if verb == "by id"
            else getattr(decider.get(handle.id), verb)("gate")
        )
        with pytest.raises(InvalidTransition) as refused:
            await decision
        assert refused.value.code == "not_waiting"
    assert await _recorded(engine, handle, "resolved") == []


SENDERS: dict[str, tuple[f.Authority | None, str, str]] = {
    "approver without the permission": (f.Authority(permissions=("approvals:write",)), OTHER, "forbidden"),
    "holder of the permission alone": (f.Authority(permissions=(OWN,)), OTHER, "forbidden"),
    "who started it": (f.Authority(permissions=None, four_eyes=True), STARTER, "four_eyes"),
    "earlier release": (None, OTHER, "forbidden"),
}


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("named", ["review", "path"])
async def test_a_decision_is_refused_although_it_opens_its_review(
    make_engine: MakeEngine, runtime: str, sender: str, named: str
) -> None:
    """However it came to be sent."""
    authority, actor, code = SENDERS[sender]
    engine, handle = await due(make_engine, runtime)
    name: dict[str, Any] = {"review": review_id(handle.id, 4)} if named == "review" else {"path": "gate"}
    answer = await runtime_of(engine).tell(
        None,
        handle.id,
        f.Decide(at=environment_of(engine).now_ms(), actor=actor, resolution="approved", authority=authority, **name),
    )
    assert isinstance(answer, f.Refused)
    assert answer.code == code
    assert await _recorded(engine, handle, "review") == ["review"], "the timer has fired"
    assert await _recorded(engine, handle, "resolved") == []


@pytest.mark.parametrize("through", ["owner", "mailbox"])
@pytest.mark.parametrize("sender", SENDERS)
async def test_an_open_review_is_decided_by_those_who_may(
    make_engine: MakeEngine, runtime: str, sender: str, through: str
) -> None:
    authority, actor, code = SENDERS[sender]
    owner = await make_engine(SagaBuilder("asks", output="gate").approval("gate", permission=OWN))
    teller = owner if through == "owner" or runtime == "memory" else await make_engine(worker=False)
    handle = await _as(owner, STARTER, "admin").start("asks")
    blocked = await until_blocked(handle, "approval")
    now = environment_of(owner).now_ms()

    answer = await runtime_of(teller).tell(
        None,
        handle.id,
        f.Decide(at=now, actor=actor, resolution="approved", review=blocked["review_id"], authority=authority),
    )
    assert isinstance(answer, f.Refused)
    assert answer.code == code
    with pytest.raises(NotPermitted):
        await _as(teller, OTHER, "approver").get(handle.id).approve("gate")
    with pytest.raises(NotPermitted) as own:
        await _as(teller, STARTER, "admin", four_eyes=True).get(handle.id).approve("gate")
    assert own.value.code == "four_eyes"
    assert (await handle.status())["status"] == "waiting_approval"

    await _as(teller, OTHER, "approver", OWN, four_eyes=True).get(handle.id).approve("gate", data="yes")
    assert (await handle.result()).output == "yes"


async def _recorded(engine: Engine, handle: Handle[Any], kind: str) -> list[str]:
    page = await engine.listing.events(handle.id)
    return [event["type"] for event in page.items if event["type"] == kind]
