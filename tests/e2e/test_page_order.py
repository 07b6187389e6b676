"""A conversation looks the same after a reload as while it happened: a real browser, gateway and model server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from playwright.async_api import Browser, Page, expect

from tests.e2e.browser import open_chat, send_text
from tests.fakes.gateway import gateway
from tests.fakes.loopback import serve_app
from tests.faults.process_pool import ForkServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

BEGINNING = "These are the first words of an answer, enough of them to be shown at once."


@dataclass
class GatedModel:
    """A model server whose answer begins, and ends, when the test says so."""

    base: str = ""
    may_begin: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Stream the beginning, then the rest, which names the question."""
        body = await request.json()
        question = str(body["messages"][-1]["content"]).rpartition("]")[2].strip()
        self.asked.put_nowait(question)
        await self.may_begin.wait()
        if not body.get("stream"):
            await self.may_end.wait()
            return web.json_response(_answer("message", f"{BEGINNING} So much for {question}"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(_event({"role": "assistant", "content": BEGINNING}))
        await self.may_end.wait()
        await response.write(_event({"content": f" So much for {question}"}))
        await response.write(_event({}, finish="stop") + b"data: [DONE]\n\n")
        return response


def _answer(kind: str, content: str) -> object:
    choice = {"index": 0, kind: {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "test", "choices": [choice]}


def _event(delta: object, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "test", "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


@asynccontextmanager
async def gated_model() -> AsyncIterator[GatedModel]:
    """Serve a gated model on a port of its own."""
    model = GatedModel()
    async with serve_app(model.complete) as place:
        model.base = f"http://{place}/v1"
        try:
            yield model
        finally:
            model.may_begin.set()
            model.may_end.set()


async def say(page: Page, text: str) -> None:
    """Type and send *text*; return when it is stored."""
    before = await page.locator(".line.user").count()
    await send_text(page, text)
    await expect(page.locator(".line.user .mark").nth(before)).to_have_text("✓")


async def list_page_lines(page: Page) -> list[str]:
    """Return what stands on the page, in order."""
    return [text.strip() for text in await page.locator(".line .body").all_text_contents()]


async def reloaded(page: Page, lines: int) -> list[str]:
    """Reload and return what stands there once there are *lines*."""
    await page.reload()
    await expect(page.locator(".line")).to_have_count(lines)
    return await list_page_lines(page)


@pytest.mark.parametrize("has_begun", [False, True], ids=["before the first words", "behind the first words"])
async def test_a_command_answered_during_a_turn_keeps_its_place(
    tmp_path: Path, zygote: ForkServer, chromium: Browser, has_begun: bool
) -> None:
    """Question, /status while it is answered, answer: a reload in the middle and one at the end change nothing."""
    async with gated_model() as model:
        settings = {
            "PARLOUR_LLM__MODEL": "openai/test",
            "PARLOUR_LLM__API_BASE": model.base,
            "PARLOUR_LLM__API_KEY": "k",
        }
        async with gateway(tmp_path / "home", zygote, **settings) as process:
            page = await open_chat(chromium, process.url)
            await say(page, "How is the roof?")
            await model.asked.get()
            if has_begun:
                model.may_begin.set()
                await expect(page.locator(".line.streaming .body")).to_have_text(BEGINNING)
            await say(page, "/status")
            await expect(page.locator(".line.notice")).to_have_count(1)
            live = await list_page_lines(page)
            assert await reloaded(page, len(live)) == live
            model.may_begin.set()
            model.may_end.set()
            await expect(page.locator(".line.assistant", has_text="So much for")).to_have_count(1)
            live = await list_page_lines(page)
            order = [0, 3, 1, 2] if has_begun else [0, 1, 2, 3]
            said = ["How is the roof?", "/status", live[order.index(2)], f"{BEGINNING} So much for How is the roof?"]
            assert [said[n] for n in order] == live
            assert await reloaded(page, 4) == live


async def test_a_question_asked_during_a_turn_keeps_its_place(
    tmp_path: Path, zygote: ForkServer, chromium: Browser
) -> None:
    """Two questions, then two answers: that is what was seen, and what a reload shows."""
    async with gated_model() as model:
        settings = {
            "PARLOUR_LLM__MODEL": "openai/test",
            "PARLOUR_LLM__API_BASE": model.base,
            "PARLOUR_LLM__API_KEY": "k",
        }
        async with gateway(tmp_path / "home", zygote, **settings) as process:
            page = await open_chat(chromium, process.url)
            await say(page, "One?")
            await model.asked.get()
            await say(page, "Two?")
            assert await reloaded(page, 2) == ["One?", "Two?"]
            model.may_begin.set()
            model.may_end.set()
            await expect(page.locator(".line.assistant", has_text="So much for Two?")).to_have_count(1)
            live = await list_page_lines(page)
            assert live == ["One?", "Two?", *(f"{BEGINNING} So much for {each}" for each in ("One?", "Two?"))]
            assert await reloaded(page, 4) == live
