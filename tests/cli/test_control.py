"""A person's word: on one execution, on reviews, on dead letters. It is recorded in that person's name."""

import json

import pytest

from tenuto import Engine, SagaBuilder
from tenuto.errors import NonRetryableError

from .conftest import Run, Work, steady
from .test_executions import atlantis, expenses, refund


async def settle(engine: Engine) -> list[str]:
    return [(await handle.result()).status async for handle in engine.executions()]


async def invoice(engine: Engine) -> str:
    return (await engine.start("invoice", 1)).id


def test_pause_and_resume(tenuto: Run, work: Work) -> None:
    id = work(expenses)
    assert tenuto("pause", id, "--reason", "lunch") == (0, f"paused: expenses {id}\n", "")
    assert steady("\n".join(tenuto("show", id).out.splitlines()[:4])) == (
        "expenses <id>: paused\n"
        "  It is paused: lunch (for <span>, canceled in <span>).\n"
        "    tenuto resume <id>\n"
        "    tenuto cancel <id>"
    )
    assert tenuto("resume", id) == (0, f"resumed: expenses {id}\n", "")
    assert json.loads(tenuto("show", id, "--json").out)["status"] == "waiting_approval"


def test_approve_finds_the_step_that_waits(tenuto: Run, work: Work) -> None:
    id = work(expenses)
    assert tenuto("approve", id, "--comment", "fine").code == 0
    assert work(settle) == ["succeeded"]
    (consent,) = [row for row in json.loads(tenuto("history", id, "--json").out) if row["step_id"] == "consent"]
    assert consent["result"] == {"approved": True, "by": "cli:ada", "comment": "fine"}


def test_reject_and_name_the_step(tenuto: Run, work: Work) -> None:
    id = work(expenses)
    assert json.loads(tenuto("reject", id, "consent", "--json").out)["status"] == "failed"


def test_what_waits_for_nobody_cannot_be_approved(tenuto: Run, work: Work) -> None:
    id = work(atlantis)
    done = tenuto("approve", id)
    assert done.code == 4
    assert (
        done.err == f"tenuto: No step of it waits for an approval. [invalid_transition]\nWhat to do: tenuto show {id}\n"
    )


def test_cancel(tenuto: Run, work: Work) -> None:
    id = work(expenses)
    done = tenuto("cancel", id, "--mode", "terminate", "--reason", "changed")
    assert done == (0, f"canceled: expenses {id}\n", "")
    assert tenuto("cancel", id, "--mode", "gently").code == 2


def test_retry_needs_a_reason_and_opens_the_next_run(tenuto: Run, work: Work) -> None:
    id = work(atlantis)
    assert tenuto("retry", id).code == 2
    assert json.loads(tenuto("retry", id, "--reason", "new card", "--json").out)["attempt_count"] == 2
    assert work(settle) == ["failed"]
    assert "run 2" in tenuto("show", id).out


def test_four_eyes_count_on_the_database_too(tenuto: Run, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    id = work(atlantis)
    monkeypatch.setenv("TENUTO_FOUR_EYES", "again")
    asked = ("retry", id, "--from", "flight", "--again", "--reason", "make it anew")
    for _ in range(2):
        done = tenuto(*asked)
        assert done.code != 0
        assert "[four_eyes]" in done.err
    monkeypatch.setenv("LOGNAME", "bob")
    assert tenuto(*asked).code == 0


def test_signal(tenuto: Run, work: Work) -> None:
    id = work(invoice)
    assert tenuto("signal", id, "paid", "--payload", "7").code == 0
    assert work(settle) == ["succeeded"]
    assert json.loads(tenuto("show", id, "--json").out)["output"] == 7


def test_reviews_are_listed_and_resolved(tenuto: Run, work: Work) -> None:
    id = work(refund)
    (line,) = tenuto("reviews", "ls").out.splitlines()
    review, kind, step, *_ = line.split("\t")
    assert (review.startswith(id), kind, step) == (True, "compensation", "transfer")
    assert json.loads(tenuto("reviews", "ls", "--json").out)[0]["id"] == review
    assert tenuto("reviews", "ls", "--kind", "approval").out == ""
    assert tenuto("reviews", "ls", "--execution", id).out == f"{line}\n"
    assert tenuto("reviews", "ls", "--execution", "another") == (0, "", "")
    assert tenuto("reviews", "resolve", review, "completed").code == 2  # without a reason
    done = tenuto("reviews", "resolve", review, "completed", "--reason", "seen", "--result", '"sent"', "--json")
    assert json.loads(done.out)["status"] == "succeeded"
    assert tenuto("reviews", "ls") == (0, "", "")


def test_a_review_that_is_none(tenuto: Run, work: Work) -> None:
    work(refund)
    assert tenuto("reviews", "resolve", "x", "dismiss", "--reason", "r").code == 3
    assert tenuto("reviews", "resolve", "x", "forget", "--reason", "r").code == 2


def test_dead_letters_are_listed_shown_and_discarded(tenuto: Run, work: Work) -> None:
    id = work(atlantis)
    (line,) = tenuto("dlq", "ls").out.splitlines()
    letter = line.split("\t")[0]
    assert line.endswith("\tNON_RETRYABLE: the card was refused")
    assert tenuto("dlq", "ls", "--error-class", "TRANSIENT").out == ""
    shown = tenuto("dlq", "show", id).out
    assert f"tenuto dlq reprocess {letter} --reason TEXT" in shown
    assert "undo flight" in shown
    assert json.loads(tenuto("dlq", "show", letter, "--json").out)["execution"]["execution_id"] == id
    assert tenuto("dlq", "discard", letter, "--reason", "nobody goes there").out == f"discarded: {letter}\n"
    assert tenuto("dlq", "ls").out == ""
    assert tenuto("dlq", "discard", letter, "--reason", "again").code == 4  # it was decided before


@pytest.mark.parametrize("which", [["--all"], ["--definition", "book-trip"], ["--error-class", "NON_RETRYABLE"]])
def test_dead_letters_are_reprocessed_by_filter(tenuto: Run, work: Work, which: list[str]) -> None:
    ids = [work(atlantis), work(atlantis), work(atlantis)]
    letters = [row["id"] for row in json.loads(tenuto("dlq", "ls", "--json").out)]
    assert tenuto("dlq", "reprocess", "--reason", "r").code == 2
    done = tenuto("dlq", "reprocess", *which, "--limit", "2", "--reason", "the bank is back", "--json")
    assert json.loads(done.out) == {"reprocessed": letters[:2], "refused": []}
    assert len(tenuto("dlq", "ls").out.splitlines()) == 1
    assert work(settle) == ["failed"] * 3
    assert "run 2" in tenuto("show", ids[0]).out


async def transfer(engine: Engine) -> str:
    async def send() -> None:
        raise NonRetryableError("the bank said no")

    engine.register(
        SagaBuilder("transfer").step("send", send, safety="not_safe_to_retry", compensation_policy="manual")
    )
    return (await engine.execute("transfer")).execution_id


def test_what_cannot_be_reprocessed_is_told_and_the_others_go_on(
    tenuto: Run, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, unsafe, last = work(atlantis), work(transfer), work(atlantis)
    letters = {row["execution_id"]: row["id"] for row in json.loads(tenuto("dlq", "ls", "--json").out)}
    monkeypatch.setenv("TENUTO_FOUR_EYES", "unsafe_retry")
    done = tenuto("dlq", "reprocess", "--all", "--reason", "the bank is back", "--json")
    assert (done.code, json.loads(done.out)["reprocessed"]) == (1, [letters[first], letters[last]])
    assert [(each["id"], each["code"]) for each in json.loads(done.out)["refused"]] == [(letters[unsafe], "four_eyes")]
    done = tenuto("dlq", "reprocess", "--all", "--reason", "the bank is back")
    assert done.code == 1
    assert f"{letters[unsafe]}: " in done.out
    monkeypatch.setenv("LOGNAME", "bob")
    assert tenuto("dlq", "reprocess", "--all", "--reason", "the bank is back").code == 0


def test_one_dead_letter_is_reprocessed(tenuto: Run, work: Work) -> None:
    id = work(atlantis)
    done = tenuto("dlq", "reprocess", id, "--reason", "r")
    assert done.out == f"1 execution will be tried again\n  {id}\n"
