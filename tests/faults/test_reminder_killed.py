"""A life of a reminder, killed behind each change of the journal: the platform has each of its messages once.

The gateway runs once and its home is copied behind every transaction, as a kill at that moment leaves it. Each copy is
started and brought to the end of the same life. The platform knows the send key, as Slack's and the page's do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from gateway.events import DeliveryReceipt, InboundKind, MessagePart
from gateway.ports import ChannelCapabilities, ChannelContext
from gateway.store.writer import BatchWriter
from tests.e2e.agent.test_reminders import BERLIN, MovableClock, ReminderTalk, ToldModel
from tests.fakes.inprocess_gateway import InProcessChannel, InProcessGateway, InProcessPlugin, gateway

KEYED = ChannelCapabilities(text_limit=4_000, send_key=True)


class KeyedChannel(InProcessChannel):
    """A platform that takes a part once, by its id; *parts* outlives the process."""

    def __init__(self, context: ChannelContext, parts: dict[str, str]) -> None:
        super().__init__(context, KEYED)
        self.parts = parts

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Post it unless it stands there."""
        self.parts.setdefault(part.id, part.plain)
        return await super().send(part, may_be_duplicate=may_be_duplicate)


class KeyedPlugin(InProcessPlugin):
    """Opens the channel over what the platform knows."""

    def __init__(self, parts: dict[str, str]) -> None:
        super().__init__(KEYED)
        self.parts = parts

    def open(self, context: ChannelContext) -> Any:
        """Build the channel."""
        self.channel = KeyedChannel(context, self.parts)
        return self.channel


@dataclass
class Snapshot:
    """What a kill leaves: the home, and what the platform had."""

    home: Path
    parts: dict[str, str]
    step: int
    offset: timedelta


@dataclass
class KilledLife:
    """The life in five steps, and the copies of it."""

    folder: Path
    clock: MovableClock
    step: int = 0
    snapshots: list[Snapshot] = field(default_factory=list)

    async def live(self, inside: InProcessGateway, start: int = 0) -> None:
        """Go on with the life from a step on; each step may have been done already."""
        ann = ReminderTalk(inside, ToldModel(), self.clock)
        for step, act in enumerate((self._promise, self._fire, self._snooze, self._fire_again, self._cancel)):
            if step >= start:
                self.step = step
                await act(ann)
                await inside.idle()

    async def _promise(self, ann: ReminderTalk) -> None:
        await ann.inside.channel.say("c", "remind me", number="1")

    async def _fire(self, ann: ReminderTalk) -> None:
        await ann.move(hours=21, minutes=41)

    async def _snooze(self, ann: ReminderTalk) -> None:
        (id_,) = {each.id for each in await ann.reminders()}
        await ann.inside.channel.say("c", f"/reminders snooze {id_} 10", kind=InboundKind.BUTTON, number="2")

    async def _fire_again(self, ann: ReminderTalk) -> None:
        await ann.move(minutes=11)

    async def _cancel(self, ann: ReminderTalk) -> None:
        for id_ in {each.id for each in await ann.reminders()}:
            await ann.inside.channel.say("c", f"/reminders stop {id_}", kind=InboundKind.BUTTON, number="3")
        await ann.inside.idle()
        await ann.move(days=3)
        assert await ann.reminders() == []


class PromisingModel(ToldModel):
    """Sets the reminder, and says so once that is done; asked again after a kill, it does the same."""

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Call the tool, or answer."""
        is_set = any(each["role"] == "tool" for each in request.messages)
        self.queue = ["done" if is_set else ("remind", {"what": "stand-up", "at": "2026-11-23T09:00"})]
        return await super().complete(request, sink=sink)


MODEL = PromisingModel()


@pytest.mark.timeout(240)
async def test_killed_behind_every_change_each_message_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise, fire, snooze, fire again, cancel; then nothing comes for three days."""
    clock = MovableClock()
    life, parts = KilledLife(tmp_path, clock), dict[str, str]()
    submit, is_recorded = BatchWriter.submit, True

    async with gateway(
        home=tmp_path / "home", model=MODEL, environment=BERLIN, kind=KeyedPlugin(parts), now=clock
    ) as inside:
        commits = [0]

        def submit_and_copy(writer: BatchWriter, *arguments: Any, **options: Any) -> Any:
            future = submit(writer, *arguments, **options)
            future.add_done_callback(lambda _: copy())
            return future

        def copy() -> None:
            if not is_recorded or commits[0] == writes(inside):
                return
            commits[0] = writes(inside)
            home = inside.kill(tmp_path / f"copy-{len(life.snapshots)}")
            life.snapshots.append(Snapshot(home, dict(parts), life.step, clock.offset))

        monkeypatch.setattr(BatchWriter, "submit", submit_and_copy)
        await life.live(inside)
        is_recorded = False
    monkeypatch.setattr(BatchWriter, "submit", submit)
    whole = sorted(parts.values())
    assert sum(text.startswith("⏰ stand-up") for text in whole) == 2
    assert len(life.snapshots) > 15
    for snapshot in life.snapshots:
        clock.offset, seen = snapshot.offset, dict(snapshot.parts)
        again = gateway(home=snapshot.home, model=MODEL, environment=BERLIN, kind=KeyedPlugin(seen), now=clock)
        async with again as inside:
            await inside.idle()
            await life.live(inside, snapshot.step)
        fired = [text for text in seen.values() if text.startswith("⏰ stand-up")]
        assert len(fired) == 2, (snapshot.step, sorted(seen.values()))


def writes(inside: InProcessGateway) -> int:
    """Return how many transactions were durable so far."""
    return int(inside.app.store.journal._engine.writer.commits)  # type: ignore[attr-defined]
