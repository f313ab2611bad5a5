"""Markers that would have no effect are refused, with the place where they belong."""

from typing import Annotated, Any

import pytest

from tenuto import (
    FromCompensationError,
    FromCompensationResult,
    FromStep,
    Header,
    Headers,
    Input,
    Required,
    Result,
    SagaBuilder,
    SagaContext,
    Variable,
    Variables,
    approval,
    step,
)
from tenuto.errors import DefinitionError


@step
def first() -> int:
    return 1


consent = approval()

MISPLACED: dict[str, tuple[Any, Any, str]] = {
    "FromStep as default": (int, FromStep(first), "Annotated[int, FromStep(step)]"),
    "FromStep class as default": (int, FromStep, "Annotated[int, FromStep(step)]"),
    "Input as default": (str, Input("key"), "Annotated[str, Input]"),
    "Input class as default": (str, Input, "Annotated[str, Input]"),
    "Result as default": (str, Result(), "Annotated[str, Result]"),
    "Header as default": (str, Header("x"), 'Annotated[str, Header("name")]'),
    "Headers as default": (dict[str, str], Headers, "Annotated[dict[str, str], Headers]"),
    "Variable as default": (str, Variable("x"), 'Annotated[str, Variable("name")]'),
    "Variables as default": (dict[str, Any], Variables(), "Annotated[dict[str, Any], Variables]"),
    "Required as default": (str, Required, "Annotated[str, Required]"),
    "a marker on both sides": (Annotated[int, FromStep("first")], FromStep("first"), "Annotated[int, FromStep(step)]"),
    "FromStep without its step": (Annotated[int, FromStep], ..., "Annotated[int, FromStep(step)]"),
    "FromCompensationResult without its step": (
        Annotated[int, FromCompensationResult],
        ...,
        "Annotated[int, FromCompensationResult(step)]",
    ),
    "FromCompensationError without its step": (
        Annotated[int, FromCompensationError],
        ...,
        "Annotated[int, FromCompensationError(step)]",
    ),
    "Header without its name": (Annotated[str, Header], ..., 'Annotated[str, Header("name")]'),
    "Variable without its name": (Annotated[str, Variable], ..., 'Annotated[str, Variable("name")]'),
    "a bare class beside a marker": (Annotated[int, Variable, Input], ..., 'Annotated[int, Variable("name")]'),
    "inside of a list": (list[Annotated[int, FromStep("first")]], ..., "Annotated[T, FromStep(step)]"),
    "inside of a union": (Annotated[int, FromStep] | None, ..., "Annotated[T, FromStep(step)]"),
    "as the type": (FromStep, ..., "Annotated[T, FromStep(step)]"),
    "as the type, with its step": (FromStep("first"), ..., "Annotated[T, FromStep(step)]"),
    "a step instead of a marker": (Annotated[int, first], ..., "Annotated[int, FromStep(step)]"),
    "an approval instead of a marker": (Annotated[int, consent], ..., "Annotated[int, FromStep(step)]"),
    "the context instead of a marker": (Annotated[int, SagaContext], ..., "with SagaContext itself"),
}


@pytest.mark.parametrize("name", MISPLACED)
def test_a_misplaced_marker_is_refused(name: str) -> None:
    annotation, default, told = MISPLACED[name]

    def second(value: Any) -> None: ...

    second.__annotations__["value"] = annotation
    second.__defaults__ = None if default is ... else (default,)
    with pytest.raises(DefinitionError) as refused:
        SagaBuilder("s").step("first", first).step("second", second).build()
    (problem,) = refused.value.problems
    assert (problem.path, problem.code) == ("step 'second', parameter 'value'", "marker")
    assert told in problem.message


@pytest.mark.parametrize("role", ["guard", "reconcile", "compensate"])
def test_the_other_functions_of_a_step_are_checked_too(role: str) -> None:
    def other(value: int = FromStep("first")) -> None: ...  # type: ignore[assignment]

    safety = {"guard": "safe_to_retry_with_guard", "reconcile": "not_safe_to_retry", "compensate": "safe_to_retry"}
    options: Any = {role: other, "safety": safety[role]}
    builder = SagaBuilder("s").step("first", first)
    with pytest.raises(DefinitionError, match="FromStep is its default value, which marks nothing"):
        builder.step("second", lambda: None, **options).build()


def test_other_metadata_of_an_annotation_is_left_alone() -> None:
    def second(value: Annotated[int, "metres", FromStep("first"), len]) -> int:
        return value

    SagaBuilder("s").step("first", first).step("second", second).build()
