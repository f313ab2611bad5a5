"""`tenuto run | ls | show | history | watch`."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .command import AsJson, Id, command, connection, read_json
from .formats import STYLES, ago, between, failure, full_time, plural, status_cell
from .printer import Cell, Printer
from .shared_options import use_json

if TYPE_CHECKING:
    from tenuto.api.engine import Engine
    from tenuto.runtime.start_request import StartOptions
    from tenuto.views import ExecutionSummary

SECTION = "Executions"

Status = Literal["running", "waiting_approval", "paused", "succeeded", "failed", "canceled"]


async def run(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The definition, from `tenuto definitions`.")],
    input: Annotated[
        str | None,
        typer.Option("--input", "-i", metavar="JSON", help="Pass this input: JSON, @file, or - for standard input."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait until it ends or needs a person.")] = False,
    within: Annotated[
        str | None,
        typer.Option(
            "--timeout", metavar="TIME", help="Stop waiting after this time, such as 30s or 5m. Needs --wait."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Set the idempotency key: the same key is the same execution.")
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER", min=1, max=2**31 - 1, help="Use this version of the definition. Default: the newest."
        ),
    ] = None,
    correlation_id: Annotated[str | None, typer.Option(metavar="ID", help="Set the correlation id.")] = None,
    target: Annotated[
        str | None, typer.Option(metavar="TYPE:ID", help="Set the object that the execution is about.")
    ] = None,
    concurrency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Run one execution at a time for each key.")
    ] = None,
    priority: Annotated[
        Literal["normal", "high"], typer.Option(help="Set the priority among waiting executions.")
    ] = "normal",
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set a header. Repeatable.")] = None,
    variable: Annotated[list[str] | None, typer.Option(metavar="NAME=JSON", help="Set a variable. Repeatable.")] = None,
    as_json: AsJson = False,
) -> int | None:
    """Start an execution."""
    from tenuto.errors import NotFound

    from .watcher import follow, milliseconds_of

    given = read_json(input, "--input")
    patience = milliseconds_of(within, "--timeout")
    options: StartOptions = {
        "version": version,
        "correlation_id": correlation_id,
        "target": _target(target),
        "concurrency_key": concurrency_key,
        "priority": priority,
        "headers": dict(_pair(text, "--header") for text in header or ()),
        "variables": {k: read_json(v, "--variable") for k, v in (_pair(text, "--variable") for text in variable or ())},
    }
    async with connection(context).engine() as engine:
        try:
            handle = await engine.start(name, given, idempotency_key=key, **options)
        except NotFound as error:
            hints = filter(None, (error.hint, "run `tenuto definitions` to list definitions"))
            raise NotFound(error.message, hint="; ".join(hints)) from None
        if wait:
            return await follow(connection(context), handle, until="settled", patience_ms=patience, as_json=as_json)
        if as_json:
            Printer().json(await handle.status())
        else:
            Printer().line(handle.id)
    return None


def _pair(text: str, option: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise typer.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint=option)
    return name, value


def _target(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    kind, _, id = text.partition(":")
    if not kind or not id:
        raise typer.BadParameter(f"{text!r} is not of the form TYPE:ID", param_hint="--target")
    return kind, id


async def ls(
    context: typer.Context,
    status: Annotated[Status | None, typer.Option(help="Show only this status.")] = None,
    definition: Annotated[str | None, typer.Option(metavar="NAME", help="Show only this definition.")] = None,
    blocked: Annotated[bool, typer.Option("--blocked", help="Show only blocked executions, with the reason.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Show those started longer ago, such as 10m or 2d. With --blocked: blocked for longer."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Show those started within this time, such as 1h.")
    ] = None,
    correlation_id: Annotated[str | None, typer.Option(metavar="ID", help="Show only this correlation id.")] = None,
    target_id: Annotated[str | None, typer.Option(metavar="ID", help="Show only this target object.")] = None,
    version: Annotated[int | None, typer.Option(metavar="NUMBER", min=1, help="Show only this version.")] = None,
    error_class: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Show only failures of this class, such as TRANSIENT.")
    ] = None,
    error_code: Annotated[
        str | None, typer.Option(metavar="CODE", help="Show only those that ended with this error code.")
    ] = None,
    failed_step: Annotated[
        str | None, typer.Option(metavar="STEP", help="Show only those that ended because of this step.")
    ] = None,
    blocked_reason: Annotated[
        str | None, typer.Option(metavar="REASON", help="Show only those blocked for this reason, such as approval.")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            "--search",
            "-q",
            metavar="TEXT",
            help="Find by id or its beginning, idempotency key, target id or correlation id.",
        ),
    ] = None,
    sort: Annotated[Literal["newest", "oldest"], typer.Option(help="Show which first, by their start.")] = "newest",
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="NUMBER", min=1, help="Show at most this many.")] = 20,
    all: Annotated[bool, typer.Option("--all", "-a", help="Show all of them.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Print only their number.")] = False,
    as_json: AsJson = False,
) -> None:
    """List executions, newest first."""
    blocked = blocked or blocked_reason is not None
    wanted = {
        "status": status,
        "definition": definition,
        "blocked": blocked,
        "before": moment_before(older_than, "--older-than"),
        "since": moment_before(since, "--since"),
        "correlation_id": correlation_id,
        "target_id": target_id,
        "version": version,
        "error_class": error_class,
        "error_code": error_code,
        "failed_step": failed_step,
        "blocked_reason": blocked_reason,
        "newest_first": sort == "newest",
        "q": search,
    }
    printer = Printer()
    async with connection(context).engine(reads=True) as engine:
        if count:
            number = await _count(engine, wanted)
            if as_json:
                printer.json({"count": number})
            else:
                printer.line(str(number))
            return
        found, more = await _first(engine, wanted, None if all else limit)
    if as_json:
        printer.json(found)
        return
    if found:
        _print_list(printer, found, blocked=blocked)
    if printer.is_terminal and not found:
        printer.text("No executions.", "dim")
    elif printer.is_terminal and more:
        printer.text(f"… the {sort} {len(found)}; --all or --limit shows more", "dim")


def _print_list(printer: Printer, found: "list[ExecutionSummary]", *, blocked: bool) -> None:
    if blocked:
        printer.table(["ID", "DEFINITION", "SINCE", "BLOCKED BY"], [_blocked_row(line, printer) for line in found])
    else:
        printer.table(["ID", "DEFINITION", "STARTED", "TOOK", "STATUS"], [_row(line, printer) for line in found])


def _row(line: "ExecutionSummary", printer: Printer) -> list[Cell]:
    took = between(line["started_at"], line["completed_at"])
    started = ago(line["started_at"]) if printer.is_terminal else line["started_at"]
    status = line["status"]
    shown = f"{status}: {line['error_class']}" if status == "failed" and line["error_class"] else status
    return [line["execution_id"], line["definition_id"], started, took, (shown, STYLES.get(status, ""))]


def _blocked_row(line: "ExecutionSummary", printer: Printer) -> list[Cell]:
    why = line.get("blocked")
    assert why is not None
    since = ago(why["since"]) if printer.is_terminal else why["since"] or ""
    what = f"{why['reason']}: {why['waiting_for']}" if why["waiting_for"] else why["reason"]
    return [line["execution_id"], line["definition_id"], since, (what, "bold yellow")]


async def _count(engine: "Engine", wanted: dict[str, Any]) -> int:
    return sum([1 async for _ in engine.summaries(**wanted)])


async def _first(engine: "Engine", wanted: dict[str, Any], limit: int | None) -> "tuple[list[ExecutionSummary], bool]":
    found: list[ExecutionSummary] = []
    async for summary in engine.summaries(**wanted):
        if len(found) == limit:
            return found, True
        found.append(summary)
    return found, False


def moment_before(text: str | None, option: str) -> datetime | None:
    """The time that lies an option's duration in the past."""
    from .watcher import milliseconds_of

    ms = milliseconds_of(text, option)
    try:
        return None if ms is None else datetime.now(UTC) - timedelta(milliseconds=ms)
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long", param_hint=option) from None


async def show(
    context: typer.Context,
    id: Id,
    trace: Annotated[bool, typer.Option("--trace", help="Show where the handlers of failed attempts raised.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show an execution: why it is blocked, what to do, and its history."""
    from .execution_view import read, show_document, show_traces

    printer, where = Printer(), connection(context)
    async with where.engine(reads=True) as engine:
        if as_json:
            document: Mapping[str, Any] = await engine.get(id).status()
            printer.json({**document, "attempts": await engine.get(id).history()} if trace else document)
            return
        found = await read(engine, id)
    show_document(printer, where, *found)
    if trace:
        show_traces(printer, found[1])
    elif printer.is_terminal and any(row["error_trace"] for row in found[1]):
        printer.text()
        printer.text("--trace shows where handlers raised", "dim")


async def history(context: typer.Context, id: Id, as_json: AsJson = False) -> None:
    """List all attempts of an execution, with worker, idempotency key, and where its handler raised."""
    from .execution_view import show_trace

    async with connection(context).engine(reads=True) as engine:
        rows = await engine.get(id).history()
    printer = Printer()
    if as_json:
        printer.json(rows)
        return
    for row in rows:
        number = f" {row['attempt_number']}" if row["attempt_number"] > 1 else ""
        kind = "" if row["kind"] == "forward" else f" ({row['kind']})"
        took = between(row["started_at"], row["finished_at"])
        printer.cells((f"{row['step_id']}{number}", "bold"), kind, " ", status_cell(row["status"]))
        error = failure(row["error_class"], row["error_code"], row["error_summary"]) if row["error_class"] else ""
        parts = {
            "began": full_time(row["started_at"]) + (f", took {took}" if took else ""),
            "worker": row["worker"],
            "key": row["idempotency_key"],
            "error": error,
        }
        for name, value in parts.items():
            if value:
                printer.cells((f"  {name:<7}", "dim"), value)
        if row["error_trace"]:
            show_trace(printer, row["error_trace"])
    if printer.is_terminal:
        printer.text(plural(len(rows), "attempt"), "dim")


async def watch(
    context: typer.Context,
    id: Id,
    until: Annotated[
        Literal["terminal", "settled"],
        typer.Option(help="Stop when it has ended (terminal), or also when it needs a person (settled)."),
    ] = "terminal",
    within: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Stop watching after this time, such as 30s or 5m.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", callback=use_json, help="Print a line of JSON for each change.")
    ] = False,
) -> int:
    """Watch an execution until it ends."""
    from .watcher import follow, milliseconds_of

    where, patience = connection(context), milliseconds_of(within, "--timeout")
    async with where.engine(reads=True) as engine:
        return await follow(where, engine.get(id), until=until, patience_ms=patience, as_json=as_json, each_change=True)


async def graph(
    context: typer.Context,
    id: Id,
    at: Annotated[
        int | None, typer.Option(metavar="SEQ", min=1, help="Show the graph after this event. Default: now.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the steps of an execution, what each follows, and its status."""
    async with connection(context).engine(reads=True) as engine:
        found = await engine.get(id).graph(at=at)
    printer = Printer()
    if as_json:
        printer.json(found)
        return
    follows: dict[str, list[str]] = {}
    for edge in found["edges"]:
        if edge["kind"] != "compensation":
            follows.setdefault(edge["to"], []).append(edge["from"])
    rows: list[list[Cell]] = [
        [
            node["id"],
            status_cell(node["status"]),
            node["compensation_status"] or "",
            node["blocked"] or "",
            ", ".join(follows.get(node["id"], [])),
        ]
        for node in found["nodes"]
    ]
    printer.table(["STEP", "STATUS", "COMPENSATION", "BLOCKED", "AFTER"], rows)


def add_to(app: typer.Typer) -> None:
    for function in (run, ls, show, history, graph, watch):
        command(app, function.__name__, SECTION)(function)
