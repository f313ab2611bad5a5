"""Every requirement has a test that names its id, `test_e3_grouped_…`: here, or where its face is tested."""

import re
from pathlib import Path

# All rows of groups A, B, C and E but those that come with their faces: A11, A12, A15; B2, B11, B16, B18; C17, C18.
# The refund of B12 and the memory limit of C20 come later, too. Of the other groups those that a runtime or the service
# keeps.
DEMANDED: dict[str, list[int]] = {
    "A": [*range(1, 11), 13, 14, *range(16, 21)],
    "B": [1, *range(3, 11), 12, 13, 14, 15, 17, 19, 20, 21],
    "C": [*range(1, 17), *range(19, 24)],
    "D": [1, 3, 4, 8, 10],
    "E": [*range(1, 19)],
    "I": [1, 2, 3, 4, 5, 6, 8, 10],
    "J": [*range(1, 7)],
    "K": [1],
}
PLACES = ("contract", "service", "telemetry")

_TEST = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
_ID = re.compile(r"(?<=_)[a-k]\d{1,2}(?=_|$)")


def ids_in(source: str) -> set[str]:
    """The requirements that the names of these tests name."""
    return {id.upper() for name in _TEST.findall(source) for id in _ID.findall(name)}


def test_ids_are_read_from_names() -> None:
    source = "def test_e3_is_kept(): ...\n    async def test_a19_and_c2_agree(): ...\ndef helper_b4_is_no_test(): ...\n"
    assert ids_in(source) == {"E3", "A19", "C2"}


def test_every_requirement_has_a_test_that_names_it() -> None:
    demanded = [f"{group}{number}" for group, numbers in DEMANDED.items() for number in numbers]
    files = [file for place in PLACES for file in sorted((Path(__file__).parent.parent / place).glob("test_*.py"))]
    named = set[str]().union(*(ids_in(path.read_text(encoding="utf-8")) for path in files))
    assert len(demanded) == 93
    assert [id for id in demanded if id not in named] == []
