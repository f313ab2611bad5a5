"""Every requirement that needs no service has a test that names its id: `test_e3_grouped_parallel_undoes_by_layers`."""

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
FOLDERS = ("contract", "kernel")

# Of groups A, B, C and E all rows but those that come with their faces: A11, A12, A15; B2, B11, B16, B18; C17, C18.
# Of B12 the refund and of C20 the memory limit come later, too.
DEMANDED = """
    A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A13 A14 A16 A17 A18 A19 A20
    B1 B3 B4 B5 B6 B7 B8 B9 B10 B12 B13 B14 B15 B17 B19 B20 B21
    C1 C2 C3 C4 C5 C6 C7 C8 C9 C10 C11 C12 C13 C14 C15 C16 C19 C20 C21 C22 C23
    D1 D8 D10
    E1 E2 E3 E4 E5 E6 E7 E8 E9 E10 E11 E12 E13 E14 E15 E16 E17 E18
    I1 I3 I8
""".split()

_TEST = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
_ID = re.compile(r"(?<=_)[a-k]\d{1,2}(?=_|$)")


def ids_in(source: str) -> set[str]:
    """The requirements that the names of these tests name."""
    return {id.upper() for name in _TEST.findall(source) for id in _ID.findall(name)}


def test_ids_are_read_from_names() -> None:
    source = "def test_e3_is_kept(): ...\n    async def test_a19_and_c2_agree(): ...\ndef helper_b4_is_no_test(): ...\n"
    assert ids_in(source) == {"E3", "A19", "C2"}


def test_every_requirement_has_a_test_that_names_it() -> None:
    files = [path for folder in FOLDERS for path in sorted((TESTS / folder).rglob("test_*.py"))]
    named = set().union(*(ids_in(path.read_text(encoding="utf-8")) for path in files))
    assert [id for id in DEMANDED if id not in named] == []
    assert len(DEMANDED) == len(set(DEMANDED)) == 77


def test_every_requirement_has_one_in_the_contract() -> None:
    """What the kernel alone shows is not promised to anybody."""
    files = sorted((TESTS / "contract").glob("test_*.py"))
    named = set().union(*(ids_in(path.read_text(encoding="utf-8")) for path in files))
    assert [id for id in DEMANDED if id not in named] == []
