"""The command line. `main` is what the `tenuto` command calls.

It starts quickly: modules here import typer and the standard library, and the rest inside the functions that need it.
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, and gives its exit code (see `exits`). Expected errors are told, not raised."""
    from .app import run

    return run(sys.argv[1:] if arguments is None else list(arguments))
