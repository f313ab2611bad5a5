"""`tenuto apply | definitions`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .command import AsJson, command, place
from .screen import Screen
from .words import many, status_cell

SECTION = "Definitions"


async def apply(
    context: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILE.json", help="JSON definitions; - is standard input.")],
    as_json: AsJson = False,
) -> None:
    """Check JSON definitions, store them and publish them."""
    documents = [_read(file) for file in files]
    async with place(context).engine(creates=True) as engine:
        for document in documents:
            await engine.apply(document)
    screen = Screen()
    published = [{"name": each["name"], "version": each.get("version", 1), "status": "published"} for each in documents]
    if as_json:
        screen.json(published)
    else:
        for each in published:
            screen.say(f"published: {each['name']} version {each['version']}")


def _read(file: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE.json") from None
    try:
        document = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{file} is no JSON: {error}", param_hint="FILE.json") from None
    if not isinstance(document, dict):
        raise typer.BadParameter(f"{file} holds no definition: it is to be a JSON object", param_hint="FILE.json")
    return document


async def definitions(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Only the versions of this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """List what can be run. --json has the documents too."""
    async with place(context).engine() as engine:
        found = [each async for each in engine.definitions(name=name)]
    screen = Screen()
    if as_json:
        screen.json(found)
    elif found:
        rows = [
            [
                each["name"],
                str(each["version"]),
                status_cell(each["status"]),
                _steps(each["definition"]),
                each["hash"][:12],
            ]
            for each in found
        ]
        screen.table(["NAME", "VERSION", "STATUS", "STEPS", "HASH"], rows)
    elif screen.is_terminal:
        screen.say(
            "There are none. `tenuto apply FILE.json` stores one, `tenuto worker --app MODULE` brings some.", "dim"
        )


def _steps(document: dict[str, Any]) -> str:
    steps = document.get("steps") or []
    return many(len(steps), "step")


def add_to(app: typer.Typer) -> None:
    command(app, "apply", SECTION)(apply)
    command(app, "definitions", SECTION)(definitions)
