"""Services that restart, and a service and a worker that are processes of their own."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tenuto import Engine

from .conftest import Site
from .service import dev

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_page_opened_by_the_printed_link_survives_a_restart_of_the_service(
    browser: Browser, tmp_path: Path
) -> None:
    with dev(tmp_path) as service:
        port = int(service.address.rpartition(":")[2])
        async with Engine(service.url, worker=False) as engine:
            site = Site(service, browser, engine)
            site.tenant = "default"  # that of the link
            id = await site.start("order")
            page = await site.visitor()
            await page.goto(service.link)
            await page.get_by_role("link", name="Executions").first.click()
            await page.get_by_role("link", name=id[:8]).first.click()
            await expect(page.get_by_text("waits for approval")).to_be_visible()
    site.allow("Failed to load resource|ERR_")
    await expect(page.get_by_text("Connection lost")).to_be_visible()
    with dev(tmp_path, port) as service:
        await expect(page.get_by_text("Connection lost")).to_be_hidden(timeout=30_000)
        async with Engine(service.url, worker=False) as engine:
            await engine.get(id).approve("approve")
        await expect(page.locator(".execution-head")).to_contain_text("succeeded", ignore_case=True)
        await page.context.close()
    for guard in site.guards:
        guard.check()


async def test_a_service_and_a_worker_on_postgresql(deployed_site: Site) -> None:
    id = await deployed_site.start("order")
    page = await deployed_site.page(f"/executions/{id}")
    await page.get_by_role("button", name="Approve", exact=True).click()
    await page.get_by_role("dialog").get_by_role("button", name="Approve", exact=True).click()
    await expect(page.locator(".execution-head")).to_contain_text("succeeded", ignore_case=True)
    await page.get_by_role("link", name="Executions").first.click()
    await expect(page.get_by_role("row").filter(has_text="order")).to_contain_text("succeeded", ignore_case=True)
