"""Delivery where the place of the question is gone: the parent chat, else a line to the asker, never twice."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.events import Attachment, ChatKind, SessionKey
from gateway.i18n import translate
from gateway.ports.channel import ChannelCapabilities
from tests.fakes.memory_channel import FILING, KEYED, RINGING, ChannelFault, MemoryPlatform
from tests.fakes.turns import accept, claim, said
from tests.unit.delivery.conftest import DeliveryGateway, OpensGateway
from tests.unit.delivery.test_delivery_crash import crashing, deaths, mortal

TOPIC = SessionKey("telegram", "-100/7")
GROUP = TOPIC.parent
LINE = translate("delivery.place_gone")
QUOTED = "> when is lunch?\n\nAt noon."
MARK = translate("delivery.may_repeat")


async def ask(gateway: DeliveryGateway, *texts: str, key: SessionKey = TOPIC, **fields: Any) -> None:
    """Commit the answer to a question of Ann's in a group."""
    await accept(gateway.store, said("when is lunch?", key=key, chat_kind=ChatKind.GROUP, **fields))
    lease = await claim(gateway.store, key)
    await gateway.commit_to(lease, *texts)


async def test_an_answer_whose_topic_is_gone_goes_to_the_group_below_its_question(opens: OpensGateway) -> None:
    """The group's main chat has it once, with the question; the reaction goes; nothing is dead-lettered."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.GONE, chat=TOPIC.chat, calls=99)
    await ask(gateway, "At noon.")
    await gateway.settled()
    assert gateway.platform.texts(GROUP) == [QUOTED]
    assert gateway.channel.without_reactions == [TOPIC]
    assert (await gateway.store.journal.depth())["dead"] == 0


async def test_a_long_answer_whose_topic_closes_in_between_is_whole_in_the_group(opens: OpensGateway) -> None:
    """The parts that the topic has are said again in the group, in order."""
    gateway = await opens()
    text = " ".join(f"w{n:02}" for n in range(60))
    gateway.platform.latency = 1
    await ask(gateway, text)
    await gateway.until(lambda: len(gateway.platform.texts(TOPIC)) == 1)
    gateway.platform.fail(ChannelFault.GONE, chat=TOPIC.chat, calls=99)
    await gateway.settled()
    read = " ".join(gateway.platform.texts(GROUP)).split()
    assert [word for word in read if word.startswith("w") and word[1:].isdecimal()] == text.split()


async def test_a_file_whose_topic_is_gone_goes_to_the_group(opens: OpensGateway) -> None:
    """The topic takes neither the file nor the line about it: the group has the question and the file."""
    gateway = await opens(FILING)
    gateway.platform.fail(ChannelFault.GONE, chat=TOPIC.chat, calls=99)
    gateway.platform.blobs["people/ann/plan.pdf"] = b"%PDF"
    sent = Attachment(kind="document", name="plan.pdf", size=4, blob="people/ann/plan.pdf")
    await accept(gateway.store, said("when is lunch?", key=TOPIC, chat_kind=ChatKind.GROUP))
    lease = await claim(gateway.store, TOPIC)
    await gateway.commit(lease, "", chat_kind=ChatKind.GROUP, attachments=(sent,))
    await gateway.settled()
    assert gateway.platform.texts(TOPIC) == []
    assert gateway.platform.texts(GROUP) == ["> when is lunch?", "[plan.pdf]"]
    assert gateway.platform.chats[GROUP.chat][-1].file == b"%PDF"


async def test_where_the_group_is_closed_too_the_asker_gets_one_line(opens: OpensGateway) -> None:
    """One line in their own chat, however many parts and messages the answer has."""
    gateway = await opens()
    for chat in (TOPIC.chat, GROUP.chat):
        gateway.platform.fail(ChannelFault.GONE, chat=chat, calls=99)
    await ask(gateway, "word " * 60, "and this")
    await gateway.settled()
    assert gateway.platform.texts(SessionKey("telegram", "ann")) == [LINE]
    assert gateway.platform.texts(GROUP) == []


async def test_a_group_that_refuses_the_moved_answer_sends_its_asker_to_it(opens: OpensGateway) -> None:
    """Whatever the parent chat's reason is: its members read nothing, so the asker is told."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.GONE, chat=TOPIC.chat, calls=99)
    gateway.platform.fail(ChannelFault.REFUSED, chat=GROUP.chat, calls=99)
    await ask(gateway, "At noon.")
    await gateway.settled()
    assert gateway.platform.texts(SessionKey("telegram", "ann")) == [LINE]
    assert (await gateway.store.journal.depth())["dead"] == 0


@pytest.mark.parametrize("fault", [ChannelFault.GONE, ChannelFault.REFUSED])
async def test_where_the_asker_cannot_be_written_to_either_it_is_given_up(
    opens: OpensGateway, fault: ChannelFault
) -> None:
    """Three refusals, one call each, one dead letter, and the chat goes on."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.GONE, chat=TOPIC.chat)
    gateway.platform.fail(ChannelFault.GONE, chat=GROUP.chat)
    gateway.platform.fail(fault, chat="ann")
    await ask(gateway, "At noon.")
    await gateway.settled()
    assert [call.chat for call in gateway.platform.calls] == [TOPIC.chat, GROUP.chat, "ann"]
    assert (await gateway.store.journal.depth())["dead"] == 1
    await ask(gateway, "Next.", id="2")
    await gateway.settled()
    assert gateway.platform.texts(TOPIC) == ["Next."]


async def test_a_private_threads_answer_does_not_go_to_its_parent(opens: OpensGateway) -> None:
    """The parent has readers that the thread had not: the asker gets the line instead."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.GONE, chat=TOPIC.chat, calls=99)
    await ask(gateway, "the secret", is_private=True)
    await gateway.settled()
    assert gateway.platform.texts(GROUP) == []
    assert gateway.platform.texts(SessionKey("telegram", "ann")) == [LINE]


async def test_who_cannot_be_told_either_costs_a_dead_letter_and_the_reaction(opens: OpensGateway) -> None:
    """When nobody takes it, it is given up, and 👀 goes."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.GONE, calls=99)
    await ask(gateway, "At noon.", key=GROUP)
    await gateway.settled()
    assert (await gateway.store.journal.depth())["dead"] == 1
    assert GROUP in gateway.channel.without_reactions


async def test_a_refused_answer_removes_the_reaction(opens: OpensGateway) -> None:
    """Given up for another reason, without a place to go."""
    gateway = await opens()
    gateway.platform.fail(ChannelFault.REFUSED, calls=99)
    await ask(gateway, "At noon.")
    await gateway.settled()
    assert gateway.channel.without_reactions == [TOPIC]


@pytest.mark.parametrize(
    ("capabilities", "finds"), [(KEYED, False), (RINGING, True), (RINGING, False)], ids=["key", "history", "blind"]
)
@pytest.mark.parametrize("is_closed", [False, True], ids=["parent", "asker"])
async def test_no_death_doubles_or_loses_a_moved_answer(
    opens: OpensGateway, capabilities: ChannelCapabilities, finds: bool, is_closed: bool
) -> None:
    """Whichever call the process dies at while it moves: once where it can be asked, else one copy is unmarked."""
    for death in deaths(30):
        gateway = await opens(capabilities, MemoryPlatform(finds=finds), starts=False)
        for chat in (TOPIC.chat, *([GROUP.chat] if is_closed else ())):
            gateway.platform.fail(ChannelFault.GONE, chat=chat, calls=999)
        healthy = gateway.platform.call
        gateway.wrap = lambda outbox, death=death: crashing(outbox, death)  # type: ignore[misc]
        mortal(gateway.platform, death)
        await gateway.start()
        await ask(gateway, "At noon.")
        await gateway.settled(30)
        await gateway.kill()
        gateway.platform.call = healthy  # type: ignore[method-assign]
        gateway.wrap = lambda outbox: outbox
        await gateway.start()
        await gateway.settled()
        expected = LINE if is_closed else QUOTED
        place = SessionKey("telegram", "ann") if is_closed else GROUP
        texts = gateway.platform.texts(place)
        assert {text.removeprefix(f"{MARK}\n") for text in texts} == {expected}
        assert texts.count(expected) <= 1
        assert len(texts) == 1 or not (finds or capabilities.send_key)
        if not death.happened.is_set():
            assert death.at > 3
            return
    pytest.fail("the story has more calls than points")
