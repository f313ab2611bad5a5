"""The application: its commands by section, and the handling of errors."""

import sys
import traceback
from typing import Annotated, Any

import typer
from typer.completion import install_callback, show_callback
from typer.main import get_command

import tenuto
from tenuto.errors import TenutoError
from tenuto.values.names import DEFAULT_TENANT

from . import (
    audit,
    control,
    database,
    definitions,
    dlq,
    executions,
    identity,
    integrity,
    jobs,
    keys,
    limits,
    operations,
    processes,
    reviews,
)
from .connection import Connection
from .exit_codes import Exit, exit_code
from .output import NAME, discard_unwritten, named_output, print_to_stderr
from .printer import Printer, print_error
from .shared_options import AsJson, Group, Server, Url, connection
from .usage import print_usage_error

ORDER = [processes.SECTION, executions.SECTION, control.SECTION, reviews.SECTION, definitions.SECTION, database.SECTION]


COMPLETION = {"--install-completion": install_callback, "--show-completion": show_callback}
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


class Sections(Group):
    """A group whose help lists its commands under headings. Typer has those in its rich help, which is slow to load."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accepts the name of a shell for its completion: typer itself detects the shell and ignores the name."""
        option, _, value = args[0].partition("=") if args else ("", "", "")
        shell = value or " ".join(args[1:])
        if option in COMPLETION and shell:
            if shell not in SHELLS:
                raise typer.BadParameter(f"{shell!r} is not one of {', '.join(SHELLS)}", param_hint=option)
            COMPLETION[option](ctx, self.params[0], shell)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        width = max(len(name) for name in self.commands)
        for name, command in self.commands.items():
            if not command.hidden:
                section = str(getattr(command, "rich_help_panel", ""))
                line = (name.ljust(width), command.get_short_help_str(formatter.width - width - 6))
                sections.setdefault(section, []).append(line)
        for section, lines in sorted(sections.items(), key=lambda pair: ORDER.index(pair[0])):
            with formatter.section(section):
                formatter.write_dl(lines)


app = typer.Typer(
    name="tenuto",
    cls=Sections,
    help="Run and operate Tenuto, a durable orchestration engine for Python.",
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        Printer().line(f"tenuto {tenuto.__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    url: Url = None,
    server: Server = None,
    as_json: AsJson = False,
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Act for this tenant, if on a database.")
    ] = DEFAULT_TENANT,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    connection(context).tenant = tenant


for module in (
    processes,
    executions,
    control,
    reviews,
    dlq,
    definitions,
    database,
    integrity,
    keys,
    identity,
    limits,
    jobs,
    operations,
    audit,
):
    module.add_to(app)


def run(arguments: list[str]) -> int:
    """Runs one command and prints its error, if any."""
    given, as_json = Connection(), "--json" in arguments
    with named_output():
        try:
            code = _run(arguments, given, as_json=as_json)
            sys.stdout.flush()
        except (Exception, SystemExit) as error:
            if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
                code = Exit.CUT_OFF  # `tenuto ls | head` has read enough; typer ends with a code of its own
            elif isinstance(error, OSError) and error.filename is not None:
                print_error(_unusable(error), given, as_json=as_json)
                code = Exit.FAILED
            elif isinstance(error, SystemExit):
                raise
            else:
                print_to_stderr(traceback.format_exc())
                code = Exit.FAILED
            discard_unwritten()
    return code


def _run(arguments: list[str], given: Connection, *, as_json: bool) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a character that the terminal lacks becomes `?` and raises nothing
    try:
        code = get_command(app).main(args=arguments, prog_name="tenuto", standalone_mode=False, obj=given)
        return int(code) if isinstance(code, int) else Exit.OK
    except typer.TyperException as error:
        print_usage_error(error, as_json=as_json)
        return error.exit_code
    except TenutoError as error:
        print_error(error, given, as_json=as_json)
        return exit_code(error)
    except (typer.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED


def _unusable(error: OSError) -> TenutoError:
    hint = "check the path and its permissions"
    if error.filename == NAME:
        hint = "write to a device with free space. Only the output is lost: check whether the command took effect"
    return TenutoError(f"{error.filename}: {error.strerror or type(error).__name__}.", code="file_unusable", hint=hint)
