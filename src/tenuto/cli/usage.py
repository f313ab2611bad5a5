"""Errors in the command line itself."""

import io
import json

import typer

from tenuto.errors import own_words

from .output import print_to_stderr


def print_usage_error(error: typer.TyperException, *, as_json: bool) -> None:
    """Prints a usage error to standard error."""
    error.message = own_words(error.message)
    if not as_json:
        shown = io.StringIO()
        error.show(shown)  # type: ignore[attr-defined]  # typer's own exceptions have it, their base class does not
        print_to_stderr(shown.getvalue().removesuffix("\n"))
        return
    context = getattr(error, "ctx", None)
    command = "tenuto" if context is None else context.command_path
    told = {"code": "usage", "message": error.format_message(), "what_to_do": f"run `{command} -h` for help"}
    print_to_stderr(json.dumps(told, ensure_ascii=False))
