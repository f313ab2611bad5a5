"""What each role sees: actions that it may not perform are not offered."""

import pytest
from playwright.async_api import expect

from .conftest import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")

DECIDES, WRITES = {"Approve", "Reject"}, {"Pause", "Cancel execution"}
OFFERED = {
    "viewer": set(),
    "author": set(),
    "operator": WRITES,
    "approver": DECIDES,
    "admin": DECIDES | WRITES,
}


@pytest.mark.parametrize("role", OFFERED)
async def test_a_role_is_offered_what_it_may_do(site: Site, role: str) -> None:
    id = await site.start("order")
    page = await site.page(f"/executions/{id}", role)
    await expect(page.get_by_text("waits for approval")).to_be_visible()
    for name in DECIDES | WRITES:
        button = page.get_by_role("button", name=name, exact=True)
        await expect(button).to_have_count(int(name in OFFERED[role]))


async def test_a_worker_key_sees_no_page(site: Site) -> None:
    page = await site.page("/executions", "worker")
    site.allow("status of 403")
    await expect(page.get_by_role("heading", name="You may not see this")).to_be_visible()
