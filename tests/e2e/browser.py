"""The system's Chromium for tests of the page; in CI a missing one is a failure, elsewhere a skip.

Debian's `chromium-headless-shell` is taken where it is installed: the same engine without the windows that a browser
draws for each page even where nobody sees them. A test of the page then takes a third less processor time.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from PIL import Image
from playwright.async_api import Browser, ConsoleMessage, Page, ViewportSize, async_playwright, expect

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-gpu-compositing",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # The suggestions below the address bar are two pages of the browser's own, drawn for each window even without one:
    # half of what a test of the page costs. A spare renderer is started for each page, in case it goes elsewhere.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,SpareRendererForSitePerProcess",
    "--renderer-process-limit=1",  # the windows of a context share one; contexts have one each as ever
]

expect.set_options(timeout=30_000)  # milliseconds; a busy machine loads a model's library in eight seconds

LOOKS: tuple[tuple[str, ViewportSize, Literal["light", "dark"]], ...] = (
    ("wide-light", {"width": 1100, "height": 720}, "light"),
    ("wide-dark", {"width": 1100, "height": 720}, "dark"),
    ("phone-light", {"width": 390, "height": 780}, "light"),
    ("phone-dark", {"width": 390, "height": 780}, "dark"),
)
_DOCS = Path(__file__).parents[2] / "docs" / "images"


@asynccontextmanager
async def open_browser(*flags: str) -> AsyncIterator[Browser]:
    """Start Chromium, with *flags* of its command line; everything it opened ends with the block."""
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI needs Chromium: .ci/run installs it")
        pytest.skip("no Chromium on this machine")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, headless=True, args=[*FLAGS, *flags])
        try:
            yield browser
        finally:
            await browser.close()


async def open_page(browser: Browser, *, script: Path | None = None, **context: Any) -> Page:
    """Return an empty page in a new context, which runs *script* first on every page; an error on it fails the test.

    Its service worker, a tenth of what opening the page costs, is there where *context* says `service_workers="allow"`.
    """
    opened = await browser.new_context(**{"service_workers": "block", **context})
    if script is not None:
        await opened.add_init_script(path=script)
    page = await opened.new_page()
    page.on("pageerror", _raise)
    page.on("console", _refuse_violation)
    return page


async def open_chat(browser: Browser, url: str, **context: Any) -> Page:
    """Open the chat page and wait until it is connected; an error on it fails the test."""
    page = await open_page(browser, **context)
    await page.goto(url)
    await expect(page.locator("#state")).to_have_attribute("data-state", "online")
    return page


async def send_text(page: Page, text: str) -> None:
    """Type *text* and press Enter, as people do."""
    await page.locator("#text").fill(text)
    await page.locator("#text").press("Enter")


async def take_picture(page: Page, name: str) -> None:
    """Assert that nothing is wider than the window. With DOCS_IMAGES set, renew the docs' picture *name*, if any."""
    assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, f"{name} is too wide"
    path = _DOCS / f"{name}.png"
    if os.environ.get("DOCS_IMAGES") and path.exists():
        taken = Image.open(io.BytesIO(await page.screenshot(animations="disabled", caret="hide")))
        taken.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


async def take_pictures(page: Page, name: str) -> None:
    """Take the docs' pictures of a view: light, dark, and on a phone. Without DOCS_IMAGES the view is left as it is."""
    if not os.environ.get("DOCS_IMAGES"):
        return await take_picture(page, f"{name}-wide-light")
    before = page.viewport_size
    for look, size, scheme in LOOKS:
        await page.set_viewport_size(size)
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        await take_picture(page, f"{name}-{look}")
    await page.emulate_media(color_scheme="null", reduced_motion="null")
    if before is not None:
        await page.set_viewport_size(before)
    return None


def _raise(error: Exception) -> None:
    raise error


def _refuse_violation(message: ConsoleMessage) -> None:
    if "Content Security Policy" in message.text:
        raise AssertionError(message.text)
