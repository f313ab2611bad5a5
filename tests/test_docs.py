"""The pages: those made from the code are up to date, and every link leads somewhere."""

import re
from pathlib import Path

import pytest

from docs.generate import FOLDER, PAGES
from docs.generators import requirements, security
from tests.conftest import refuse_unknown_requirements

ROOT = Path(__file__).parent.parent
WRITTEN = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), "run `make docs`"


def test_the_tables_of_the_security_page_are_what_the_code_says() -> None:
    text = security.PAGE.read_text(encoding="utf-8")
    assert all(table() in text for table in security.TABLES.values()), "run `make docs`"
    assert security.filled(text) == text, "run `make docs`"


def test_the_table_of_tests_of_the_requirements_is_what_the_markers_say() -> None:
    text = requirements.PAGE.read_text(encoding="utf-8")
    assert requirements.filled(text) == text, "run `make docs`"


def test_the_state_of_a_requirement_is_known() -> None:
    unknown = [each for each in requirements.requirements().values() if not each.is_tested]
    assert {each.state for each in unknown} == {"not built yet"}


def test_a_requirement_has_tests_exactly_if_it_is_built() -> None:
    named = requirements.tests()
    rows = requirements.requirements()
    assert [id for id in named if id not in rows] == []
    assert [row.id for row in rows.values() if row.is_tested and row.id not in named] == []
    assert [row.id for row in rows.values() if not row.is_tested and row.id in named] == []


def test_requirements_are_read_from_markers() -> None:
    source = """
@pytest.mark.requirement("A1", "C2")
@pytest.mark.parametrize("x", [1])
async def test_one(): ...
def test_two(): ...
@pytest.mark.requirement("B4")
def helper(): ...
"""
    assert list(requirements.marked(Path("f.py"), source)) == [(Path("f.py"), "test_one", ("A1", "C2"))]


@pytest.mark.parametrize("ids", [("Z9",), ("A1", "A99"), ()])
def test_an_unknown_requirement_fails_the_collection(ids: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    request.node.add_marker(pytest.mark.requirement(*ids))
    with pytest.raises(pytest.UsageError, match=r"rows of docs/requirements\.md"):
        refuse_unknown_requirements([request.node])


def test_every_page_of_the_reference_is_generated() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(PAGES)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in links(page) if not leads_somewhere(page, link)] == []


def links(page: Path) -> list[str]:
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    return [link for link in LINK.findall(text) if "://" not in link]


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


def anchors(page: Path) -> set[str]:
    """The names that headings get: in small letters, without punctuation, with hyphens for spaces."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One thing\n\n[a](#one-thing) [b](#another) [c](nowhere.md) [d](https://example.org)\n")
    assert [link for link in links(page) if not leads_somewhere(page, link)] == ["#another", "nowhere.md"]
