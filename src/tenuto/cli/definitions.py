"""`tenuto apply | validate | definitions`."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .command import AsJson, command, connection
from .exit_codes import Exit
from .formats import plural, status_cell
from .printer import Printer

if TYPE_CHECKING:
    from tenuto.api.definitions import Validation
    from tenuto.api.engine import Engine

    from .connection import Connection

SECTION = "Definitions"
NONE = "No definitions. Run `tenuto apply FILE.json` or `tenuto worker --app MODULE` to add some."


async def apply(
    context: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILE.json", help="JSON definitions; - reads standard input.")],
    as_json: AsJson = False,
) -> None:
    """Validate, store and publish JSON definitions."""
    documents = [_read(file) for file in files]
    async with connection(context).engine(creates=True) as engine:
        for document in documents:
            await engine.apply(document)
    printer = Printer()
    published = [{"name": each["name"], "version": each.get("version", 1), "status": "published"} for each in documents]
    if as_json:
        printer.json(published)
    else:
        for each in published:
            printer.text(f"published: {each['name']} version {each['version']}")


async def validate(
    context: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILE.json", help="JSON definitions; - reads standard input.")],
    as_json: AsJson = False,
) -> Exit:
    """Validate JSON definitions without storing them. Needs no database."""
    documents = [_read(file) for file in files]
    async with _judge(connection(context)) as engine:
        told = [await engine.catalog.check(document) for document in documents]
    printer = Printer()
    if as_json:
        printer.json([{"file": file, **one} for file, one in zip(files, told, strict=True)])
    else:
        for file, one in zip(files, told, strict=True):
            _tell(printer, file, one)
    return Exit.OK if all(one["valid"] for one in told) else Exit.FAILED


def _tell(printer: Printer, file: str, found: "Validation") -> None:
    if found["valid"]:
        needs = f"; needs handlers: {', '.join(found['missing_handlers'])}" if found["missing_handlers"] else ""
        printer.text(f"{file}: valid{needs}")
    for error in found["errors"]:
        printer.text(f"{file}{error['pointer'] and '#'}{error['pointer']}: {error['message']} [{error['code']}]")


@asynccontextmanager
async def _judge(where: "Connection") -> "AsyncIterator[Engine]":
    """The service, which also knows the names in use; without one, an engine in memory."""
    from tenuto.api.engine import Engine

    if where.settings().server:
        async with where.engine() as remote:
            yield remote
    else:
        async with Engine(worker=False) as engine:
            yield engine


def _read(file: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE.json") from None
    try:
        document = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{file} is not valid JSON: {error}", param_hint="FILE.json") from None
    if not isinstance(document, dict):
        raise typer.BadParameter(f"{file} is not a definition: expected a JSON object", param_hint="FILE.json")
    return document


async def definitions(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show only the versions of this definition.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List definitions. --json includes their documents."""
    from tenuto.errors import NotFound

    async with connection(context).engine(reads=True) as engine:
        found = [each async for each in engine.definitions(name=name)]
    if name is not None and not found:
        raise NotFound(f"There is no definition {name!r}.", hint="run `tenuto definitions` to list them")
    Printer().listing(
        found,
        ["NAME", "VERSION", "STATUS", "STEPS", "HASH"],
        lambda each: [
            each["name"],
            str(each["version"]),
            status_cell(each["status"]),
            _steps(each["definition"]),
            each["hash"][:12],
        ],
        connection(context).with_options(NONE),
        as_json=as_json,
    )


def _steps(document: dict[str, Any]) -> str:
    steps = document.get("steps") or []
    return plural(len(steps), "step")


def add_to(app: typer.Typer) -> None:
    command(app, "apply", SECTION)(apply)
    command(app, "validate", SECTION)(validate)
    command(app, "definitions", SECTION)(definitions)
