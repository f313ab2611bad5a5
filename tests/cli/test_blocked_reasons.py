"""What keeps an execution is said as it is, and the commands offered help."""

import json
import shlex
from typing import Annotated, Any

import pytest

from tenuto import Engine, FromStep, SagaBuilder
from tenuto.cli.blocked_reasons import commands, sentence
from tenuto.cli.connection import Connection
from tenuto.cli.execution_view import show_document
from tenuto.cli.printer import Printer
from tests.contract.doubles import until_blocked

from .conftest import Run, Work, steady
from .processes import running
from .test_executions import oslo
from .test_processes import tenuto as process


def told(reason: str, waiting_for: str | None) -> tuple[str, list[str]]:
    blocked = {"reason": reason, "waiting_for": waiting_for, "since": None, "next_check": None, "review_id": None}
    document = {**blocked, "commands": ["pause", "cancel"]}
    return sentence(document), commands(Connection(), "ID", document)


def test_a_step_of_a_queue_that_nobody_serves_needs_a_worker_of_that_queue(url: str) -> None:
    app = "tests.cli.studio:ALL"
    with running("worker", "--app", app, ready="worker on", TENUTO_URL=url):
        id = process(url, "run", "film", "-i", '"nosferatu"').stdout.strip()
        while (blocked := json.loads(process(url, "show", id, "--json").stdout)["blocked"]) is None:
            pass
        assert blocked["waiting_for"] == "queue gpu"
        _, second, line, *_ = process(url, "show", id).stdout.splitlines()
        assert steady(second) == "  No worker that serves the queue 'gpu' is running (for <span>)."
        offered = shlex.split(line.replace("MODULE", app))
        assert offered == ["tenuto", "--url", url, "worker", "--app", app, "--queue", "gpu"]
        with running(*offered[1:], ready="worker on"):
            assert process(url, "watch", id).returncode == 0


def test_workers_of_a_queue_may_lack_the_code_or_be_busy() -> None:
    text, lines = told("no_worker", "film.render in queue big gpu")
    assert text == "No worker that serves the queue 'big gpu' has the code of 'film.render'."
    assert lines[0] == "tenuto worker --app MODULE --queue 'big gpu'"
    busy, _ = told("slot", "queue gpu")
    assert busy == "All slots of the workers that serve the queue 'gpu' are taken; it runs when one is free."


def test_what_nobody_has_the_code_of_is_ended_by_the_command_that_is_offered(tenuto: Run, work: Work) -> None:
    work(oslo)
    id = tenuto("run", "book-trip", "-i", '"Rome"').out.strip()
    _, sentence, *lines, note = tenuto("show", id).out.partition("\n\n")[0].splitlines()
    assert steady(sentence).startswith("  No running worker has the code of ")
    assert lines == [
        "    tenuto worker --app MODULE",
        f"    tenuto pause {id}",
        f"    tenuto cancel {id} --mode terminate",
    ]
    assert note == "  The last command ends it at once, as it stands: nothing is awaited, and nothing undone."
    assert tenuto(*lines[-1].split()[1:]).code == 0
    assert json.loads(tenuto("show", id, "--json").out)["status"] == "canceled"


async def test_what_cannot_be_read_is_named_and_who_can_read_it(capsys: pytest.CaptureFixture[str]) -> None:
    async def text() -> str:
        return "oslo"

    async def number() -> int:
        return 1

    async def reads_text(found: Annotated[str, FromStep("find")]) -> str:
        return found

    async def reads_number(found: Annotated[int, FromStep("find")]) -> int:
        return found

    def saga(find: Any, use: Any) -> object:
        builder = SagaBuilder("s").step("find", find).signal("go", "go", depends_on=["find"])
        return builder.step("use", use, depends_on=["go"]).build()

    async with Engine("memory://") as engine:
        engine.register(saga(text, reads_text))
        handle = await engine.start("s")
        await until_blocked(handle, "signal")
        engine.register(saga(number, reads_number))
        await handle.signal("go")
        await until_blocked(handle, "incompatible")
        show_document(Printer(), Connection(), await handle.status(), [], [])
    _, sentence, *lines, note = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert steady(sentence) == (
        "  The code that is running cannot read what is stored: "
        "step 'use', parameter 'found': Expected `int`, got `str` (for <span>)."
    )
    assert lines[0] == "    tenuto worker --app MODULE"
    assert lines[-1] == f"    tenuto cancel {handle.id} --mode terminate"
    assert note.startswith(
        "  A worker with the earlier code, which stored it, goes on with it. The last command ends it"
    )
