"""Writes the reference pages that are made from the code: `make docs`, or `python -m docs.generate`.

Tests compare the pages with what this would write, so that they never tell anything but what the code does.
"""

from collections.abc import Callable
from pathlib import Path

from .generators import (
    commands,
    endpoints,
    errors,
    invariants,
    kernel,
    metrics,
    python,
    requirements,
    security,
    settings,
)

FOLDER = Path(__file__).parent / "reference"

PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands.page,
    "errors.md": errors.page,
    "events.md": kernel.recorded_events,
    "http.md": endpoints.page,
    "invariants.md": invariants.page,
    "metrics.md": metrics.page,
    "python.md": python.page,
    "retries.md": kernel.retries,
    "settings.md": settings.page,
    "states.md": kernel.states,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
        print(f"docs/reference/{name}")
    for partly in (requirements, security):
        partly.PAGE.write_text(partly.filled(partly.PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"docs/{partly.PAGE.name}")


if __name__ == "__main__":
    main()
