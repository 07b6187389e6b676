"""The browser of the end-to-end tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser

from tests.e2e.browser import open_browser


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def shared_browser() -> AsyncIterator[Browser]:
    """Start the one browser of this worker; its tests run on the session's loop."""
    # A microphone that beeps, for pages that may use one.
    async with open_browser("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream") as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def chromium(shared_browser: Browser) -> AsyncIterator[Browser]:
    """Give the browser and close every context that the test opened: nothing is left for another test."""
    yield shared_browser
    for context in [*shared_browser.contexts]:
        await context.close()
