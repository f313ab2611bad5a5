"""Checks who may decide a review. The kernel checks every decision, however it was delivered.

Runtimes, the service and clients check earlier, on the state they have read, to answer quickly. That state may be out
of date, because a due timer can open another review. So the authoritative check is made here, on the state that the
decision changes.
"""

from tenuto.kernel.evolve import find_step
from tenuto.kernel.facts import Authority, Decide, Refused
from tenuto.kernel.state import Execution, Review

# A decision without authority was sent by an earlier release. Its sender was known to hold one permission that decides
# reviews, and nothing else about it is known: it decides only what that permission suffices for, and never a review of
# an execution that its own actor started.
UNSTATED = Authority(permissions=("approvals:write",), four_eyes=True)
_UNSTATED_HINT = "it was sent by an earlier release, without its sender's permissions: decide again"


def denied(state: Execution, review: Review, fact: Decide) -> Refused | None:
    """Returns why the sender may not make this decision; None if it may."""
    authority = fact.authority or UNSTATED
    hint = "ask someone who holds it" if fact.authority is not None else _UNSTATED_HINT
    if authority.permissions is not None:
        for permission in _required(state, review, fact):
            if permission not in authority.permissions:
                return Refused("forbidden", f"this decision needs the permission `{permission}`", hint)
    if authority.four_eyes and fact.actor is not None and fact.actor == state.started_by:
        hint = "ask another person to decide" if fact.authority is not None else _UNSTATED_HINT
        return Refused("four_eyes", "the actor that started an execution cannot decide its reviews", hint)
    return None


def _required(state: Execution, review: Review, fact: Decide) -> list[str]:
    required = ["dlq:write" if review.kind == "dead_letter" else "approvals:write"]
    if review.permission:
        required.append(review.permission)
    step = find_step(state, review.path)
    is_unsafe = step is not None and step.node.step.safety == "NOT_SAFE_TO_RETRY"
    if fact.again or (fact.resolution == "retry" and is_unsafe):
        required.append("effects:again")
    return required
