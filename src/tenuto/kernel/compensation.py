"""Which steps are compensated, and in what order. Each policy combines an order, a failure mode and attempts."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from .address import ROOT, clone_path, fan_of, parent_of
from .definition import CompensationOrder, RetryPolicy, Step
from .state import CLONE_SUCCEEDED, Execution, FanState, ScopeState


class Rollback(NamedTuple):
    order: Literal["reverse", "layers", "all"]
    on_failure: Literal["stop", "break_if_critical", "go_on"]
    max_attempts: int


POLICIES: dict[CompensationOrder, Rollback] = {
    "STRICT_SEQUENTIAL": Rollback("reverse", "stop", 1),
    "GROUPED_PARALLEL": Rollback("layers", "stop", 1),
    "RETRY_WITH_BACKOFF": Rollback("reverse", "stop", 5),
    "CIRCUIT_BREAKER": Rollback("reverse", "break_if_critical", 1),
    "BEST_EFFORT_PARALLEL": Rollback("all", "go_on", 1),
}


def rollback(state: Execution) -> Rollback:
    return POLICIES[state.plan.definition.policies.compensation]


def undo_groups(state: Execution) -> tuple[tuple[str, ...], ...]:
    """Returns the steps to compensate, latest completion first: completed or possibly made in part, and not undone."""
    done = sorted(_completed(state), reverse=True)
    match rollback(state).order:
        case "reverse":
            return tuple((path,) for _, path in done)
        case "all":
            return (tuple(path for _, path in done),) if done else ()
        case "layers":
            layers: dict[tuple[int, ...], list[str]] = {}
            for seq, path in done:
                layers.setdefault(_layer(state, path, seq), []).append(path)
            return tuple(tuple(layers[key]) for key in sorted(layers, reverse=True))


def _completed(state: Execution) -> Iterator[tuple[int, str]]:
    for path, seq in state.compensable.items():
        node = state.nodes[path]
        if isinstance(node, FanState):
            yield from _completed_clones(node)
        else:
            yield seq, path


def _completed_clones(fan: FanState) -> Iterator[tuple[int, str]]:
    half_done = {index: step.half_done for index, step in fan.live.items() if step.half_done}
    for index, mark in enumerate(fan.marks):
        if mark == CLONE_SUCCEEDED and index not in fan.spared:
            yield fan.done_seq[index], clone_path(fan.path, index)
    for index, seq in {**fan.owed, **half_done}.items():  # of both, the partial effect is the later one
        yield seq, clone_path(fan.path, index)


def _layer(state: Execution, path: str, seq: int) -> tuple[int, ...]:
    """Returns the layers of a step and its ancestors, outermost first.

    In a flow the order of completion replaces them.
    """
    clone = fan_of(path)
    at = clone[0] if clone is not None else path
    layers: list[int] = []
    while at != ROOT:
        above = parent_of(at)
        scope = state.nodes[above]
        assert isinstance(scope, ScopeState)
        layers.append(seq if scope.node.is_flow else state.nodes[at].node.layer)
        at = above
    return tuple(reversed(layers))


def undo_policy(step: Step, default_attempts: int) -> RetryPolicy:
    """The retry policy of a step's compensation: its own overrides over the definition's choice."""
    return RetryPolicy(
        max_attempts=step.compensation_max_attempts or default_attempts,
        initial_delay_ms=step.compensation_backoff_ms,
        jitter=step.retry_policy.jitter,
        timeout_ms=step.compensation_timeout_ms or step.retry_policy.timeout_ms,
    )
