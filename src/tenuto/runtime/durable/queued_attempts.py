"""The activity of attempts on named queues, which other processes may run."""

from dataclasses import replace

from msgspec import Raw

from tenuto.kernel.address import Ref
from tenuto.kernel.effects import DispatchAttempt
from tenuto.kernel.evolve import holder_of
from tenuto.kernel.state import Execution
from tenuto.storage.tasks import Serving, TaskState, TaskStore, serving_names
from tenuto.views import Activity, Waiting
from tenuto.views.jobs import BUS_QUEUE


def has_queued(state: Execution) -> bool:
    return state.plan.has_queues and any(_is_queued(state, effect) for effect in state.agenda.values())


def _is_queued(state: Execution, effect: object) -> bool:
    if not isinstance(effect, DispatchAttempt):
        return False
    holder = holder_of(state, effect.ref)
    return holder is not None and holder.node.queue is not None


async def with_queued(tasks: TaskStore, execution: str, activity: Activity) -> Activity:
    """What a runtime knows of an execution, and what the workers of queues do about it."""
    rows = await tasks.of(execution)
    if not rows:
        return activity
    serving = [] if all(row.begun for row in rows) else await tasks.serving()
    running: list[Ref] = list(activity.running)
    waiting = dict(activity.waiting)
    progress = dict(activity.progress)
    for row in rows:
        if not row.begun:
            waiting[row.key.ref] = _why(row, serving)
            continue
        running.append(row.key.ref)
        if row.progress is not None:
            progress[row.key.path] = Raw(row.progress)
    return replace(activity, running=running, waiting=waiting, progress=progress)


def _why(row: TaskState, serving: list[Serving]) -> Waiting:
    if row.queue == BUS_QUEUE:
        return Waiting("bus", row.key.path)
    workers = [worker for worker in serving if row.queue in worker.queues]
    if not workers:
        return Waiting("no_worker", f"queue {row.queue}")
    names = serving_names(row.plan, row.handler)
    if not any(name in worker.handlers for worker in workers for name in names):
        return Waiting("no_worker", f"{row.handler} in queue {row.queue}")
    if row.parked and row.worker is None:
        return Waiting("incompatible", row.parked)
    return Waiting("slot", f"queue {row.queue}")
