"""`tenuto pause | resume | cancel | retry | approve | reject | signal`: commands for one execution or for many."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .bulk_commands import (
    CANCEL,
    RETRY,
    About,
    Active,
    Correlated,
    DryRun,
    Most,
    OfDefinition,
    OlderThan,
    OneId,
    Since,
    Yes,
    act,
    check,
    check_reason,
    wanted,
)
from .command import AsJson, Id, Reason, command, connection, read_json
from .exit_codes import Exit
from .printer import Printer

if TYPE_CHECKING:
    from tenuto.api.handle import Handle

SECTION = "Acting on one"

Step = Annotated[str | None, typer.Argument(metavar="STEP", help="The step. Optional if only one step waits.")]
Comment = Annotated[str, typer.Option(metavar="TEXT", help="Record this comment with the decision.")]
Data = Annotated[
    str | None, typer.Option(metavar="JSON", help="Use this as the result of the approval: JSON or @file.")
]
Why = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Record this reason in the history and the audit log.")
]


async def pause(context: typer.Context, id: Id, reason: Reason = "", as_json: AsJson = False) -> None:
    """Pause an execution. Running steps finish, and no new ones start."""
    async with connection(context).engine() as engine:
        handle = engine.get(id)
        await handle.pause(reason=reason)
        await _tell(handle, "paused", as_json)


async def resume(context: typer.Context, id: Id, as_json: AsJson = False) -> None:
    """Resume a paused execution."""
    async with connection(context).engine() as engine:
        handle = engine.get(id)
        await handle.resume()
        await _tell(handle, "resumed", as_json)


async def cancel(
    context: typer.Context,
    id: OneId = None,
    mode: Annotated[
        Literal["drain", "terminate", "compensate"] | None,
        typer.Option(
            help="drain waits for running steps, terminate does not, compensate rolls back. Default: as defined."
        ),
    ] = None,
    reason: Reason = "",
    status: Active = None,
    definition: OfDefinition = None,
    older_than: OlderThan = None,
    since: Since = None,
    correlation_id: Correlated = None,
    target_id: About = None,
    limit: Most = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> Exit | None:
    """Cancel an execution, or all active ones that match the options, oldest first."""
    chosen = wanted(
        status=status,
        definition=definition,
        older_than=older_than,
        since=since,
        correlation_id=correlation_id,
        target_id=target_id,
    )
    check(id, chosen, {"--dry-run": dry_run, "--limit": limit, "--yes": yes}, more=("--status",))
    async with connection(context).engine() as engine:
        if id is None:
            how: Any = {"limit": limit, "dry_run": dry_run, "yes": yes, "as_json": as_json}
            why = reason or check_reason(dry_run=dry_run)
            return await act(engine.cancel_many, CANCEL, **how, **chosen, mode=mode, reason=why)
        handle = engine.get(id)
        await handle.cancel(mode, reason=reason)
        await _tell(handle, "canceled", as_json)
        return None


async def retry(
    context: typer.Context,
    reason: Why,
    id: OneId = None,
    from_step: Annotated[str | None, typer.Option("--from", metavar="STEP", help="Start again from this step.")] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Repeat completed effects from that step on, with new keys. Needs --from."),
    ] = False,
    definition: OfDefinition = None,
    older_than: OlderThan = None,
    since: Since = None,
    correlation_id: Correlated = None,
    target_id: About = None,
    limit: Most = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> Exit | None:
    """Retry a failed execution, or all failed ones that match the options, oldest first."""
    chosen = wanted(
        definition=definition,
        older_than=older_than,
        since=since,
        correlation_id=correlation_id,
        target_id=target_id,
    )
    check(id, chosen, {"--dry-run": dry_run, "--limit": limit, "--yes": yes})
    if id is None and (from_step or again):
        raise typer.BadParameter("is for a single execution", param_hint="--from")
    async with connection(context).engine() as engine:
        if id is None:
            how: Any = {"limit": limit, "dry_run": dry_run, "yes": yes, "as_json": as_json}
            return await act(engine.retry_many, RETRY, **how, **chosen, reason=reason)
        handle = engine.get(id)
        await handle.retry(from_step=from_step, again=again, reason=reason)
        await _tell(handle, "retried", as_json)
        return None


async def approve(
    context: typer.Context,
    id: Id,
    step: Step = None,
    comment: Comment = "",
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Approve a step that is waiting for approval."""
    given = read_json(data, "--data")
    async with connection(context).engine() as engine:
        handle = engine.get(id)
        await handle.approve(step or await _waiting_step(handle), comment=comment, data=given)
        await _tell(handle, "approved", as_json)


async def reject(
    context: typer.Context,
    id: Id,
    step: Step = None,
    comment: Comment = "",
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Reject a step that is waiting for approval. The step fails."""
    given = read_json(data, "--data")
    async with connection(context).engine() as engine:
        handle = engine.get(id)
        await handle.reject(step or await _waiting_step(handle), comment=comment, data=given)
        await _tell(handle, "rejected", as_json)


async def signal(
    context: typer.Context,
    id: Id,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the signal.")],
    payload: Annotated[
        str | None,
        typer.Option(
            "--payload", "-p", metavar="JSON", help="Send this payload: JSON, @file, or - for standard input."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Deduplicate by this key: the same key is one signal.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a signal to an execution. A step may wait for it now or later."""
    given = read_json(payload, "--payload")
    async with connection(context).engine() as engine:
        handle = engine.get(id)
        await handle.signal(name, given, id=key)
        await _tell(handle, "sent", as_json)


async def _waiting_step(handle: "Handle[Any]") -> str:
    """Finds the only step that waits for approval."""
    from tenuto.errors import InvalidTransition

    steps = (await handle.status())["steps"]
    waiting = [step["step_id"] for step in steps if step["status"] == "awaiting_approval"]
    if len(waiting) == 1:
        return waiting[0]
    if waiting:
        names = ", ".join(waiting)
        raise typer.BadParameter(f"several steps wait for approval: {names}. Name one", param_hint="STEP")
    raise InvalidTransition(
        "No step of this execution waits for approval.", hint=f"run `tenuto show {handle.id}` to see its state"
    )


async def _tell(handle: "Handle[Any]", word: str, as_json: bool) -> None:
    """Prints what was done. A cancellation may take a while to complete."""
    document = await handle.status()
    printer = Printer()
    if as_json:
        printer.json(document)
        return
    if word == "canceled" and document["status"] not in ("succeeded", "failed", "canceled"):
        word = "cancel requested"
    printer.cells(f"{word}: ", (document["definition_id"], "bold"), f" {document['execution_id']}")


def add_to(app: typer.Typer) -> None:
    for function in (pause, resume, cancel, retry, approve, reject, signal):
        command(app, function.__name__, SECTION)(function)
