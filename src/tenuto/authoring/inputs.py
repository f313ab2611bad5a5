"""Encodes the input of an execution: one value for all steps, or inputs by step."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from msgspec import Raw

from tenuto.errors import InvalidInput, PayloadError, Problem
from tenuto.kernel.definition import FAN_OUT_LIMIT, GATHERED_LIMIT, JSON, plain_name
from tenuto.values.codec import Decode, encode
from tenuto.values.schema import Schema, pointer

from .markers import ExpandEach, StepInputs
from .program import Program

# Each input has the usual limit; this one is for all inputs of one execution together.
LIMIT_BY_STEP = GATHERED_LIMIT


class EncodedInput(NamedTuple):
    """An input as it is stored. `each` counts the items of the steps that their input fans out."""

    input: Raw
    by_step: bool
    each: dict[str, int]


@dataclass(slots=True)
class InputEncoder:
    """Checks and encodes the input of a definition."""

    annotation: Any = None
    decode: Decode | None = None
    by_step: Mapping[str, Decode] = field(default_factory=dict)
    schema: JSON = None
    _schema: Schema | None = None

    def __post_init__(self) -> None:
        if self.schema is not None:
            self._schema = Schema(self.schema)

    def __call__(self, value: object) -> Raw:
        raw = encode(value, self.annotation, where="input")
        # An instance of the annotated class needs no check; anything else is decoded to check it.
        if self.decode is not None and type(value) is not self.annotation:
            _check(["input"], self.decode, raw)
        if self._schema is not None and (problems := self._schema.problems_of(raw)):
            raise InvalidInput(problems=[replace(each, path=f"/input{each.path}") for each in problems])
        return raw


def encode_inputs(program: Program, value: object) -> EncodedInput:
    """Encodes the input. `StepInputs` become an object by step, an `ExpandEach` its items and their labels."""
    if not isinstance(value, StepInputs):
        return EncodedInput(program.encode_input(value), False, {})
    encoder = program.encode_input
    decoders = encoder.by_step if isinstance(encoder, InputEncoder) else {}
    _check_steps(program, value)
    parts: dict[str, Raw] = {}
    each: dict[str, int] = {}
    for step, given in value.by_step.items():
        if isinstance(given, ExpandEach):
            parts[step] = _items(step, given, decoders.get(step))
            each[step] = len(given.items)
        else:
            parts[step] = _one(f"input of step {step!r}", ["inputs", step, "value"], given, decoders.get(step))
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


def _one(where: str, at: list[str | int], value: object, decode: Decode | None) -> Raw:
    raw = encode(value, where=where)
    if decode is not None:
        _check(at, decode, raw)
    return raw


def _check(at: list[str | int], decode: Decode, raw: Raw) -> None:
    try:
        decode(raw)
    except PayloadError as error:
        raise InvalidInput.at(pointer([*at, *error.path]), "type", error.message) from None


def _items(step: str, given: ExpandEach[Any], decode: Decode | None) -> Raw:
    where = f"input of step {step!r}"
    at: list[str | int] = ["inputs", step, "each"]
    if given.source is not None:
        text = "ExpandEach.from_step belongs in the definition: use @step(foreach=ExpandEach.from_step(…))"
        raise InvalidInput.at(pointer(at), "misplaced", text)
    if len(given.items) > FAN_OUT_LIMIT:
        raise InvalidInput.at(
            pointer(at), "fan_out_limit", f"{len(given.items):,} items exceed the limit of {FAN_OUT_LIMIT:,}"
        )
    items = [_one(f"{where}, item {index}", [*at, index], item, decode) for index, item in enumerate(given.items)]
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
