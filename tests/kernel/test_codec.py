"""Histories, snapshots, facts and answers as bytes: the corners of what the driver checks after every decision."""

import msgspec
import pytest
from msgspec import Raw

from tenuto.kernel import events as e
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.codec import (
    SNAPSHOT_FORMAT,
    decode_answer,
    decode_entries,
    decode_entry,
    decode_fact,
    decode_snapshot,
    encode_answer,
    encode_entries,
    encode_entry,
    encode_fact,
    encode_snapshot,
)
from tenuto.kernel.evolve import evolve
from tenuto.kernel.plan import Plan
from tenuto.kernel.state import Execution

from .build import definition, step
from .driver import given, raw


def test_an_entry_is_an_array_of_json_with_a_readable_tag() -> None:
    entry = e.Entry(
        7, 1_000, 2, e.AttemptSucceeded("pay", "forward", 1, 900, "w", raw({"x": 1})), (e.Grant("z", "forward", 1),)
    )
    assert encode_entry(entry) == (
        b'[7,1000,2,["ok","pay","forward",1,900,"w",{"x":1},0,null,null,"","",0,0,null],'
        b'[["z","forward",1,-1,-1]],null,null]'
    )
    assert decode_entry(encode_entry(entry)) == entry


def test_an_older_entry_without_the_newest_fields_is_still_read() -> None:
    entry = decode_entry(b'[1,5,1,["failed","a","forward",1,0,"w",["TRANSIENT","x"],"retry"]]')
    assert entry.event == e.AttemptFailed("a", "forward", 1, 0, "w", e.Failure("TRANSIENT", "x"), "retry")
    assert (entry.grants, entry.cause, entry.actor) == ((), None, None)


def test_a_snapshot_of_another_format_is_not_read() -> None:
    run = given(step("a"))
    run.start()
    text = encode_snapshot(run.state)
    other = text.replace(b'"format":%d' % SNAPSHOT_FORMAT, b'"format":%d' % (SNAPSHOT_FORMAT + 1))
    assert decode_snapshot(run.plan, text) is not None
    assert decode_snapshot(run.plan, other) is None


def test_a_history_has_no_gaps() -> None:
    run = given(step("a"), step("b"))
    run.start()
    run.succeed("a")
    state = Execution(run.plan)
    evolve(state, run.history[0])
    with pytest.raises(AssertionError, match="no gaps"):
        evolve(state, run.history[0])


FACTS: list[f.Fact] = [
    f.Start(at=1, execution="x", tenant="t", input=raw([1])),
    f.Begun(at=1, ref=Ref("a", "forward", 1), worker="w"),
    f.Reported(at=1, ref=Ref("a", "forward", 1), outcome=f.Succeeded(result=raw(5))),
    f.Reported(at=1, ref=Ref("a", "forward", 1), outcome=f.Failed(error_class="TRANSIENT", code="x")),
    f.Reported(at=1, ref=Ref("a", "forward", 1), outcome=f.TimedOut()),
    f.Reported(at=1, ref=Ref("a", "guard", 1), outcome=f.Done(result=raw("r"))),
    f.Reported(at=1, ref=Ref("a", "guard", 1), outcome=f.NotDone()),
    f.Reported(at=1, ref=Ref("a", "guard", 1), outcome=f.Pending(retry_after_ms=5)),
    f.Reported(at=1, ref=Ref("a", "guard", 1), outcome=f.Unknown(reason="?")),
    f.Reported(at=1, ref=Ref("", "plan", 1), outcome=f.Planned(children=({"step_id": "a"},))),
    f.Dispatched(at=1, ref=Ref("a", "forward", 1), lane=3),
    f.DispatchRefused(at=1, ref=Ref("a", "forward", 1), failure=f.Failed(error_class="TRANSIENT", code="x")),
    f.Acked(at=1, ref=Ref("a", "forward", 1), lease="l"),
    f.Taken(at=1, epoch=2),
    f.Lost(at=1, refs=(Ref("a", "forward", 1),)),
    f.Returned(at=1, refs=(Ref("a", "forward", 1),)),
    f.Tick(at=1),
    f.Signal(at=1, name="go", id="m", payload=raw(None)),
    f.Decide(at=1, resolution="approved", path="a"),
    f.Pause(at=1),
    f.Resume(at=1),
    f.Cancel(at=1, mode="drain"),
    f.Retry(at=1, reason="r"),
    f.Admitted(at=1, key="k", run=2),
    f.HoldGranted(at=1, amount=5),
    f.HoldRefused(at=1),
]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_a_fact_travels_as_mail(fact: f.Fact) -> None:
    assert decode_fact(encode_fact(fact)) == fact


@pytest.mark.parametrize(
    "answer", [f.APPLIED, f.Ignored("duplicate"), f.Refused("code", "message", "hint")], ids=lambda a: type(a).__name__
)
def test_an_answer_travels_back(answer: f.Answer) -> None:
    assert decode_answer(encode_answer(answer)) == answer


def test_an_empty_state_is_a_snapshot_too() -> None:
    plan = Plan(definition(step("a")))
    loaded = decode_snapshot(plan, encode_snapshot(Execution(plan)))
    assert loaded is not None
    assert (loaded.seq, loaded.agenda, loaded.wake_at) == (0, {}, None)


def test_results_are_not_in_the_state_unless_an_expression_reads_them() -> None:
    run = given(step("a"), step("b"), step("c", when="steps.b.result == 'read'"))
    run.start()
    run.succeed("a", result="not read")
    run.succeed("b", result="read")
    text = encode_snapshot(run.state)
    assert b"not read" not in text
    assert [bytes(payload) for payload in run.state.payloads.values()] == [b'"read"']
    assert msgspec.json.decode(text)["seq"] == 3


def test_the_entries_of_a_decision_are_stored_together() -> None:
    run = given(step("a"), step("b"))
    run.start()
    run.succeed("a")
    assert decode_entries(encode_entries(run.history)) == run.history


@pytest.mark.parametrize(
    "result",
    [
        b'[1,0,null,null,""]',
        b'",0,null,null,\\"\\"]"',
        b'",\\"forward\\",1,-1,-1]"',
        b"10",
        b"null",
        b'{"a":[0,null,null,""]}',
    ],
)
def test_what_looks_like_defaults_is_kept(result: bytes) -> None:
    event = e.AttemptSucceeded("a", "forward", 1, 5, 'w,0,null,null,""]', Raw(result))
    grants = (e.Grant("b"), e.Grant("c", "compensate", 2), e.Grant("d", "forward", 1, 0, 9))
    entries = [e.Entry(1, 1, 1, event, grants, None, "x")]
    text = encode_entries(entries)
    assert decode_entries(text) == entries
    assert len(text) < len(msgspec.json.encode(entries))


def test_defaults_are_left_out_only_where_all_of_them_hold() -> None:
    some = e.AttemptSucceeded("a", "forward", 1, 5, "w", Raw(b"1"), 3)
    assert decode_entries(encode_entries([e.Entry(1, 1, 1, some)])) == [e.Entry(1, 1, 1, some)]
