"""Finds the open review that a decision is about. If there is none, says why, and what does wait for a decision."""

from tenuto.kernel.address import step_id
from tenuto.kernel.evolve import find_step
from tenuto.kernel.facts import Decide, Refused
from tenuto.kernel.naming import shown_step
from tenuto.kernel.state import Execution, FanState, Review

_SHOWN = 10


def find_review(state: Execution, fact: Decide) -> Review | Refused:
    if fact.review is not None:
        return state.reviews.get(fact.review) or not_open(state, fact.review)
    if fact.path is None:
        return Refused("not_waiting", "the decision names neither a step nor a review", _what_waits(state))
    step = find_step(state, fact.path)
    review = None if step is None or step.review is None else state.reviews.get(step.review)
    return review or not_waiting(state, step_id(fact.path), fact.path)


def not_open(state: Execution, review: str) -> Refused:
    text = f"review {review!r} is not open: it was resolved already, or there never was one"
    return Refused("not_waiting", text, _what_waits(state))


def not_waiting(state: Execution, name: str, path: str | None) -> Refused:
    """Returns the refusal for a step that has no open review. `path` is its path, if the execution has reached it."""
    known = step_id(name) in {node.id for node in state.plan.root.walk()}
    node = None if path is None else state.nodes.get(path) or find_step(state, path)
    if node is None and (not known or ("#" in name and _is_expanded(state, step_id(name)))):
        text = f"the execution has no step {name!r}"
    elif node is None or node.status == "pending":
        text = f"step {name!r} does not wait for a decision: it has not started"
    else:
        text = f"step {name!r} does not wait for a decision: its status is {node.status}"
    return Refused("not_waiting", text, _what_waits(state))


def _is_expanded(state: Execution, id: str) -> bool:
    return any(isinstance(node, FanState) and step_id(path) == id for path, node in state.nodes.items())


def _what_waits(state: Execution) -> str:
    reviews = list(state.reviews.values())
    if not reviews:
        return "nothing in this execution waits for a decision"
    shown = [
        f"{shown_step(state, review.path)!r} ({review.kind})" if review.path else review.kind
        for review in reviews[:_SHOWN]
    ]
    more = [f"and {len(reviews) - _SHOWN} more"] if len(reviews) > _SHOWN else []
    return f"decide on what waits: {', '.join([*shown, *more])}"
