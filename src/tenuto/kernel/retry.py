"""Decides whether and when an attempt is retried: one matrix, three safety declarations, pure functions.

The documentation page "Retries" and its tests are generated from `MATRIX`, `EXCEPTIONS` and `judge`.
"""

from typing import Literal, NamedTuple

from .address import Ref, chance
from .definition import ErrorClass, RetryPolicy, Step
from .events import Failure, Verdict
from .plan import Node

MAX_LOSSES = 3
LOSS_SPREAD_MS = 3_000
MAX_DISPATCHES = 10


class Rule(NamedTuple):
    """One row of the retry matrix."""

    retried: bool
    initial_ms: int
    max_ms: int
    honours_retry_after: bool
    then: str


MATRIX: dict[ErrorClass, Rule] = {
    "TRANSIENT": Rule(True, 100, 30_000, False, "fails when its attempts are spent"),
    "RETRYABLE": Rule(True, 100, 30_000, False, "fails when its attempts are spent"),
    "RATE_LIMITED": Rule(True, 1_000, 300_000, True, "fails when its attempts are spent"),
    "DEPENDENCY_FAILED": Rule(True, 5_000, 300_000, True, "fails when its attempts are spent"),
    "NON_RETRYABLE": Rule(False, 0, 0, False, "fails at once"),
    "COMPENSATION_REQUIRED": Rule(False, 0, 0, False, "halts until a person decides"),
    "INDETERMINATE": Rule(True, 100, 30_000, False, "is decided by the step's safety declaration"),
}

# Error classes of common exceptions, by class name. The first name in the exception's ancestry that is listed decides.
# Names, because a definition is data and must mean the same in every process.
EXCEPTIONS: dict[str, ErrorClass] = {
    "ConnectionError": "TRANSIENT",
    "TimeoutError": "TRANSIENT",
    "InterruptedError": "TRANSIENT",
    "MemoryError": "TRANSIENT",
    "LLMTimeoutError": "TRANSIENT",
    "LLMServiceError": "TRANSIENT",
    "DiskError": "TRANSIENT",
    "LLMRateLimitError": "RATE_LIMITED",
    "InvalidOutputError": "RETRYABLE",
    # A response that cannot be parsed says nothing about the effect of the request.
    "JSONDecodeError": "INDETERMINATE",
    "UnicodeDecodeError": "INDETERMINATE",
    "ValueError": "NON_RETRYABLE",
    "TypeError": "NON_RETRYABLE",
    "AttributeError": "NON_RETRYABLE",
    "LookupError": "NON_RETRYABLE",
    "ArithmeticError": "NON_RETRYABLE",
    "AssertionError": "NON_RETRYABLE",
    "ImportError": "NON_RETRYABLE",
    "NotImplementedError": "NON_RETRYABLE",
    "FileNotFoundError": "NON_RETRYABLE",
    "PermissionError": "NON_RETRYABLE",
    "NotFoundError": "NON_RETRYABLE",
    "SchemaValidationError": "NON_RETRYABLE",
    "ValidationError": "NON_RETRYABLE",
    "AuthenticationError": "NON_RETRYABLE",
    "AuthorizationError": "NON_RETRYABLE",
    "TokenExpiredError": "NON_RETRYABLE",
    "InsufficientCreditsError": "NON_RETRYABLE",
    "QuotaExceededError": "NON_RETRYABLE",
    "FeatureNotEnabledError": "NON_RETRYABLE",
}


# The total number of attempts for failures with this code, if lower than the step's policy.
MAX_TRIES = {"MemoryError": 2}


def classify(ancestry: tuple[str, ...], step: Step, defaults: dict[str, ErrorClass]) -> ErrorClass:
    """Classifies a foreign exception: by the step's table, then its definition's, then the common one."""
    for table in (step.classify, defaults, EXCEPTIONS):
        for name in ancestry:
            if name in table:
                return table[name]
    return "INDETERMINATE" if step.safety == "NOT_SAFE_TO_RETRY" else "RETRYABLE"


class Judgement(NamedTuple):
    verdict: Verdict
    half_done: bool = False
    review: Literal["compensation", "indeterminate"] | None = None


def judge(
    step: Step,
    how: Literal["failed", "timed_out", "lost"],
    error_class: ErrorClass,
    *,
    tries: int,
    losses: int,
    may_repeat: bool,
    partial_effect: bool = False,
    code: str = "",
) -> Judgement:
    """Decides what follows an attempt that did not succeed. `tries` and `losses` include this one.

    `may_repeat` is false if no forward attempt may start any more: under a cancel, or in a closing scope.
    """
    half_done = (step.partial_effect or partial_effect) and step.compensation_handler is not None
    if how == "failed" and error_class == "COMPENSATION_REQUIRED":
        return Judgement("review", review="compensation")
    unknown = how != "failed" or error_class == "INDETERMINATE"
    match step.safety:
        case "SAFE_TO_RETRY":
            spent = losses > MAX_LOSSES if how == "lost" else not _may_retry(step, error_class, code, tries)
            again = may_repeat and not spent
            return Judgement("retry" if again else "fail", half_done)  # a cancel may end the step before its retry
        case "SAFE_TO_RETRY_WITH_GUARD":
            if unknown or (may_repeat and _may_retry(step, error_class, code, tries)):
                return Judgement("probe")
            return Judgement("fail", half_done)
        case "NOT_SAFE_TO_RETRY":
            refused = how == "failed" and error_class == "NON_RETRYABLE"
            if step.reconcile_handler is not None and not refused:
                return Judgement("probe")
            if unknown:
                return Judgement("review", review="indeterminate")
            if refused:
                return Judgement("fail", half_done)
            if step.compensation_handler is None or step.compensation_policy == "manual":
                return Judgement("review", review="compensation")
            return Judgement("fail", half_done=True)


def _may_retry(step: Step, error_class: ErrorClass, code: str, tries: int) -> bool:
    policy = step.retry_policy
    allowed = error_class == "INDETERMINATE" or error_class in policy.retry_on_classes
    limit = min(policy.max_attempts, MAX_TRIES.get(code, policy.max_attempts))
    return allowed and MATRIX[error_class].retried and tries < limit


def may_try_again(step: Step, tries: int, losses: int = 0, failure: Failure | None = None) -> bool:
    """Returns whether another attempt is left after a recorded "not done".

    `failure` is what the last attempt reported. Without one, it was lost, and the classes of the policy do not apply.
    """
    if failure is not None and not _may_retry(step, failure.error_class, failure.code, tries):
        return False
    return tries < step.retry_policy.max_attempts and losses <= MAX_LOSSES


def needs_begin(node: Node, ref: Ref) -> bool:
    """Whether a worker must record `AttemptBegun` before it calls the handler of this attempt."""
    return ref.phase == "forward" and not node.is_scope and node.step.safety == "NOT_SAFE_TO_RETRY"


def judge_undo(error_class: ErrorClass, tries: int, losses: int, max_attempts: int, *, lost: bool) -> Verdict:
    """Judges a failed compensation. Compensations are safe to repeat by contract, because they have a stable key."""
    if lost:
        return "retry" if losses <= MAX_LOSSES else "review"
    retried = MATRIX[error_class].retried and tries < max_attempts
    return "retry" if retried else "review"


def delay_ms(policy: RetryPolicy, error_class: ErrorClass, tries: int, retry_after_ms: int | None, *seed: str) -> int:
    """Returns the delay before the attempt that follows the `tries`-th failure."""
    rule = MATRIX[error_class]
    wanted, cap = uncapped_delay_ms(policy, error_class, tries)
    delay = min(wanted, cap)
    if policy.jitter:
        delay = round(delay * (1 + policy.jitter * (2 * chance(*seed, str(tries)) - 1)))
    if retry_after_ms is not None and rule.honours_retry_after:
        return max(delay, retry_after_ms)
    return delay


def loss_delay_ms(losses: int, *seed: str) -> int:
    """Returns the delay after the `losses`-th loss of an attempt.

    An attempt may kill its worker, and with it all other attempts, every time. The first loss is retried at once. From
    the second on, attempts are delayed by different times, so that waiting ones are not lost with the culprit.
    """
    return 0 if losses < 2 else round(LOSS_SPREAD_MS * 4 ** min(losses - 2, 3) * chance(*seed, str(losses)))


def uncapped_delay_ms(policy: RetryPolicy, error_class: ErrorClass, tries: int) -> tuple[int, int]:
    """Returns the delay that the policy asks for, and its maximum, which is at least the initial delay."""
    rule = MATRIX[error_class]
    initial = rule.initial_ms if policy.initial_delay_ms is None else policy.initial_delay_ms
    maximum = max(rule.max_ms, initial) if policy.max_delay_ms is None else policy.max_delay_ms
    growth = 1 << min(max(tries - 1, 0), 40) if policy.backoff_strategy == "exponential" else 1
    return initial * growth, maximum
