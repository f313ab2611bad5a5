"""The settings of sagas and steps as written. The compiler checks and translates them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, Literal, NoReturn, TypeAlias, TypedDict, TypeVar

from tenuto.kernel.definition import MAX_VISITS, ErrorClass, FailureMode, Scheduling
from tenuto.values.credits import Amount
from tenuto.values.durations import Duration

from .context import STEP_ID_ATTRIBUTE
from .markers import ExpandEach, StepRef

T_co = TypeVar("T_co", covariant=True)

Safety = Literal["safe_to_retry", "safe_to_retry_with_guard", "not_safe_to_retry"]
Compensation = Literal[
    "strict_sequential", "grouped_parallel", "retry_with_backoff", "circuit_breaker", "best_effort_parallel"
]
GroupMode = Literal["sequence", "parallel", "dag"]
Classify: TypeAlias = Mapping[type[Exception], ErrorClass]


def several(given: Iterable[Any]) -> tuple[Any, ...]:
    """Returns a tuple. A single name or function becomes a tuple of one; a generator can be read only once."""
    return (given,) if isinstance(given, str) or callable(given) else tuple(given)


@dataclass(frozen=True, slots=True)
class Retry:
    """The retry policy of a step. Default delays depend on the error class and double up to 30 s."""

    max_attempts: int = 3
    _: KW_ONLY
    backoff: Literal["exponential", "fixed", "jittered"] = "exponential"
    initial: Duration | None = None
    maximum: Duration | None = None
    jitter: float = 0.1
    on: Iterable[ErrorClass] | None = None


class StepOptions(TypedDict, total=False):
    """The options of `@step`, `@external_step` and `SagaBuilder.step`. `timeout` limits one attempt."""

    depends_on: Iterable[StepRef]
    type: Literal["task", "external_call", "notify"]
    timeout: Duration | None
    deadline: Duration | None
    retry: Retry | int | None
    safety: Safety
    guard: StepRef | None
    reconcile: StepRef | None
    compensate: StepRef | None
    compensation_policy: Literal["auto", "manual"]
    compensation_retry: Retry | int | None
    compensation_backoff: Duration | None
    compensation_timeout: Duration | None
    compensation_critical: bool
    partial_effect: bool
    when: str | None
    foreach: str | ExpandEach[Any] | None
    suffix: str | None
    max_concurrency: int
    failure_mode: Literal["fail_fast", "continue"]
    limits: Iterable[str]
    queue: str | None
    classify: Classify
    idempotency_key: str | None
    set_variable: str | None
    estimate: Amount
    reusable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    depends_on: Iterable[StepRef] = ()
    type: str = "task"
    timeout: Duration | None = None
    deadline: Duration | None = None
    retry: Retry | int | None = None
    safety: str = "safe_to_retry"
    guard: StepRef | None = None
    reconcile: StepRef | None = None
    compensate: StepRef | None = None
    compensation_policy: Literal["auto", "manual"] = "auto"
    compensation_retry: Retry | int | None = None
    compensation_backoff: Duration | None = None
    compensation_timeout: Duration | None = None
    compensation_critical: bool = False
    partial_effect: bool = False
    when: str | None = None
    foreach: str | ExpandEach[Any] | None = None
    suffix: str | None = None
    max_concurrency: int = 0
    failure_mode: Literal["fail_fast", "continue"] = "fail_fast"
    limits: Iterable[str] = ()
    queue: str | None = None
    classify: Classify = field(default_factory=dict)
    idempotency_key: str | None = None
    set_variable: str | None = None
    estimate: Amount = "0"
    reusable: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "depends_on", several(self.depends_on))
        object.__setattr__(self, "limits", several(self.limits))


class SagaOptions(TypedDict, total=False):
    """The options of `@saga` and `SagaBuilder`."""

    version: int
    compensation: Compensation
    scheduling: Scheduling
    layer_concurrency: int
    timeout: Duration | None
    output: StepRef | None
    concurrency_key: str | None
    on_conflict: Literal["queue", "reject"]
    classify: Classify


@dataclass(frozen=True, slots=True, kw_only=True)
class SagaSettings:
    name: str
    version: int = 1
    compensation: str = "strict_sequential"
    scheduling: Scheduling = "layered"
    layer_concurrency: int = 0
    timeout: Duration | None = None
    output: StepRef | None = None
    concurrency_key: str | None = None
    on_conflict: Literal["queue", "reject"] = "queue"
    classify: Classify = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSettings:
    depends_on: Iterable[StepRef] = ()
    when: str | None = None
    deadline: Duration | None = None
    permission: str | None = None
    data: Any = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSettings:
    depends_on: Iterable[StepRef] = ()
    when: str | None = None
    duration: Duration | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSettings:
    depends_on: Iterable[StepRef] = ()
    when: str | None = None
    name: str
    payload: Any = Any
    deadline: Duration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    members: tuple[StepRef, ...]
    depends_on: Iterable[StepRef] = ()
    when: str | None = None
    mode: GroupMode = "sequence"
    max_concurrency: int = 0
    failure_mode: FailureMode = "fail_fast"
    max_rounds: int = 3
    repeat_until: str | None = None
    max_visits: int = MAX_VISITS
    deadline: Duration | None = None
    fail_if_empty: bool = False


DeclaredSettings: TypeAlias = ApprovalSettings | WaitSettings | SignalSettings | GroupSettings
AnySettings: TypeAlias = StepSettings | DeclaredSettings


class Declared(Generic[T_co]):
    """A step that is not a function, named by its class attribute. `result_of(Order.paid)` has its result type.

    For type checkers it is a callable that returns the result, so that it can be used as a step reference.
    """

    def __init__(self, settings: DeclaredSettings, id: str | None = None) -> None:
        self.settings = settings
        self.id = id

    def __set_name__(self, owner: type, name: str) -> None:
        if self.id is None:
            self.id = name

    def __getattr__(self, name: str) -> str:
        if name in (STEP_ID_ATTRIBUTE, "__name__") and self.id is not None:
            return self.id
        raise AttributeError(name)

    def __call__(self, *args: Any, **keywords: Any) -> T_co:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise TypeError(f"step {self.id!r} cannot be called: it is not a function")


@dataclass(frozen=True, slots=True)
class ExternalStep:
    """A step declared outside of the class of its saga."""

    saga: object
    id: str
    settings: StepSettings


@dataclass(frozen=True, slots=True)
class ExternalCompensation:
    saga: object
    for_step: StepRef


# Attributes that decorators set.
STEP = "__tenuto_step__"
SAGA = "__tenuto_saga__"
EXTERNAL_STEPS = "__tenuto_external_steps__"
EXTERNAL_COMPENSATIONS = "__tenuto_external_compensations__"
HANDLER_NAMES = "__tenuto_handlers__"


def attach(function: Callable[..., Any], attribute: str, value: object) -> None:
    """Sets an attribute on a function, and on the function inside a static or class method."""
    for target in (function, getattr(function, "__func__", None)):
        if target is not None:
            setattr(target, attribute, value)
