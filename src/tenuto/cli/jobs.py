"""`tenuto jobs ls | show | cancel` and `tenuto protocols check`: the command gateway."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from .command import AsJson, Reason, command, connection, group
from .formats import ago
from .printer import Printer

if TYPE_CHECKING:
    from tenuto.views.jobs import JobStatus

SECTION = "Executions"

Job = Annotated[str, typer.Argument(metavar="ID", help="The id of the job.")]


async def ls(
    context: typer.Context,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Show only this status, such as IN_PROGRESS.")
    ] = None,
    protocol: Annotated[str | None, typer.Option(metavar="NAME", help="Show only jobs of this protocol.")] = None,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, max=100, help="Show at most this many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    from tenuto.views.jobs import JobStatus

    wanted = None if status is None else status.upper()
    if wanted is not None and wanted not in get_args(JobStatus):
        raise typer.BadParameter(f"{status!r} is not one of {', '.join(get_args(JobStatus))}", param_hint="--status")
    async with connection(context).engine(reads=True) as engine:
        page = await engine.job_reads.page(status=cast("JobStatus | None", wanted), protocol=protocol, limit=limit)
    Printer().listing(
        cast(list[dict[str, Any]], page.items),
        ["JOB", "PROTOCOL", "STATUS", "STEP", "WAITS FOR", "CREATED"],
        lambda job: [
            job["job_id"],
            f"{job['protocol_id']} {job['protocol_version']}",
            job["status"],
            job["current_step_id"] or "",
            (job["blocked"] or {}).get("reason", ""),
            ago(job["created_at"]),
        ],
        "No jobs.",
        as_json=as_json,
    )


async def show(context: typer.Context, id: Job, as_json: AsJson = False) -> None:
    """Show a job with its steps."""
    async with connection(context).engine(reads=True) as engine:
        job = await engine.job_reads.get(id)
    printer = Printer()
    if as_json:
        printer.json(job)
        return
    blocked = job["blocked"]
    waits = "" if blocked is None else f", waits for {blocked['reason']} {blocked['waiting_for'] or ''}".rstrip()
    printer.text(f"{job['protocol_id']} {job['protocol_version']}: {job['status']}{waits}")
    printer.table(
        ["STEP", "STATUS", "ATTEMPT", "LANE", "WORKSPACE"],
        [
            [step["step_id"], step["status"], str(step["attempt_no"]), str(step["lane"]), step["workspace_ref"] or ""]
            for step in job["steps"]
        ],
    )


async def cancel(context: typer.Context, id: Job, reason: Reason = "", as_json: AsJson = False) -> None:
    """Cancel a job. Nothing more of it starts, and its current step ends it."""
    async with connection(context).engine() as engine:
        await engine.job_reads.cancel(id, reason=reason)
        job = await engine.job_reads.get(id)
    Printer().tell(f"{job['status'].lower()}: {id}", job, as_json=as_json)


async def check(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A JSON file, or a folder of them.")],
    as_json: AsJson = False,
) -> None:
    """Check a protocol configuration without publishing it."""
    from tenuto.errors import InvalidInput, Problem
    from tenuto.service.commands.protocol_source import FileSource, SourceUnavailable
    from tenuto.service.commands.protocols import compile_configuration

    try:
        configuration = compile_configuration(await FileSource(file).read())
    except SourceUnavailable as error:
        raise InvalidInput(str(error), problems=[Problem(str(file), "unreadable", str(error))]) from None
    found = [
        {"protocol_id": each.protocol_id, "version": each.version, "steps": len(each.steps)}
        for each in configuration.protocols
    ]
    text = ", ".join(f"{each['protocol_id']} {each['version']}" for each in found) or "none"
    Printer().tell(f"valid: {text}", {"valid": True, "protocols": found}, as_json=as_json)


def add_to(app: typer.Typer) -> None:
    jobs = group(app, "jobs", SECTION, "List, show and cancel jobs of the command gateway.")
    for function in (ls, show, cancel):
        command(jobs, function.__name__)(function)
    protocols = group(app, "protocols", SECTION, "Check protocols of the command gateway.")
    command(protocols, "check")(check)
