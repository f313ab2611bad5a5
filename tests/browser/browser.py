"""Chromium, and pages that report everything that must not happen on them."""

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, async_playwright

INSTALL = "apt-get install -y --no-install-recommends chromium"
NAMES = ("chromium", "chromium-browser", "google-chrome-stable")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
AXE = Path(__file__).parents[2] / "console" / "node_modules" / "axe-core" / "axe.min.js"
DESKTOP = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}

# A page reports violations of its policy as events, also those that browsers only log.
_REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`content security policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


def chromium() -> str | None:
    """The path of the browser, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@asynccontextmanager
async def launched(path: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


class Guard:
    """What went wrong on the pages of a context: console errors, exceptions, requests to other origins."""

    def __init__(self, context: BrowserContext, origin: str) -> None:
        self._origin = origin
        self._allowed: list[re.Pattern[str]] = []
        self.flaws: list[str] = []
        context.on("console", self._hear)
        context.on("weberror", lambda error: self._add(f"exception: {error.error}"))
        context.on("request", self._see)

    def allow(self, pattern: str) -> None:
        """Expects console errors that match this, such as the browser's own about a refused request."""
        self._allowed.append(re.compile(pattern))

    def check(self) -> None:
        flaws = [flaw for flaw in self.flaws if not any(allowed.search(flaw) for allowed in self._allowed)]
        assert not flaws, "\n".join(flaws)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._add(f"console {message.type}: {message.text} ({message.location.get('url', '')})")

    def _see(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme in ("http", "https", "ws", "wss") and f"{url.scheme}://{url.netloc}" != self._origin:
            self._add(f"request to another origin: {request.url}")

    def _add(self, flaw: str) -> None:
        self.flaws.append(flaw)


async def guarded(browser: Browser, origin: str, **options: Any) -> tuple[BrowserContext, Guard]:
    """A context whose pages are watched. Animations are off, so that nothing has to be waited for."""
    given: dict[str, Any] = {"viewport": DESKTOP, "reduced_motion": "reduce", "base_url": origin, **options}
    context = await browser.new_context(**given)
    context.set_default_timeout(15_000)
    await context.add_init_script(_REPORT_VIOLATIONS)
    return context, Guard(context, origin)


async def violations(page: Page) -> list[str]:
    """What axe finds on a page: WCAG 2.2 AA and below."""
    if not AXE.exists():
        raise FileNotFoundError(f"{AXE} is missing: run `make console`, which installs it")
    await page.evaluate(AXE.read_text())  # not a script of the page: its policy would refuse that
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    found = await page.evaluate("(tags) => axe.run(document, {runOnly: {type: 'tag', values: tags}})", tags)
    return [
        f"{each['id']}: {each['help']} {[node['target'] for node in each['nodes']][:3]}" for each in found["violations"]
    ]
