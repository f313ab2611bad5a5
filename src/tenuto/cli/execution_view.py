"""The view of one execution: why it is blocked, its facts, its steps, and its timeline."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .blocked_reasons import commands, note, sentence, why_over
from .connection import Connection
from .decisions import Decision, decisions
from .formats import SIGNS, STYLES, ago, between, clock, error_text, failure, full_time, plural, status_cell
from .printer import Cell, Printer

if TYPE_CHECKING:
    from tenuto.api.engine import Engine
    from tenuto.views import AttemptRow, EventDocument, ExecutionDocument

EVERY = 2**53  # event
LONGEST_VALUE = 400  # of an input or output; the whole is in --json


async def read(engine: "Engine", id: str) -> "tuple[ExecutionDocument, list[AttemptRow], list[EventDocument]]":
    """How it stands, its attempts, and what was recorded of it."""
    handle = engine.get(id)
    return await handle.status(), await handle.history(), (await engine.listing.events(id, limit=EVERY)).items


def show_document(
    printer: Printer,
    connection: Connection,
    document: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
) -> None:
    printer.cells(*heading(document))
    show_why(printer, connection, document)
    printer.text()
    printer.grid([[(name, "dim"), value] for name, value in facts(document)])
    printer.text()
    printer.grid(step_rows(document["steps"], _looked_up(history)))
    told = decisions(events, {row["path"]: row["step_id"] for row in history})
    if lines := list(timeline(history, told, waits_of(document))):
        printer.text()
        printer.grid(lines)


def show_traces(printer: Printer, history: Sequence[Mapping[str, Any]]) -> None:
    """Where the handlers of failed attempts raised."""
    traced = [row for row in history if row["error_trace"]]
    printer.text()
    if not traced:
        printer.text("No attempt has a traceback.", "dim")
    for row in traced:
        printer.cells((attempt_name(row), "bold"), ", ", status_cell(row["status"]))
        show_trace(printer, row["error_trace"])


def show_trace(printer: Printer, trace: str) -> None:
    for line in trace.splitlines():
        printer.text(f"    {line}")


def heading(document: Mapping[str, Any]) -> tuple[Cell, ...]:
    return (document["definition_id"], "bold"), f" {document['execution_id']}: ", status_cell(standing(document))


def standing(document: Mapping[str, Any]) -> str:
    """The status; what is on its way back says so."""
    status: str = document["status"]
    if status == "running" and document["phase"] == "compensation":
        return "running, undoing what was done"
    if status == "running" and document["cancel_requested"]:
        return "running, cancel requested"
    return f"{status}, {document['outcome']}" if document["outcome"] in ("partial", "skipped") else status


def show_why(printer: Printer, connection: Connection, document: Mapping[str, Any]) -> None:
    """Why it does not go on, and what helps: before anything else."""
    blocked = document["blocked"]
    if blocked is not None:
        text, lines = sentence(blocked), commands(connection, document["execution_id"], blocked)
    else:
        text, lines = why_over(connection, document) or ("", [])
    if text:
        printer.paragraph(text, "bold yellow" if blocked else "bold red")
        for line in lines:
            printer.text(f"    {line}")
        if blocked is not None and (more := note(blocked)):
            printer.paragraph(more)


def facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "started", f"{full_time(document['started_at'])} ({ago(document['started_at'])})"
    if document["completed_at"]:
        took = between(document["started_at"], document["completed_at"])
        yield "completed", f"{full_time(document['completed_at'])}, after {took}"
    yield "version", str(document["definition_version"])
    if document["attempt_count"] > 1:
        yield "run", str(document["attempt_count"])
    if document["tenant_id"] != "default":
        yield "tenant", document["tenant_id"]
    if document["idempotency_key"]:
        yield "key", document["idempotency_key"]
    if document["target_object_id"]:
        yield "target", f"{document['target_object_type']} {document['target_object_id']}"
    if document["correlation_id"] != document["execution_id"]:
        yield "correlation", document["correlation_id"]
    yield "input", _value(document["input"])
    if document["output"] is not None:
        yield "output", _value(document["output"])


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}… ({plural(len(text), 'character')})"


def _looked_up(history: Sequence[Mapping[str, Any]]) -> set[str]:
    """The paths of the steps whose last attempt ended with an outcome that is looked up."""
    last = {row["path"]: row for row in history if row["kind"] == "forward"}
    return {path for path, row in last.items() if row["look_up_at"]}


def step_rows(steps: Sequence[Mapping[str, Any]], looked_up: Collection[str] = ()) -> list[list[Cell]]:
    """A line for each step as it stands."""
    rows: list[list[Cell]] = []
    for step in steps:
        mark = "undone" if step["compensation"] == "done" else _status(step)
        style = STYLES.get(mark, "")
        standing = _standing(step, is_looked_up=step["path"] in looked_up)
        rows.append([(f"{SIGNS.get(mark, ' ')} {_indented(step)}", style), (standing, style)])
    return rows


def _status(step: Mapping[str, Any]) -> str:
    """Nothing runs in a step that waits for a signal, or for a time."""
    return "waiting" if step["type"] == "wait" and step["status"] == "running" else str(step["status"])


def waits_of(document: Mapping[str, Any]) -> set[str]:
    return {step["path"] for step in document["steps"] if step["type"] == "wait"}


def _indented(step: Mapping[str, Any]) -> str:
    return f"{'  ' * step['path'].count('/')}{step['step_id']}"


def _standing(step: Mapping[str, Any], *, is_looked_up: bool) -> str:
    parts = [_status(step).replace("_", " ")]
    if step["attempts"] > 1:
        parts.append(plural(step["attempts"], "attempt"))
    if step["clones"] is not None:
        clones = step["clones"]
        failed = f", {clones['failed']} failed" if clones["failed"] else ""
        parts.append(f"{clones['succeeded']} of {plural(clones['total'], 'clone')} done{failed}")
    if step["progress"] is not None:
        parts.append(f"progress {json.dumps(step['progress'], ensure_ascii=False)}")
    if is_looked_up and step["status"] == "retrying":
        parts[0] = "its outcome is being looked up"
    elif step["retry_at"]:
        parts.append(f"again {ago(step['retry_at'])}")
    if step["error"] is not None and step["status"] not in ("running", "succeeded"):
        parts.append(error_text(step["error"]))
    if step["compensation"] not in ("none", ""):
        parts.append({"done": "undone"}.get(step["compensation"], f"undo {step['compensation']}"))
    return ", ".join(parts)


_KINDS = {
    "forward": "",
    "compensation": "undo ",
    "guard": "guard of ",
    "reconcile": "reconcile of ",
    "plan": "plan of ",
}


def timeline(
    history: Sequence[Mapping[str, Any]], told: Iterable[Decision], waits: Collection[str]
) -> Iterator[list[Cell]]:
    """A line for each attempt and for what it was told, in the order in which they began."""
    lines = [(*_moment_of(row), 1, _attempt_line(row, waits)) for row in history]
    lines += [(each.at, each.run, 0, [(clock(each.at), "dim"), each.what, each.why]) for each in told]
    shown = 1
    for _, run, _, line in sorted(lines, key=lambda line: line[:3]):
        if run != shown:
            shown = run
            yield ["", (f"run {run}", "bold"), ""]
        yield line


def _moment_of(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["started_at"] or row["finished_at"] or "~", row["run"]


def _attempt_line(row: Mapping[str, Any], waits: Collection[str]) -> list[Cell]:
    began = clock(row["started_at"] or row["finished_at"])
    return [(began, "dim"), attempt_name(row), (attempt_end(row, waits), STYLES.get(row["status"], ""))]


def attempt_name(row: Mapping[str, Any]) -> str:
    number = f", attempt {row['attempt_number']}" if row["attempt_number"] > 1 else ""
    return f"{_KINDS[row['kind']]}{row['step_id']}{number}"


def attempt_end(row: Mapping[str, Any], waits: Collection[str]) -> str:
    if row["status"] == "running" and row["path"] in waits:
        return "waiting"
    status = str(row["status"]).replace("_", " ")
    took = between(row["started_at"], row["finished_at"])
    if row["answer"]:
        return _answer(row, took)
    text = f"{'failed' if status == 'retrying' else status}{f' in {took}' if took else ''}"
    if row["error_class"]:
        text += f": {failure(row['error_class'], row['error_code'], row['error_summary'])}"
    if row["look_up_at"]:
        text += f"; its outcome is being looked up, from {clock(row['look_up_at'])} on"
    elif row["retry_after_at"] and row["status"] == "retrying":
        text += f"; again at {clock(row['retry_after_at'])}"
    return text


def _answer(row: Mapping[str, Any], took: str) -> str:
    """What a guard or a reconcile handler found: `done, order 4711`."""
    text = str(row["answer"]).replace("_", " ")
    if row["answer"] == "done" and row["result"] is not None:
        result = row["result"]
        text += f", {result if isinstance(result, str) else _value(result)}"
    if took:
        text += f" (in {took})"
    if row["error_class"]:
        text += f": {failure(row['error_class'], row['error_code'], row['error_summary'])}"
    if row["answer"] == "pending" and row["retry_after_at"]:
        text += f"; asked again at {clock(row['retry_after_at'])}"
    return text
