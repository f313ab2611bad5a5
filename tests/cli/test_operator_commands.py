"""A person's word: on one execution, on reviews, on dead letters. It is recorded in that person's name."""

import json
import sys
from io import StringIO
from threading import Thread

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
    assert steady("\n".join(tenuto("show", id).out.splitlines()[:6])) == (
        "expenses <id>: paused\n"
        "  It is paused: lunch (for <span>, canceled in <span>).\n"
        "    tenuto resume <id>\n"
        "    tenuto approve <id>\n"
        "    tenuto reject <id>\n"
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
    first, second = done.err.splitlines()
    assert first == "tenuto: No step of this execution waits for approval. [invalid_transition]"
    assert second == f"What to do: run `tenuto show {id}` to see its state"


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
    assert "requested by cli:" in tenuto("dlq", "ls").out
    assert "requested by cli:" in tenuto("reviews", "ls").out
    shown = tenuto("dlq", "show", id).out
    assert "from 'flight': make it anew (a second person must request the same)" in " ".join(shown.split())
    assert tenuto(*asked).code == 0


def test_signal(tenuto: Run, work: Work) -> None:
    id = work(invoice)
    assert "  … paid  waiting\n" in tenuto("show", id).out
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


@pytest.mark.requirement("I5")
def test_reviews_of_all_kinds_are_one_list(tenuto: Run, work: Work) -> None:
    failed, asked = work(atlantis), work(refund)
    rows = json.loads(tenuto("reviews", "ls", "--json").out)
    assert [(row["kind"], row["execution_id"]) for row in rows] == [("dead_letter", failed), ("compensation", asked)]
    (line,) = tenuto("reviews", "ls", "--kind", "dead_letter").out.splitlines()
    assert line.startswith(rows[0]["id"])
    assert tenuto("reviews", "resolve", rows[0]["id"], "dismiss", "--reason", "nobody goes there").code == 0
    assert tenuto("dlq", "ls").out == ""


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


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr("tenuto.api.bulk_commands.VERDICT_SECONDS", 60)


@pytest.mark.requirement("I7")
@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("which", [["--all"], ["--definition", "book-trip"], ["--error-class", "NON_RETRYABLE"]])
def test_dead_letters_are_reprocessed_by_filter(tenuto: Run, work: Work, which: list[str]) -> None:
    ids = [work(atlantis), work(atlantis), work(atlantis)]
    letters = [row["id"] for row in json.loads(tenuto("dlq", "ls", "--json").out)]
    assert tenuto("dlq", "reprocess", "--reason", "r").code == 2
    assert tenuto("dlq", "reprocess", letters[0], *which, "--reason", "r").code == 2
    done = tenuto("dlq", "reprocess", *which, "--limit", "2", "--reason", "the bank is back", "--json")
    assert json.loads(done.out) == {"reprocessed": letters[:2], "pending": [], "refused": []}
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


@pytest.mark.usefixtures("patience")
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
    assert done.out == f"1 execution will be retried\n  {id}\n"
    for verb in ("reprocess", "discard"):
        none = tenuto("dlq", verb, "nothing.1", "--reason", "r")
        assert (none.code, "run `tenuto dlq ls` to list the open ones" in none.err) == (3, True)


# -- Many at once ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patience")
def test_many_are_canceled_when_somebody_said_so(tenuto: Run, work: Work) -> None:
    ids = [work(expenses), work(expenses), work(expenses)]
    which = ("cancel", "--definition", "expenses", "--status", "waiting_approval")
    assert tenuto(*which, "--dry-run").out.split() == ids
    assert json.loads(tenuto(*which, "-n", "2", "--dry-run", "--json").out) == {"chosen": ids[:2], "remaining": 1}
    asked = tenuto(*which, "--reason", "closed")  # nobody is there to answer
    assert (asked.code, "3 executions" in asked.err) == (2, True)
    for wrong in (("cancel",), ("cancel", ids[0], "--definition", "expenses"), (*which, "--yes")):
        assert tenuto(*wrong).code == 2
    assert json.loads(tenuto("ls", "--status", "waiting_approval", "--count", "--json").out) == {"count": 3}

    done = json.loads(tenuto(*which, "-n", "2", "--reason", "closed", "--yes", "--json").out)
    assert done == {"canceled": ids[:2], "pending": [], "refused": [], "remaining": 1}
    assert tenuto(*which, "--reason", "closed", "--yes").out == "cancel requested: 1 execution\n"
    assert work(settle) == ["canceled"] * 3


@pytest.mark.parametrize("verb", ["cancel", "retry"])
@pytest.mark.parametrize(
    "option", [("--dry-run",), ("--limit", "5"), ("--yes",), ("--definition", "expenses"), ("--target-id", "t")]
)
def test_what_is_said_of_many_is_refused_of_one(tenuto: Run, work: Work, verb: str, option: tuple[str, ...]) -> None:
    id = work(expenses if verb == "cancel" else atlantis)
    before = tenuto("history", id, "--json").out
    assert tenuto(verb, id, "--reason", "r", *option).code == 2
    assert tenuto("history", id, "--json").out == before


class Terminal(StringIO):
    """Somebody who says yes; meanwhile another execution is started."""

    def __init__(self, work: Work) -> None:
        super().__init__("y\n")
        self.meanwhile = Thread(target=work, args=(expenses,))

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]  # typeshed: bytes, in a base of all streams
        self.meanwhile.start()
        self.meanwhile.join()
        return super().readline(-1 if size is None else size)


@pytest.mark.usefixtures("patience")
def test_what_comes_after_the_question_is_not_among_those_that_were_agreed_to(
    tenuto: Run, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [work(expenses), work(expenses)]
    with monkeypatch.context() as terminal:
        terminal.setattr(sys, "stdin", Terminal(work))
        done = tenuto("cancel", "--definition", "expenses", "--reason", "closed", "--json")
    assert (done.code, "cancel 2 executions?" in done.err) == (0, True)
    assert json.loads(done.out) == {"canceled": ids, "pending": [], "refused": [], "remaining": 1}


@pytest.mark.usefixtures("patience")
def test_many_are_retried(tenuto: Run, work: Work) -> None:
    ids = [work(atlantis), work(atlantis)]
    done = tenuto("retry", "--definition", "book-trip", "--reason", "the bank is back", "--yes", "--json")
    assert (done.code, json.loads(done.out)["retried"]) == (0, ids)
    assert work(settle) == ["failed"] * 2
    assert "run 2" in tenuto("show", ids[1]).out
    assert tenuto("retry", "--definition", "book-trip", "--from", "pay", "--reason", "r", "--yes").code == 2
    assert tenuto("retry", "--reason", "r").code == 2
