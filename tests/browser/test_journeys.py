"""Finding executions that are blocked, and unblocking them."""

from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from .conftest import Site
from .journeys_app import MARKUP

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def confirm(page: Page, name: str, reason: str = "", field: str = "Reason") -> None:
    """Fills in the dialog that is open, and presses its button."""
    dialog = page.get_by_role("dialog")
    if reason:
        await dialog.get_by_label(field, exact=True).fill(reason)
    await dialog.get_by_role("button", name=name, exact=True).click()
    await expect(dialog).to_be_hidden()


async def shows(page: Page, word: str) -> None:
    """Waits until the head of the execution's page says this."""
    await expect(page.locator(".execution-head")).to_contain_text(word, ignore_case=True)


async def test_an_execution_is_followed_live_to_its_end(site: Site) -> None:
    id = await site.start("delivery", settled=False)
    page = await site.page(f"/executions/{id}", "viewer")
    await expect(page.get_by_text("Waits for the signal “delivered”")).to_be_visible()
    await site.engine.get(id).signal("delivered", {"by": "truck"})
    await shows(page, "succeeded")
    await expect(page.get_by_text("Waits for the signal")).to_be_hidden()


async def test_a_blocked_execution_is_found_and_unblocked(site: Site) -> None:
    id = await site.start("delivery", settled=False)
    page = await site.page("/executions")
    await page.get_by_role("link", name=id[:8]).first.click()
    await page.get_by_role("button", name="Send signal", exact=True).click()
    await expect(page.get_by_role("dialog")).to_contain_text(f"tenuto signal {id}")
    await confirm(page, "Send signal")
    await shows(page, "succeeded")


async def test_a_list_shows_what_is_new_and_what_changed(site: Site) -> None:
    page = await site.page("/executions", "viewer")
    await expect(page.get_by_text("No executions")).to_be_visible()
    id = await site.start("order")
    await page.reload()
    row = page.get_by_role("row").filter(has_text="order")
    await expect(row).to_contain_text("waiting", ignore_case=True)
    await site.engine.get(id).approve("approve")
    await expect(row).to_contain_text("succeeded", ignore_case=True)


async def test_approve(site: Site) -> None:
    id = await site.start("order", {"note": "for the party"})
    page = await site.page("/reviews", "approver")
    await page.get_by_role("list", name="Reviews").get_by_role("button").click()
    await expect(page.get_by_text("for the party").first).to_be_visible()
    await page.get_by_role("button", name="Approve", exact=True).click()
    await expect(page.get_by_role("dialog")).to_contain_text(f"tenuto approve {id} approve")
    await confirm(page, "Approve", "compared", "Comment")
    assert (await site.engine.get(id).result(timeout="20s")).status == "succeeded"
    await expect(page.get_by_text("Nothing waits for you")).to_be_visible()


async def test_reject(site: Site) -> None:
    id = await site.start("order")
    page = await site.page(f"/executions/{id}", "approver")
    await page.get_by_role("button", name="Reject", exact=True).click()
    await confirm(page, "Reject", "too expensive", "Comment")
    await shows(page, "failed")
    await expect(page.get_by_text("too expensive").first).to_be_visible()


async def test_a_decision_that_another_person_made_first(site: Site) -> None:
    id = await site.start("order")
    page = await site.page(f"/executions/{id}", "approver")
    await page.get_by_role("button", name="Approve", exact=True).click()
    await site.engine.get(id).reject("approve", comment="first")
    site.allow("status of 409")
    await page.get_by_role("dialog").get_by_role("button", name="Approve", exact=True).click()
    await expect(page.get_by_role("dialog")).to_contain_text("Nothing was changed")
    await expect(page.get_by_role("dialog")).to_contain_text("journey")


async def test_resolve_a_review(site: Site) -> None:
    id = await site.start("transfer")
    page = await site.page(f"/executions/{id}", "approver")
    await page.get_by_role("button", name="It was completed", exact=True).click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Reason", exact=True).fill("the bank confirmed it")
    site.allow("status of 422")
    await dialog.get_by_role("button", name="It was completed", exact=True).click()
    await expect(dialog.get_by_role("alert")).to_contain_text("result")
    await dialog.get_by_label("Result").fill('"moved"')
    await confirm(page, "It was completed")
    await shows(page, "succeeded")


@pytest.mark.parametrize("mode", ["Drain", "Terminate", "Compensate"])
async def test_cancel(site: Site, mode: str) -> None:
    id = await site.start("order")
    page = await site.page(f"/executions/{id}", "operator")
    await page.get_by_role("button", name="Cancel execution", exact=True).click()
    await page.get_by_role("dialog").get_by_label(mode).check()
    await confirm(page, "Cancel execution", "ordered twice")
    await shows(page, "canceled")
    result = await site.engine.get(id).result(timeout="20s")
    assert result.compensated_steps == (["reserve"] if mode == "Compensate" else [])


async def test_pause_and_resume(site: Site) -> None:
    id = await site.start("order")
    page = await site.page(f"/executions/{id}", "operator")
    await page.get_by_role("button", name="Pause", exact=True).click()
    await confirm(page, "Pause", "inventory")
    await expect(page.get_by_text("Paused: inventory")).to_be_visible()
    await page.get_by_role("button", name="Resume", exact=True).click()
    await confirm(page, "Resume")
    await shows(page, "waiting")


async def test_retry_from_a_dead_letter(site: Site, tmp_path: Path) -> None:
    needed = tmp_path / "opened"
    id = await site.start("payment", {"needs": str(needed)})
    page = await site.page("/dead-letters", "operator")
    await page.get_by_role("list", name="Dead letters").get_by_role("button").click()
    needed.touch()
    await page.get_by_role("button", name="Reprocess", exact=True).click()
    await confirm(page, "Reprocess", "the account is open again")
    assert (await site.engine.get(id).result(timeout="20s")).status == "succeeded"
    await expect(page.get_by_text("No dead letters")).to_be_visible()


async def test_discard_a_dead_letter(site: Site) -> None:
    id = await site.start("payment", {"needs": "/nowhere"})
    page = await site.page("/dead-letters", "operator")
    await page.get_by_role("list", name="Dead letters").get_by_role("button").click()
    await page.get_by_role("button", name="Discard", exact=True).click()
    await confirm(page, "Discard", "paid by hand")
    await expect(page.get_by_text("No dead letters")).to_be_visible()
    assert (await site.engine.get(id).status())["status"] == "failed"


async def test_markup_in_payloads_and_errors_is_shown_as_text(site: Site) -> None:
    id = await site.start("payment", {"needs": "/nowhere", "note": MARKUP})
    page = await site.page(f"/executions/{id}?tab=values", "viewer")
    await expect(page.get_by_text("<img src=x").first).to_be_visible()
    await expect(page.get_by_label("Error")).to_contain_text("<script>")
    assert await page.locator("img[src='x']").count() == 0
    await page.goto("/dead-letters")
    await page.get_by_role("list", name="Dead letters").get_by_role("button").click()
    await expect(page.get_by_text("<script>").first).to_be_visible()


async def test_large_numbers_keep_their_digits(site: Site) -> None:
    id = await site.start("payment", {"amount": 98765432109876543210})
    page = await site.page(f"/executions/{id}?tab=values", "viewer")
    await expect(page.get_by_text("98765432109876543210").first).to_be_visible()
    await expect(page.get_by_text("12345678901234567890").first).to_be_visible()


async def test_what_belongs_to_another_tenant_is_unknown(site: Site) -> None:
    id = await site.start("order")
    page = await site.page("/executions", tenant="another")
    await expect(page.get_by_text("No executions")).to_be_visible()
    site.allow("status of 404")
    await page.goto(f"/executions/{id}")
    await expect(page.get_by_role("heading", name="Not found")).to_be_visible()


async def test_approve_by_keyboard_alone(site: Site) -> None:
    id = await site.start("order")
    page = await site.page("/reviews", "approver")
    await expect(page.get_by_role("list", name="Reviews").get_by_role("button")).to_be_visible()
    await press_until(page, "Tab", page.get_by_role("list", name="Reviews").get_by_role("button"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
    await press_until(page, "Tab", page.get_by_role("button", name="Approve", exact=True))
    await page.keyboard.press("Enter")
    await press_until(page, "Tab", page.get_by_role("dialog").get_by_role("button", name="Approve", exact=True))
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Nothing waits for you")).to_be_visible()
    assert (await site.engine.get(id).result(timeout="20s")).status == "succeeded"


async def test_find_and_cancel_by_keyboard_alone(site: Site) -> None:
    id = await site.start("order")
    page = await site.page("/executions", "operator")
    link = page.get_by_role("link", name=id[:8]).first
    await expect(link).to_be_visible()
    await press_until(page, "Tab", link)
    await page.keyboard.press("Enter")
    button = page.get_by_role("button", name="Cancel execution", exact=True)
    await expect(button).to_be_visible()
    await press_until(page, "Tab", button)
    await page.keyboard.press("Enter")
    submit = page.get_by_role("dialog").get_by_role("button", name="Cancel execution", exact=True)
    await press_until(page, "Tab", submit)
    await page.keyboard.press("Enter")
    await shows(page, "canceled")


async def press_until(page: Page, key: str, wanted: Locator, most: int = 60) -> None:
    for _ in range(most):
        if await wanted.evaluate("(element) => element === document.activeElement"):
            return
        await page.keyboard.press(key)
    raise AssertionError(f"{wanted} is not reached by {key}")
