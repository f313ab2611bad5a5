"""`tenuto dev --reload`: the app restarts when its files change, and its executions continue."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx2

from .processes import TENUTO, Running, running

SAGA = """
from tenuto import Saga, approval, saga, step


@saga("order", output="send")
class Order(Saga[int, str]):
    consent = approval()

    @step(depends_on=[consent])
    async def send(self, number: int) -> str:
        return "sent by the first code"
"""


def read_until(process: Running, text: str) -> str:
    assert process.process.stdout is not None
    for line in process.process.stdout:
        if text in line:
            return str(line)
    raise AssertionError(f"it ended before it printed {text!r}")


def dev(folder: Path, url: str) -> Any:
    return running("dev", "--reload", "--app", "shop", "--port", "0", ready="started: ", folder=folder, TENUTO_URL=url)


def tenuto(url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([TENUTO, "--url", url, *arguments], capture_output=True, text=True, check=False)


def test_a_change_restarts_the_app_and_its_executions_continue(url: str, tmp_path: Path) -> None:
    app = tmp_path / "shop.py"
    app.write_text(SAGA)
    with dev(tmp_path, url) as process:
        assert process.seen.endswith("started: order 1\n")
        id = tenuto(url, "run", "order", "-i", "7").stdout.strip()
        app.write_text(SAGA.replace("first", "second"))
        assert read_until(process, "changed: ") == "changed: shop.py\n"
        assert read_until(process, "restarted: ") == "restarted: order 1\n"
        assert tenuto(url, "approve", id).returncode == 0
        assert 'output "sent by the second code"' in tenuto(url, "watch", id).stdout


def test_a_mistake_in_the_app_is_shown_and_the_next_change_starts_it_again(url: str, tmp_path: Path) -> None:
    app = tmp_path / "shop.py"
    app.write_text(SAGA)
    with dev(tmp_path, url) as process:
        app.write_text(f"{SAGA}\nx = (\n")
        read_until(process, "ended: it starts again when a file changes")
        app.write_text(SAGA)
        assert read_until(process, "restarted: ") == "restarted: order 1\n"


def test_the_address_and_the_key_outlive_a_restart_and_end_with_the_command(url: str, tmp_path: Path) -> None:
    app = tmp_path / "shop.py"
    app.write_text(SAGA)
    with dev(tmp_path, url) as process:
        (line,) = [line for line in process.seen.splitlines() if "export" in line]
        given = dict(part.split("=", 1) for part in line.split()[1:])
        app.write_text(SAGA + "\n")
        read_until(process, "restarted: ")
        headers = {"Authorization": f"Bearer {given['TENUTO_API_KEY']}"}
        assert httpx2.get(f"{given['TENUTO_SERVER']}/v1/executions", headers=headers).json()["items"] == []
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait() == 0
    assert json.loads(tenuto(url, "workers", "--json").stdout) == []
    (key,) = json.loads(tenuto(url, "keys", "ls", "--json").stdout)
    assert key["revoked_at"] is not None


def test_the_app_ends_with_the_process_that_watches_it(url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SAGA)
    with dev(tmp_path, url) as process:
        process.process.kill()
        assert process.process.stdout is not None
        process.process.stdout.read()  # the child has the same output, so this ends when the child does
    assert json.loads(tenuto(url, "workers", "--json").stdout) == []


def test_memory_would_lose_its_executions(tmp_path: Path) -> None:
    done = tenuto("memory://", "dev", "--reload")
    assert (done.returncode, done.stdout) == (1, "")
    assert "executions in memory:// would be lost" in done.stderr
