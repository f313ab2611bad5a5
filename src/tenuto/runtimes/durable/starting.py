"""From a submission to the rows that start it, and from a refusal to what the submitter is told."""

from tenuto.errors import ConcurrencyConflict, IdempotencyConflict, StorageError, TenutoError
from tenuto.kernel import facts as f
from tenuto.projection import PRIORITIES
from tenuto.runtime import Submission, Submitted
from tenuto.runtimes.in_flight import tenant_is_full
from tenuto.storage.store import NewExecution

from .committer import Fate


def new_execution(submission: Submission, fact: f.Start, owner: str | None) -> NewExecution:
    return NewExecution(
        id=fact.execution,
        tenant=submission.tenant,
        definition=submission.program.name,
        version=submission.program.version,
        priority=PRIORITIES[submission.priority],
        correlation_id=fact.correlation_id,
        target_type=submission.target[0] if submission.target else "",
        target_id=submission.target[1] if submission.target else "",
        key=submission.idempotency_key,
        request_hash=submission.digest,
        concurrency_key=submission.concurrency_key,
        reject_conflict=submission.on_conflict == "reject",
        created_at=fact.at,
        owner=owner,
    )


def replayed(submission: Submission, id: str, request_hash: str) -> Submitted:
    """The key was seen: the same request gives the same execution, another one is refused."""
    if request_hash != submission.digest:
        key = submission.idempotency_key
        raise IdempotencyConflict(f"The idempotency key {key!r} was used before with another request.")
    return Submitted(id, created=False)


def refusal_of(submission: Submission, fate: Fate) -> TenutoError:
    if fate == "conflict":
        name, key = submission.program.name, submission.concurrency_key
        return ConcurrencyConflict(f"Another execution of {name!r} holds the key {key!r}.")
    if fate == "tenant_limit":
        return tenant_is_full(submission.tenant)
    return StorageError("this process lost its session while it started the execution", code="session_lost")
