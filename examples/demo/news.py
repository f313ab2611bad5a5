"""What happens, as it happens: an execution is looked at again and again, and what is new is told."""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from tenuto import Handle
from tenuto.errors import ResultTimeout

Mark = Literal["waits", "runs", "again", "done", "failed", "undone", "asks"]

_MARKS: dict[str, Mark] = {
    "running": "runs",
    "retrying": "again",
    "succeeded": "done",
    "awaiting_approval": "asks",
}


@dataclass(frozen=True)
class News:
    """One line of the story. `row` says whose, `step` and `mark` what became of a step, if it is about one."""

    row: str
    text: str
    step: str = ""
    mark: Mark = "waits"


async def follow(handle: Handle[Any], row: str, told: dict[str, str]) -> AsyncIterator[News]:
    """Tells what is new, until the execution is over or waits for a person. `told` is what was told of it before."""
    while True:
        document = await handle.status()
        for attempt in await handle.history():
            id, status = attempt["step_execution_id"], attempt["status"]
            if told.get(id) != status:
                told[id] = status
                yield _news(row, attempt)
        if document["status"] in ("succeeded", "failed", "canceled"):
            yield News(row, f"over: {document['status']}")
            return
        if document["status"] == "waiting_approval":
            return
        with suppress(ResultTimeout):
            await handle.result(timeout="100ms")


def _news(row: str, attempt: Mapping[str, Any]) -> News:
    step, number = attempt["step_id"], attempt["attempt_number"]
    mark = _MARKS.get(attempt["status"], "failed")
    again = f", attempt {number}" if number > 1 else ""
    failed = f"{attempt['error_summary']} ({attempt['error_class']})"
    if attempt["kind"] == "compensation":
        text = {"runs": f"{step} is being undone", "done": f"{step} is undone"}.get(
            mark, f"{step} is not undone: {failed}"
        )
        return News(row, text, step, "undone" if mark == "done" else mark)
    texts = {
        "runs": f"{step} begins{again}",
        "done": f"{step} is done{again}",
        "again": f"{step} will be tried again: {failed}",
        "asks": "waits for a person",
    }
    return News(row, texts.get(mark, f"{step} failed{again}: {failed}"), step, mark)
