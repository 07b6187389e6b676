"""A model call that no person made is charged to none."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent.llm.chat_model import ChatReply, ChatRequest, TokenUsage
from gateway.events import PlatformAccount
from tests.fakes.inprocess_gateway import gateway


async def test_a_call_on_an_empty_account_is_charged_to_nobody(tmp_path: Path) -> None:
    """Its file name is "%", which is no name of a person."""
    now = datetime.now(UTC)
    async with gateway(home=tmp_path / "home") as parlour:
        request = ChatRequest(messages=(), purpose="answer", turn="t1", account=PlatformAccount(kind="", id=""))
        reply = ChatReply(text="x", tool_calls=(), model="m", tokens=TokenUsage(10, 10, 0), cost=0.0)
        parlour.app.usage_recorder.note_call(request, "m", reply)
        span = {"since": now - timedelta(days=1), "until": now + timedelta(days=1), "zone": "UTC"}
        async with asyncio.timeout(60):
            while not (rows := await parlour.app.store.usage.by("person", **span)):  # type: ignore[arg-type]  # noqa: ASYNC110 -- it has no event for us
                await asyncio.sleep(0.01)
        shown = [line async for line in parlour.app.operations["usage"]({"by": "person"})]
    assert [row["person"] for row in rows] == [""]
    assert [row["person"] for row in shown] == [""]
