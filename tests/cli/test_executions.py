"""Starting, listing and showing executions."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tenuto import Done, Engine, Outcome, Pending, SagaBuilder, Unknown
from tenuto.cli.formats import clock
from tenuto.errors import IndeterminateError, NonRetryableError, TransientError
from tests.service.conftest import until
from tests.service.documents import flow

from .conftest import Run, Work, steady


async def atlantis(engine: Engine) -> str:
    return (await engine.execute("book-trip", "Atlantis")).execution_id


async def oslo(engine: Engine) -> str:
    return (await engine.execute("book-trip", "Oslo", idempotency_key="k-1")).execution_id


async def expenses(engine: Engine) -> str:
    return (await engine.execute("expenses", 120)).execution_id


async def invoice(engine: Engine) -> str:
    """One that waits for a signal."""
    handle = await engine.start("invoice", 1)
    await until(handle.status, lambda document: document["blocked"] and document["blocked"]["reason"] == "signal")
    return handle.id


async def refund(engine: Engine) -> str:
    return (await engine.execute("refund", 7)).execution_id


async def payout(engine: Engine) -> str:
    """It has no undo."""

    async def pay() -> None:
        raise IndeterminateError("the line went dead")

    saga = SagaBuilder("payout").step("pay", pay, safety="not_safe_to_retry", compensation_policy="manual")
    engine.register(saga.build())
    return (await engine.execute("payout")).execution_id


# -- show --------------------------------------------------------------------------------------------------------------


def test_show_of_one_that_failed_says_why_first_and_what_helps(tenuto: Run, work: Work) -> None:
    id = work(atlantis)
    done = tenuto("show", id)
    assert (done.code, done.err) == (0, "")
    assert steady(done.out) == (
        "book-trip <id>: failed\n"
        "  It failed in 'pay': NON_RETRYABLE (card_refused): the card was refused\n"
        "    tenuto retry <id> --reason TEXT\n"
        "\n"
        "  started    <time> (<ago>)\n"
        "  completed  <time>, after <span>\n"
        "  version    1\n"
        '  input      "Atlantis"\n'
        "\n"
        "  ↩ flight  succeeded, undone\n"
        "  ↩ hotel   succeeded, 2 attempts, undone\n"
        "  ✗ pay     failed, NON_RETRYABLE (card_refused): the card was refused\n"
        "\n"
        "  <clock>  flight            succeeded in <span>\n"
        "  <clock>  hotel             failed in <span>: TRANSIENT: the line is busy; again at <clock>\n"
        "  <clock>  hotel, attempt 2  succeeded in <span>\n"
        "  <clock>  pay               failed in <span>: NON_RETRYABLE (card_refused): the card was refused\n"
        "  <clock>  undo hotel        succeeded in <span>\n"
        "  <clock>  undo flight       succeeded in <span>\n"
    )


def test_show_of_one_that_waits_names_the_commands(tenuto: Run, work: Work) -> None:
    id = work(expenses)
    first, second, *commands = tenuto("show", id).out.splitlines()[:5]
    assert first == f"expenses {id}: waiting_approval"
    assert steady(second) == "  It waits for a person to approve 'consent' (for <span>)."
    assert commands == [
        f"    tenuto approve {id} consent",
        f"    tenuto reject {id} consent",
        f"    tenuto cancel {id}",
    ]


async def stuck_undo(engine: Engine) -> str:
    """It was done, something later failed, and it cannot be undone."""

    async def book() -> None: ...

    async def undo() -> None:
        raise NonRetryableError("no refunds")

    async def pay() -> None:
        raise NonRetryableError("no money")

    saga = SagaBuilder("stuck-undo").step("book", book, compensate=undo).step("pay", pay, depends_on=["book"])
    engine.register(saga.build())
    return (await engine.execute("stuck-undo")).execution_id


async def unclear(engine: Engine) -> str:
    """Its guard cannot tell either."""

    async def pay() -> None:
        raise IndeterminateError("the line went dead")

    async def look() -> Outcome[None]:
        return Unknown("no log")

    saga = SagaBuilder("unclear").step("pay", pay, safety="safe_to_retry_with_guard", guard=look)
    engine.register(saga.build())
    return (await engine.execute("unclear")).execution_id


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (stuck_undo, "The undo of 'book' failed, and a person has to say what becomes of it"),
        (payout, "It is not known whether the effect of 'pay' was made, and a person has to find out"),
        (unclear, "It is not known whether the effect of 'pay' was made, and a person has to find out"),
    ],
)
def test_show_says_what_a_person_is_asked(
    tenuto: Run, work: Work, job: Callable[[Engine], Coroutine[Any, Any, str]], told: str
) -> None:
    assert steady(tenuto("show", work(job)).out.splitlines()[1]) == f"  {told} (for <span>)."


def test_a_guard_that_does_not_know_has_answered(tenuto: Run, work: Work) -> None:
    line = next(line for line in timeline_of(tenuto("show", work(unclear)).out) if "guard of pay" in line)
    assert line.startswith("<clock> guard of pay unknown (in <span>): INDETERMINATE")


async def bought(engine: Engine) -> str:
    """The shop's answer was lost, and the order is found."""

    async def laptop() -> str:
        raise TransientError("no answer")

    async def find() -> Outcome[str]:
        return Done("order 4711")

    saga = SagaBuilder("onboarding").step("laptop", laptop, safety="not_safe_to_retry", reconcile=find)
    engine.register(saga.build())
    return (await engine.execute("onboarding")).execution_id


def test_show_tells_what_a_look_up_found(tenuto: Run, work: Work) -> None:
    attempt, found = timeline_of(tenuto("show", work(bought)).out)
    assert "laptop failed in <span>" in attempt
    assert "; its outcome is being looked up, from <clock> on" in attempt
    assert "again" not in attempt
    assert found == "<clock> reconcile of laptop done, order 4711 (in <span>)"


async def unanswered(engine: Engine) -> str:
    """The shop is slow, and asked again in an hour."""

    async def laptop() -> str:
        raise IndeterminateError("no answer")

    async def find() -> Outcome[str]:
        return Pending(retry_after="1h")

    saga = SagaBuilder("onboarding").step("laptop", laptop, safety="not_safe_to_retry", reconcile=find)
    engine.register(saga.build())
    handle = await engine.start("onboarding")
    while ((await handle.status())["blocked"] or {"reason": ""})["reason"] != "reconcile":
        await asyncio.to_thread(lambda: None)
    return handle.id


def test_show_says_that_an_outcome_is_being_looked_up(tenuto: Run, work: Work) -> None:
    shown = re.sub(" +", " ", steady(tenuto("show", work(unanswered)).out))
    assert "Whether 'laptop' took effect is not known; its outcome is being looked up" in shown
    assert "laptop its outcome is being looked up" in shown
    assert "tried again" not in shown
    assert "reconcile of laptop pending (in <span>); asked again at <clock>" in shown


def timeline_of(shown: str) -> list[str]:
    """Its last part, without the names of callers, which differ on a database and over a service."""
    lines = steady(shown).rpartition("\n\n")[2].splitlines()
    return [re.sub(r" +", " ", re.sub(r"by (cli:\w+|key:\w+:[\w-]+)", "by <caller>", line)).strip() for line in lines]


def test_show_says_who_ended_it_and_why(tenuto: Run, work: Work) -> None:
    id = work(expenses)
    tenuto("pause", id, "--reason", "lunch")
    tenuto("resume", id)
    tenuto("cancel", id, "--mode", "terminate", "--reason", "because")
    assert timeline_of(tenuto("show", id).out) == [
        "<clock> check succeeded in <span>",
        "<clock> consent canceled in <span>",
        "<clock> pause by <caller>: lunch",
        "<clock> resume by <caller>",
        "<clock> cancel (terminate) by <caller>: because",
    ]


def test_show_says_who_decided(tenuto: Run, work: Work) -> None:
    id = work(expenses)
    tenuto("signal", id, "paid", "--payload", "7")
    tenuto("reject", id, "--comment", "too much")
    tenuto("retry", id, "--reason", "asked again")
    assert timeline_of(tenuto("show", id).out)[:6] == [
        "<clock> check succeeded in <span>",
        "<clock> consent failed in <span>: NON_RETRYABLE (rejected): too much",
        "<clock> signal paid by <caller>",
        "<clock> reject consent by <caller>: too much",
        "run 2",
        "<clock> retry by <caller>: asked again",
    ]


def test_show_says_how_a_review_was_resolved(tenuto: Run, work: Work) -> None:
    id = work(refund)
    (review,) = json.loads(tenuto("reviews", "ls", "--json").out)
    tenuto("reviews", "resolve", review["id"], "compensate", "--reason", "wrong account")
    assert "<clock> resolve transfer: compensate by <caller>: wrong account" in timeline_of(tenuto("show", id).out)


def test_show_does_not_offer_an_undo_that_there_is_not_and_says_when_one_was_asked_for(tenuto: Run, work: Work) -> None:
    id = work(payout)
    assert " compensate " not in tenuto("show", id).out
    (review,) = json.loads(tenuto("reviews", "ls", "--json").out)
    tenuto("reviews", "resolve", review["id"], "compensate", "--reason", "undo it")
    line = "<clock> resolve pay: compensate (it has no undo) by <caller>: undo it"
    assert line in timeline_of(tenuto("show", id).out)


def test_show_says_that_a_dead_letter_was_seen_but_not_what_was_closed_with_something_else(
    tenuto: Run, work: Work
) -> None:
    id = work(atlantis)
    tenuto("dlq", "discard", id, "--reason", "nobody goes there")
    assert timeline_of(tenuto("show", id).out)[-1] == "<clock> dead letter: dismiss by <caller>: nobody goes there"


def test_every_command_that_show_proposes_is_one(tenuto: Run, work: Work) -> None:
    """What a person pastes does something: only the reason is to be filled in."""
    id = work(refund)
    lines = [line.strip() for line in tenuto("show", id).out.splitlines() if line.startswith("    tenuto ")]
    assert len(lines) == 5
    assert f"tenuto cancel {id}" in lines
    chosen = next(line for line in lines if " compensate " in line)
    done = tenuto(*chosen.removeprefix("tenuto ").replace("TEXT", "found").split())
    assert (done.code, done.err) == (0, "")
    assert steady(done.out).startswith("resolved; refund <id>: ")


def test_show_for_programs_is_the_document(tenuto: Run, work: Work) -> None:
    id = work(oslo)
    document = json.loads(tenuto("show", id, "--json").out)
    assert (document["execution_id"], document["status"], document["output"]) == (id, "succeeded", "paid for Oslo")
    assert document["idempotency_key"] == "k-1"


def test_show_trace_prints_where_handlers_raised(tenuto: Run, work: Work) -> None:
    id = work(atlantis)
    lines = tenuto("show", id, "--trace").out.splitlines()
    start = lines.index("pay, failed")
    assert lines[start + 1] == "    NonRetryableError: the card was refused"
    assert re.fullmatch(r"      .*tests/cli/shop.py:\d+ in BookTrip.pay", lines[start + 2])
    assert "BookTrip.pay" not in tenuto("show", id).out
    assert "BookTrip.pay" in tenuto("history", id).out
    (letter,) = json.loads(tenuto("dlq", "ls", "--json").out)
    assert "BookTrip.pay" in tenuto("dlq", "show", letter["id"]).out


def test_show_trace_for_programs_has_the_attempts(tenuto: Run, work: Work) -> None:
    id = work(atlantis)
    attempts = json.loads(tenuto("show", id, "--trace", "--json").out)["attempts"]
    assert [row["step_id"] for row in attempts if row["error_trace"]] == ["hotel", "pay"]


def test_show_trace_says_that_there_is_none(tenuto: Run, work: Work) -> None:
    assert "No attempt has a traceback." in tenuto("show", work(expenses), "--trace").out


def test_history_lists_attempts(tenuto: Run, work: Work) -> None:
    id = work(oslo)
    rows = json.loads(tenuto("history", id, "--json").out)
    assert [(row["step_id"], row["attempt_number"], row["status"]) for row in rows] == [
        ("flight", 1, "succeeded"),
        ("hotel", 1, "retrying"),
        ("hotel", 2, "succeeded"),
        ("pay", 1, "succeeded"),
    ]
    printed = tenuto("history", id).out
    assert "hotel 2 succeeded" in printed
    assert rows[0]["idempotency_key"] in printed


def test_graph_lists_steps_and_what_they_follow_now_and_after_an_event(tenuto: Run, work: Work) -> None:
    id = work(oslo)
    rows = [line.split("\t") for line in tenuto("graph", id).out.splitlines()]
    assert {row[0]: row[1] for row in rows} == {"flight": "succeeded", "hotel": "succeeded", "pay": "succeeded"}
    (pay,) = [row for row in rows if row[0] == "pay"]
    assert set(pay[4].split(", ")) <= {"flight", "hotel"}
    first = json.loads(tenuto("graph", id, "--at", "1", "--json").out)
    assert (first["seq"], {node["status"] for node in first["nodes"]} & {"succeeded"}) == (1, set())
    assert tenuto("graph", id, "--at", "1000").code != 0


# -- ls ----------------------------------------------------------------------------------------------------------------


def test_ls_finds_executions_by_one_text_and_by_class_and_version(tenuto: Run, work: Work) -> None:
    id = work(oslo)
    for option in (("-q", id), ("--search", id[:8]), ("--version", "1")):
        assert [row["execution_id"] for row in json.loads(tenuto("ls", *option, "--json").out)] == [id]
    for option in (("-q", "nothing"), ("--version", "2"), ("--error-class", "TRANSIENT")):
        assert tenuto("ls", *option, "--json").out == "[]\n"
    assert tenuto("ls", "--error-class", "WRONG").code != 0


def test_ls_finds_executions_by_error_step_and_reason_oldest_or_newest_first(tenuto: Run, work: Work) -> None:
    failed, asks, other = work(atlantis), work(expenses), work(expenses)
    document = json.loads(tenuto("show", failed, "--json").out)["error"]
    for option in (("--error-code", document["code"]), ("--failed-step", document["step_id"])):
        assert [row["execution_id"] for row in json.loads(tenuto("ls", *option, "--json").out)] == [failed]
    for option in (("--error-code", "other"), ("--failed-step", "consent")):
        assert tenuto("ls", *option, "--count").out == "0\n"
    newest, oldest = [tenuto("ls", "--blocked-reason", "approval", "--sort", sort) for sort in ("newest", "oldest")]
    assert [line.split("\t")[0] for line in newest.out.splitlines()] == [other, asks]
    assert [line.split("\t")[0] for line in oldest.out.splitlines()] == [asks, other]
    assert newest.out.splitlines()[0].endswith("\tapproval: consent")
    refused = tenuto("ls", "--blocked-reason", "wrong")
    assert refused.code != 0
    assert "concurrency_key" in refused.err  # one of the valid ones


def test_ls_off_a_terminal_is_lines_with_tabs_the_newest_first(tenuto: Run, work: Work) -> None:
    first, second = work(atlantis), work(expenses)
    done = tenuto("ls")
    assert [line.split("\t")[:2] for line in done.out.splitlines()] == [[second, "expenses"], [first, "book-trip"]]
    assert done.out.splitlines()[1].endswith("\tfailed: NON_RETRYABLE")
    assert tenuto("ls", "--limit", "1").out.splitlines() == done.out.splitlines()[:1]
    assert json.loads(tenuto("ls", "--json", "--status", "failed").out)[0]["execution_id"] == first


def test_ls_blocked_says_by_what(tenuto: Run, work: Work) -> None:
    work(atlantis)
    id = work(expenses)
    (line,) = tenuto("ls", "--blocked").out.splitlines()
    assert line.split("\t")[0] == id
    assert line.endswith("\tapproval: consent")
    assert tenuto("ls", "--blocked", "--count").out == "1\n"
    assert tenuto("ls", "--blocked", "--older-than", "1h", "--count").out == "0\n"
    assert json.loads(tenuto("ls", "--count", "--json").out) == {"count": 2}


def test_ls_of_nothing_prints_nothing_that_a_program_could_take_for_something(tenuto: Run, work: Work) -> None:
    work(atlantis)
    assert tenuto("ls", "--definition", "expenses") == (0, "", "")
    assert tenuto("ls", "--definition", "expenses", "--json").out == "[]\n"


def test_another_tenants_are_not_seen(tenuto: Run, work: Work) -> None:
    id = work(oslo)
    assert tenuto("--tenant", "theirs", "ls") == (0, "", "")
    assert tenuto("--tenant", "theirs", "show", id).code == 3


# -- run ---------------------------------------------------------------------------------------------------------------


def test_run_prints_the_id_and_the_same_key_is_the_same_one(tenuto: Run, work: Work) -> None:
    work(oslo)
    first = tenuto("run", "book-trip", "--input", '"Rome"', "--key", "k-2")
    assert first.code == 0
    assert steady(first.out) == "<id>\n"
    assert tenuto("run", "book-trip", "--input", '"Rome"', "--key", "k-2").out == first.out
    refused = tenuto("run", "book-trip", "--input", '"Bonn"', "--key", "k-2")
    assert refused.code == 4
    assert "[idempotency_conflict]" in refused.err
    assert "What to do: use a new key for a new request" in refused.err


def test_run_takes_what_start_takes(tenuto: Run, work: Work, tmp_path: Path) -> None:
    work(oslo)
    (tmp_path / "in.json").write_text('"Rome"')
    options = ["--target", "trip:t-1", "--correlation-id", "c-1", "--priority", "high", "--version", "1"]
    done = tenuto("run", "book-trip", "-i", "@in.json", *options, "--header", "X-A=b", "--variable", "v=[1]", "--json")
    document = json.loads(done.out)
    assert document["input"] == "Rome"
    assert (document["target_object_type"], document["target_object_id"]) == ("trip", "t-1")
    assert document["correlation_id"] == "c-1"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--input", "{"], "not valid JSON"),
        (["--input", "@nowhere.json"], "No such file"),
        (["--target", "x"], "TYPE:ID"),
        (["--header", "x"], "NAME=VALUE"),
        (["--wait", "--timeout", "soon"], "is not a duration"),
        (["--nonsense"], "No such option"),
    ],
)
def test_what_is_not_understood_is_usage(tenuto: Run, arguments: list[str], complaint: str) -> None:
    done = tenuto("run", "book-trip", *arguments)
    assert done.code == 2
    assert complaint in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ls", "--status", "odd"], "Invalid value for '--status': 'odd' is not one of 'running', "),
        (["ls", "--nonsense"], "No such option: --nonsense"),
        (["run"], "Missing argument 'NAME'."),
        (["run", "book-trip", "--input", "{"], "Invalid value for --input: not valid JSON"),
    ],
)
def test_what_is_not_understood_is_told_to_programs_too(tenuto: Run, arguments: list[str], message: str) -> None:
    done = tenuto(*arguments, "--json")
    told = json.loads(done.err)
    assert (done.code, done.out, told["code"]) == (2, "", "usage")
    assert told["message"].startswith(message)
    assert told["what_to_do"]
    for_people = tenuto(*arguments)
    assert (for_people.code, f"Error: {message}" in for_people.err) == (2, True)


def test_an_input_that_does_not_fit_is_told_to_programs_by_its_places(tenuto: Run, tmp_path: Path) -> None:
    (tmp_path / "flow.json").write_text(json.dumps(flow()))
    assert tenuto("apply", "flow.json").code == 0
    done = tenuto("run", "flow", "-i", '{"amount": "x"}', "--json")
    told = json.loads(done.err)
    assert (done.code, told["code"]) == (1, "input_invalid")
    assert [(each["pointer"], each["code"]) for each in told["errors"]] == [("/input/amount", "type")]
    assert told["errors"][0]["message"]


def test_run_refuses_an_input_that_no_step_could_read_without_the_code(tenuto: Run, work: Work) -> None:
    work(oslo)  # a worker has published the saga
    done = tenuto("run", "book-trip", "--input", '{"login": 7}', "--wait")
    assert (done.code, done.out) == (1, "")
    told = "/input: expected `str`, got object; it is read by step 'flight', parameter 'city'"
    assert told in done.err


def test_run_of_what_is_unknown(tenuto: Run, work: Work) -> None:
    work(oslo)
    done = tenuto("run", "nothing")
    assert done.code == 3
    assert done.err.startswith("tenuto: There is no definition named 'nothing'. [not_found]\nWhat to do: ")


def test_run_that_is_not_over_in_time_goes_on(tenuto: Run, work: Work) -> None:
    work(oslo)
    done = tenuto("run", "book-trip", "-i", '"Rome"', "--wait", "--timeout", "1ms")
    assert done.code == 6
    assert "[result_timeout]" in done.err
    assert json.loads(tenuto("ls", "--json", "-n", "1").out)[0]["status"] == "running"


# -- watch -------------------------------------------------------------------------------------------------------------


def test_watch_of_one_that_is_over_tells_the_story_and_how_it_ended(tenuto: Run, work: Work) -> None:
    done = tenuto("watch", work(atlantis))
    assert done.code == 1
    assert steady(done.out) == (
        "<clock>  flight: succeeded in <span>\n"
        "<clock>  hotel: failed in <span>: TRANSIENT: the line is busy; again at <clock>\n"
        "<clock>  hotel, attempt 2: succeeded in <span>\n"
        "<clock>  pay: failed in <span>: NON_RETRYABLE (card_refused): the card was refused\n"
        "<clock>  undo hotel: succeeded in <span>\n"
        "<clock>  undo flight: succeeded in <span>\n"
        "book-trip <id>: failed\n"
        "  It failed in 'pay': NON_RETRYABLE (card_refused): the card was refused\n"
        "    tenuto retry <id> --reason TEXT\n"
    )
    assert tenuto("watch", work(oslo)).code == 0


def test_watch_tells_when_something_happened_and_not_when_it_was_seen(tenuto: Run, work: Work) -> None:
    id = work(atlantis)
    told = [line.split("  ")[0] for line in tenuto("watch", id).out.splitlines()]
    rows = json.loads(tenuto("history", id, "--json").out)
    assert told[: len(rows)] == [clock(row["finished_at"]) for row in rows]


def test_watch_names_the_command_that_a_signal_is_sent_with(tenuto: Run, work: Work) -> None:
    id = work(invoice)
    done = tenuto("watch", id, "--timeout", "1ms")
    assert done.code == 6
    assert "It waits for the signal 'paid'" in done.out
    assert f". tenuto signal {id} paid --payload JSON\n" in done.out


def test_watch_until_it_settles_says_that_a_person_is_needed(tenuto: Run, work: Work) -> None:
    done = tenuto("watch", work(expenses), "--until", "settled")
    assert done.code == 5
    assert "It waits for a person to approve 'consent'" in done.out


def test_watch_for_programs_is_a_line_for_each_change(tenuto: Run, work: Work) -> None:
    done = tenuto("watch", work(oslo), "--json")
    lines: list[Any] = [json.loads(line) for line in done.out.splitlines()]
    assert [line["status"] for line in lines] == ["succeeded"]
