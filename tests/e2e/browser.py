"""The system's Chromium for tests of the page; in CI a missing one is a failure, elsewhere a skip."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, async_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # The suggestions below the address bar are two pages of the browser's own, drawn for each window even without one:
    # half of what a test of the page costs.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup",
]


@asynccontextmanager
async def open_browser(*flags: str) -> AsyncIterator[Browser]:
    """Start Chromium, with *flags* of its command line; everything it opened ends with the block."""
    path = shutil.which("chromium")
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
