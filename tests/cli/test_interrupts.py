"""Ctrl-C on a command that follows: it says what goes on, and how to see it again."""

import json
import re
import shlex
import signal

import pytest

from .conftest import Work
from .processes import on_terminal, running
from .terminal import picture
from .test_executions import invoice, oslo
from .test_processes import tenuto

WATCH = re.compile(r"`(tenuto [^`]* watch [0-9a-f]{22})` to watch it again")


@pytest.mark.parametrize("json_option", [(), ("--json",)])
def test_watch_says_what_goes_on(url: str, work: Work, json_option: tuple[str, ...]) -> None:
    id = work(invoice)
    with running("--url", url, "watch", id, *json_option, ready="signal") as watch:
        watch.process.send_signal(signal.SIGINT)
        _, err = watch.process.communicate()
        assert watch.process.returncode == 130
    told = json.loads(err) if json_option else {}
    assert told.get("code", "interrupted") == "interrupted"
    assert f"Stopped watching execution {id}. It continues." in err
    found = WATCH.search(err)
    assert found is not None
    again = tenuto(url, *shlex.split(found[1])[3:], "--timeout", "1ms")
    assert (again.returncode, "waits for the signal" in again.stdout) == (6, True)


def test_run_that_waits_does_so_too(url: str, work: Work) -> None:
    work(oslo)
    with running("--url", url, "run", "book-trip", "-i", '"Rome"', "--wait", ready="No running worker") as run:
        run.process.send_signal(signal.SIGINT)
        _, err = run.process.communicate()
        assert run.process.returncode == 130
    (newest,) = json.loads(tenuto(url, "ls", "--json", "-n", "1").stdout)
    assert (newest["status"], newest["execution_id"] in err) == ("running", True)
    assert WATCH.search(err) is not None


def test_on_a_terminal_the_id_is_there_from_the_beginning(url: str, work: Work) -> None:
    id = work(invoice)
    code, shown = on_terminal("--url", url, "watch", id, columns=200, interrupt_at=f"{id}: ")
    assert code == 130
    lines = picture(shown).splitlines()
    assert [line.strip() for line in lines[:2]] == [
        "… paid  waiting",
        f"tenuto: Stopped watching execution {id}. It continues. [interrupted]",
    ]
