"""The one home of the library `cel`, which reads and writes times and matches regular expressions.

It does not evaluate, though it could. Version 0.10 walks maps in random order, is quadratic in `map` and `filter`
(10,000 objects take a minute), refuses `10.5 * 2`, rounds large integers, puts values into messages, and overflows
small stacks. The tests use it as the oracle of what CEL means.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from .kinds import Fault

if TYPE_CHECKING:
    import cel


def ask(name: str, call: str, a: object, b: object = None) -> object:
    program = load(call)
    try:
        return program.execute({"a": a, "b": b})
    except BaseException as error:  # a panic in Rust is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
    raise Fault(f"{name}() does not accept this value")  # the library's own words would quote it


@lru_cache
def load(call: str) -> "cel.Program":
    import cel  # here, because it brings a command line and asyncio along, and few expressions need it

    return cel.compile(call)
