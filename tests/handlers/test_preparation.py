"""What built-in handlers need for their first call is there before an attempt begins, and only where it is needed."""

import subprocess
import sys

import pytest

# In a process of its own, which has imported nothing yet.
PROGRAM = """
import asyncio, sys
from tenuto import Engine

async def main(worker, handler):
    step = {"step_id": "call", "type": "external_call", "handler": handler, "idempotency_strategy": "SAFE_TO_RETRY",
            "with": {"url": "https://example.com"} if handler == "http" else {"message": "here"}}
    async with Engine("memory://", worker=worker == "worker") as engine:
        await engine.apply({"name": "call", "version": 1, "steps": [step]})
        print("tenuto.handlers.client" in sys.modules)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("role", "handler", "prepared"),
    [("worker", "http", "True"), ("worker", "log", "False"), ("client", "http", "False")],
)
def test_the_client_is_loaded_with_the_first_definition_that_calls_it(role: str, handler: str, prepared: str) -> None:
    """In the first attempt it would take half a second, from a step that may have less."""
    command = [sys.executable, "-c", PROGRAM, role, handler]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (prepared, "")
