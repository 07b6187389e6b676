"""Formatting: a long answer's is done off the event loop, one at a time, and holds nobody else up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gateway.events import ChatKind, MessagePart, OutboundMessage, SessionKey
from tests.fakes.memory_channel import RINGING, ChannelFault, FakeChannel
from tests.fakes.turns import ANN, BOB, accept, claim, said
from tests.unit.delivery.conftest import OpensGateway

CID = SessionKey("telegram", "44")
HEAVY = "# a\n" * 1_000
ROOMY = replace(RINGING, text_limit=4_000)
LIGHT = "Here you are."


class HeldFormatting:
    """Renders as a `FakeChannel` does; heavy texts wait in their thread until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Semaphore(0)
        self.at_once = self.most = 0
        self.threads: dict[str, bool] = {}  # the first words: was it off the loop?
        render = FakeChannel.render

        def slow(channel: FakeChannel, message: OutboundMessage, **more: int) -> Sequence[MessagePart]:
            is_off = threading.current_thread() is not threading.main_thread()
            self.threads[message.text[:13]] = is_off
            if is_off:
                self.at_once += 1
                self.most = max(self.most, self.at_once)
                self.begun.release()
                assert self.go_on.wait(5)
                self.at_once -= 1
            return render(channel, message, **more)

        monkeypatch.setattr(FakeChannel, "render", slow)


@pytest.mark.parametrize("long", [HEAVY, "word " * 2_000], ids=["dense", "long"])
async def test_others_are_answered_while_a_long_answer_is_formatted(
    opens: OpensGateway, monkeypatch: pytest.MonkeyPatch, long: str
) -> None:
    """The event loop goes on: Bob has his answer before Ann's is formatted."""
    formatting = HeldFormatting(monkeypatch)
    gateway = await opens(ROOMY)
    await gateway.answer(long)
    assert await asyncio.to_thread(formatting.begun.acquire, timeout=60)
    await gateway.answer(LIGHT, key=BOB)
    await asyncio.sleep(0)
    while not gateway.platform.texts(BOB):  # noqa: ASYNC110 - virtual time stands while a thread works
        await asyncio.sleep(0)
    assert gateway.platform.texts(ANN) == []
    formatting.go_on.set()
    await gateway.settled()
    assert " ".join(gateway.platform.texts(ANN)).split() == long.split()
    assert formatting.threads == {long[:13]: True, LIGHT: False}


async def test_long_answers_are_formatted_one_at_a_time(opens: OpensGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many chats have one, formatting has one thread's share of the processor."""
    formatting = HeldFormatting(monkeypatch)
    gateway = await opens(ROOMY)
    for key in (ANN, BOB, CID):
        await gateway.answer(HEAVY, key=key)
    formatting.go_on.set()
    await gateway.settled()
    assert formatting.most == 1


async def test_a_preview_is_formatted_off_the_loop_too(opens: OpensGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preview of dense text blocks nobody either."""
    formatting = HeldFormatting(monkeypatch)
    formatting.go_on.set()
    gateway = await opens(ROOMY)
    preview = gateway.preview(await gateway.turn())
    preview.show(HEAVY)
    await asyncio.sleep(2)
    await preview.close()
    assert formatting.threads == {HEAVY[:13]: True}


async def test_a_moved_answer_is_formatted_off_the_loop_too(
    opens: OpensGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long answer whose topic is gone is formatted a second time, for its group, and blocks nobody."""
    formatting = HeldFormatting(monkeypatch)
    formatting.go_on.set()
    gateway = await opens(ROOMY)
    topic = SessionKey("telegram", "-100/7")
    gateway.platform.fail(ChannelFault.GONE, chat=topic.chat, calls=99)
    await accept(gateway.store, said("when?", key=topic, chat_kind=ChatKind.GROUP))
    await gateway.commit_to(await claim(gateway.store, topic), HEAVY)
    await gateway.settled()
    assert gateway.platform.texts(topic.parent)
    assert formatting.threads == {HEAVY[:13]: True, f"> when?\n\n{HEAVY}"[:13]: True}
