"""The browser and the API of the end-to-end tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

import pytest_asyncio
from playwright.async_api import Browser

from tests.e2e.browser import open_browser
from tests.fakes.running_api import Api, another_person, running


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


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared_api() -> AsyncIterator[tuple[Api, count[int]]]:
    """Run one gateway with the API for a module; the numbers name its people."""
    async with running() as api:
        yield api, count(2)


@pytest_asyncio.fixture(loop_scope="module")
async def api(shared_api: tuple[Api, count[int]]) -> AsyncIterator[Api]:
    """Give a running API, a person who has said nothing there, and a model that has been asked nothing."""
    shared, numbers = shared_api
    async with another_person(shared.gateway, shared.model, f"ann{next(numbers)}") as api:
        yield api
