"""Commands from coroutines, and the parameters that many commands share."""

import functools
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer

from . import event_loop
from .shared_options import AsJson as AsJson
from .shared_options import Command, Group
from .shared_options import connection as connection

P = ParamSpec("P")

Id = Annotated[str, typer.Argument(metavar="ID", help="The id of the execution.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Record this reason in the history and the audit log.")]


def command(
    app: typer.Typer, name: str, section: str | None = None
) -> Callable[[Callable[P, Coroutine[Any, Any, int | None]]], None]:
    """Adds a coroutine function as a command. It returns the exit code; None is 0."""

    def add(function: Callable[P, Coroutine[Any, Any, int | None]]) -> None:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> int | None:
            return event_loop.run(function(*args, **kwargs))

        app.command(name, cls=Command, rich_help_panel=section)(run)

    return add


def group(
    app: typer.Typer,
    name: str,
    section: str,
    help: str,
    *,
    alone: Callable[[typer.Context, bool], Coroutine[Any, Any, None]] | None = None,
) -> typer.Typer:
    """Adds a command with subcommands. `alone` runs if none is given."""
    made = typer.Typer(cls=Group, rich_markup_mode=None, no_args_is_help=alone is None, help=help)
    if alone is not None:

        @made.callback(invoke_without_command=True, help=help)
        def run(context: typer.Context, as_json: AsJson = False) -> None:
            if context.invoked_subcommand is None:
                event_loop.run(alone(context, as_json))

    app.add_typer(made, name=name, rich_help_panel=section)
    return made


def read_json(text: str | None, option: str) -> Any:
    """Reads an option value: JSON, `@file`, or `-` for standard input."""
    if text is None:
        return None
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        return json.loads(text)
    except OSError as error:
        raise typer.BadParameter(f"{error.filename}: {error.strerror}", param_hint=option) from None
    except ValueError as error:
        hint = f"not valid JSON ({error}). Quote text twice: '\"Oslo\"'; write @file to read a file"
        raise typer.BadParameter(hint, param_hint=option) from None
