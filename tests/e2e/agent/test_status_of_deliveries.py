"""What a running gateway says of a chat that its platform keeps from being answered."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from types import MethodType

import pytest

from gateway.commands.status import show_status
from gateway.errors import RetryLater
from gateway.events import DeliveryReceipt, MessagePart
from tests.fakes.inprocess_gateway import InProcessChannel, InProcessGateway, gateway


def limit(parlour: InProcessGateway, chat: str, wait: timedelta) -> asyncio.Event:
    """Have the platform refuse what goes to *chat*; return what is set when it has."""
    refused, send = asyncio.Event(), parlour.channel.send

    async def limited(_: InProcessChannel, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        if part.key.chat == chat:
            refused.set()
            raise RetryLater(wait, "429, too many requests")
        return await send(part, may_be_duplicate=may_be_duplicate)

    parlour.channel.send = MethodType(limited, parlour.channel)  # type: ignore[method-assign]
    return refused


async def test_a_delayed_answer_shows_in_both_statuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`parlour status` names the chat, reason and next attempt; `/status` counts, and names no chat."""
    monkeypatch.setenv("PARLOUR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PARLOUR_LOG__LEVEL", "error")
    async with gateway(home=tmp_path / "home") as parlour:
        refused = limit(parlour, "ann", timedelta(minutes=15))
        await parlour.channel.say("ann", "one")
        await refused.wait()
        while not parlour.app.dispatcher.delayed():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
        told = await parlour.channel.ask("bob", "/status", sender="bob")
        assert "Replies to 1 chat are delayed: the platform does not accept them at the moment." in told
        assert "ann" not in told
        await asyncio.to_thread(show_status, as_json=False)
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("delayed  ")]
    assert "replies to pocket:ann wait since " in line
    assert ": 429, too many requests; the next attempt is at " in line
