"""The pictures of docs/tools.md, from a whole gateway: tools on the page, in both colour schemes and on a telephone.

`PARLOUR_PICTURES=docs/images python -m pytest tests/e2e/test_tool_pictures.py` takes them again; the reminder's needs a
font with emoji.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, get_args

import pytest
from PIL import Image
from playwright.async_api import Browser, Page, expect

from agent.llm.scripted_model import ScriptEntry
from agent.reminders.recurrence import slot_of
from agent.reminders.reminder import reminders_in
from agent.tools.tool import ToolContext, ToolKind, tool
from agent.web.search_engines import WebHit
from agent.web.web_tools import build_search_tool
from tests.e2e.agent.test_web_tools import OFF, ListEngine
from tests.e2e.browser import open_chat, send_text
from tests.fakes.held_model import HeldScriptModel, calls
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

ColorScheme = Literal["light", "dark"]
WIDTHS, SCHEMES = (360, 720), get_args(ColorScheme)
LARGEST = 60_000  # bytes of a picture
HITS = (
    WebHit(
        title="Harbour ferries: Sunday timetable",
        url="https://ferries.example/sunday",
        snippet="Every hour from 9:00 to 20:00.",
    ),
    WebHit(title="Tickets and prices", url="https://ferries.example/tickets", snippet="3 crowns, children ride free."),
)
FOUND = (
    "On Sundays they leave **every hour from 9:00 to 20:00** ([timetable](https://ferries.example/sunday)).\n\n"
    "The site also names a page for you: https://ferries.example/?who=ann&trip=sunday"
)
LETTER = {"to": "bob@example.com", "subject": "Ten minutes late", "text": "Start without me, the 9:00 ferry is full."}
SEARCH, REMIND = {"query": "harbour ferries Sunday"}, {"what": "Pack for the ferry", "in_minutes": 90}


@tool("Send a letter.", kind=ToolKind.ACT, subject=lambda to, **_: str(to))
async def send_letter(context: ToolContext, to: str, subject: str, text: str) -> str:
    """Send nothing: nobody says yes."""
    return f"sent to {to}"


@dataclass(frozen=True)
class Scene:
    """One picture: what the model says, what the person writes, and how it is taken."""

    script: tuple[ScriptEntry | str, ...]
    said: tuple[str, ...]
    last: str  # words of the last message
    width: int
    scheme: ColorScheme
    fires: bool = False  # the reminder


def call(*named: tuple[str, dict[str, object]]) -> ScriptEntry:
    """Return a message of the model that calls tools."""
    return calls(*((name, json.dumps(arguments)) for name, arguments in named))


SCENES = {
    "question": Scene(
        (call(("send_letter", dict(LETTER))), "The letter to Bob is ready. Shall I send it?"),
        ("Write to Bob that I'll be ten minutes late",),
        "May I run",
        720,
        "light",
    ),
    "sources": Scene(
        (call(("web_search", dict(SEARCH))), FOUND), ("Do the ferries run on Sunday?",), "timetable", 720, "dark"
    ),
    "reminder": Scene(
        (call(("remind", dict(REMIND))), "I'll remind you in 90 minutes to pack for the ferry."),
        ("Remind me in an hour and a half to pack",),
        "⏰",
        360,
        "light",
        fires=True,
    ),
    "last": Scene(
        (
            call(("web_search", dict(SEARCH)), ("remind", dict(REMIND))),
            "They leave every hour from 9:00. I'll remind you in 90 minutes to pack.",
        ),
        ("When do the ferries leave? Remind me to pack.", "/tools last"),
        "web_search",
        360,
        "dark",
    ),
}


@asynccontextmanager
async def open_scene(chromium: Browser, scene: Scene) -> AsyncIterator[tuple[Page, InProcessGateway]]:
    """Show the conversation of *scene* on the page."""
    tools = (send_letter, build_search_tool(ListEngine(*HITS)))
    model = HeldScriptModel(*scene.script)
    async with gateway(model=model, tools=tools, environment=OFF) as parlour:
        view = {"width": scene.width, "height": 400}
        page = await open_chat(chromium, parlour.app.web.url, viewport=view, device_scale_factor=1.5)
        for n, text in enumerate(scene.said, 1):
            await send_text(page, text)
            await expect(page.locator(".line:not(.user):not(.streaming)")).to_have_count(n)
        if scene.fires:
            await fire(parlour)
        await expect(page.locator(".line:not(.user) .body").filter(has_text=scene.last)).to_have_count(1)
        yield page, parlour


async def fire(parlour: InProcessGateway) -> None:
    """Let the one reminder be due."""
    jobs = parlour.app.store.jobs
    (job,) = await jobs.pending_of("remind")
    (reminder,) = reminders_in([job])
    now = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=1)
    await jobs.advance(job, replace(reminder, at=slot_of(now, reminder.zone)).to_job(job.scope))


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("name", SCENES)
async def test_what_tools_show_fits_the_page(chromium: Browser, name: str) -> None:
    """In both colour schemes, on a desktop and on a telephone, nothing is cut off: a question least of all."""
    scene = SCENES[name]
    async with open_scene(chromium, scene) as (page, _):
        for width in WIDTHS:
            for scheme in SCHEMES:
                await page.emulate_media(color_scheme=scheme)
                await page.set_viewport_size({"width": width, "height": 400})
                assert await page.evaluate(_OVERFLOWING) == [], (width, scheme)
        if folder := os.environ.get("PARLOUR_PICTURES"):
            await take(page, scene, Path(folder) / f"tools-{name}.png")


_OVERFLOWING = """() => [...document.querySelectorAll("body, .line, .buttons, pre")]
  .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.className || each.tagName)"""


async def take(page: Page, scene: Scene, path: Path) -> None:
    """Store a picture of the whole conversation, in few colours."""
    await page.emulate_media(color_scheme=scene.scheme)
    await page.set_viewport_size({"width": scene.width, "height": 300})
    hidden = await page.evaluate("scroller.scrollHeight - scroller.clientHeight")
    await page.set_viewport_size({"width": scene.width, "height": 300 + hidden})
    picture = Image.open(io.BytesIO(await page.screenshot(animations="disabled", caret="hide")))
    data = io.BytesIO()
    picture.convert("RGB").quantize(48, dither=Image.Dither.NONE).save(data, "PNG", optimize=True)
    assert len(data.getvalue()) < LARGEST
    await asyncio.to_thread(path.write_bytes, data.getvalue())
