"""Screenshots of every page: `make shots`. Both themes, a desk and a phone; empty, full and failing."""

import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

from playwright.async_api import Browser, Page, expect

from tenuto import Engine

from .browser import DESKTOP, INSTALL, PHONE, chromium, guarded, launched
from .service import Service, dev

SHOTS = Path(__file__).parents[2] / "shots"
SIZES = {"1360x900": DESKTOP, "390x844": PHONE}
THEMES = ("light", "dark")
PAGES = {"overview": "/", "executions": "/executions", "reviews": "/reviews", "dead-letters": "/dead-letters"}


async def fill(engine: Engine) -> dict[str, str]:
    """Executions in every state, and the paths that show them."""
    orders = [
        await engine.start("order", {"note": f"order {number}"}, target=("order", f"o-{number}")) for number in range(6)
    ]
    for order in orders:
        await order.result(timeout="20s")
    await orders[0].approve("approve")
    await orders[1].reject("approve", comment="too expensive")
    await orders[2].pause(reason="inventory")
    await orders[3].cancel("compensate", reason="ordered twice")
    failed = await engine.start("payment", {"needs": "/nowhere", "amount": 98765432109876543210})
    unknown, waiting = await engine.start("transfer", {}), await engine.start("delivery", {})
    for handle in (failed, unknown):
        await handle.result(timeout="20s")
    reviews = (await engine.listing.reviews(kind="approval")).items
    letters = (await engine.listing.dlq()).items
    return {
        "execution-waiting": f"/executions/{orders[4].id}",
        "execution-table": f"/executions/{orders[0].id}?graph=table&tab=attempts",
        "execution-signal": f"/executions/{waiting.id}",
        "execution-failed": f"/executions/{failed.id}?tab=values",
        "execution-compensated": f"/executions/{orders[3].id}?tab=attempts",
        "execution-unknown-outcome": f"/executions/{unknown.id}",
        "reviews-open": f"/reviews?review={reviews[0]['id']}",
        "dead-letters-open": f"/dead-letters?letter={letters[0]['id']}",
        "executions-no-match": "/executions?q=nothing-of-this-name",
        "not-found": f"/executions/{'0' * 22}",
    }


async def signed_in(browser: Browser, service: Service, engine: Engine, tenant: str, **options: Any) -> Page:
    context, _ = await guarded(browser, service.address, **options)
    key = await engine.keys.create(tenant=tenant, roles=["admin"], name="ann")
    await context.request.post("/v1/session", data={"key": key.token})
    return await context.new_page()


async def shoot(page: Page, folder: Path, name: str, path: str) -> None:
    await page.goto(path)
    await settle(page)
    await page.screenshot(path=folder / f"{name}.png")


async def settle(page: Page) -> None:
    await expect(page.locator("[aria-busy=true]")).to_have_count(0)
    await page.evaluate("document.fonts.ready")


async def shoot_all(
    service: Service, engine: Engine, browser: Browser, places: dict[str, str], full: str
) -> list[Page]:
    """Empty and full. Gives pages of each look that are open, for what follows when the service is gone."""
    pages: list[Page] = []
    empty = f"t{uuid4().hex[:8]}"
    for size, viewport in SIZES.items():
        for theme in THEMES:
            folder = SHOTS / f"{size}-{theme}"
            folder.mkdir(parents=True, exist_ok=True)
            options = {"viewport": viewport, "color_scheme": theme}
            visitor = await (await guarded(browser, service.address, **options))[0].new_page()
            await shoot(visitor, folder, "sign-in", "/")
            page = await signed_in(browser, service, engine, empty, **options)
            for name, path in PAGES.items():
                await shoot(page, folder, f"{name}-empty", path)
            page = await signed_in(browser, service, engine, full, **options)
            for name, path in {**PAGES, **places}.items():
                await shoot(page, folder, name, path)
            await page.goto(places["execution-waiting"])
            await settle(page)
            await page.get_by_role("button", name="Approve", exact=True).click()
            await page.screenshot(path=folder / "dialog.png")
            await page.goto("/")
            await settle(page)
            pages.append(page)
    return pages


async def shoot_failing(pages: list[Page]) -> None:
    """The service is gone: pages that are opened now cannot be filled."""
    looks = [f"{size}-{theme}" for size in SIZES for theme in THEMES]
    for look, page in zip(looks, pages, strict=True):
        await expect(page.get_by_text("Connection lost")).to_be_visible(timeout=15_000)
        for name, path in list(PAGES.items())[1:]:
            await page.evaluate(
                "(path) => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')); }", path
            )
            await expect(page.get_by_role("heading", name="No connection to the service")).to_be_visible(timeout=30_000)
            await page.screenshot(path=SHOTS / look / f"{name}-failing.png")


async def main() -> None:
    path = chromium()
    if path is None:
        sys.exit(f"Chromium is missing. Install it: {INSTALL}")
    tenant = f"t{uuid4().hex[:8]}"
    async with launched(path) as browser:
        with tempfile.TemporaryDirectory() as folder:
            with ExitStack() as stack:
                service = stack.enter_context(dev(Path(folder)))
                async with Engine(service.url, worker=False) as engine:
                    places = await fill(engine.scoped(tenant=tenant, actor="user:ann"))
                    pages = await shoot_all(service, engine, browser, places, tenant)
            await shoot_failing(pages)
    sys.stdout.write(f"{len(list(SHOTS.rglob('*.png')))} screenshots in {SHOTS}\n")


if __name__ == "__main__":
    asyncio.run(main())
