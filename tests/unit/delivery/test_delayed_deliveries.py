"""A delivery that is held up is visible: in the status, to the doctor, and to the owners."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from gateway.alerts.alert_sources import find_delays
from gateway.alerts.monitor import Source
from gateway.control.registry import plain
from gateway.delivery.outbox_dispatcher import DELAYED_AFTER
from gateway.events import SessionKey
from gateway.health.gateway_checks import status_findings
from gateway.operations.gateway import status_rows
from gateway.ports.journal import DelayedDelivery
from gateway.ports.setup import FindingLevel
from gateway.text.message_text import strip_control_characters
from tests.fakes.alert_scene import OWNER_HERE, OWNER_THERE, AlertScene
from tests.fakes.clock import EPOCH, VirtualClock
from tests.fakes.memory_channel import ChannelFault
from tests.fakes.turns import ANN, BOB, answer, said
from tests.unit.delivery.conftest import OpensGateway


async def test_a_chat_that_waits_is_named_with_its_reason_until_it_is_delivered(
    opens: OpensGateway, clock: VirtualClock
) -> None:
    """Asked to wait ten minutes: since when, until when and why, and nothing of the chats that do not wait."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.LATER, chat=ANN.chat, seconds=600)
    await gateway.answer("one")
    await gateway.answer("two", key=BOB)
    await asyncio.sleep(5)
    (delayed,) = gateway.deliverer.delayed()
    assert (delayed.key, delayed.until - delayed.since) == (ANN, timedelta(seconds=600))
    assert delayed.reason == "retry in 600s"
    assert EPOCH <= delayed.since <= clock.now()
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["one"]
    assert gateway.deliverer.delayed() == ()


@pytest.mark.parametrize("fault", [ChannelFault.LATER, ChannelFault.DROPPED])
async def test_short_waits_add_up(opens: OpensGateway, fault: ChannelFault) -> None:
    """A platform that fails again and again is a delay from the first failure on, whatever each pause is."""
    gateway = await opens()
    gateway.platform.fail(fault, seconds=2, calls=14)
    await gateway.answer("one")
    await asyncio.sleep(20)
    first = gateway.deliverer.delayed()
    await asyncio.sleep(100)
    (second,) = gateway.deliverer.delayed()
    assert all(each.since == second.since for each in first)
    assert second.until - second.since >= DELAYED_AFTER
    await gateway.settled()
    assert gateway.deliverer.delayed() == ()


async def test_ordinary_rate_limits_are_no_delay(opens: OpensGateway) -> None:
    """Half a minute's wait is nobody's concern."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.LATER, seconds=30)
    await gateway.answer("one")
    await asyncio.sleep(10)
    assert gateway.deliverer.delayed() == ()
    await gateway.settled()


async def test_an_answer_behind_the_pause_of_its_preview_is_delayed(opens: OpensGateway) -> None:
    """The platform asked the preview to wait: the answer waits with it, and says why."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.LATER, seconds=900)
    lease, preview = await gateway.begin_preview()
    preview.show("a beginning that is long enough to be shown at once")
    await gateway.platform.until(lambda: bool(gateway.platform.calls))
    await asyncio.sleep(1)
    await gateway.commit(lease, "the answer")
    await preview.close()
    await asyncio.sleep(1)
    (delayed,) = gateway.deliverer.delayed()
    assert delayed.reason == "retry in 900s"
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["the answer"]


def source(scene: AlertScene) -> Mapping[str, Source]:
    """Return the source that looks at deliveries."""
    return {"delivery": partial(find_delays, delayed=scene.deliverer.delayed, states=lambda: scene.hears)}


async def test_an_owner_is_told_of_delayed_answers_and_that_they_arrived(tmp_path: Path, clock: VirtualClock) -> None:
    """Telegram takes no answers for a quarter of an hour: Slack says so once, and once that they arrive again."""
    scene = AlertScene(tmp_path / "home", clock, source)
    await scene.start()
    scene.platforms["telegram"].fail(ChannelFault.LATER, seconds=900)
    await answer(scene.store, said(key=SessionKey("telegram", "42")), "one")
    await scene.until(1)
    (told,) = scene.told(OWNER_THERE)
    assert told.startswith("telegram has not accepted replies in some chats since 2026-11-21 22:00.")
    assert "the next attempt is at 2026-11-21 22:15," in told
    await scene.until(20)
    assert scene.told(OWNER_THERE)[1:] == [
        "Replies on telegram are delivered again. Some had been delayed since 2026-11-21 22:00."
    ]
    assert scene.told(OWNER_HERE) == []
    await scene.stop()


async def test_a_channel_that_is_down_is_one_trouble_and_not_two(tmp_path: Path, clock: VirtualClock) -> None:
    """That nothing is delivered there goes without saying."""
    scene = AlertScene(tmp_path / "home", clock, source)
    scene.hears["telegram"] = False
    await scene.start()
    scene.platforms["telegram"].fail(ChannelFault.LATER, seconds=900)
    await answer(scene.store, said(key=SessionKey("telegram", "42")), "one")
    await scene.until(10)
    assert scene.told(OWNER_THERE) == []
    await scene.stop()


def test_operators_read_which_chat_waits_and_why() -> None:
    """`parlour status` and the doctor print a line per chat; what a platform says cannot move the cursor."""
    delayed = DelayedDelivery(
        key=SessionKey("discord", "4001"), since=EPOCH, until=EPOCH + timedelta(minutes=15), reason="\x1b[2Jlimited"
    )
    line = {"delayed_chats": 5, "delayed": [plain(delayed)]}
    told = (
        "replies to discord:4001 wait since 2026-11-21T21:00:00Z: \x1b[2Jlimited;"
        " the next attempt is at 2026-11-21T21:15:00Z"
    )
    line["findings"] = [each.to_line() for each in status_findings(line)]
    printed = [strip_control_characters(row) for row in status_rows([line], {})]
    assert f"{'delivery':16} {told.replace(chr(27), '')}" in printed
    first, more = status_findings(line)
    assert (first.level, first.id, first.text) == (FindingLevel.WARN, "delivery.delayed", told)
    assert more.text == "and in 4 more chats"
