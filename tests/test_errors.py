import copy
import pickle
from datetime import timedelta

import pytest

from tenuto import errors
from tenuto.errors import (
    DefinitionError,
    ExecutionFailed,
    InvalidInput,
    NonRetryableError,
    NotFound,
    Problem,
    RateLimitedError,
    StepError,
    TenutoError,
)

ERROR_CLASSES = {
    "TransientError": "TRANSIENT",
    "RetryableError": "RETRYABLE",
    "NonRetryableError": "NON_RETRYABLE",
    "RateLimitedError": "RATE_LIMITED",
    "DependencyFailedError": "DEPENDENCY_FAILED",
    "CompensationRequiredError": "COMPENSATION_REQUIRED",
    "IndeterminateError": "INDETERMINATE",
}


def test_the_docstring_is_the_default_message() -> None:
    assert str(NotFound()) == "The object does not exist, or it belongs to another tenant."
    assert str(StepError()) == "The step failed."


def test_a_message_replaces_the_default_and_a_hint_follows_it() -> None:
    error = NotFound("no execution 7", hint="list them with `tenuto ls`")
    assert error.message == "no execution 7"
    assert str(error) == "no execution 7\nWhat to do: list them with `tenuto ls`"


def test_a_code_can_be_given_for_one_instance() -> None:
    assert NotFound(code="no_such_execution").code == "no_such_execution"
    assert NotFound().code == NotFound.code == "not_found"


def test_a_users_subclass_inherits_message_class_and_code() -> None:
    class CardDeclined(NonRetryableError):
        pass

    error = CardDeclined()
    assert error.message == NonRetryableError().message
    assert (error.code, error.error_class) == ("non_retryable", "NON_RETRYABLE")


def test_there_is_one_exception_for_each_error_class() -> None:
    found = {cls.__name__: cls.error_class for cls in StepError.__subclasses__() if cls.__module__ == errors.__name__}
    assert found == ERROR_CLASSES


@pytest.mark.parametrize("retry_after", [2, 0.5, "2s", timedelta(seconds=2)])
def test_a_handler_says_how_long_to_wait(retry_after: float | str | timedelta) -> None:
    error = RateLimitedError("slow down", retry_after=retry_after)
    assert error.retry_after == retry_after
    assert not error.partial_effect


def test_a_definition_error_lists_every_problem() -> None:
    error = DefinitionError(
        problems=[Problem("/steps/0/next", "unknown_step", "no step 'pay'"), Problem("", "empty", "it has no steps")]
    )
    assert str(error) == "The definition is not valid.\n  /steps/0/next: no step 'pay'\n  it has no steps"
    assert [problem.code for problem in error.problems] == ["unknown_step", "empty"]


def test_one_problem_makes_an_error() -> None:
    error = InvalidInput.at("/amount", "missing", "is required")
    assert error.problems == (Problem("/amount", "missing", "is required"),)
    assert error.code == "input_invalid"


@pytest.mark.parametrize(
    "error",
    [
        NotFound("gone", code="gone", hint="look again"),
        RateLimitedError("slow down", retry_after="2s", partial_effect=True),
        DefinitionError("two things", problems=[Problem("/a", "b", "c")], hint="mend it"),
        ExecutionFailed(
            "no", execution_id="e1", status="failed", error_class="TRANSIENT", blocked={"reason": "review"}
        ),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickle_and_copy(error: TenutoError) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301  (our own bytes)
        assert type(twin) is type(error)
        assert vars(twin) == vars(error)
        assert (str(twin), twin.args) == (str(error), error.args)
