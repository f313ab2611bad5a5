"""`tenuto workers | bench`."""

from typing import Annotated

import typer

from .command import AsJson, command, connection
from .formats import ago
from .printer import Cell, Printer

SECTION = "Operations"


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
    command(app, "workers", SECTION)(workers)
    command(app, "bench", SECTION)(bench)
