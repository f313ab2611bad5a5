"""Encodes the input of an execution: one value for all steps, or inputs by step."""

from typing import Any, NamedTuple

from msgspec import Raw

from tenuto.errors import InvalidInput, Problem
from tenuto.kernel.definition import FAN_OUT_LIMIT, GATHERED_LIMIT, plain_name
from tenuto.values.codec import encode
from tenuto.values.schema import pointer

from .input_encoder import InputEncoder
from .markers import ExpandEach, StepInputs
from .program import Program

# Each input has the usual limit; this one is for all inputs of one execution together.
LIMIT_BY_STEP = GATHERED_LIMIT


class EncodedInput(NamedTuple):
    """An input as it is stored. `each` counts the items of the steps that their input fans out."""

    input: Raw
    by_step: bool
    each: dict[str, int]


def encode_inputs(program: Program, value: object) -> EncodedInput:
    """Encodes the input. `StepInputs` become an object by step, an `ExpandEach` its items and their labels."""
    if not isinstance(value, StepInputs):
        return EncodedInput(program.encode_input(value), False, {})
    encoder = program.encode_input
    _check_steps(program, value)
    parts: dict[str, Raw] = {}
    each: dict[str, int] = {}
    for step, given in value.by_step.items():
        if isinstance(given, ExpandEach):
            parts[step] = _items(step, given, encoder)
            each[step] = len(given.items)
        else:
            parts[step] = encoder.step(step, ["inputs", step, "value"], given, f"input of step {step!r}")
    return EncodedInput(encode(parts, where="input", limit=LIMIT_BY_STEP), True, each)


def _check_steps(program: Program, inputs: StepInputs) -> None:
    if program.plan.definition.input_schema is not None:
        raise InvalidInput.at(
            "/inputs",
            "by_step",
            "this definition has an input schema: give one input for all steps",
        )
    leaves = {node.id for node in program.plan.root.walk() if not node.is_scope}
    problems = [
        Problem(
            pointer(["inputs", step]),
            "unknown_step",
            f"{plain_name(program.name)!r} has no step {step!r}; steps are {', '.join(sorted(leaves))}",
        )
        for step in inputs.by_step
        if step not in leaves
    ]
    if problems:
        raise InvalidInput(problems=problems)


def _items(step: str, given: ExpandEach[Any], encoder: InputEncoder) -> Raw:
    where = f"input of step {step!r}"
    at: list[str | int] = ["inputs", step, "each"]
    if given.source is not None:
        text = "ExpandEach.from_step belongs in the definition: use @step(foreach=ExpandEach.from_step(…))"
        raise InvalidInput.at(pointer(at), "misplaced", text)
    if len(given.items) > FAN_OUT_LIMIT:
        raise InvalidInput.at(
            pointer(at), "fan_out_limit", f"{len(given.items):,} items exceed the limit of {FAN_OUT_LIMIT:,}"
        )
    items = [encoder.step(step, [*at, index], item, f"{where}, item {index}") for index, item in enumerate(given.items)]
    return encode({"items": items, "labels": _labels(step, given)}, where=where, limit=LIMIT_BY_STEP)


def _labels(step: str, given: ExpandEach[Any]) -> list[str]:
    if given.suffix is None:
        return [str(index) for index in range(len(given.items))]
    labels: dict[str, int] = {}
    for index, item in enumerate(given.items):
        label = str(given.suffix(item))
        if not label.strip():
            text = "the suffix of this item is blank: every clone needs a name"
            raise InvalidInput.at(pointer(["inputs", step, "labels", index]), "blank_suffix", text)
        if label in labels:
            text = f"this item has the same suffix as item {labels[label]}: suffixes must be unique"
            raise InvalidInput.at(pointer(["inputs", step, "labels", index]), "duplicate_suffix", text)
        labels[label] = index
    return list(labels)
