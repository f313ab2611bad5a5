"""The problems of a definition, collected so that an author sees all of them at once, in Python terms."""

import re

from tenuto.errors import DefinitionError, Problem
from tenuto.kernel.definition import Definition, Scope


class Problems:
    """Collects problems, and raises one `DefinitionError` with all of them."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, where: str, code: str, message: str) -> None:
        problem = Problem(where, code, message)
        if problem not in self.found:
            self.found.append(problem)

    def raise_any(self, about: str) -> None:
        if self.found:
            count = "a problem" if len(self.found) == 1 else f"{len(self.found)} problems"
            raise DefinitionError(f"{about} has {count}.", problems=self.found)


# -- Problems of the kernel --------------------------------------------------------------------------------------------

# The kernel names fields as JSON does; authors of sagas write Python keywords.
_KEYWORDS = {
    "step_id": "id",
    "steps": "steps",
    "children": "steps",
    "timeout_ms": "deadline",
    "retry_policy/timeout_ms": "timeout",
    "retry_policy/max_attempts": "retry, max_attempts",
    "retry_policy/initial_delay_ms": "retry, initial",
    "retry_policy/max_delay_ms": "retry, maximum",
    "retry_policy/jitter": "retry, jitter",
    "retry_policy/retry_on_classes": "retry, on",
    "idempotency_strategy": "safety",
    "guard_handler": "guard",
    "reconcile_handler": "reconcile",
    "compensation_handler": "compensate",
    "compensation_max_attempts": "compensation_retry",
    "compensation_backoff_ms": "compensation_backoff",
    "compensation_timeout_ms": "compensation_timeout",
    "with/duration_ms": "duration",
    "with/until": "until",
    "with/signal": "name",
    "policies/timeout_ms": "timeout",
    "policies/max_concurrency": "layer_concurrency",
    "policies/on_conflict": "on_conflict",
    "policies/concurrency_key": "concurrency_key",
}
_NUMBER = re.compile(r"/\d+$")
_FIELD = re.compile(r'`"([a-z_]+)": "([a-z_]+)"`')
_NAMED = re.compile(r"`([a-z_]+)`")


def in_python_terms(problem: Problem, definition: Definition) -> tuple[str, str, str]:
    """Where, code and message: `/steps/2/timeout_ms` is `step 'charge', deadline`."""
    where, field = _locate(problem.path, definition)
    keyword = keyword_of(field)
    message = _NAMED.sub(lambda match: f"`{_KEYWORDS.get(match[1], match[1])}`", problem.message)
    message = _FIELD.sub(r'`\1="\2"`', message).replace("in scope ", "in group ")
    return f"{where}, {keyword}" if keyword else where, problem.code, message


def keyword_of(field: str) -> str:
    """Returns the Python option of a field: `timeout` for `retry_policy/timeout_ms`."""
    return _KEYWORDS.get(_NUMBER.sub("", field), field.replace("/", "."))


def _locate(pointer: str, definition: Definition) -> tuple[str, str]:
    parts = pointer.split("/")[1:]
    where, children = f"saga {definition.name!r}", definition.steps
    while len(parts) > 1 and parts[0] in ("steps", "children") and parts[1].isdecimal():
        node = children[int(parts[1])]
        if isinstance(node, Scope):
            where, children = f"group {node.id!r}", node.children
        else:
            where, children = f"step {node.id!r}", ()
        parts = parts[2:]
    return where, "/".join(parts)
