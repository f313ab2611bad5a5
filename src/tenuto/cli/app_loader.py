"""The loader of `--app MODULE[:NAME]`: the user's sagas and handlers."""

import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from types import ModuleType

from tenuto.authoring.builder import SagaBuilder
from tenuto.authoring.program import Program
from tenuto.authoring.settings import SAGA, SagaSettings
from tenuto.errors import DefinitionError, TenutoError

HINT = "--app (or TENUTO_APP) is MODULE or MODULE:NAME, as in `shop.sagas` or `shop.sagas:ALL`"


def load_app(app: str) -> list[object]:
    """Returns the sagas and `@handler` functions of a module, or the value of a name in it.

    The value is a saga, a list of sagas, or a function without parameters that returns either. Classes are instantiated
    without arguments; list the instance if a saga needs arguments.
    """
    path, _, name = app.partition(":")
    module = _import(path)
    if name:
        if not hasattr(module, name):
            raise _error(f"{path} has no {name!r}.", HINT)
        found = list(_flat(getattr(module, name), f"{path}:{name}"))
    else:
        found = list(_sagas_in(module))
    return [*found, module]


def _import(path: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(f"{error.name}.")):
            raise _error(f"There is no module {path!r}, neither installed nor in {os.getcwd()}.", HINT) from None
        raise _error(_what_failed(path, error), "fix the module") from error
    except TenutoError:
        raise
    except Exception as error:
        raise _error(_what_failed(path, error), "fix the module") from error


def _what_failed(path: str, error: Exception) -> str:
    """The place in the user's code, without the rest of the way there."""
    text = f"{path} cannot be imported: {type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):  # its text names the place; the traceback ends in Python's own importer
        return f"{text}."
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({last.filename}, line {last.lineno})."


def _sagas_in(module: ModuleType) -> Iterable[object]:
    """Instances and builders as they are; classes of which there is no instance."""
    values = [value for name, value in vars(module).items() if not name.startswith("_")]
    made = [each for each in values if not isinstance(each, type) and _is_saga(each)]
    yield from {id(each): each for each in made}.values()
    classes = {each: None for each in values if isinstance(each, type) and _is_saga(each)}
    for cls in classes:
        if not any(isinstance(each, cls) for each in made):
            yield _make(cls)


def _is_saga(value: object) -> bool:
    return isinstance(value, SagaBuilder | Program) or isinstance(getattr(value, SAGA, None), SagaSettings)


def _flat(value: object, where: str) -> Iterable[object]:
    if isinstance(value, type) and _is_saga(value):
        yield _make(value)
    elif _is_saga(value) or isinstance(value, ModuleType):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _flat(each, where)
    elif callable(value):
        yield from _flat(value(), f"{where}()")
    else:
        raise _error(f"{where} is {type(value).__name__}: neither a saga nor a list of sagas.", HINT)


def _make(cls: type) -> object:
    try:
        return cls()
    except TypeError as error:
        hint = f"make it where it is written, as in `SAGAS = [{cls.__qualname__}(…)]`, and name that: MODULE:SAGAS"
        raise _error(f"{cls.__qualname__} cannot be made without arguments: {error}.", hint) from None


def _error(message: str, hint: str) -> DefinitionError:
    return DefinitionError(message, code="app_not_loaded", hint=hint)
