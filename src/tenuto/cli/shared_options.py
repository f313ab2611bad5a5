"""The options that every command accepts before and after its name: `--url`, `--server` and `--json`."""

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from .connection import Connection

if TYPE_CHECKING:
    from typer._click.core import Context, Parameter


def connection(context: typer.Context) -> Connection:
    found = context.obj
    assert isinstance(found, Connection)
    return found


def _use_url(context: typer.Context, url: str | None) -> str | None:
    if url is not None and not context.resilient_parsing:
        connection(context).url = url
    return url


def _use_server(context: typer.Context, server: str | None) -> str | None:
    if server and not server.startswith(("http://", "https://")):
        told = "the URL of a service begins with https:// or http://"
        raise typer.BadParameter(told, param_hint="--server")
    if server is not None and not context.resilient_parsing:
        connection(context).server = server
    return server


def use_json(context: typer.Context, as_json: bool) -> bool:
    """Returns whether `--json` was given, after the command or before it."""
    if context.resilient_parsing:
        return as_json
    given = connection(context)
    given.as_json = given.as_json or as_json
    return given.as_json


Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL", callback=_use_url, help="Use this database. Default: TENUTO_URL, or sqlite:///tenuto.db."
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        metavar="URL", callback=_use_server, help="Use this service instead of a database. Default: TENUTO_SERVER."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", callback=use_json, help="Print JSON.")]
JsonErrors = Annotated[bool, typer.Option("--json", callback=use_json, help="Print errors as JSON.")]


@cache
def _shared() -> "tuple[Parameter, ...]":
    """Returns the options as parameters that no function receives: their callbacks change the connection."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def parameters(url: Url = None, server: Server = None, as_json: JsonErrors = False) -> None: ...

    found = tuple(get_command(app).params)
    for parameter in found:
        parameter.expose_value = False
    return found


class _Conversion:
    """Converts the value of a parameter. Typer does so with pydantic, which is slow to load.

    Defaults and texts need no conversion, so most commands run without it.
    """

    def __init__(self, parameter: Any) -> None:
        self._is_text = parameter.type_descriptor.annotation is str
        self._default = parameter.default
        self._load = parameter.get_runtime_param

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        is_plain = not param.multiple and param.nargs == 1
        if is_plain and (value is None or value == self._default or (self._is_text and isinstance(value, str))):
            return value
        if value is None:
            return ()
        return self._load().coerce(value, param=param, ctx=ctx)


def _convert_on_demand(parameters: "Iterable[Parameter]") -> None:
    for parameter in parameters:
        if "get_runtime_param" in vars(parameter) or not hasattr(parameter, "type_descriptor"):
            continue
        conversion = _Conversion(parameter)
        parameter.get_runtime_param = lambda found=conversion: found  # type: ignore[attr-defined]  # of typer's own class


class _WithSharedOptions:
    """Adds the options that a command does not define itself."""

    def get_params(self, ctx: "Context") -> "list[Parameter]":
        own: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the command beside it
        names = {name for parameter in own for name in parameter.opts}
        shared = [parameter for parameter in _shared() if not names & set(parameter.opts)]
        help_option = own[-1:] if own and "--help" in own[-1].opts else []
        found = [*own[: len(own) - len(help_option)], *shared, *help_option]
        _convert_on_demand(found)
        return found


class Command(_WithSharedOptions, TyperCommand):
    """A command with the shared options."""


class Group(_WithSharedOptions, TyperGroup):
    """A command with subcommands, and with the shared options."""
