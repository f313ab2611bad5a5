"""What keeps an execution is said as it is, and the commands offered help."""

import json
import shlex

import pytest

from tenuto.cli.blocked import commands, sentence
from tenuto.cli.place import Place

from .conftest import steady
from .processes import running
from .test_processes import tenuto


def told(reason: str, waiting_for: str | None) -> tuple[str, list[str]]:
    blocked = {"reason": reason, "waiting_for": waiting_for, "since": None, "next_check": None, "review_id": None}
    document = {**blocked, "commands": ["pause", "cancel"]}
    return sentence(document), commands(Place(), "ID", document)


@pytest.mark.slow
def test_a_step_of_a_queue_that_nobody_serves_needs_a_worker_of_that_queue(url: str) -> None:
    app = "tests.cli.studio:ALL"
    with running("worker", "--app", app, ready="worker on", TENUTO_URL=url):
        id = tenuto(url, "run", "film", "-i", '"nosferatu"').stdout.strip()
        while (blocked := json.loads(tenuto(url, "show", id, "--json").stdout)["blocked"]) is None:
            pass
        assert blocked["waiting_for"] == "queue gpu"
        _, second, line, *_ = tenuto(url, "show", id).stdout.splitlines()
        assert steady(second) == "  No worker that serves the queue 'gpu' is running (for <span>)."
        offered = shlex.split(line.replace("MODULE", app))
        assert offered == ["tenuto", "--url", url, "worker", "--app", app, "--queue", "gpu"]
        with running(*offered[1:], ready="worker on"):
            assert tenuto(url, "watch", id).returncode == 0


def test_workers_of_a_queue_may_lack_the_code_or_be_busy() -> None:
    text, lines = told("no_worker", "film.render in queue big gpu")
    assert text == "No worker that serves the queue 'big gpu' has the code of 'film.render'."
    assert lines[0] == "tenuto worker --app MODULE --queue 'big gpu'"
    busy, _ = told("slot", "queue gpu")
    assert busy == "All slots of the workers that serve the queue 'gpu' are taken; it runs when one is free."
