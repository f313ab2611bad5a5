"""Signing in and out, and sessions that end while a page is open."""

import re

import pytest
from playwright.async_api import Page, expect

from .conftest import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")

REFUSED = r"status of 401"  # the browser's own line about a refused request


async def sign_in(page: Page, token: str) -> None:
    await page.get_by_label("API key").fill(token)
    await page.get_by_role("button", name="Sign in", exact=True).click()


async def test_sign_in_and_out_with_a_key(site: Site) -> None:
    page, key = await site.visitor(), await site.key("viewer")
    site.allow(REFUSED)
    await page.goto("/executions")
    await sign_in(page, "tnt_0123456789_nothing")
    await expect(page.get_by_role("alert")).to_contain_text("not valid")
    await sign_in(page, key.token)
    await expect(page.get_by_role("heading", name="Executions", exact=True)).to_be_visible()
    assert page.url.endswith("/executions")
    assert await page.evaluate("Object.keys(localStorage).concat(Object.keys(sessionStorage)).join()") == ""
    await page.get_by_role("button", name="Sign out", exact=True).click()
    await expect(page.get_by_label("API key")).to_be_visible()
    assert await page.context.cookies() == []


async def test_the_link_of_dev_signs_in_once_and_leaves_no_token(site: Site) -> None:
    page = await site.visitor()
    token = await site.root.scoped(tenant=site.tenant, actor="cli:ann").sessions.link_token()
    await page.goto(f"/#token={token}")
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert token not in page.url
    again = await site.visitor()
    site.allow(REFUSED)
    await again.goto(f"/#token={token}")
    await expect(again.get_by_role("alert")).to_contain_text("used before")


async def test_a_session_that_expires_keeps_what_was_entered(site: Site) -> None:
    id = await site.start("order")
    key = await site.key()
    page = await site.signed_in(f"/executions/{id}", key.token)
    await page.get_by_role("button", name="Approve", exact=True).click()
    await page.get_by_label("Comment").fill("compared with the order")
    (session,) = await site.engine.sessions.list()
    site.allow(REFUSED)
    await site.engine.sessions.revoke(session["id"])
    again = page.get_by_role("dialog", name="Sign in again")
    await expect(again).to_be_visible()
    await sign_in(page, key.token)
    await expect(again).to_be_hidden()
    await expect(page.get_by_label("Comment")).to_have_value("compared with the order")


async def test_a_revoked_key_ends_the_open_page(site: Site) -> None:
    page, key = await site.visitor(), await site.key("viewer")
    site.allow(REFUSED)
    await page.goto("/")
    await sign_in(page, key.token)
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    await site.root.keys.revoke(key.row.id)
    await expect(page.get_by_role("dialog", name="Sign in again")).to_be_visible(timeout=15_000)


async def test_sign_in_by_keyboard_alone(site: Site) -> None:
    page, key = await site.visitor(), await site.key("viewer")
    site.allow(REFUSED)
    await page.goto("/")
    await expect(page.get_by_label("API key")).to_be_focused()
    await page.keyboard.type(key.token)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    await page.keyboard.press("Tab")
    await expect(page.get_by_text("Skip to the content")).to_be_focused()
    await page.keyboard.press("Enter")
    assert re.search(r"#content$|/$", page.url)
