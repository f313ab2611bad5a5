"""Refuses options that do not exist, with those that do."""

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast

from tenuto.errors import DefinitionError

F = TypeVar("F", bound=Callable[..., Any])

_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def refuse_unknown_options(called: str, options: type | None = None) -> Callable[[F], F]:
    """Makes a function refuse keywords that it does not have. `options` is the `TypedDict` of its `**options`."""

    def decorate(function: F) -> F:
        parameters = inspect.signature(function).parameters.values()
        named = [each.name for each in parameters if each.kind in _BY_NAME and each.name != "self"]
        valid = (*named, *(options.__annotations__ if options is not None else ()))

        @wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            for name in given:
                if name not in valid:
                    raise DefinitionError.at(called, "unknown_option", f"it has no option `{name}`{meant(name, valid)}")
            return function(*args, **given)

        return cast(F, checked)

    return decorate


def meant(name: str, valid: Iterable[str], *, kind: str = "Options") -> str:
    """Returns the end of a message about an unknown name: the most similar name, and all valid ones."""
    names = list(valid)
    close = get_close_matches(name, names, n=1)
    similar = f": did you mean `{close[0]}`?" if close else "."
    return f"{similar} {kind} are: {', '.join(names)}"
