"""Compiles sagas, documents and handlers to programs: what the engine calls."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple, TypeGuard, get_origin

from tenuto.kernel.definition import JSON, Definition, Step, owner_of
from tenuto.kernel.plan import Plan
from tenuto.values.codec import decoder
from tenuto.values.redaction import bounded
from tenuto.values.schema import Schema

from .agents import RUN
from .annotations import members
from .binding import Invocation
from .builder import SagaBuilder
from .compiler import compile_source, make_handler
from .context import step_name
from .document import check_definition
from .input_encoder import InputEncoder
from .input_schemas import InputSchemas
from .markers import StepRef
from .outcome import Done, NotDone, Pending, Unknown
from .problems import Problems
from .program import Handler, Program
from .run_compiler import compile_run
from .saga_source import Extra, add_extras, declarations, functions_of, read_class, saga_name
from .settings import HANDLER_NAMES, SAGA
from .signature import Function, check_result, read_signature, settle

# -- Sagas -------------------------------------------------------------------------------------------------------------


def compile_saga(saga: object, *extras: Extra) -> Program:
    """Compiles a saga's instance, a builder or a built program, with its external steps and compensations."""
    return _compile(saga, extras, strict=True)


def compile_sagas(*objects: object) -> tuple[Program, ...]:
    """Compiles the arguments of `register`: sagas, and the functions and modules that belong to them."""
    extras = tuple(each for each in objects if _is_extra(each))
    sagas = [each for each in objects if not _is_extra(each)]
    _check_owners({saga_name(saga) for saga in sagas}, extras)
    return tuple(_compile(saga, extras, strict=False) for saga in sagas)


def _is_extra(value: object) -> TypeGuard[Extra]:
    return isinstance(value, ModuleType) or (
        callable(value) and not isinstance(value, type) and not hasattr(value, SAGA) and not hasattr(value, RUN)
    )


def _check_owners(known: set[str], extras: tuple[Extra, ...]) -> None:
    """A registered function must belong to one of the sagas registered with it."""
    problems = Problems()
    for function in extras:
        declared = () if isinstance(function, ModuleType) else declarations(function)
        for owner in sorted({saga_name(given.saga) for given in declared} - known):
            where = f"function {getattr(function, '__qualname__', repr(function))!r}"
            registered = ", ".join(sorted(known)) or "none"
            text = f"it belongs to saga {owner!r}, which is not registered with it; registered: {registered}"
            problems.add(where, "unknown_saga", text)
    problems.raise_any("The registration")


def _compile(saga: object, extras: tuple[Extra, ...], *, strict: bool) -> Program:
    problems = Problems()
    if isinstance(saga, Program):
        if saga.name in _owners(extras):
            problems.add("", "built", "it is already built: register the builder itself together with the functions")
        problems.raise_any(f"Saga {saga.name!r}")
        return saga
    if hasattr(saga, RUN) and not isinstance(saga, type):
        return compile_run(saga, problems)
    source = saga.material() if isinstance(saga, SagaBuilder) else read_class(saga)
    add_extras(source, extras, problems, strict=strict)
    if not source.steps and not isinstance(saga, SagaBuilder):
        problems.add(
            "",
            "empty",
            "it has no steps: decorate methods with @step, or register @external_step functions with it",
        )
    return compile_source(source, problems)


def _owners(extras: tuple[Extra, ...]) -> set[str]:
    functions = [each for extra in extras for each in functions_of(extra)]
    return {saga_name(given.saga) for function in functions for given in declarations(function)}


# -- Documents and their handlers --------------------------------------------------------------------------------------


def make_plan(definition: Definition) -> Plan:
    """Returns the plan of a definition, with a check of its output schema. Runtimes use it for stored definitions."""
    schema = definition.output_schema
    return Plan(definition, None if schema is None else _check_of(Schema(schema)))


def _check_of(schema: Schema) -> Callable[[JSON], str | None]:
    def check(output: JSON) -> str | None:
        flaw = schema.summary(output)
        return None if flaw is None else bounded(flaw)

    return check


def compile_document(
    definition: Definition, handlers: Mapping[str, Handler], input_schemas: InputSchemas | None = None
) -> Program:
    """Compiles a JSON definition, with those of its handlers that this process has.

    `input_schemas` are stored with the definitions of sagas, whose code this process need not have.
    """
    check_definition(definition)
    plan = make_plan(definition)
    named = dict.fromkeys(name for node in plan.root.walk() if not node.is_scope for name in _names_in(node.step))
    planners = [node.scope.planner for node in plan.root.walk() if node.is_scope and node.scope.planner is not None]
    owner = owner_of(definition.name)
    permitted = {name: handler for name, handler in handlers.items() if handler.serves(owner)}
    found = {name: permitted[name] for name in (*named, *planners) if name in permitted}
    _check_needs(definition, found, {node.id for node in plan.root.walk()})
    return Program(
        plan=plan,
        handlers=found,
        encode_input=InputEncoder(schema=definition.input_schema, schemas=input_schemas),
        decode_output=decoder(where="output"),
        decode_result={node.id: decoder(where=f"result of step {node.id!r}") for node in plan.root.walk()},
        output_step=None,
    )


def _names_in(step: Step) -> Iterator[str]:
    names = (step.handler, step.guard_handler, step.reconcile_handler, step.compensation_handler)
    yield from (name for name in names if name is not None)


def _check_needs(definition: Definition, handlers: Mapping[str, Handler], steps: set[str]) -> None:
    problems = Problems()
    for name, handler in handlers.items():
        needs = handler.needs
        for step in (*needs.results, *needs.compensation_results, *needs.compensation_errors):
            if step.partition("#")[0] not in steps:
                text = f"it reads step {step!r}, which does not exist; steps are {', '.join(sorted(steps - {''}))}"
                problems.add(f"handler {name!r}", "unknown_step", text)
    problems.raise_any(f"Definition {definition.name!r}")


def bind_handler(name: str, function: Function, tenants: Iterable[str] = ()) -> Handler:
    """Binds a function that JSON definitions call by name: as a step's handler, guard, reconcile or compensation."""
    where = f"handler {name!r}"
    problems = Problems()
    signature = settle(read_signature(function, {}, where, problems), "handler", where, problems)
    check_result(signature.result, where, problems)
    problems.raise_any(f"Handler {name!r}")
    gives = Any if _is_probe(signature.result) else signature.result
    return replace(make_handler(name, "step", signature, gives, where, _id_of), tenants=tuple(tenants))


def _is_probe(annotation: object) -> bool:
    return any((get_origin(part) or part) in (Done, NotDone, Pending, Unknown) for part in members(annotation))


def _id_of(ref: StepRef) -> str:
    return ref if isinstance(ref, str) else step_name(ref)


class NamedHandler(NamedTuple):
    """A function decorated with `@handler("name")`."""

    name: str
    function: Function
    tenants: tuple[str, ...]


def handlers_in(given: object) -> list[NamedHandler]:
    """Returns the named handlers of a module, or of one function."""
    if isinstance(given, ModuleType):
        return [named for value in vars(given).values() if inspect.isroutine(value) for named in handlers_in(value)]
    if not callable(given):
        return []
    return [NamedHandler(name, given, tenants) for name, tenants in getattr(given, HANDLER_NAMES, {}).items()]


def handlers_running(program: Program, function: Function) -> tuple[str, ...]:
    """Returns the names of the handlers that run this function, also for a function read from the class."""
    plain = getattr(function, "__func__", function)
    return tuple(
        name
        for name, handler in program.handlers.items()
        if isinstance(handler.invoke, Invocation)
        and getattr(handler.invoke.function, "__func__", handler.invoke.function) is plain
    )
