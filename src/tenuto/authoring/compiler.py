"""Compiles a saga's source to a program: the definition, its handlers, and the types of their results.

An author sees all problems at once. Each stage records its problems and continues as far as it can; after the last
stage, the program is built, or `DefinitionError` is raised.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import GenericAlias
from typing import Any

from msgspec import Raw

from tenuto.errors import ExpressionError, PayloadError
from tenuto.kernel import validation
from tenuto.kernel.definition import Definition, Node, Scope
from tenuto.kernel.expression import compile_expression, compile_template
from tenuto.kernel.plan import Plan
from tenuto.values.codec import Decode, decoder, encoder
from tenuto.values.hooks import field_names

from .annotations import describe, fits, is_unknown, members
from .applicability import find_inapplicable
from .binding import bind, bind_input
from .functions import StepFunctions, read_functions
from .input_encoder import InputCheck, InputEncoder
from .input_schemas import InputReader, derive_input_schemas
from .markers import (
    ExpandEach,
    FromCompensationError,
    FromCompensationResult,
    FromStep,
    Input,
    StepInputs,
    StepRef,
)
from .outcome import Done
from .problems import Problems, in_python_terms
from .program import Handler, HandlerKind, Program
from .saga_source import SagaSource, StepSource
from .settings import ApprovalSettings, GroupSettings, SignalSettings, StepSettings, WaitSettings
from .signature import EMPTY, Parameter, Signature
from .step_results import Offer, read_problem
from .structure import ROOT, Structure, structure_of
from .translator import Translator, step_expression


def compile_source(source: SagaSource, problems: Problems) -> Program:
    """Returns the program. Raises `DefinitionError` with every problem."""
    draft = _Draft(source, structure_of(source, problems), {}, problems)
    for step in draft.structure.steps.values():
        if isinstance(step.settings, StepSettings):
            draft.functions[step.id] = read_functions(step, source, problems)
    _check_reads(draft)
    _check_input(draft)
    _add_dependencies(draft)
    definition = _definition(draft)
    if not any(problem.code == "bad_value" for problem in problems.found):
        for problem in [*validation.problems(definition), *find_inapplicable(definition)]:
            problems.add(*in_python_terms(problem, definition))
    problems.raise_any(f"Saga {source.settings.name!r}")
    return _program(draft, definition)


@dataclass(slots=True)
class _Draft:
    source: SagaSource
    structure: Structure
    functions: dict[str, StepFunctions]
    problems: Problems

    @property
    def name(self) -> str:
        return self.source.settings.name

    @property
    def output(self) -> str | None:
        ref = self.source.settings.output
        return None if ref is None else self.structure.find(ref)


# -- Agents of runs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentParts:
    """The class of an agent, compiled: the scope that each agent of it copies, and how its values are decoded."""

    name: str
    scope: Scope
    handlers: tuple[Handler, ...]
    results: dict[str, Decode]
    decode_input: Decode
    decode_output: Decode


def compile_agent(source: SagaSource, name: str, settings: GroupSettings, problems: Problems) -> AgentParts:
    """Compiles the steps of an agent's class. `settings` are those of the scope around them."""
    id = f"{name}-0"  # no agent has this number
    source.steps.append(StepSource(id, settings, settings))
    draft = _Draft(source, structure_of(source, problems), {}, problems)
    for step in draft.structure.steps.values():
        if isinstance(step.settings, StepSettings):
            draft.functions[step.id] = read_functions(step, source, problems)
    _check_reads(draft)
    _check_input(draft)
    _add_dependencies(draft)
    _check_handler_names(draft)
    scope = _node(draft, id)
    assert isinstance(scope, Scope)
    leaves = _leaves(draft)
    last = _last_leaf(scope)
    given = _result_type(draft, last) if last is not None else Any
    if not fits(given, source.output):
        text = f"its last step returns {describe(given)}, but the agent declares {describe(source.output)}"
        problems.add(f"agent {name!r}", "type", text)
    return AgentParts(
        name=name,
        scope=scope,
        handlers=tuple(_handlers(draft)),
        results={leaf: decoder(_offer(draft, leaf).result, where=f"result of step {leaf!r}") for leaf in leaves},
        decode_input=decoder(source.input, where=f"input of agent {name!r}"),
        decode_output=decoder(source.output, where=f"output of agent {name!r}"),
    )


def _last_leaf(scope: Scope) -> str | None:
    """Returns the step whose result is the agent's output: the last one as written."""
    if not scope.children:
        return None
    last = scope.children[-1]
    return _last_leaf(last) if isinstance(last, Scope) else last.id


def input_encoder(source: SagaSource, problems: Problems) -> InputEncoder:
    """Returns the encoder of a run's input. The agents of a planned run have inputs of their own."""
    return _input_encoder(_Draft(source, structure_of(source, problems), {}, problems))


# -- Data flow between steps -------------------------------------------------------------------------------------------


def _check_reads(draft: _Draft) -> None:
    for where, signature in _signatures(draft):
        for parameter in signature.marked(FromStep, FromCompensationResult, FromCompensationError):
            _check_read(draft, parameter, f"{where}, parameter {parameter.name!r}")


def _check_input(draft: _Draft) -> None:
    """A step that takes the input as another type than the saga declares could never be called."""
    declared = draft.source.input
    if declared is StepInputs:
        return
    for id, parameter in _input_parameters(draft):
        assert isinstance(parameter.source, Input)
        if parameter.source.key is None and not fits(declared, parameter.annotation):
            text = (
                f"the input of the saga is {describe(declared)}, but the parameter is annotated "
                f"{describe(parameter.annotation)}: change one of them, mark the parameter, as in "
                "Annotated[T, FromStep(step)], or declare Saga[StepInputs, …] if each step has its own input"
            )
            draft.problems.add(f"step {id!r}, parameter {parameter.name!r}", "type", text)


def _signatures(draft: _Draft) -> Iterator[tuple[str, Signature]]:
    for id, functions in draft.functions.items():
        for role, signature in functions.readers():
            yield f"step {id!r}{role}", signature
        if functions.compensation is not None:
            yield f"step {id!r}, compensation", functions.compensation


def _check_read(draft: _Draft, parameter: Parameter, where: str) -> None:
    source = parameter.source
    assert isinstance(source, FromStep | FromCompensationResult | FromCompensationError)
    id = draft.structure.id_of(source.step, where)
    if id is None:
        return
    step, _, clone = id.partition("#")
    why = read_problem(parameter, _offer(draft, step), bool(clone))
    if why is not None:
        draft.problems.add(where, "type", f"step {step!r}: {why}")


def _offer(draft: _Draft, id: str) -> Offer:
    match draft.structure.steps[id].settings:
        case StepSettings() as settings:
            functions = draft.functions[id]
            return Offer(
                functions.result,
                is_fan_out=settings.foreach is not None,
                may_skip=settings.failure_mode == "continue",
                is_compensated=functions.compensation is not None,
                undone_result=functions.compensation.result if functions.compensation is not None else Any,
            )
        case ApprovalSettings(data=data):
            return Offer(data)
        case SignalSettings(payload=payload):
            return Offer(payload)
        case WaitSettings():
            return Offer(None)
        case GroupSettings():
            return Offer(None, is_group=True)


def _add_dependencies(draft: _Draft) -> None:
    structure = draft.structure
    for id, step in structure.steps.items():
        where = f"{'group' if isinstance(step.settings, GroupSettings) else 'step'} {id!r}"
        for ref in step.settings.depends_on:
            named = structure.id_of(ref, f"{where}, depends_on")
            if named is not None:
                structure.wait_for(id, named.partition("#")[0], f"{where}, depends_on")
        for read in _reads(draft, step):
            structure.wait_for(id, read, where)


def _reads(draft: _Draft, step: StepSource) -> Iterator[str]:
    """Yields the steps whose results this step reads, by parameters or in expressions."""
    structure = draft.structure
    found = [ref for ref in _refs_of(draft, step) if (id := structure.find(ref)) is not None]
    for ref in found:
        id = (structure.find(ref) or "").partition("#")[0]
        group = isinstance(structure.steps[id].settings, GroupSettings)
        if id != step.id and not group:
            yield id


def _refs_of(draft: _Draft, step: StepSource) -> Iterator[StepRef]:
    functions = draft.functions.get(step.id)
    for _, signature in functions.readers() if functions is not None else ():
        yield from (p.source.step for p in signature.parameters if isinstance(p.source, FromStep))
    settings = step.settings
    if isinstance(settings, StepSettings):
        yield from _read_by_foreach(settings.foreach)
        yield from _read_by_template(settings.idempotency_key)
    if isinstance(settings, WaitSettings):
        yield from _read_by_expression(settings.until)
    yield from _read_by_expression(settings.when)


def _read_by_foreach(foreach: str | ExpandEach[Any] | None) -> tuple[StepRef, ...]:
    if isinstance(foreach, ExpandEach):
        return (foreach.source[0],) if foreach.source is not None else ()
    return _read_by_expression(foreach)


def _read_by_expression(source: object) -> tuple[str, ...]:
    try:
        return compile_expression(source).steps if isinstance(source, str) else ()
    except ExpressionError:  # validation reports it
        return ()


def _read_by_template(source: object) -> tuple[str, ...]:
    try:
        return compile_template(source).steps if isinstance(source, str) else ()
    except ExpressionError:
        return ()


# -- The definition ----------------------------------------------------------------------------------------------------


def _definition(draft: _Draft) -> Definition:
    settings = draft.source.settings
    saga = Translator(f"saga {settings.name!r}", draft.problems)
    _check_output(draft, saga)
    _check_handler_names(draft)
    nodes = tuple(_node(draft, id) for id in draft.structure.members[ROOT])
    return saga.definition(settings, nodes, _output_template(draft.output))


def _output_template(output: str | None) -> str | None:
    return None if output is None else f"${{{step_expression(output)}.result}}"


def _check_output(draft: _Draft, saga: Translator) -> None:
    ref = draft.source.settings.output
    id = draft.structure.id_of(ref, f"{saga.where}, output") if ref is not None else None
    if id is None:
        return
    if "#" in id:
        saga.refuse("output", "unknown_step", "one clone cannot be the output: name the whole step")
        return
    given = _result_type(draft, id)
    if not fits(given, draft.source.output):
        text = f"step {id!r} returns {describe(given)}, but the saga declares {describe(draft.source.output)}"
        saga.refuse("output", "type", text)


def _result_type(draft: _Draft, id: str) -> Any:
    offer = _offer(draft, id)
    return GenericAlias(list, (offer.result | None,)) if offer.is_fan_out and offer.result is not Any else offer.result


def _node(draft: _Draft, id: str) -> Node:
    structure = draft.structure
    settings = structure.steps[id].settings
    kind = "group" if isinstance(settings, GroupSettings) else "step"
    translator = Translator(f"{kind} {id!r}", draft.problems)
    match settings:
        case StepSettings():
            return translator.step(id, settings, _handler_names(draft.name, id, draft.functions[id]), structure)
        case ApprovalSettings():
            return translator.approval(id, settings, structure)
        case WaitSettings():
            return translator.wait(id, settings, structure)
        case SignalSettings():
            return translator.signal(id, settings, structure)
        case GroupSettings():
            children = tuple(_node(draft, member) for member in structure.members[id])
            return translator.group(id, settings, children, structure)


def _check_handler_names(draft: _Draft) -> None:
    """Step ids may contain dots, so a step's handler can get the name of another step's compensation."""
    owners: dict[str, str] = {}
    for id, functions in draft.functions.items():
        for name in _handler_names(draft.name, id, functions).values():
            first = owners.setdefault(name, id)
            if first != id:
                text = f"its handler name {name!r} is already used by step {first!r}: rename one of the steps"
                draft.problems.add(f"step {id!r}", "duplicate_handler", text)


def _handler_names(saga: str, id: str, functions: StepFunctions) -> dict[str, str]:
    names = {"handler": f"{saga}.{id}"}
    if functions.guard is not None:
        names["guard_handler"] = f"{saga}.{id}.guard"
    if functions.reconcile is not None:
        names["reconcile_handler"] = f"{saga}.{id}.reconcile"
    if functions.compensation is not None:
        names["compensation_handler"] = f"{saga}.{id}.compensate"
    return names


# -- The program -------------------------------------------------------------------------------------------------------


def _program(draft: _Draft, definition: Definition) -> Program:
    results = {id: decoder(_offer(draft, id).result, where=f"result of step {id!r}") for id in _leaves(draft)}
    return Program(
        plan=Plan(definition),
        handlers={handler.name: handler for handler in _handlers(draft)},
        encode_input=_input_encoder(draft),
        decode_output=_output_decoder(draft),
        decode_result=results,
        decode_compensation={
            id: decoder(functions.compensation.result, where=f"result of the compensation of step {id!r}")
            for id, functions in draft.functions.items()
            if functions.compensation is not None
        },
        output_step=draft.output,
    )


def _leaves(draft: _Draft) -> list[str]:
    return [id for id, step in draft.structure.steps.items() if not isinstance(step.settings, GroupSettings)]


def _input_encoder(draft: _Draft) -> InputEncoder:
    declared = draft.source.input
    by_step = {id: functions.input for id, functions in draft.functions.items()}
    decoders = {id: decoder(annotation, where="input") for id, annotation in by_step.items()}
    if declared is StepInputs:
        return InputEncoder(by_step=decoders, schemas=derive_input_schemas((), by_step), only_by_step=True)
    readers = list(_input_readers(draft))
    if declared is not Any:
        readers.insert(0, (_declared_reader(declared, readers), decoder(declared, where="input")))
    known: list[InputReader] = []
    checks: list[InputCheck] = []
    for reader, read in readers:
        alike = replace(reader, where="")
        if alike not in known:
            known.append(alike)
            checks.append(InputCheck(read, _proof(reader)))
    return InputEncoder(
        annotation=None if declared is Any else declared,
        checks=tuple(checks),
        by_step=decoders,
        schemas=derive_input_schemas((reader for reader, _ in readers), by_step),
    )


def _proof(reader: InputReader) -> Any:
    """Returns the class whose instances need no check. Dataclasses and their like accept any value in a field."""
    return None if reader.key is not None or field_names(reader.annotation) is not None else reader.annotation


def _declared_reader(declared: Any, readers: list[tuple[InputReader, Callable[[Raw], object]]]) -> InputReader:
    first = next((reader for reader, _ in readers if reader.key is None), None)
    return InputReader("the saga" if first is None else first.where, declared)


def _input_readers(draft: _Draft) -> Iterator[tuple[InputReader, Callable[[Raw], object]]]:
    """Yields the parameters that read the execution's input in every execution: those of steps without a condition."""
    for id, parameter in _input_parameters(draft):
        if _is_conditional(draft, id) or is_unknown(parameter.annotation):
            continue
        where, source = f"step {id!r}", parameter.source
        assert isinstance(source, Input)
        reader = InputReader(
            f"{where}, parameter {parameter.name!r}",
            parameter.annotation,
            source.key,
            is_required=parameter.required and parameter.default is EMPTY,
            is_optional=parameter.default is not EMPTY,
        )
        yield reader, bind_input(parameter, where)


def _input_parameters(draft: _Draft) -> Iterator[tuple[str, Parameter]]:
    """Yields the parameters that read the execution's input. A clone of a fan-out reads its item instead."""
    for id, functions in draft.functions.items():
        settings = draft.structure.steps[id].settings
        if isinstance(settings, StepSettings) and settings.foreach is None:
            yield from ((id, parameter) for parameter in functions.forward.marked(Input))


def _is_conditional(draft: _Draft, id: str) -> bool:
    return any(draft.structure.steps[each].settings.when is not None for each in draft.structure.lineage(id))


def _output_decoder(draft: _Draft) -> Decode:
    if draft.output is None:
        return decoder(draft.source.output, where="output")
    result = _offer(draft, draft.output).result
    one = decoder(result, where="output")
    many = decoder(GenericAlias(list, (result | None if result is not None else Any,)), where="output")

    def decode(raw: Raw | None) -> object:
        # StepInputs can fan out any step, so the output may be one result or a list.
        try:
            return one(raw)
        except PayloadError:
            if raw is None or bytes(raw)[:1] != b"[":
                raise
            return many(raw)

    return decode


def _handlers(draft: _Draft) -> Iterator[Handler]:
    for id, functions in draft.functions.items():
        names = _handler_names(draft.name, id, functions)
        signatures: list[tuple[str, HandlerKind, Signature | None]] = [
            ("handler", "step", functions.forward),
            ("guard_handler", "probe", functions.guard),
            ("reconcile_handler", "probe", functions.reconcile),
            ("compensation_handler", "compensation", functions.compensation),
        ]
        for field, kind, signature in signatures:
            if signature is not None:
                gives = functions.result if kind == "probe" else signature.result
                yield make_handler(names[field], kind, signature, gives, f"step {id!r}", _name_of(draft.structure))


def _name_of(structure: Structure) -> Callable[[StepRef], str]:
    def name_of(ref: StepRef) -> str:
        id = structure.find(ref)
        assert id is not None, "a program is only built when every step reference is valid"
        return id

    return name_of


def make_handler(
    name: str, kind: HandlerKind, signature: Signature, gives: Any, where: str, name_of: Callable[[StepRef], str]
) -> Handler:
    """`gives` is the type of the result. For a probe it is the result type of the step that it checks."""
    needs, invoke = bind(signature, where, name_of)
    return Handler(
        name=name,
        kind=kind,
        is_async=signature.is_async,
        needs=needs,
        invoke=invoke,
        encode=result_encoder(gives, f"result of {where}"),
        read=invoke.read,
    )


def result_encoder(annotation: Any, where: str) -> Callable[[object], Raw | None]:
    """Encodes a result, and checks that it can be decoded as its declared type before it is stored."""
    unknown = annotation is Any or any(is_unknown(part) for part in members(annotation))
    exact = type(None) if annotation is None else annotation
    has_unchecked_fields = field_names(annotation) is not None  # dataclasses and their like accept any value in a field
    to_json = encoder(None if unknown else annotation, where=where)
    read = decoder(annotation, where=where)

    def encode(value: object) -> Raw | None:
        if isinstance(value, Done):  # a probe found the step's result
            value = value.result
        raw = None if value is None else to_json(value)
        if not unknown and (type(value) is not exact or has_unchecked_fields):
            try:
                read(_NULL if raw is None else raw)
            except PayloadError as error:
                raise PayloadError(error.message, code="invalid_result") from None
        return raw

    return encode


_NULL = Raw(b"null")
