"""A life of a reminder, killed behind each change of the journal: the platform has each of its messages once.

The gateway runs once and its home is copied behind every transaction, as a kill at that moment leaves it. A spread of
the copies is started and brought to the end of the same life. The platform knows the send key, as Slack's
and the page's do.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from gateway.events import InboundKind
from tests.e2e.agent.test_reminders import BERLIN, MovableClock, ReminderTalk, ToldModel
from tests.fakes.home_copies import HomeCopies, KeyedPlugin, spread
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.faults.matrix import IS_FULL


@dataclass
class KilledLife:
    """The life in five steps."""

    clock: MovableClock
    step: int = 0

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
KILLS = 8  # of some 30; all with `CROSSINGS=full`


@pytest.mark.timeout(0 if IS_FULL else 240)
async def test_killed_behind_every_change_each_message_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise, fire, snooze, fire again, cancel; then nothing comes for three days."""
    clock = MovableClock()
    life = KilledLife(clock)
    copies = HomeCopies(tmp_path, lambda: (life.step, clock.offset))

    async def live(home: Path, parts: dict[str, str], step: int = 0, *, is_recorded: bool = False) -> None:
        kind = KeyedPlugin(parts, lambda: None)
        async with gateway(home=home, model=MODEL, environment=BERLIN, kind=kind, now=clock) as inside:
            with copies.recorded(inside, parts, monkeypatch) if is_recorded else nullcontext():
                await inside.idle()
                await life.live(inside, step)

    whole = dict[str, str]()
    await live(tmp_path / "home", whole, is_recorded=True)
    assert sum(text.startswith("⏰ stand-up") for text in whole.values()) == 2
    assert len(copies.copies) > 15
    for _, copy in spread(copies.copies, 1_000 if IS_FULL else KILLS):
        step, clock.offset = copy.state
        await live(copy.home, copy.parts, step)
        fired = [text for text in copy.parts.values() if text.startswith("⏰ stand-up")]
        assert len(fired) == 2, (step, sorted(copy.parts.values()))
