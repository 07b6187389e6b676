"""Previews: the last text wins at the channel's pace, the answer adopts them, and typing always stops."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from gateway.events import SessionKey
from gateway.i18n import translate
from gateway.ports.channel import ChannelCapabilities
from gateway.ports.journal import TurnLease
from tests.fakes.clock import VirtualClock
from tests.fakes.memory_channel import KEYED, PLAIN, RINGING, ChannelFault, MemoryPlatform
from tests.fakes.turns import ANN, BOB, answered
from tests.unit.delivery.conftest import DeliveryGateway, OpensGateway

MARK = translate("delivery.may_repeat")
BELOW = translate("delivery.next_message")
WORDS = "The first words of an answer that goes on for a while"


async def shown(gateway: DeliveryGateway, lease: TurnLease, text: str = WORDS) -> None:
    """Show one preview and close it."""
    preview = gateway.preview(lease)
    preview.show(text)
    await asyncio.sleep(5)
    await preview.close()


async def answer(gateway: DeliveryGateway, *texts: str, after: float = 0) -> None:
    """Show one preview, and answer with *texts* some seconds later."""
    lease = await gateway.turn()
    await shown(gateway, lease)
    await asyncio.sleep(after)
    await gateway.commit(lease, *texts)
    await gateway.settled()


async def test_the_last_text_wins_at_the_channels_pace(opens: OpensGateway) -> None:
    """A hundred texts in ten seconds are one send and about ten edits, the newest text each time."""
    gateway = await opens()
    _, preview = await gateway.begin_preview()
    for n in range(100):
        preview.show(f"{WORDS[:50]} {n}")
        await asyncio.sleep(0.1)
    await asyncio.sleep(2)
    await preview.close()
    times = [call.at for call in gateway.platform.calls]
    assert [call.what for call in gateway.platform.calls] == ["send", *["edit"] * (len(times) - 1)]
    assert 9 <= len(times) <= 12
    assert all(later - earlier >= 1 for earlier, later in pairwise(times))
    assert gateway.platform.texts(ANN) == [f"{WORDS[:50]} 99"]


async def test_the_row_is_written_before_it_is_sent(opens: OpensGateway) -> None:
    """While the first send is on its way the ledger knows of it; nothing durable happens before the first words."""
    gateway = await opens()
    gateway.platform.latency = 1.0
    lease, preview = await gateway.begin_preview()
    await asyncio.sleep(10)
    story = await gateway.store.journal.trace(lease.turn)
    assert story is not None
    assert story.parts == ()
    preview.show(WORDS)
    await asyncio.sleep(0.5)
    story = await gateway.store.journal.trace(lease.turn)
    assert story is not None
    assert [part["state"] for part in story.parts] == ["sending"]
    await preview.close()


async def test_few_words_wait_for_more(opens: OpensGateway, clock: VirtualClock) -> None:
    """One word is not worth a notification: it waits for one pace, in which a short answer may overtake it."""
    gateway = await opens()
    lease, preview = await gateway.begin_preview()
    preview.show("The")
    await asyncio.sleep(0.5)
    await preview.close()
    await gateway.commit(lease, "The end")
    await gateway.settled()
    assert [call.what for call in gateway.platform.calls] == ["send"]
    assert gateway.platform.texts(ANN) == ["The end"]


@pytest.mark.parametrize("text", ["short", "word " * 60])
async def test_the_answer_adopts_the_preview(opens: OpensGateway, text: str) -> None:
    """The first part is an edit of the preview, further parts are new messages, nothing stands twice."""
    gateway = await opens()
    await answer(gateway, text, "second message")
    texts = gateway.platform.texts(ANN)
    assert " ".join(texts).split() == [*text.split(), "second", "message"]
    assert gateway.platform.chats["42"][0].versions[0] == WORDS


async def test_a_stopped_turns_line_adopts_the_preview(opens: OpensGateway) -> None:
    """Whatever ends the turn replaces the half-said words."""
    gateway = await opens()
    await answer(gateway, "Stopped.")
    assert gateway.platform.texts(ANN) == ["Stopped."]


async def test_after_a_minute_the_answer_rings(opens: OpensGateway) -> None:
    """A late answer of one part is a message of its own; the preview points at it (docs/adr/0005)."""
    gateway = await opens()
    await answer(gateway, "The answer", after=60)
    assert gateway.platform.texts(ANN) == [BELOW, "The answer"]


async def test_a_long_late_answer_rings_by_itself(opens: OpensGateway) -> None:
    """With several parts the last one is a new message anyway: no pointer."""
    gateway = await opens()
    await answer(gateway, "word " * 60, after=60)
    assert BELOW not in gateway.platform.texts(ANN)
    assert " ".join(gateway.platform.texts(ANN)).split() == ["word"] * 60


async def test_a_page_needs_no_ringing(opens: OpensGateway) -> None:
    """Where nothing rings a late answer is an edit like any other."""
    gateway = await opens(replace(RINGING, rings=False))
    await answer(gateway, "The answer", after=60)
    assert gateway.platform.texts(ANN) == ["The answer"]


async def test_a_late_answer_to_a_deleted_preview_is_just_the_answer(opens: OpensGateway) -> None:
    """Somebody deleted the preview: there is nothing to point from, and the answer comes once."""
    gateway = await opens()
    lease = await gateway.turn()
    await shown(gateway, lease)
    await asyncio.sleep(60)
    gateway.platform.chats["42"].clear()
    await gateway.commit(lease, "The answer")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["The answer"]


async def test_a_deleted_preview_is_no_reason_to_bury_the_answer(opens: OpensGateway) -> None:
    """An edit that is refused becomes a message."""
    gateway = await opens()
    lease = await gateway.turn()
    await shown(gateway, lease)
    gateway.platform.chats["42"].clear()
    await gateway.commit(lease, "The answer")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["The answer"]


@pytest.mark.parametrize("capabilities", [RINGING, KEYED], ids=["history", "key"])
@pytest.mark.parametrize("fault", [ChannelFault.LOST, ChannelFault.DROPPED, ChannelFault.BUG, ChannelFault.HANG])
async def test_a_preview_of_unknown_outcome_is_asked_for(
    opens: OpensGateway, capabilities: ChannelCapabilities, fault: ChannelFault
) -> None:
    """Posted or not, after an unknown first send the chat ends with the answer, once and unmarked."""
    gateway = await opens(capabilities)
    gateway.platform.fail(fault, what="send")
    await answer(gateway, "The answer")
    assert gateway.platform.texts(ANN) == ["The answer"]


async def test_a_preview_that_nobody_can_find_marks_the_answer(opens: OpensGateway) -> None:
    """Where a half answer may stand unknown, the answer says that it may repeat."""
    gateway = await opens(RINGING, MemoryPlatform(finds=False))
    gateway.platform.fail(ChannelFault.LOST, what="send")
    await answer(gateway, "The answer")
    assert gateway.platform.texts(ANN) == [WORDS, f"{MARK}\nThe answer"]


REFUSALS = (ChannelFault.REFUSED, ChannelFault.GONE)


@pytest.mark.parametrize("fault", list(ChannelFault))
@pytest.mark.parametrize("what", ["send", "edit"])
async def test_no_fault_of_a_preview_fails_its_turn(opens: OpensGateway, fault: ChannelFault, what: str) -> None:
    """Whatever happens to a preview, the answer arrives unmarked, once, and typing is over."""
    gateway = await opens()
    # A second refusal would be the answer's own.
    gateway.platform.fail(fault, what=what, seconds=3, calls=1 if fault in REFUSALS else 2)
    lease, preview = await gateway.begin_preview()
    for n in range(8):
        preview.show(f"{WORDS} {n}")
        await asyncio.sleep(0.7)
    await preview.close()
    await gateway.commit(lease, "The answer")
    await gateway.settled()
    assert not gateway.channel.is_typing(ANN)
    assert gateway.platform.texts(ANN) == ["The answer"]


async def test_a_retry_after_pauses_previews_and_the_answer_of_that_chat(opens: OpensGateway) -> None:
    """The platform asked for quiet: neither edit nor answer breaks it, other chats go on."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.LATER, chat=ANN.chat, what="edit", seconds=30)
    lease, other = await gateway.turn(), await gateway.turn(BOB)
    preview, others = gateway.preview(lease), gateway.preview(other)
    for n in range(5):
        preview.show(f"{WORDS} {n}")
        others.show(f"{WORDS} {n}")
        await asyncio.sleep(1)
    await asyncio.gather(preview.close(), others.close())
    await gateway.commit(lease, "The answer")
    await gateway.settled()
    asked, kept = gateway.platform.at("edit", ANN)
    assert kept - asked >= 30
    assert len(gateway.platform.at("edit", BOB)) > 2


async def test_an_answer_does_not_wait_for_a_stale_preview(opens: OpensGateway, clock: VirtualClock) -> None:
    """Closing waits only for the call under way, and not for ever; the text that was waiting is dropped."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.HANG, what="edit")
    lease, preview = await gateway.begin_preview()
    preview.show(WORDS)
    await asyncio.sleep(2)
    preview.show(f"{WORDS} hangs")
    await asyncio.sleep(2)
    preview.show(f"{WORDS} never shown")
    before = clock.seconds
    await preview.close()
    assert clock.seconds - before <= 5
    await gateway.commit(lease, "The answer")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["The answer"]
    assert not any("never shown" in call.text for call in gateway.platform.calls)


async def test_an_answer_closes_a_preview_that_was_left_open(opens: OpensGateway) -> None:
    """Even when the turn forgot: the answer is edited in after the last preview, never before it."""
    gateway = await opens()
    gateway.platform.latency = 0.5
    lease, preview = await gateway.begin_preview()
    preview.show(WORDS)
    await asyncio.sleep(0.2)
    await gateway.commit(lease, "The answer")
    preview.show(f"{WORDS} and more")
    await gateway.settled()
    preview.show(f"{WORDS} and still more")
    await asyncio.sleep(5)
    assert gateway.platform.texts(ANN) == ["The answer"]
    assert not gateway.channel.is_typing(ANN)


async def test_a_preview_waits_for_the_answer_before_it(opens: OpensGateway) -> None:
    """The next turn's preview does not stand above an answer that has to wait."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.LATER, what="send", seconds=20)
    await gateway.answer("The first answer")
    await asyncio.sleep(0)
    lease, preview = await gateway.begin_preview()
    preview.show(WORDS)
    await asyncio.sleep(40)
    await preview.close()
    await gateway.commit(lease, "The second answer")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["The first answer", "The second answer"]


@pytest.mark.parametrize("end", ["close", "cancel", "kill", "bug"])
async def test_typing_always_stops(opens: OpensGateway, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Typing begins with the turn and is over on every way out."""
    gateway = await opens()
    lease = await gateway.turn()

    async def turn() -> None:
        preview = gateway.preview(lease)
        try:
            preview.show(WORDS)
            await asyncio.sleep(60)
        finally:
            await preview.close()

    if end == "bug":
        monkeypatch.setattr(gateway.channel, "render", None)
    running = asyncio.create_task(turn())
    await asyncio.sleep(0.1)
    if end != "bug":
        assert gateway.channel.is_typing(ANN)
    if end == "cancel":
        running.cancel()
        await asyncio.wait({running})
    elif end == "kill":
        gateway.running.cancel()
        await asyncio.wait({gateway.running})
    else:
        await running
    assert not gateway.channel.is_typing(ANN)
    await asyncio.sleep(61)


async def test_the_status_says_how_to_stop_after_fifteen_seconds(opens: OpensGateway) -> None:
    """First plain typing, then what is done, after fifteen seconds also how to stop it; then nothing."""
    gateway = await opens()
    _, preview = await gateway.begin_preview()
    await asyncio.sleep(5)
    preview.status("search")
    await asyncio.sleep(5)
    preview.status("")
    await asyncio.sleep(10)
    preview.status("reading")
    await asyncio.sleep(1)
    await preview.close()
    said = [(activity.on, activity.text) for activity in gateway.channel.activities]
    doing = translate("delivery.doing", what="reading")
    assert said == [
        (True, ""), (True, "search"), (True, ""), (True, translate("delivery.working")), (True, doing), (False, ""),
    ]  # fmt: skip


async def test_a_status_changes_once_a_second(opens: OpensGateway) -> None:
    """A tool may report its progress as often as it likes: the last report of each second is shown."""
    gateway = await opens()
    preview = gateway.preview(await gateway.turn())
    for n in range(8):
        preview.status(f"page {n}")
        await asyncio.sleep(0.3)
    await asyncio.sleep(1)
    await preview.close()
    said = [activity.text for activity in gateway.channel.activities]
    assert said == ["", "page 0", "page 3", "page 6", "page 7", ""]


async def test_a_channel_without_previews_is_only_shown_typing(opens: OpensGateway) -> None:
    """No edits, no preview: the words are not sent before the answer, and nobody needs to stream."""
    gateway = await opens(replace(PLAIN, shows_activity=True))
    lease = await gateway.turn()
    assert not gateway.deliverer.is_watched(ANN)
    await shown(gateway, lease)
    assert gateway.platform.calls == []
    assert [activity.on for activity in gateway.channel.activities] == [True, False]


async def test_nobody_watches_what_the_channel_says_is_unwatched(opens: OpensGateway) -> None:
    """Streaming costs CPU: it is asked for only where the channel says that somebody would see it."""
    gateway = await opens()
    assert gateway.deliverer.is_watched(ANN)
    gateway.channel.watched = False
    assert not gateway.deliverer.is_watched(ANN)
    assert not gateway.deliverer.is_watched(SessionKey("gone", "1"))


async def test_a_turn_that_is_claimed_again_goes_on_with_its_preview(opens: OpensGateway) -> None:
    """After a kill the preview that stands is edited on; there is never a second one."""
    gateway = await opens()
    _, preview = await gateway.begin_preview()
    preview.show(WORDS)
    await asyncio.sleep(3)
    await gateway.restart()
    again = await gateway.store.journal.claim(ANN)
    assert again is not None
    await shown(gateway, again, f"{WORDS}, thought again")
    assert gateway.platform.texts(ANN) == [f"{WORDS}, thought again"]
    await gateway.commit(again, "The answer")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["The answer"]


async def test_a_first_send_that_was_given_up_is_asked_for(opens: OpensGateway) -> None:
    """Closed while the first send hung, the preview's outcome is unknown to the next attempt of the turn as well."""
    gateway = await opens()
    lease = await gateway.turn()
    gateway.platform.fail(ChannelFault.HANG, what="send")
    await shown(gateway, lease)
    await gateway.store.journal.release(lease)
    again = await gateway.store.journal.claim(ANN)
    assert again is not None
    await shown(gateway, again)
    assert [call.what for call in gateway.platform.calls] == ["send", "find", "send"]
    assert gateway.platform.texts(ANN) == [WORDS]


async def test_a_preview_whose_lease_is_lost_is_silent(opens: OpensGateway) -> None:
    """Somebody else runs the turn: nothing is sent, nothing raised."""
    gateway = await opens()
    lease = await gateway.turn()
    await gateway.store.journal.release(lease)
    await shown(gateway, lease)
    assert gateway.platform.calls == []


async def test_a_private_answer_never_lands_in_a_public_preview(opens: OpensGateway) -> None:
    """The preview everybody saw is not edited into what one person may see."""
    gateway = await opens()
    lease = await gateway.turn()
    await shown(gateway, lease)
    commit = answered(lease, "for you alone")
    private = tuple(replace(message, visible_to="ann") for message in commit.outbound)
    await gateway.store.journal.commit(lease, replace(commit, outbound=private))
    await gateway.settled()
    assert [(posted.text, posted.visible_to) for posted in gateway.platform.chats["42"]] == [
        (WORDS, ""), ("for you alone", "ann"),
    ]  # fmt: skip


async def test_a_long_preview_shows_its_first_part(opens: OpensGateway) -> None:
    """What does not fit one message is cut, and nothing is edited while the first part stays the same."""
    gateway = await opens()
    _, preview = await gateway.begin_preview()
    for n in range(30, 60):
        preview.show(" ".join(f"w{i:03}" for i in range(n)))
        await asyncio.sleep(1.1)
    await preview.close()
    (text,) = gateway.platform.texts(ANN)
    assert len(text) <= 100
    assert len(gateway.platform.calls) == 1


async def test_a_preview_outside_a_running_delivery_shows_nothing(opens: OpensGateway) -> None:
    """Before run and after drain a turn gets a preview that does nothing."""
    gateway = await opens()
    lease = await gateway.turn()
    await gateway.deliverer.drain(timedelta(seconds=1))
    await shown(gateway, lease)
    assert gateway.platform.calls == []
    assert gateway.channel.activities == []


async def test_a_platform_that_hangs_holds_no_turn(opens: OpensGateway, clock: VirtualClock) -> None:
    """The turn goes on after half a second; typing and the call end by themselves, before the answer is sent."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.HANG, what="edit")
    lease, preview = await gateway.begin_preview()
    preview.show(WORDS)
    await asyncio.sleep(2)
    preview.show(f"{WORDS} and more")
    await asyncio.sleep(1)
    before = clock.seconds
    await preview.close()
    assert clock.seconds - before == pytest.approx(0.5)
    assert gateway.channel.is_typing(ANN)
    await gateway.commit(lease, "The answer")
    await gateway.settled()
    assert clock.seconds - before == pytest.approx(5, abs=0.2)
    assert not gateway.channel.is_typing(ANN)
    assert gateway.platform.texts(ANN) == ["The answer"]


async def test_the_same_turn_waits_for_its_own_last_preview(opens: OpensGateway) -> None:
    """Given back while a first send hangs, and claimed again at once: the two never send beside each other."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.HANG, what="send")
    lease, preview = await gateway.begin_preview()
    preview.show(WORDS)
    await asyncio.sleep(2)
    await preview.close()
    await gateway.store.journal.release(lease)
    again = await gateway.store.journal.claim(ANN)
    assert again is not None
    preview = gateway.preview(again)
    preview.show(WORDS)
    await asyncio.sleep(10)
    await preview.close()
    assert gateway.platform.texts(ANN) == [WORDS]
    assert [call.what for call in gateway.platform.calls] == ["send", "find", "send"]
    await gateway.commit(again, "The answer")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["The answer"]


async def test_streams_of_one_chats_threads_keep_apart(opens: OpensGateway) -> None:
    """Two topics, a thread and its chat answer at once: each stream grows in its place and becomes its answer."""
    gateway = await opens()
    keys = [ANN, SessionKey("telegram", "42/7"), SessionKey("telegram", "42/8"), BOB]
    leases = [await gateway.turn(key) for key in keys]
    previews = [gateway.preview(lease) for lease in leases]
    for n in range(6):
        for key, preview in zip(keys, previews, strict=True):
            preview.show(f"{key}: {WORDS[:40]} {n}")
        await asyncio.sleep(0.7)
    for preview in previews:
        await preview.close()
    for key in keys:
        (posted,) = gateway.platform.chats[key.chat]
        assert len(posted.versions) > 2
        assert all(version.startswith(f"{key}: ") for version in posted.versions)
    for key, lease in zip(keys, leases, strict=True):
        await gateway.commit(lease, f"The answer in {key}")
    await gateway.settled()
    assert [gateway.platform.texts(key) for key in keys] == [[f"The answer in {key}"] for key in keys]


async def test_two_turns_of_one_chat_keep_their_streams_apart(opens: OpensGateway) -> None:
    """A preview belongs to its turn: the next stream begins below, and neither answer takes the other's place."""
    gateway = await opens()
    gateway.platform.latency = 0.3
    first = await gateway.turn()
    await shown(gateway, first, f"1 {WORDS}")
    await gateway.commit(first, "First")
    second = await gateway.turn()
    await shown(gateway, second, f"2 {WORDS}")
    await gateway.commit(second, "Second")
    await gateway.settled()
    assert [posted.versions for posted in gateway.platform.chats["42"]] == [
        [f"1 {WORDS}", "First"], [f"2 {WORDS}", "Second"],
    ]  # fmt: skip
