"""`tenuto cancel | retry` by filter: counts the matches and asks before it acts."""

import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from .exit_codes import Exit
from .formats import plural
from .printer import Printer

if TYPE_CHECKING:
    from tenuto.views.bulk_results import BulkResult

AT_ONCE = 1_000  # in one request
MOST = 1_000  # the default

OneId = Annotated[str | None, typer.Argument(metavar="ID", help="The execution. Or select several with the options.")]
Active = Annotated[
    Literal["running", "waiting_approval", "paused"] | None, typer.Option("--status", help="Select this status.")
]
OfDefinition = Annotated[str | None, typer.Option("--definition", metavar="NAME", help="Select this definition.")]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="TIME", help="Select those started longer ago, such as 10m or 2d.")
]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Select those started within this time.")]
Correlated = Annotated[str | None, typer.Option("--correlation-id", metavar="ID", help="Select this correlation id.")]
About = Annotated[str | None, typer.Option("--target-id", metavar="ID", help="Select this target object.")]
Most = Annotated[
    int | None,
    typer.Option("--limit", "-n", metavar="NUMBER", min=1, help="Select at most this many. Default: 1,000."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the selection and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

Act = Callable[..., Awaitable["BulkResult"]]


class Words(NamedTuple):
    """For what is asked, for what was done, and what the list of those is called in a document."""

    asked: str
    done: str
    listed: str


# One that was told to cancel may take its time.
CANCEL = Words("cancel", "cancel requested", "canceled")
RETRY = Words("retry", "retried", "retried")


def wanted(
    *,
    status: str | None = None,
    definition: str | None,
    older_than: str | None,
    since: str | None,
    correlation_id: str | None,
    target_id: str | None,
) -> dict[str, Any]:
    """What was asked for, and nothing else."""
    given = {
        "status": status,
        "definition": definition,
        "before": _moment(older_than, "--older-than"),
        "since": _moment(since, "--since"),
        "correlation_id": correlation_id,
        "target_id": target_id,
    }
    return {name: value for name, value in given.items() if value is not None}


def check(id: str | None, chosen: dict[str, Any], how: dict[str, Any], more: tuple[str, ...] = ()) -> None:
    """Checks that either an id or filters are given. `how`: options that only apply to several executions."""
    if id is None and not chosen:
        options = ", ".join((*more, "--definition", "--older-than", "--since", "--correlation-id"))
        raise typer.BadParameter(f"name one, or select with {options} or --target-id", param_hint="ID")
    if id is not None and chosen:
        raise typer.BadParameter("name one, or select with the options, not both", param_hint="ID")
    if id is not None and (beside := [option for option, value in how.items() if value]):
        raise typer.BadParameter("needs a selection by options, not a single execution", param_hint=", ".join(beside))


def check_reason(*, dry_run: bool) -> str:
    """Returns the reason of a dry run. A command for several executions needs one, for the audit log."""
    if not dry_run:
        raise typer.BadParameter("required to cancel several executions", param_hint="--reason")
    return "dry run"


async def act(
    tell: Act, words: Words, *, limit: int | None, dry_run: bool, yes: bool, as_json: bool, **given: Any
) -> Exit:
    from tenuto.views.bulk_results import BulkResult

    printer, limit = Printer(), limit or MOST
    if dry_run or not yes:
        first = await tell(**given, limit=min(limit, AT_ONCE), dry_run=True)
        if dry_run:
            return _show(printer, first, as_json=as_json)
        limit = _confirmed(words.asked, first, limit)
    acted, cursor = BulkResult(), None
    while (left := limit - len(acted.done) - len(acted.pending) - len(acted.refused)) > 0:
        part = await tell(**given, limit=min(left, AT_ONCE), cursor=cursor)
        acted.done += part.done
        acted.pending += part.pending
        acted.refused += part.refused
        acted.remaining, cursor = part.remaining, part.next_cursor
        if cursor is None:
            break
    return _tell(printer, acted, words, as_json=as_json)


def _confirmed(word: str, found: "BulkResult", limit: int) -> int:
    """Asks for confirmation, and returns how many executions were confirmed. Later matches are not among them."""
    count = min(len(found.chosen) + found.remaining, limit)
    if not count:
        return 0
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{plural(count, 'execution')} match: confirm with --yes, or list them with --dry-run")
    typer.confirm(f"{word} {plural(count, 'execution')}?", abort=True, err=True)
    return count


def _show(printer: Printer, found: "BulkResult", *, as_json: bool) -> Exit:
    if as_json:
        printer.json({"chosen": found.chosen, "remaining": found.remaining})
        return Exit.OK
    for id in found.chosen:
        printer.line(id)
    if printer.is_terminal and found.remaining:
        printer.text(f"… and {found.remaining} more", "dim")
    return Exit.OK


def _tell(printer: Printer, acted: "BulkResult", words: Words, *, as_json: bool) -> Exit:
    if as_json:
        refused = [each._asdict() for each in acted.refused]
        told = {words.listed: acted.done, "pending": acted.pending, "refused": refused, "remaining": acted.remaining}
        printer.json(told)
    else:
        printer.text(f"{words.done}: {plural(len(acted.done), 'execution')}")
        if acted.pending:
            printer.text(f"{plural(len(acted.pending), 'execution')} requested, verdict not known yet")
        for each in acted.refused:
            printer.text(f"  {each.id}: {each.detail.splitlines()[0]} [{each.code}]")
        if acted.remaining:
            printer.text(f"{plural(acted.remaining, 'execution')} remaining; raise --limit to include them")
    return Exit.FAILED if acted.refused else Exit.OK


def _moment(text: str | None, option: str) -> datetime | None:
    from .executions import moment_before

    return moment_before(text, option)
