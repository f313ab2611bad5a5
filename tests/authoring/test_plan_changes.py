"""The refusal of a changed plan names the options that changed."""

from typing import Any

import pytest

from tenuto import Engine, SagaBuilder
from tenuto.errors import DefinitionError


async def work() -> None:
    return None


def refusal(before: dict[str, Any], after: dict[str, Any], *, saga: dict[str, Any] | None = None) -> str:
    engine = Engine()
    engine.register(SagaBuilder("s").step("a", work, **before))
    with pytest.raises(DefinitionError) as refused:
        engine.register(SagaBuilder("s", **saga or {}).step("a", work, **after))
    (problem,) = refused.value.problems
    return problem.message


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({"timeout": "5s"}, {"timeout": "10s"}, "`timeout` of step `a`: 5 s stored, 10 s now"),
        ({"deadline": "2m"}, {"deadline": "90s"}, "`deadline` of step `a`: 2 min stored, 90 s now"),
        ({"retry": 1}, {"retry": 2}, "`retry, max_attempts` of step `a`: 2 stored, 3 now"),
        ({}, {"queue": "gpu"}, "`queue` of step `a`: none stored, 'gpu' now"),
    ],
)
def test_the_option_is_named_with_both_values(before: dict[str, Any], after: dict[str, Any], text: str) -> None:
    assert refusal(before, after) == f"{text}; set `version=2` in `@saga`"


def test_an_option_of_the_saga_is_named() -> None:
    text = "`timeout` of the saga: none stored, 1 h now; set `version=2` in `@saga`"
    assert refusal({}, {}, saga={"timeout": "1h"}) == text


async def test_a_json_definition_is_told_the_field() -> None:
    step = {"step_id": "a", "handler": "log", "type": "notify", "timeout_ms": 60_000}
    async with Engine() as engine:
        await engine.apply({"name": "d", "steps": [step]})
        with pytest.raises(DefinitionError) as refused:
            await engine.apply({"name": "d", "steps": [{**step, "timeout_ms": 61_000}]})
    (problem,) = refused.value.problems
    assert problem.path == "/steps/a/timeout_ms"
    assert problem.message == "`timeout_ms` of step `a`: 1 min stored, 61 s now; give the definition a new `version`"
