"""What the settings of a deployment change of the steps of a plan: recorded with the attempts to which it applied."""

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from .definition import Node, RetryPolicy, Scope, Step


class StepOverride(Struct, frozen=True, array_like=True, gc=False):
    """None: as the plan says. The timeout of the retry policy does not count."""

    timeout_ms: int | None = None
    retry_policy: RetryPolicy | None = None
    limits: tuple[str, ...] | None = None

    def apply(self, step: Step) -> Step:
        policy = step.retry_policy if self.retry_policy is None else self.retry_policy
        timeout_ms = step.retry_policy.timeout_ms if self.timeout_ms is None else self.timeout_ms
        limits = step.limits if self.limits is None else self.limits
        return replace(step, retry_policy=replace(policy, timeout_ms=timeout_ms), limits=limits)


StepOverrides: TypeAlias = Mapping[str, StepOverride]  # by step id


def override_nodes(nodes: tuple[Node, ...], overrides: StepOverrides) -> tuple[Node, ...]:
    return tuple(_overridden(node, overrides) for node in nodes)


def _overridden(node: Node, overrides: StepOverrides) -> Node:
    if isinstance(node, Scope):
        return replace(node, children=override_nodes(node.children, overrides))
    override = overrides.get(node.id)
    return node if override is None else override.apply(node)
