"""Where scenarios are gathered, each by the name of its function."""

from collections.abc import Callable

from tests.kernel.driver import Driver

Program = Callable[[], Driver]

PROGRAMS: dict[str, Program] = {}


def program(make: Program) -> Program:
    PROGRAMS[make.__name__] = make
    return make
