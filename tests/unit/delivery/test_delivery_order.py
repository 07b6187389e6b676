"""Delivery: order in a chat, independence between chats, and what each answer of a platform leads to."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from gateway.delivery.chat_delivery import ATTEMPTS
from gateway.delivery.part_planner import PartPlanner
from gateway.events import DeliveryReceipt, MessagePart, OutboundMessage, SessionKey
from gateway.i18n import translate
from gateway.ports.journal import OutboxPart, PendingDelivery
from gateway.ports.memory import ErasureFilter
from tests.fakes.clock import VirtualClock
from tests.fakes.memory_channel import KEYED, PLAIN, RINGING, ChannelFault, MemoryPlatform
from tests.fakes.turns import ANN, BOB, answer, answered, said
from tests.unit.delivery.conftest import OpensGateway

MARK = translate("delivery.may_repeat")


async def test_answers_arrive_in_commit_order(opens: OpensGateway) -> None:
    """Several turns, several messages each, several parts each: the chat reads them in order."""
    gateway = await opens()
    gateway.platform.latency = 0.3
    for turn in range(3):
        await gateway.answer(f"{turn}a", f"{turn}b " + "word " * 60)
    await gateway.settled()
    read = " ".join(gateway.platform.texts(ANN))
    assert read.split() == [piece for turn in range(3) for piece in (f"{turn}a", f"{turn}b", *["word"] * 60)]
    assert all(len(text) <= 100 for text in gateway.platform.texts(ANN))


async def test_the_store_is_asked_once_for_each_answer(opens: OpensGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up from before a receipt asks for nothing more; one that comes while it is stored is not missed."""
    gateway = await opens()
    gateway.platform.latency = 0.3
    outbox, asked = gateway.store.outbox, list[SessionKey]()
    next_delivery, mark_sent = outbox.next, outbox.mark_sent

    async def counted(key: SessionKey) -> PendingDelivery | None:
        asked.append(key)
        return await next_delivery(key)

    async def slow(receipt: DeliveryReceipt, *, then: MessagePart | None = None) -> bool:
        has_more = await mark_sent(receipt, then=then)
        if len(asked) == 2:
            await gateway.answer("three")
            await asyncio.sleep(1)
        return has_more

    monkeypatch.setattr(outbox, "next", counted)
    monkeypatch.setattr(outbox, "mark_sent", slow)
    await gateway.answer("one")
    await asyncio.sleep(0.1)
    gateway.store._engine.wake_chat(ANN)  # as for the answer that is being sent
    await gateway.settled()
    assert len(asked) == 1
    await gateway.answer("two")
    await gateway.settled()
    await asyncio.sleep(2)
    assert gateway.platform.texts(ANN) == ["one", "two", "three"]
    assert len(asked) == 3


async def test_one_chats_wait_delays_no_other(opens: OpensGateway, clock: VirtualClock) -> None:
    """A Retry-After is kept to the second for its chat, in order, and another chat does not notice."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.LATER, chat=ANN.chat, seconds=37)
    await gateway.answer("one")
    await gateway.answer("two")
    await gateway.answer("three", key=BOB)
    await gateway.settled()
    first, again, second = gateway.platform.at("send", ANN)
    assert again - first == pytest.approx(37)
    assert second >= again
    assert gateway.platform.at("send", BOB)[0] - first < 1
    assert gateway.platform.texts(ANN) == ["one", "two"]
    assert gateway.figure("delivery_retries", reason="later") == 1


async def test_a_thread_waits_with_its_chat(opens: OpensGateway) -> None:
    """The platform asked the chat to be quiet, so its threads are; the neighbour chat is not asked."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.LATER, chat="42", seconds=20)
    await gateway.answer("chat")
    await gateway.platform.until(lambda: bool(gateway.platform.calls))
    await asyncio.sleep(1)
    thread = SessionKey("telegram", "42/7")
    await gateway.answer("thread", key=thread)
    await gateway.settled()
    assert gateway.platform.at("send", thread)[0] >= gateway.platform.at("send", ANN)[1]


async def test_waiting_is_never_giving_up(opens: OpensGateway, clock: VirtualClock) -> None:
    """Ten minutes without a connection, then everything arrives, in order, unmarked."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.LATER, seconds=1, calls=40)
    await gateway.answer("one")
    await gateway.answer("two")
    await gateway.settled()
    assert clock.seconds > 600
    assert gateway.platform.texts(ANN) == ["one", "two"]


async def test_a_refusal_buries_the_rest_of_the_answer_at_once(opens: OpensGateway) -> None:
    """Blocked: never tried again, later parts go with it, the operator is told once, the next answer is tried."""
    gateway = await opens(PLAIN)
    gateway.platform.fail(ChannelFault.REFUSED)
    with capture_logs() as logs:
        await gateway.answer("word " * 60)
        await gateway.answer("next")
        await gateway.settled()
    (told,) = [line for line in logs if line["log_level"] in ("warning", "error")]
    assert (told["event"], told["channel"], told["parts"], told["reason"]) == (
        "delivery.dead", "telegram", 3, "403 blocked",
    )  # fmt: skip
    assert gateway.platform.texts(ANN) == ["next"]
    assert len(gateway.platform.calls) == 2
    assert (await gateway.store.journal.depth())["dead"] == 3
    assert gateway.figure("delivery_dead") == 3


async def test_unreadable_formatting_becomes_plain_text_once(opens: OpensGateway) -> None:
    """The same part goes again without formatting; when that is refused too, it is dead."""
    gateway = await opens(PLAIN)
    gateway.platform.fail(ChannelFault.FORMAT)
    await gateway.answer("**bold** move")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["bold move"]
    assert gateway.figure("delivery_retries", reason="format") == 1


async def test_a_codec_that_breaks_costs_the_formatting_and_not_the_answer(opens: OpensGateway) -> None:
    """What cannot be rendered is sent as plain text."""
    gateway = await opens(PLAIN)
    gateway.channel.breaks_rendering = True
    await gateway.answer("**bold** " + "word " * 40)
    await gateway.settled()
    assert " ".join(gateway.platform.texts(ANN)).split() == ["bold", *["word"] * 40]


@pytest.mark.parametrize("fault", [ChannelFault.LOST, ChannelFault.DROPPED])
async def test_a_known_key_is_sent_again_without_a_mark(opens: OpensGateway, fault: ChannelFault) -> None:
    """Where the platform recognises the part, an unknown outcome costs nothing: one message, no mark."""
    gateway = await opens(KEYED)
    gateway.platform.fail(fault, calls=3)
    await gateway.answer("hello")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["hello"]
    assert not gateway.platform.at("find", ANN)


@pytest.mark.parametrize("fault", [ChannelFault.LOST, ChannelFault.DROPPED, ChannelFault.BUG, ChannelFault.HANG])
async def test_a_platform_that_can_be_asked_is_asked(opens: OpensGateway, fault: ChannelFault) -> None:
    """Without a key the chat is read back: found is sent, not found is sent again, never twice, never marked."""
    gateway = await opens(RINGING)
    gateway.platform.fail(fault)
    await gateway.answer("hello")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["hello"]
    assert len(gateway.platform.at("find", ANN)) == 1


@pytest.mark.parametrize(
    ("fault", "texts"), [(ChannelFault.LOST, ["hello", f"{MARK}\nhello"]), (ChannelFault.DROPPED, [f"{MARK}\nhello"])]
)
async def test_what_nobody_can_know_is_marked(opens: OpensGateway, fault: ChannelFault, texts: list[str]) -> None:
    """No key and no history: the resend says that it may repeat (A2)."""
    gateway = await opens(RINGING, MemoryPlatform(finds=False))
    gateway.platform.fail(fault, what="send")
    await gateway.answer("hello")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == texts


async def test_doubt_survives_a_retry_after(opens: OpensGateway) -> None:
    """Asked to wait in the middle of a doubtful resend, the resend is marked all the same."""
    gateway = await opens(RINGING, MemoryPlatform(finds=False))
    gateway.platform.fail(ChannelFault.LOST, what="send")
    gateway.platform.fail(ChannelFault.LATER, what="send", seconds=5)
    await gateway.answer("hello")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["hello", f"{MARK}\nhello"]


async def test_an_old_key_is_not_trusted(opens: OpensGateway) -> None:
    """A key that the platform has forgotten by now is no key: the chat is read back instead."""
    gateway = await opens(replace(KEYED, send_key_for=timedelta(seconds=5)))
    gateway.platform.fail(ChannelFault.LOST, calls=5)
    await gateway.answer("hello")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["hello"]
    assert len(gateway.platform.at("find", ANN)) > 0


async def test_attempts_end(opens: OpensGateway, clock: VirtualClock) -> None:
    """A part that fails for ever is dead after about an hour, with growing pauses, and the next one goes."""
    gateway = await opens(RINGING)
    gateway.platform.fail(ChannelFault.BUG, what="send", calls=ATTEMPTS)
    await gateway.answer("cursed")
    await gateway.answer("next")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["next"]
    times = gateway.platform.at("send", ANN)
    assert len(times) == ATTEMPTS + 1
    assert 1800 < times[-1] - times[0] < 7200
    assert times[2] - times[1] > times[1] - times[0]


async def test_finished_parts_are_never_sent_again(opens: OpensGateway) -> None:
    """A failure in the third part, and a restart there, repeat neither the first nor the second."""
    gateway = await opens(PLAIN)
    await gateway.answer(" ".join(f"w{n:03}" for n in range(70)))
    await gateway.platform.until(lambda: len(gateway.platform.calls) == 2)
    gateway.platform.fail(ChannelFault.LATER, seconds=60)
    await gateway.platform.until(lambda: len(gateway.platform.calls) == 3)
    await gateway.restart()
    await gateway.settled()
    assert " ".join(gateway.platform.texts(ANN)).split() == [f"w{n:03}" for n in range(70)]


async def test_a_cut_decided_before_an_upgrade_stays(opens: OpensGateway) -> None:
    """Frozen parts are sent as they were cut, though the next release would cut otherwise."""
    gateway = await opens(PLAIN)
    gateway.platform.fail(ChannelFault.LATER, seconds=60)
    await gateway.answer("word " * 40)
    await gateway.platform.until(lambda: bool(gateway.platform.calls))
    await asyncio.sleep(1)
    gateway.capabilities = replace(PLAIN, text_limit=1000)
    await gateway.restart()
    await gateway.settled()
    assert len(gateway.platform.texts(ANN)) == 2


async def test_a_cancelled_answer_stops_between_two_parts(opens: OpensGateway) -> None:
    """/stop in the middle of a long answer: what is on its way arrives, the rest never does, the next answer goes."""
    gateway = await opens(PLAIN)
    gateway.platform.latency = 1.0
    lease = await gateway.answer("word " * 60)
    await gateway.answer("next")
    await gateway.platform.until(lambda: len(gateway.platform.texts(ANN)) == 1)
    shown = await gateway.store.outbox.cancel(lease.turn)
    await gateway.settled()
    texts = gateway.platform.texts(ANN)
    assert texts[-1] == "next"
    assert len(texts) - 1 == len(shown) < 4


async def test_a_full_disk_loses_nothing(opens: OpensGateway) -> None:
    """While nothing can be stored nothing is sent that is not sent already; then everything goes, once."""
    gateway = await opens(PLAIN)
    gateway.platform.latency = 1.0
    await gateway.answer("one")
    await gateway.answer("two")
    await gateway.platform.until(lambda: bool(gateway.platform.calls))
    gateway.writer.fault = OSError("no space left on device")
    await asyncio.sleep(120)
    assert len(gateway.platform.calls) == 1
    gateway.writer.fault = None
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["one", "two"]
    assert len(gateway.platform.calls) == 2


async def test_a_channel_that_is_gone_keeps_its_rows(opens: OpensGateway) -> None:
    """Taken out of the configuration and put back, a channel finds its answers waiting."""
    gateway = await opens(PLAIN)
    await gateway.kill()
    await gateway.start(configured=False)
    await gateway.answer("one")
    await gateway.answer("two")
    await asyncio.sleep(60)
    assert gateway.platform.calls == []
    await gateway.restart()
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["one", "two"]


async def test_only_the_person_it_is_for_sees_a_private_answer(opens: OpensGateway) -> None:
    """`visible_to` and `reply_to` arrive at the platform with every part."""
    gateway = await opens(PLAIN)
    lease = await gateway.turn()
    commit = answered(lease, "word " * 40)
    private = tuple(replace(message, visible_to="ann", reply_to="7") for message in commit.outbound)
    await gateway.store.journal.commit(lease, replace(commit, outbound=private))
    await gateway.settled()
    assert [(posted.visible_to, posted.reply_to) for posted in gateway.platform.chats["42"]] == [("ann", "7")] * 2


async def test_draining_delivers_what_is_there_and_ends(opens: OpensGateway, clock: VirtualClock) -> None:
    """A stop delivers what was committed, does not wait for a chat that must wait, and cuts no send in two."""
    gateway = await opens(PLAIN)
    gateway.platform.latency = 0.5
    gateway.platform.fail(ChannelFault.LATER, chat=BOB.chat, seconds=600)
    await gateway.answer("late", key=BOB)
    await gateway.answer("one")
    await gateway.answer("two")
    await gateway.deliverer.drain(timedelta(seconds=10))
    assert clock.seconds < 5
    await asyncio.wait_for(gateway.running, 1)
    assert gateway.platform.texts(ANN) == ["one", "two"]
    await gateway.restart()
    await gateway.settled()
    assert gateway.platform.texts(BOB) == ["late"]


async def test_many_chats_go_beside_each_other(opens: OpensGateway, clock: VirtualClock) -> None:
    """A hundred chats on a platform of one second take about a hundred sends over the bound, not a hundred seconds."""
    gateway = await opens(PLAIN)
    gateway.platform.latency = 1.0
    for number in range(100):
        await gateway.answer("hi", key=SessionKey("telegram", f"c{number}"))
    await gateway.settled()
    assert clock.seconds < 100 / 16 + 2


async def test_couriers_are_freed(opens: OpensGateway) -> None:
    """Nothing is kept of a chat that has nothing left."""
    gateway = await opens(PLAIN)
    for number in range(20):
        await gateway.answer("hi", key=SessionKey("telegram", f"c{number}"))
    await gateway.settled()
    await asyncio.sleep(1)
    assert not gateway.deliverer._workers
    assert not gateway.deliverer._context.pauses._until


async def test_a_bug_in_a_courier_costs_one_chat_time(opens: OpensGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception nobody thought of is logged, waits, and is tried again; other chats deliver meanwhile."""
    gateway = await opens(PLAIN)
    healthy, broken = PartPlanner.plan_parts, [True]

    def cut(self: PartPlanner, message: OutboundMessage, preview: OutboxPart | None) -> object:
        if broken and message.key == ANN:
            broken.clear()
            raise ZeroDivisionError
        return healthy(self, message, preview)

    monkeypatch.setattr(PartPlanner, "plan_parts", cut)
    await answer(gateway.store, said(), "one")  # not cut by the commit
    await answer(gateway.store, said(id="b", key=BOB), "bob's")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["one"]
    assert gateway.platform.at("send", BOB)[0] < gateway.platform.at("send", ANN)[0]


@pytest.mark.parametrize("window", ["freeze", "sending"])
async def test_words_erased_between_the_look_and_the_call_are_not_sent(
    opens: OpensGateway, monkeypatch: pytest.MonkeyPatch, window: str
) -> None:
    """Of what is erased after a message, or a part that is tried again, was read, nothing is sent."""
    gateway = await opens()
    outbox = gateway.store.outbox
    step = getattr(outbox, window)

    async def erase_first(*given: object) -> object:
        reach = ErasureFilter(keys=frozenset({ANN}))
        await gateway.store.erasing.redact(reach, lambda value: json.loads(json.dumps(value).replace("secret ", "")))
        return await step(*given)

    monkeypatch.setattr(outbox, window, erase_first)
    gateway.platform.fail(ChannelFault.LATER, chat=ANN.chat, seconds=1)
    await answer(gateway.store, said(), "the secret end")  # not cut by the commit
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["the end"]


async def test_a_part_stopped_between_the_look_and_the_call_is_not_sent(
    opens: OpensGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop before the second attempt's mark leaves the chat empty, and free for the next answer."""
    gateway = await opens()
    outbox = gateway.store.outbox
    sending = outbox.sending

    async def stop_first(part: MessagePart) -> MessagePart | None:
        await outbox.cancel(part.turn)
        return await sending(part)

    monkeypatch.setattr(outbox, "sending", stop_first)
    gateway.platform.fail(ChannelFault.LATER, chat=ANN.chat, seconds=1)
    await gateway.answer("stopped")
    await gateway.answer("next")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["next"]
