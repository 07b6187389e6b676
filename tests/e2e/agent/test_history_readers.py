"""What people read of a conversation while it changes: nothing is missing, and a position stays good."""

from __future__ import annotations

import asyncio
import re

from gateway.events import SessionKey
from tests.fakes.held_model import HeldScriptModel
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

ANN = SessionKey("pocket", "ann")


async def read_all(parlour: InProcessGateway, *, turns: int = 3) -> list[str]:
    """Return every text of Ann's conversations, page by page, the oldest first."""
    texts: list[str] = []
    position = ""
    while True:
        page = await parlour.app.memory.sessions.displayed_page(ANN, position, turns=turns)
        assert page is not None
        texts = [*(line.text for line in page.lines), *texts]
        if not (position := page.before):
            return texts


async def test_no_reader_misses_a_conversation_that_is_ended_meanwhile() -> None:
    """Page by page and by search, while /new ends one conversation after the other: all earlier words are found."""
    async with gateway(model=HeldScriptModel(in_turns=True)) as parlour:
        await parlour.channel.ask("ann", "the marker 0")
        ended = 0
        reads = 0

        async def end_conversations() -> None:
            nonlocal ended
            n = 0
            while n < 24 or reads <= 10:  # on a busy machine a read takes as long as several conversations
                n += 1
                await parlour.channel.ask("ann", "/new")
                await parlour.channel.ask("ann", f"the marker {n}")
                ended = n

        async with asyncio.TaskGroup() as group:
            writing = group.create_task(end_conversations())
            while not writing.done():
                before = ended
                texts = await read_all(parlour)
                marks = [int(found[1]) for text in texts if (found := re.fullmatch(r"the marker (\d+)", text))]
                assert marks == sorted(set(marks))
                assert set(range(before + 1)) <= set(marks)
                reads += 1
        assert ended >= 24


async def test_a_position_stays_good_after_a_new_conversation_and_an_erasure() -> None:
    """The page that a browser asks for next is the one behind what it shows."""
    async with gateway(model=HeldScriptModel(in_turns=True)) as parlour:
        for n in range(6):
            await parlour.channel.ask("ann", f"number {n} of tea")
        first = await parlour.app.memory.sessions.displayed_page(ANN, turns=2)
        assert first is not None
        await parlour.channel.ask("ann", "/new")
        await parlour.app.store.transcripts.rewrite("people/pocket%3aann", lambda raw: raw.replace(b"tea", b"..."))
        second = await parlour.app.memory.sessions.displayed_page(ANN, first.before, turns=2)
        assert second is not None
        assert [line.text for line in second.lines if line.role == "user"] == ["number 2 of ...", "number 3 of ..."]
