"""Checks and encodes the input of a definition, before anything is stored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import Raw

from tenuto.errors import InvalidInput, PayloadError, Problem, StepError
from tenuto.kernel.definition import JSON
from tenuto.values.codec import Decode, encode
from tenuto.values.schema import Schema, pointer

from .input_schemas import InputSchemas


@dataclass(frozen=True, slots=True)
class InputCheck:
    """Reads an input as one parameter does. An instance of `proof` needs no check."""

    read: Callable[[Raw], object]
    proof: Any = None


@dataclass(slots=True)
class InputEncoder:
    """Checks and encodes the input of a definition.

    If this process has the saga's code, `checks` and `by_step` read an input as the steps do. If not, `schemas` decide:
    they were derived from the code and stored with the definition. `schema` is the one that a document declares.
    """

    annotation: Any = None
    checks: tuple[InputCheck, ...] = ()
    by_step: Mapping[str, Decode] = field(default_factory=dict)
    schemas: InputSchemas | None = None
    schema: JSON = None
    only_by_step: bool = False  # declared as Saga[StepInputs, …]
    _schema: Schema | None = None

    def __post_init__(self) -> None:
        if self.schema is not None:
            self._schema = Schema(self.schema)

    @property
    def has_code(self) -> bool:
        """Whether this process has the saga's code, so that its stored schemas do not matter here."""
        return bool(self.checks or self.by_step)

    def __call__(self, value: object) -> Raw:
        if self.only_by_step:
            raise InvalidInput.at("/input", "by_step", "this saga takes inputs by step: pass StepInputs({…})")
        raw = encode(value, self.annotation, where="input")
        for check in self.checks:
            if type(value) is not check.proof:
                self._check(check.read, raw)
        if not self.checks and self.schemas is not None and (problems := self.schemas.problems_of(raw)):
            raise _refused(["input"], problems)
        if self._schema is not None and (problems := self._schema.problems_of(raw)):
            raise _refused(["input"], problems)
        return raw

    def _check(self, read: Callable[[Raw], object], raw: Raw) -> None:
        try:
            read(raw)
        except (PayloadError, StepError) as error:
            # The schema tells everything that is wrong, and knows the types; only the reader knows a type's own checks.
            problems = [] if self.schemas is None else self.schemas.problems_of(raw)
            raise _refused(["input"], problems or [_problem(error)]) from None

    def step(self, step: str, at: list[str | int], value: object, where: str) -> Raw:
        """Checks and encodes the input of one step."""
        raw = encode(value, where=where)
        decode = self.by_step.get(step)
        if decode is None:
            problems = [] if self.schemas is None else self.schemas.problems_of_step(step, raw)
        else:
            problems = self._problems_of_step(step, decode, raw)
        if problems:
            raise _refused(at, problems)
        return raw

    def _problems_of_step(self, step: str, decode: Decode, raw: Raw) -> list[Problem]:
        try:
            decode(raw)
        except PayloadError as error:
            problems = [] if self.schemas is None else self.schemas.problems_of_step(step, raw)
            return problems or [_problem(error)]
        return []


def _problem(error: PayloadError | StepError) -> Problem:
    path = list(error.path) if isinstance(error, PayloadError) else []
    return Problem(pointer(path), "type", error.message)


def _refused(at: list[str | int], problems: list[Problem]) -> InvalidInput:
    return InvalidInput(problems=[replace(each, path=pointer(at) + each.path) for each in problems])
