"""The command line. The `tenuto` command calls `main`.

To start quickly, its modules import only typer and the standard library; functions import the rest.
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code (see `exit_codes`). Expected errors are printed, not raised."""
    from .app import run

    return run(sys.argv[1:] if arguments is None else list(arguments))
