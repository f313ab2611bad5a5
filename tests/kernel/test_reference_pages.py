"""The pages about the kernel say what its tables say."""

from collections.abc import Callable
from pathlib import Path

import pytest

from docs.generators import kernel

REFERENCE = Path(__file__).parent.parent.parent / "docs" / "reference"
PAGES = {"states.md": kernel.states, "retries.md": kernel.retries, "events.md": kernel.recorded_events}


@pytest.mark.parametrize(("name", "page"), PAGES.items(), ids=lambda part: part if isinstance(part, str) else "")
def test_a_generated_page_is_up_to_date(name: str, page: Callable[[], str]) -> None:
    written = (REFERENCE / name).read_text(encoding="utf-8")
    assert written == page(), "run `make docs`"
