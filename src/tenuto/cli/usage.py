"""A command that was not understood: what is wrong with it, for people and for programs."""

import io
import json

import typer

from tenuto.errors import own_words

from .output import print_to_stderr


def print_usage_error(error: typer.TyperException, *, as_json: bool) -> None:
    """On standard error, as other errors are."""
    error.message = own_words(error.message)
    if not as_json:
        shown = io.StringIO()
        error.show(shown)  # type: ignore[attr-defined]  # of what typer raises itself, the base class does not tell it
        print_to_stderr(shown.getvalue().removesuffix("\n"))
        return
    context = getattr(error, "ctx", None)
    command = "tenuto" if context is None else context.command_path
    told = {"code": "usage", "message": error.format_message(), "what_to_do": f"`{command} -h` says how it is written"}
    print_to_stderr(json.dumps(told, ensure_ascii=False))
