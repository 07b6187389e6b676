"""delivery.once: strict. Where a platform can neither be asked nor takes a key, texts go by edit into placeholders."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.events import Attachment, ChatKind, OutboundMessage
from gateway.i18n import translate
from gateway.ports.channel import ChannelCapabilities
from tests.fakes.memory_channel import (
    FILING,
    KEYED,
    PLAIN,
    RINGING,
    ChannelFault,
    ChatMessage,
    FakeChannel,
    MemoryPlatform,
)
from tests.fakes.turns import ANN, said
from tests.unit.delivery.conftest import DeliveryGateway, OpensGateway
from tests.unit.delivery.test_delivery_crash import (
    DEATH_IDS,
    DEATHS,
    TROUBLES,
    deaths,
    die,
    tell,
)
from tests.unit.delivery.test_delivery_previews import WORDS, shown

MARK = translate("delivery.may_repeat")
BLANK = translate("delivery.placeholder")


async def strict(opens: OpensGateway, capabilities: ChannelCapabilities = RINGING) -> DeliveryGateway:
    """Open a gateway that is strict, on a platform that cannot be asked."""
    gateway = await opens(capabilities, MemoryPlatform(finds=False))
    gateway.is_strict = True
    await gateway.restart()
    return gateway


def answers(gateway: DeliveryGateway) -> list[ChatMessage]:
    """Return what stands in Ann's chat, without the placeholders that were orphaned."""
    return [posted for posted in gateway.platform.chats[ANN.chat] if posted.text != BLANK]


async def test_each_part_is_a_silent_placeholder_first(opens: OpensGateway) -> None:
    """What was sent is three dots that call nobody; the text came by edit, part after part, in order."""
    gateway = await strict(opens)
    await gateway.answer("word " * 60)
    await gateway.settled()
    standing = gateway.platform.chats[ANN.chat]
    assert " ".join(posted.text for posted in standing).split() == ["word"] * 60
    assert len(standing) > 1
    assert all(posted.is_silent and posted.versions[0] == BLANK for posted in standing)
    assert [call.what for call in gateway.platform.calls] == ["send", "edit"] * len(standing)


@pytest.mark.parametrize(
    "fault", [ChannelFault.LATER, ChannelFault.LOST, ChannelFault.DROPPED, ChannelFault.BUG, ChannelFault.HANG]
)
@pytest.mark.parametrize("what", ["send", "edit"])
@pytest.mark.parametrize("calls", [1, 3])
async def test_no_doubt_doubles_or_marks_an_answer(
    opens: OpensGateway, fault: ChannelFault, what: str, calls: int
) -> None:
    """An uncertain placeholder is sent again and may leave an orphan; an uncertain edit is made again, for nothing."""
    gateway = await strict(opens)
    gateway.platform.fail(fault, what=what, seconds=5, calls=calls)
    await gateway.answer("hello")
    await gateway.settled()
    assert [(posted.text, posted.is_marked) for posted in answers(gateway)] == [("hello", False)]
    orphans = len(gateway.platform.chats[ANN.chat]) - 1
    assert orphans == (calls if (fault, what) == (ChannelFault.LOST, "send") else 0)


async def test_unreadable_formatting_is_edited_in_as_plain_text(opens: OpensGateway) -> None:
    """The platform's 400 for the formatting is met as ever: once more without it, in the same place."""
    gateway = await strict(opens)
    gateway.platform.fail(ChannelFault.FORMAT, what="edit")
    await gateway.answer("**bold** move")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["bold move"]


async def test_a_placeholder_that_somebody_deleted_is_put_again(opens: OpensGateway) -> None:
    """The text finds its place gone: another placeholder, and the answer stands once."""
    gateway = await strict(opens)
    gateway.platform.fail(ChannelFault.LATER, what="edit", seconds=30)
    await gateway.answer("hello")
    await gateway.platform.until(lambda: len(gateway.platform.calls) == 2)
    gateway.platform.chats[ANN.chat].clear()
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["hello"]


async def test_a_refusal_buries_the_answer(opens: OpensGateway) -> None:
    """Blocked: dead at once, nothing is tried for ever; the next answer is tried on its own."""
    gateway = await strict(opens)
    gateway.platform.fail(ChannelFault.REFUSED, what="send")
    await gateway.answer("word " * 60)
    await gateway.answer("next")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["next"]
    assert (await gateway.store.journal.depth())["dead"] > 1


async def test_a_text_that_is_refused_for_good_ends(opens: OpensGateway) -> None:
    """The placeholder was taken and the text never is: two tries, then it is dead."""
    gateway = await strict(opens)
    gateway.platform.fail(ChannelFault.REFUSED, what="edit", calls=10)
    await gateway.answer("cursed")
    await gateway.settled()
    assert (await gateway.store.journal.depth())["dead"] == 1
    assert len(gateway.platform.at("edit", ANN)) <= 2


@pytest.mark.parametrize("fault", [None, ChannelFault.LOST, ChannelFault.DROPPED, ChannelFault.HANG])
async def test_a_preview_is_a_placeholder_first_as_well(opens: OpensGateway, fault: ChannelFault | None) -> None:
    """A first send of unknown outcome leaves three dots at most, never half an answer, and the answer is not marked."""
    gateway = await strict(opens)
    if fault:
        gateway.platform.fail(fault, what="send")
    lease = await gateway.turn()
    await shown(gateway, lease)
    if fault is None:
        assert gateway.platform.texts(ANN) == [WORDS]
        assert gateway.platform.chats[ANN.chat][0].is_silent
    await gateway.commit(lease, "The answer")
    await gateway.settled()
    assert [(posted.text, posted.is_marked) for posted in answers(gateway)] == [("The answer", False)]
    assert len(gateway.platform.chats[ANN.chat]) == (2 if fault is ChannelFault.LOST else 1)


async def test_a_preview_that_cannot_become_the_answer_is_followed_by_a_placeholder(opens: OpensGateway) -> None:
    """A draft of a private chat is no message: the answer's place is the placeholder."""
    gateway = await strict(opens)
    lease = await gateway.turn()
    await shown(gateway, lease)
    gateway.platform.chats[ANN.chat].clear()  # a draft fades
    await gateway.commit(lease, "The answer")
    await gateway.settled()
    (posted,) = gateway.platform.chats[ANN.chat]
    assert posted.versions == [BLANK, "The answer"]


async def test_a_late_answer_is_edited_in_place(opens: OpensGateway) -> None:
    """Nothing rings under strict, so that no pointer is needed."""
    gateway = await strict(opens)
    lease = await gateway.turn()
    await shown(gateway, lease)
    await asyncio.sleep(61)
    await gateway.commit(lease, "The answer")
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["The answer"]


async def test_a_file_and_a_private_answer_are_marked_as_ever(opens: OpensGateway) -> None:
    """A file cannot be edited in, and what one person is shown may stand in another chat: there a doubt is said."""
    gateway = await strict(opens, FILING)
    gateway.platform.blobs["people/ann/x"] = b"x"
    gateway.platform.fail(ChannelFault.LOST, what="send")
    await gateway.say("", attachments=(Attachment(kind="document", name="x", size=1, blob="people/ann/x"),))
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["[x]", f"{MARK}\n[x]"]
    gateway.platform.fail(ChannelFault.LOST, what="send")
    await gateway.say("hello", visible_to="ann", chat_kind=ChatKind.GROUP)
    await gateway.settled()
    assert gateway.platform.texts(ANN)[2:] == ["hello", f"{MARK}\nhello"]


@pytest.mark.parametrize("capabilities", [KEYED, replace(RINGING, finds=True), PLAIN], ids=["key", "asked", "no edits"])
async def test_where_it_is_not_needed_nothing_is_placed(opens: OpensGateway, capabilities: ChannelCapabilities) -> None:
    """A send key, a history that can be read back, or no edits: what is sent is the answer."""
    gateway = await strict(opens, capabilities)
    await gateway.answer("hello")
    await gateway.settled()
    assert [(call.what, call.text) for call in gateway.platform.calls] == [("send", "hello")]
    assert not gateway.platform.chats[ANN.chat][0].is_silent


@pytest.mark.parametrize("before", [False, True], ids=["marked then strict", "strict then marked"])
async def test_a_setting_that_changes_over_a_doubt_is_kept_as_it_was_frozen(opens: OpensGateway, before: bool) -> None:
    """What was sent under one promise is ended under it: an answer that may stand there is not sent unmarked."""
    gateway = await opens(RINGING, MemoryPlatform(finds=False))
    gateway.is_strict = before
    await gateway.restart()
    gateway.platform.fail(ChannelFault.LOST, what="send")
    await gateway.answer("hello")
    await gateway.platform.until(lambda: len(gateway.platform.calls) == 1)
    await asyncio.sleep(0.1)
    gateway.is_strict = not before
    await gateway.restart()
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ([BLANK, "hello"] if before else ["hello", f"{MARK}\nhello"])


@pytest.mark.parametrize(("trouble", "text", "pause"), DEATHS, ids=DEATH_IDS)
async def test_no_death_doubles_loses_or_marks_an_answer(
    opens: OpensGateway, text: str, pause: float, trouble: str
) -> None:
    """Whichever call the process dies at, each part stands once, in order, unmarked; besides there are only dots."""
    for death in deaths():
        gateway = await opens(RINGING, MemoryPlatform(finds=False), starts=False)
        gateway.is_strict = True
        for fault, what in TROUBLES[trouble]:
            gateway.platform.fail(fault, what=what, seconds=5)
        await die(gateway, death, text, pause, said())
        await gateway.start()
        await tell(gateway, text, pause)
        whole = FakeChannel(MemoryPlatform(), capabilities=RINGING).render(
            OutboundMessage(id="t.1", key=ANN, text=text)
        )
        assert [(posted.text, posted.is_marked) for posted in answers(gateway)] == [
            (part.payload, False) for part in whole
        ]
        if not death.happened.is_set():
            assert death.at > 4
            return
    pytest.fail("the story has more calls than points")


async def test_a_long_answer_does_not_hold_up_the_next_one(opens: OpensGateway) -> None:
    """Many texts would be two calls each, of a chat that allows one a second: it is its beginning and a file."""
    gateway = await strict(opens, FILING)
    long = " ".join(f"word{n}" for n in range(600))
    await gateway.answer(long)
    await gateway.answer("next")
    await gateway.settled()
    beginning, whole, following = answers(gateway)
    assert beginning.text.endswith(translate("delivery.in_the_file"))
    assert whole.file == long.encode()
    assert following.text == "next"
    assert [call.what for call in gateway.platform.calls] == ["send", "edit", "send", "send", "edit"]
