"""`tenuto overview | feed | workers | bench`."""

from typing import Annotated, Any

import typer

from .command import AsJson, command, connection
from .formats import ago, clock
from .printer import Cell, Printer

SECTION = "Operations"


async def overview(context: typer.Context, as_json: AsJson = False) -> None:
    """Show how many executions there are, and what needs attention."""
    async with connection(context).engine(reads=True) as engine:
        found = await engine.overview()
    printer = Printer()
    if as_json:
        printer.json(found)
        return
    most = found["counted_to"]
    rows: list[list[Cell]] = [
        [(status.replace("_", " "), "dim"), _count(count, most)] for status, count in found["counts"].items()
    ]
    waiting = sum(found["reviews"]["open"].values())
    rows += [[("reviews", "dim"), _count(waiting, most)], [("dead letters", "dim"), _count(found["dlq"]["open"], most)]]
    if found["workers"] is not None:
        rows.append([("workers", "dim"), str(found["workers"])])
    when = ago if printer.is_terminal else str
    if found["oldest_due"] is not None:
        rows.append([("oldest due", "dim"), when(found["oldest_due"])])
    printer.grid(rows)
    if found["queues"]:
        printer.table(
            ["QUEUE", "DUE", "OLDEST", "WORKERS"],
            [
                [row["name"], _count(row["due"], most), when(row["oldest_due"] or ""), str(row["workers"])]
                for row in found["queues"]
            ],
        )


def _count(count: int, most: int) -> str:
    return f"{count:,}{'+' if count >= most else ''}"


async def feed(
    context: typer.Context,
    watch: Annotated[
        list[str] | None,
        typer.Option(metavar="EXECUTION", help="Also show all events of this execution. Repeatable, up to 20 times."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show status changes of executions as they happen, until Ctrl-C."""
    printer = Printer()
    async with connection(context).engine(reads=True) as engine:
        async for event in engine.feed(watch=watch or ()):
            if as_json:
                printer.json_line(event, at_once=True)
            else:
                printer.line(_told(event), at_once=True)


def _told(event: Any) -> str:
    """An event in one line."""
    data = event["data"]
    if event["event"] == "status":
        at, what = data["at"], f"{data['definition_id']} is {data['status'].replace('_', ' ')}"
    elif event["event"] == "event":
        at, what = data["at"], f"event {data['seq']}: {data['type']}"
    else:
        return "Some changes were missed. `tenuto ls` shows how things are now."
    return f"{clock(at)}  {data['execution_id']}  {what}"


async def workers(context: typer.Context, as_json: AsJson = False) -> None:
    """List running workers."""
    async with connection(context).engine(all_tenants=True, reads=True) as engine:
        found = await engine.workers()
    # A service tells the deployment's own tenant alone, and does not say whose key it was given.
    whose = ", or your API key is not of the tenant 'default', which alone may list them" * bool(
        connection(context).settings().server
    )
    printer = Printer()
    when = ago if printer.is_terminal else str
    printer.listing(
        found,
        ["WORKER", "STARTED", "EXECUTIONS", "BUILD", "QUEUES"],
        lambda row: [
            row["worker"],
            when(row["started_at"]),
            str(row["executions"]),
            row["build"],
            ", ".join(row["queues"]),
        ],
        connection(context).with_options(
            f"No worker is running{whose}. Run `tenuto worker --app MODULE` to start one."
        ),
        as_json=as_json,
    )


async def bench(
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Measure on this database. Default: a temporary SQLite file.")
    ] = None,
    executions: Annotated[int, typer.Option(metavar="NUMBER", min=10, help="Run this many executions.")] = 2_000,
    as_json: AsJson = False,
) -> None:
    """Measure throughput and latency on this machine."""
    from .benchmark import measure

    printer = Printer()
    rows = await measure(url, executions)
    if as_json:
        printer.json(rows)
    else:
        cells: list[list[Cell]] = [
            [row["workload"], row["metric"], f"{row['value']:,.1f} {row['unit']}"] for row in rows
        ]
        printer.table(["WORKLOAD", "METRIC", "VALUE"], cells)


def add_to(app: typer.Typer) -> None:
    for function in (overview, feed, workers):
        command(app, function.__name__, SECTION)(function)
    command(app, "bench", SECTION)(bench)
