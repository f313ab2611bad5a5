"""From what was gathered to a program: one definition, the handlers it names, and the types of what they give.

Everything that is wrong is told at once. So each stage notes its problems and goes on as far as it can, and only when
all stages have spoken is the program made, or refused.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import GenericAlias
from typing import Any

from msgspec import Raw

from tenuto.errors import ExpressionError, PayloadError
from tenuto.kernel import validation
from tenuto.kernel.definition import Definition, Node
from tenuto.kernel.expression import compile_expression, compile_template
from tenuto.kernel.plan import Plan
from tenuto.values.codec import Decode, decoder, encoder

from .binding import bind
from .functions import StepFunctions, read_functions
from .gather import Material, Piece
from .inputs import InputEncoder
from .markers import ExpandEach, FromCompensationError, FromCompensationResult, FromStep, StepRef
from .matching import describe, fits, is_unknown, members
from .outcome import Done
from .problems import Problems
from .program import Handler, HandlerKind, Program
from .reading import Offer, why_unfit
from .settings import ApprovalSettings, GroupSettings, SignalSettings, StepSettings, WaitSettings
from .signature import Parameter, Signature
from .structure import ROOT, Structure, structure_of
from .translate import Translator, step_expression
from .wording import in_words


def compile_material(material: Material, problems: Problems) -> Program:
    """The program, or `DefinitionError` with every problem there is."""
    draft = _Draft(material, structure_of(material, problems), {}, problems)
    for piece in draft.structure.pieces.values():
        if isinstance(piece.settings, StepSettings):
            draft.functions[piece.id] = read_functions(piece, material, problems)
    _check_reads(draft)
    _draw_edges(draft)
    definition = _definition(draft)
    if not any(problem.code == "bad_value" for problem in problems.found):
        for problem in validation.problems(definition):
            problems.add(*in_words(problem, definition))
    problems.raise_any(f"Saga {material.settings.name!r}")
    return _program(draft, definition)


@dataclass(slots=True)
class _Draft:
    material: Material
    structure: Structure
    functions: dict[str, StepFunctions]
    problems: Problems

    @property
    def name(self) -> str:
        return self.material.settings.name

    @property
    def output(self) -> str | None:
        ref = self.material.settings.output
        return None if ref is None else self.structure.find(ref)


# -- Who reads whom ----------------------------------------------------------------------------------------------------


def _check_reads(draft: _Draft) -> None:
    for where, signature in _signatures(draft):
        for parameter in signature.marked(FromStep, FromCompensationResult, FromCompensationError):
            _check_read(draft, parameter, f"{where}, parameter {parameter.name!r}")


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
    why = why_unfit(parameter, _offer(draft, step), bool(clone))
    if why is not None:
        draft.problems.add(where, "type", f"step {step!r}: {why}")


def _offer(draft: _Draft, id: str) -> Offer:
    match draft.structure.pieces[id].settings:
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


def _draw_edges(draft: _Draft) -> None:
    structure = draft.structure
    for id, piece in structure.pieces.items():
        where = f"{'group' if isinstance(piece.settings, GroupSettings) else 'step'} {id!r}"
        for ref in piece.settings.depends_on:
            named = structure.id_of(ref, f"{where}, depends_on")
            if named is not None:
                structure.wait_for(id, named.partition("#")[0], f"{where}, depends_on")
        for read in _reads(draft, piece):
            structure.wait_for(id, read, where)


def _reads(draft: _Draft, piece: Piece) -> Iterator[str]:
    """The steps whose results it needs: by its functions' parameters, and by its expressions."""
    structure = draft.structure
    found = [ref for ref in _refs_of(draft, piece) if (id := structure.find(ref)) is not None]
    for ref in found:
        id = (structure.find(ref) or "").partition("#")[0]
        group = isinstance(structure.pieces[id].settings, GroupSettings)
        if id != piece.id and not group:
            yield id


def _refs_of(draft: _Draft, piece: Piece) -> Iterator[StepRef]:
    functions = draft.functions.get(piece.id)
    for _, signature in functions.readers() if functions is not None else ():
        yield from (p.source.step for p in signature.parameters if isinstance(p.source, FromStep))
    settings = piece.settings
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
    except ExpressionError:  # told by validation, which looks at all of them
        return ()


def _read_by_template(source: object) -> tuple[str, ...]:
    try:
        return compile_template(source).steps if isinstance(source, str) else ()
    except ExpressionError:
        return ()


# -- The definition ----------------------------------------------------------------------------------------------------


def _definition(draft: _Draft) -> Definition:
    settings = draft.material.settings
    saga = Translator(f"saga {settings.name!r}", draft.problems)
    _check_output(draft, saga)
    _check_handler_names(draft)
    nodes = tuple(_node(draft, id) for id in draft.structure.members[ROOT])
    return saga.definition(settings, nodes, _output_template(draft.output))


def _output_template(output: str | None) -> str | None:
    return None if output is None else f"${{{step_expression(output)}.result}}"


def _check_output(draft: _Draft, saga: Translator) -> None:
    ref = draft.material.settings.output
    id = draft.structure.id_of(ref, f"{saga.where}, output") if ref is not None else None
    if id is None:
        return
    if "#" in id:
        saga.refuse("output", "unknown_step", "a clone cannot be the output: name its step")
        return
    given = _result_type(draft, id)
    if not fits(given, draft.material.output):
        text = (
            f"step {id!r} gives {describe(given)}, and the saga is declared to give {describe(draft.material.output)}"
        )
        saga.refuse("output", "type", text)


def _result_type(draft: _Draft, id: str) -> Any:
    offer = _offer(draft, id)
    return GenericAlias(list, (offer.result | None,)) if offer.is_fan_out and offer.result is not Any else offer.result


def _node(draft: _Draft, id: str) -> Node:
    structure = draft.structure
    settings = structure.pieces[id].settings
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
    """Ids may have dots, so that one step's handler may have the name of another's compensation."""
    owners: dict[str, str] = {}
    for id, functions in draft.functions.items():
        for name in _handler_names(draft.name, id, functions).values():
            first = owners.setdefault(name, id)
            if first != id:
                text = f"its handler would be called {name!r}, which is taken by step {first!r}: rename one of them"
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
    return [id for id, piece in draft.structure.pieces.items() if not isinstance(piece.settings, GroupSettings)]


def _input_encoder(draft: _Draft) -> InputEncoder:
    annotation = draft.material.input
    by_step = {id: decoder(functions.input, where="input") for id, functions in draft.functions.items()}
    if annotation is Any:
        return InputEncoder(by_step=by_step)
    return InputEncoder(annotation, decoder(annotation, where="input"), by_step)


def _output_decoder(draft: _Draft) -> Decode:
    if draft.output is None:
        return decoder(draft.material.output, where="output")
    result = _offer(draft, draft.output).result
    one = decoder(result, where="output")
    many = decoder(GenericAlias(list, (result | None if result is not None else Any,)), where="output")

    def decode(raw: Raw | None) -> object:
        # Whether the step was fanned out may depend on the input that the execution was started with.
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
        assert id is not None, "an unknown step is a problem, and a program has none"
        return id

    return name_of


def make_handler(
    name: str, kind: HandlerKind, signature: Signature, gives: Any, where: str, name_of: Callable[[StepRef], str]
) -> Handler:
    """`gives` is the type of the result: of a probe, that of the step it asks about."""
    needs, invoke = bind(signature, where, name_of)
    return Handler(
        name=name,
        kind=kind,
        is_async=signature.is_async,
        needs=needs,
        invoke=invoke,
        encode=_result_encoder(gives, f"result of {where}"),
        read=invoke.read,
    )


def _result_encoder(annotation: Any, where: str) -> Callable[[object], Raw | None]:
    """Writes a result, and sees to it that it can be read as what it is declared to be: later would be too late."""
    unknown = annotation is Any or any(is_unknown(part) for part in members(annotation))
    exact = type(None) if annotation is None else annotation
    to_json = encoder(None if unknown else annotation, where=where)
    read = decoder(annotation, where=where)

    def encode(value: object) -> Raw | None:
        if isinstance(value, Done):  # a probe's answer: what it found is the step's result
            value = value.result
        raw = None if value is None else to_json(value)
        if not unknown and type(value) is not exact:
            try:
                read(_NULL if raw is None else raw)
            except PayloadError as error:
                raise PayloadError(error.message, code="invalid_output") from None
        return raw

    return encode


_NULL = Raw(b"null")
