"""Translates settings to the kernel's definition: durations to milliseconds, choices to their canonical spelling."""

import re
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from tenuto.errors import InvalidInput
from tenuto.kernel.definition import (
    ERROR_CLASSES,
    RETRIED_BY_DEFAULT,
    CompensationOrder,
    Definition,
    ErrorClass,
    Node,
    Policies,
    RetryPolicy,
    Safety,
    Scope,
    Step,
)
from tenuto.values.credits import Amount, millionths
from tenuto.values.durations import Duration, milliseconds

from .markers import ExpandEach
from .problems import Problems
from .settings import (
    ApprovalSettings,
    GroupMode,
    GroupSettings,
    Retry,
    SagaSettings,
    SignalSettings,
    StepSettings,
    WaitSettings,
)
from .structure import Structure

_SIMPLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def step_expression(id: str) -> str:
    """Returns the CEL expression of a step: `steps.charge`, or `steps["a-b"]` if the id is not a CEL identifier."""
    return f"steps.{id}" if _SIMPLE.fullmatch(id) and id not in ("in", "true", "false", "null") else f'steps["{id}"]'


def attempt_timeout(given: int | None, step_timeout: int | None) -> int:
    """Returns the timeout of one attempt. Default: 30 s, or the step's deadline if that is shorter."""
    default = RetryPolicy().timeout_ms
    return given if given is not None else min(default, step_timeout or default)


class Translator:
    """Translates the settings of one step, group or saga, and reports problems with their place."""

    def __init__(self, where: str, problems: Problems) -> None:
        self.where = where
        self.problems = problems

    def refuse(self, keyword: str, code: str, text: str) -> None:
        self.problems.add(f"{self.where}, {keyword}" if keyword else self.where, code, text)

    def time(self, keyword: str, duration: Duration | None) -> int | None:
        if duration is None:
            return None
        try:
            return milliseconds(duration)
        except ValueError as error:
            self.refuse(keyword, "bad_duration", str(error))
            return None

    def amount(self, keyword: str, amount: Amount) -> int:
        try:
            return millionths(amount, zero=True)
        except InvalidInput as error:
            self.refuse(keyword, "invalid_amount", error.problems[0].message)
            return 0

    def choice(self, keyword: str, value: object, allowed: Any) -> Any:
        """Returns the canonical spelling of a choice, or the first choice if the value is none of them."""
        options: tuple[str, ...] = get_args(allowed)
        if value in options:
            return value
        if isinstance(value, str) and value == value.lower() and value.upper() in options:
            return value.upper()
        spelled = ", ".join(repr(option.lower()) for option in options)
        self.refuse(keyword, "unknown_word", f"{value!r} is not valid: use one of {spelled}")
        return options[0]

    def classify(self, table: Mapping[Any, Any]) -> dict[str, ErrorClass]:
        found: dict[str, ErrorClass] = {}
        for error, name in table.items():
            if not (isinstance(error, type) and issubclass(error, BaseException)):
                self.refuse("classify", "type", f"{error!r} is not an exception class")
            elif name not in ERROR_CLASSES:
                self.refuse(
                    "classify", "unknown_word", f"{name!r} is not an error class: use one of {', '.join(ERROR_CLASSES)}"
                )
            elif error.__name__ in found:
                self.refuse(
                    "classify",
                    "repeated",
                    f"two exception classes are named {error.__name__}, and names must be unique: remove one",
                )
            else:
                found[error.__name__] = name
        return found

    # -- Retries -------------------------------------------------------------------------------------------------------

    def retry_policy(self, settings: StepSettings, deadline: int | None) -> RetryPolicy:
        retry = self._retry("retry", settings.retry)
        return RetryPolicy(
            max_attempts=retry.max_attempts,
            backoff_strategy="fixed" if retry.backoff == "fixed" else "exponential",
            initial_delay_ms=self.time("retry, initial", retry.initial),
            max_delay_ms=self.time("retry, maximum", retry.maximum),
            jitter=float(retry.jitter) if isinstance(retry.jitter, int) else retry.jitter,
            timeout_ms=attempt_timeout(self.time("timeout", settings.timeout), deadline),
            retry_on_classes=RETRIED_BY_DEFAULT if retry.on is None else tuple(retry.on),
        )

    def _retry(self, keyword: str, given: object) -> Retry:
        if given is None:
            return Retry()
        if isinstance(given, Retry):
            self._check_retry(keyword, given)
            return given
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            self.refuse(keyword, "type", f"{given!r} is not valid: give a number of retries, or a Retry(…)")
            return Retry()
        return Retry(max_attempts=given + 1)

    def _check_retry(self, keyword: str, retry: Retry) -> None:
        if retry.backoff not in ("exponential", "fixed", "jittered"):
            text = f"{retry.backoff!r} is not valid: use one of 'exponential', 'fixed', 'jittered'"
            self.refuse(f"{keyword}, backoff", "unknown_word", text)
        for name in retry.on or ():
            if name not in ERROR_CLASSES:
                self.refuse(
                    f"{keyword}, on",
                    "unknown_word",
                    f"{name!r} is not an error class: use one of {', '.join(ERROR_CLASSES)}",
                )

    def compensation_retry(self, settings: StepSettings) -> tuple[int | None, int | None]:
        """Returns how many attempts a compensation has, and its backoff."""
        backoff = self.time("compensation_backoff", settings.compensation_backoff)
        given = settings.compensation_retry
        if given is None:
            return None, backoff
        retry = self._retry("compensation_retry", given)
        if (retry.backoff, retry.maximum, retry.jitter, retry.on) != ("exponential", None, 0.1, None):
            text = "a compensation uses only max_attempts and initial of a Retry: remove the other arguments"
            self.refuse("compensation_retry", "not_allowed", text)
        initial = self.time("compensation_retry, initial", retry.initial)
        return retry.max_attempts, initial if backoff is None else backoff

    # -- Steps ---------------------------------------------------------------------------------------------------------

    def step(self, id: str, settings: StepSettings, handlers: dict[str, str], structure: Structure) -> Step:
        deadline = self.time("deadline", settings.deadline)
        attempts, backoff = self.compensation_retry(settings)
        step = Step(
            id=id,
            type=self._step_type(settings.type),
            handler=handlers["handler"],
            depends_on=tuple(structure.depends_on.get(id, ())),
            when=settings.when,
            foreach=self.foreach(settings.foreach, structure),
            suffix=settings.suffix,
            max_concurrency=settings.max_concurrency,
            failure_mode=settings.failure_mode,
            timeout_ms=deadline,
            retry_policy=self.retry_policy(settings, deadline),
            safety=self.choice("safety", settings.safety, Safety),
            guard_handler=handlers.get("guard_handler"),
            reconcile_handler=handlers.get("reconcile_handler"),
            compensation_handler=handlers.get("compensation_handler"),
            compensation_policy=settings.compensation_policy,
            compensation_max_attempts=attempts,
            compensation_backoff_ms=backoff,
            compensation_timeout_ms=self.time("compensation_timeout", settings.compensation_timeout),
            compensation_critical=settings.compensation_critical,
            partial_effect=settings.partial_effect,
            queue=settings.queue,
            limits=tuple(settings.limits),
            classify=self.classify(settings.classify),
            idempotency_key=settings.idempotency_key,
            set_variable=settings.set_variable,
            estimate=self.amount("estimate", settings.estimate),
            reusable=settings.reusable,
        )
        self._check_values(step)
        return step

    def _step_type(self, given: str) -> Any:
        if given in ("task", "external_call", "notify"):
            return given
        text = (
            f"{given!r} is not valid for a function: use 'task', 'external_call' or 'notify', or approval() and wait()"
        )
        self.refuse("type", "unknown_word", text)
        return "task"

    def foreach(self, given: str | ExpandEach[Any] | None, structure: Structure) -> str | None:
        if not isinstance(given, ExpandEach):
            return given
        if given.source is None:
            text = "ExpandEach(items) belongs in StepInputs at start: here, use ExpandEach.from_step(step, path)"
            self.refuse("foreach", "misplaced", text)
            return None
        ref, path = given.source
        if not re.match(r"result\b", path):
            self.refuse("foreach", "bad_path", f'path {path!r} must begin with `result`, as in "result.people"')
        id = structure.id_of(ref, f"{self.where}, foreach")
        return None if id is None else f"{step_expression(id)}.{path}"

    def approval(self, id: str, settings: ApprovalSettings, structure: Structure) -> Step:
        return self._waiting(
            Step(
                id=id,
                type="human_approval",
                depends_on=tuple(structure.depends_on.get(id, ())),
                when=settings.when,
                timeout_ms=self.time("deadline", settings.deadline),
                permission=settings.permission,
            )
        )

    def wait(self, id: str, settings: WaitSettings, structure: Structure) -> Step:
        if (settings.duration is None) == (settings.until is None):
            self.refuse("", "ambiguous_wait", 'give either a duration or `until`, as in wait("10m")')
        payload: dict[str, Any] = {"duration_ms": self.time("duration", settings.duration)}
        if settings.until is not None:
            payload = {"until": f"${{{settings.until}}}"}
        return self._waiting(
            Step(
                id=id,
                type="wait",
                with_=payload,
                depends_on=tuple(structure.depends_on.get(id, ())),
                when=settings.when,
            )
        )

    def signal(self, id: str, settings: SignalSettings, structure: Structure) -> Step:
        return self._waiting(
            Step(
                id=id,
                type="wait",
                with_={"signal": settings.name},
                depends_on=tuple(structure.depends_on.get(id, ())),
                when=settings.when,
                timeout_ms=self.time("deadline", settings.deadline),
            )
        )

    def _waiting(self, step: Step) -> Step:
        self._check_values(step)
        return step

    def group(self, id: str, settings: GroupSettings, children: tuple[Node, ...], structure: Structure) -> Scope:
        scope = Scope(
            id=id,
            mode=self.choice("mode", settings.mode, GroupMode),
            depends_on=tuple(structure.depends_on.get(id, ())),
            when=settings.when,
            max_concurrency=settings.max_concurrency,
            failure_mode=settings.failure_mode,
            max_rounds=settings.max_rounds,
            timeout_ms=self.time("deadline", settings.deadline),
            repeat_until=settings.repeat_until,
            max_visits=settings.max_visits,
            fail_if_empty=settings.fail_if_empty,
        )
        self._check_values(scope)
        return msgspec.structs.replace(scope, children=children)

    def _check_values(self, struct: Step | Scope | Definition) -> None:
        """Finds wrong types and choices: msgspec checks them on conversion, not in constructors."""
        try:
            msgspec.convert(msgspec.to_builtins(struct), type(struct))
        except (msgspec.ValidationError, TypeError) as error:
            self.refuse("", "bad_value", _field_first(str(error)))

    # -- The definition ------------------------------------------------------------------------------------------------

    def definition(self, settings: SagaSettings, nodes: tuple[Node, ...], output: str | None) -> Definition:
        definition = Definition(
            name=settings.name,
            version=settings.version,
            mode="dag",
            scheduling=settings.scheduling,
            output=output,
            policies=Policies(
                timeout_ms=self.time("timeout", settings.timeout),
                compensation=self.choice("compensation", settings.compensation, CompensationOrder),
                cancel="compensate",
                max_concurrency=settings.layer_concurrency,
                concurrency_key=settings.concurrency_key,
                on_conflict=settings.on_conflict,
                classify=self.classify(settings.classify),
            ),
        )
        self._check_values(definition)
        return msgspec.structs.replace(definition, steps=nodes)


def _field_first(message: str) -> str:
    """ "Expected `int`, got `str` - at `$.max_concurrency`" with the field first."""
    why, _, place = message.partition(" - at `$.")
    return f"{place.rstrip('`')}: {why}" if place else why
