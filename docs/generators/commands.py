"""`reference/commands.md`: every command, its arguments and options, and the exit codes."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from tenuto.cli.app import ORDER, app
from tenuto.cli.exit_codes import MEANINGS

from .source import NOTE

OPENING = """\
# Commands

See [the guide](../guides/command-line.md) for typical use. Every command has `--help`. Settings come from the
environment and from `tenuto.toml`: [the list](settings.md).

"""


def page() -> str:
    root = get_command(app)
    return "".join([f"{NOTE}\n{OPENING}", *_contents(root), *_options_before(root), *_sections(root), *_exit_codes()])


def _contents(root: Any) -> Iterator[str]:
    yield "| | |\n|---|---|\n"
    for section in ORDER:
        names = [f"`{path}`" for path, _ in _commands(root, section)]
        yield f"| {section} | {' '.join(names)} |\n"


def _options_before(root: Any) -> Iterator[str]:
    yield "\n## Before the command\n\n"
    yield "As in `tenuto --url sqlite:///shop.db ls`. Every command also accepts `--url`, `--server` and `--json`\n"
    yield "after its name.\n\n"
    yield from _parameters(root)


def _sections(root: Any) -> Iterator[str]:
    for section in ORDER:
        yield f"\n## {section}\n"
        for path, command in _commands(root, section):
            yield f"\n### tenuto {path}\n\n{_plain(command.help)}\n\n```\n{_usage(path, command)}\n```\n"
            yield from ("\n", *_parameters(command)) if command.params else ()


def _commands(root: Any, section: str) -> Iterator[tuple[str, Any]]:
    for name, command in root.commands.items():
        if command.hidden or command.rich_help_panel != section:
            continue
        inner = getattr(command, "commands", {})
        if not inner or command.invoke_without_command:
            yield name, command
        yield from ((f"{name} {each}", found) for each, found in inner.items())


def _usage(path: str, command: Any) -> str:
    arguments = [_metavar(param) for param in command.params if param.param_type_name == "argument"]
    required = [
        f"{param.opts[0]} {_metavar(param)}"
        for param in command.params
        if param.param_type_name == "option" and param.required
    ]
    return " ".join(["tenuto", path, *arguments, *required, "[OPTIONS]"])


def _parameters(command: Any) -> Iterator[str]:
    yield "| | |\n|---|---|\n"
    for param in command.params:
        if param.name in ("help", "install_completion", "show_completion") or param.hidden:
            continue
        yield f"| `{_name(param)}` | {_plain(param.help or '')} |\n"


def _name(param: Any) -> str:
    metavar = _metavar(param)
    if param.param_type_name == "argument":
        return metavar
    names = ", ".join(sorted(param.opts, key=len))
    return names if param.is_flag else f"{names} {metavar}".replace("|", "\\|")


def _metavar(param: Any) -> str:
    """What stands for a value: `ID`, `[STEP]`, `drain|terminate`."""
    if param.param_type_name == "argument":
        name = f"{param.display_name_raw}…" if param.nargs != 1 else param.display_name_raw
        return str(name) if param.required else f"[{name}]"
    choices = param.type_descriptor.choices
    if choices and param.metavar is None:
        return "|".join(map(str, choices))
    return str(param.metavar or ("NUMBER" if param.type_descriptor.annotation is int else "TEXT"))


def _plain(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _exit_codes() -> Iterator[str]:
    yield "\n## Exit codes\n\n| code | meaning |\n|---:|---|\n"
    yield from (f"| {int(code)} | {meaning} |\n" for code, meaning in MEANINGS.items())
