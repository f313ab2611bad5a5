"""Narrow terminals: what commands take is whole there, and how it stands is seen."""

import shlex
import subprocess

import pytest

from tenuto import Engine, SagaBuilder
from tenuto.cli.printer import in_lines
from tenuto.errors import NonRetryableError

from .conftest import Work
from .processes import on_terminal
from .terminal import picture
from .test_executions import atlantis, expenses, invoice
from .test_processes import plain

LONG = "a-step-whose-name-is-longer-than-half-of-the-line"


async def long_names(engine: Engine) -> str:
    async def refuse() -> None:
        raise NonRetryableError("no")

    engine.register(SagaBuilder("a-definition-whose-name-is-long-as-well").step(LONG, refuse).build())
    return (await engine.execute("a-definition-whose-name-is-long-as-well")).execution_id


@pytest.mark.parametrize("columns", [15, 30, 50, 80])
def test_ls_cuts_no_id_and_shows_how_each_stands(url: str, work: Work, columns: int) -> None:
    ids = [work(atlantis), work(expenses), work(long_names)]
    _, shown = on_terminal("--url", url, "ls", columns=columns)
    lines = plain(shown).splitlines()
    assert all(any(id in line for line in lines) for id in ids)
    assert "…" not in shown
    told = "".join(plain(shown).split())
    assert (told.count("waiting_approval"), told.count("NON_RETRYABLE")) == (1, 2)
    if columns >= 30:
        assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("command", [("dlq", "ls"), ("audit",), ("ls", "--blocked")])
def test_other_lists_cut_no_id_either(url: str, work: Work, command: tuple[str, ...]) -> None:
    failed, waits = work(atlantis), work(expenses)
    _, shown = on_terminal("--url", url, *command, columns=40)
    assert (waits if "--blocked" in command else failed) in plain(shown)


@pytest.mark.parametrize("columns", [20, 40, 60])
def test_the_state_of_a_step_with_a_long_name_is_seen(url: str, work: Work, columns: int) -> None:
    id = work(long_names)
    code, shown = on_terminal("--url", url, "watch", id, columns=columns)
    assert code == 1
    steps = "".join(picture(shown).partition("It failed")[0].split())
    assert "failed,NON_RETRYABLE" in steps or "NON_RETRYABLE:no" in steps
    assert max(map(len, picture(shown).partition("a-definition")[0].splitlines())) <= columns


def test_a_command_that_is_drawn_can_be_copied(url: str, work: Work) -> None:
    id = work(invoice)
    _, shown = on_terminal("--url", url, "watch", id, "--timeout", "1ms", columns=len(url) + 25)
    drawn = plain(shown)
    first = drawn.index(f"tenuto --url {url}")
    words = read_by_a_shell(drawn[first : drawn.index("JSON", first) + 4])
    assert words == ["tenuto", "--url", url, "signal", id, "paid", "--payload", "JSON"]


def read_by_a_shell(command: str) -> list[str]:
    program = f"set -- {command}\nprintf '%s\\n' \"$@\""
    return subprocess.run(["sh", "-c", program], capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_shell_reads_a_command_over_several_lines_as_the_same() -> None:
    command = "tenuto --url 'sqlite:///my shop.db' signal 1a1e6cde2035824d496a paid --payload JSON"
    lines = list(in_lines(command, 40))
    assert len(lines) > 1
    assert max(map(len, lines)) <= 40
    assert read_by_a_shell("\n".join(lines)) == shlex.split(command)
    assert list(in_lines(command, 100)) == [command]
