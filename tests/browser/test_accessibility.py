"""axe finds nothing on any page, in both themes."""

import pytest
from playwright.async_api import Page, expect

from .browser import PHONE, violations
from .conftest import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def settled(page: Page) -> None:
    await expect(page.locator("[aria-busy=true]")).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_pages_have_no_violations(site: Site, theme: str) -> None:
    waiting = await site.start("order", {"note": "a note"})
    (review,) = (await site.engine.listing.reviews()).items
    failed = await site.start("payment", {"needs": "/nowhere"})
    page = await site.page("/", color_scheme=theme)
    found: dict[str, list[str]] = {}
    paths = [
        "/",
        "/executions",
        "/executions?q=nothing-of-this-name",
        f"/executions/{waiting}",
        f"/executions/{waiting}?graph=table&tab=attempts",
        f"/executions/{failed}?tab=values",
        "/reviews",
        f"/reviews?review={review['id']}",
        "/dead-letters",
        "/nowhere",
    ]
    for path in paths:
        await page.goto(path)
        await settled(page)
        found[path] = await violations(page)
    await page.goto(f"/executions/{waiting}")
    await page.get_by_role("button", name="Approve", exact=True).click()
    found["dialog"] = await violations(page)
    assert {path: flaws for path, flaws in found.items() if flaws} == {}


async def test_the_sign_in_page_has_no_violations(site: Site) -> None:
    page = await site.visitor()
    site.allow("status of 401")
    await page.goto("/")
    await expect(page.get_by_label("API key")).to_be_visible()
    assert await violations(page) == []


async def test_pages_fit_a_phone(site: Site) -> None:
    waiting = await site.start("order")
    page = await site.page("/", viewport=PHONE)
    for path in ("/", "/executions", f"/executions/{waiting}", "/reviews", "/dead-letters"):
        await page.goto(path)
        await settled(page)
        assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
