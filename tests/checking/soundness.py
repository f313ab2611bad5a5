"""For every test that leaves a database behind."""

from tenuto.checking import check_database


async def assert_sound(url: str) -> None:
    """What is stored there obeys every invariant."""
    findings = await check_database(url)
    assert not findings, "\n".join(line for found in findings for line in found.lines())
