"""`tenuto limits [set | lift | tenant]`: limits of steps and tenants."""

from typing import Annotated

import typer

from .command import AsJson, command, connection, group
from .printer import Cell, Printer

SECTION = "Operations"

Name = Annotated[str, typer.Argument(metavar="NAME", help="The limit, as steps name it.")]


async def ls(context: typer.Context, as_json: AsJson = False) -> None:
    """List the limits of steps and tenants."""
    async with connection(context).engine(all_tenants=True, reads=True) as engine:
        limits, tenants = await engine.limits(), await engine.tenant_limits()
    printer = Printer()
    if as_json:
        printer.json({"limits": limits, "tenants": tenants})
        return
    rows: list[list[Cell]] = [
        ["steps", row["name"], _bound(row["rate"], row["concurrency"]), str(row["running"]), str(row["waiting"])]
        for row in limits
    ]
    rows += [
        ["tenant", row["tenant"], f"{row['max_in_flight']} executions", str(row["in_flight"]), ""] for row in tenants
    ]
    if rows:
        printer.table(["OF", "NAME", "AT MOST", "UNDER WAY", "WAITING"], rows)
    elif printer.is_terminal:
        told = "No limits. Run `tenuto limits set NAME --rate 14/s` to set one."
        printer.text(connection(context).with_options(told), "dim")


def _bound(rate: str | None, concurrency: int | None) -> str:
    parts = [rate or "", f"{concurrency} at once" if concurrency is not None else ""]
    return ", ".join(part for part in parts if part)


async def set_limit(
    context: typer.Context,
    name: Name,
    rate: Annotated[
        str | None, typer.Option(metavar="RATE", help="Limit the starts per time: 14/s, 100/m, 100/10s.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=1, max=2**31 - 1, help="Limit the concurrent attempts.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set a limit that all workers share."""
    if rate is None and concurrency is None:
        raise typer.BadParameter("give --rate, --concurrency, or both", param_hint="--rate")
    _check_rate(rate)
    async with connection(context).engine(all_tenants=True, creates=True) as engine:
        await engine.limit(name, rate=rate, concurrency=concurrency)
    told = {"name": name, "rate": rate, "concurrency": concurrency}
    Printer().tell(f"set: {name}, {_bound(rate, concurrency)}", told, as_json=as_json)


def _check_rate(rate: str | None) -> None:
    from tenuto.errors import InvalidInput
    from tenuto.values.rates import parse_rate

    try:
        parse_rate(rate or "1/s")
    except InvalidInput as error:
        raise typer.BadParameter(error.problems[0].message, param_hint="--rate") from None


async def lift(context: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Remove a limit. Steps that wait for it continue."""
    async with connection(context).engine(all_tenants=True) as engine:
        await engine.limit(name)
    Printer().tell(f"lifted: {name}", {"name": name, "rate": None, "concurrency": None}, as_json=as_json)


async def tenant(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")],
    at_most: Annotated[
        int | None, typer.Option("--in-flight", metavar="NUMBER", min=0, help="Allow this many executions in flight.")
    ] = None,
    no_limit: Annotated[bool, typer.Option("--lift", help="Remove the limit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Limit the executions in flight of a tenant. Starts beyond the limit are refused."""
    if (at_most is None) == (not no_limit):
        raise typer.BadParameter("give either --in-flight or --lift", param_hint="--in-flight")
    async with connection(context).engine(all_tenants=True, creates=True) as engine:
        await engine.tenant_limit(name, max_in_flight=at_most)
    text = f"lifted: tenant {name}" if at_most is None else f"set: tenant {name}, {at_most} executions"
    Printer().tell(text, {"tenant": name, "max_in_flight": at_most}, as_json=as_json)


def add_to(app: typer.Typer) -> None:
    limits = group(app, "limits", SECTION, "Show and set limits of steps and tenants.", alone=ls)
    for name, function in (("ls", ls), ("set", set_limit), ("lift", lift), ("tenant", tenant)):
        command(limits, name)(function)
