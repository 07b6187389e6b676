"""What was said beside us: of admitted people, in memory, bounded, and only where Telegram lets us hear it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from channels.telegram.chats import TelegramHistory
from gateway.events import ChatKind, InboundMessage, Sender, SessionKey
from gateway.ports.channel import IntakeResult, IntakeVerdict
from tests.fakes.telegram_channel import TelegramConnection, open_line
from tests.fakes.telegram_server import TelegramServer, open_telegram
from tests.fakes.web_services import FakePageServices

GROUP = SessionKey("telegram", "-1001234567890")
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
MENTION: dict[str, Any] = {"entities": [{"type": "mention", "offset": 0, "length": 12}]}


class AdmittingServices(FakePageServices):
    """A gateway that judges as admission does: strangers out, and what is not addressed to us."""

    async def receive(self, message: InboundMessage, **options: Any) -> IntakeResult:
        """Judge, then take."""
        if message.sender.id == "666":
            return IntakeResult(verdict=IntakeVerdict.REJECTED, reason="stranger")
        if not message.is_addressed:
            return IntakeResult(verdict=IntakeVerdict.REJECTED, reason="not-addressed")
        return await super().receive(message, **options)


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    """Give a Telegram that lets the bot read along."""
    async with open_telegram() as server:
        server.privacy = False
        yield server


async def mention_bot(line: TelegramConnection, chat: int = int(GROUP.chat), **fields: Any) -> InboundMessage:
    """Call the bot in, and return its message as the gateway has it."""
    number = len(line.services.accepted)
    line.server.say("@parlour_bot so?", chat=chat, **MENTION, **fields)
    await line.server.until(lambda: not line.server.updates)
    return line.services.accepted[number]


async def history_before(
    line: TelegramConnection, message: InboundMessage, since: datetime | None = None, limit: int = 50
) -> list[str]:
    """Return what was said before *message*."""
    return [each.text for each in await line.channel.messages_before(message, since=since, limit=limit)]


async def test_what_was_said_before_a_mention_is_known(server: TelegramServer) -> None:
    """Oldest first, with who said it; not the mention, not a stranger's words, not other chats' or topics'."""
    server.chat(int(GROUP.chat)).topics = {7}
    async with open_line(server, AdmittingServices(), reaction="") as line:
        server.say("one", chat=int(GROUP.chat), sender=42)
        server.say("stranger", chat=int(GROUP.chat), sender=666)
        server.say("elsewhere", chat=int(GROUP.chat) - 1, sender=42)
        server.say("in a topic", chat=int(GROUP.chat), sender=42, is_topic_message=True, message_thread_id=7)
        server.say("two", chat=int(GROUP.chat), sender=43)
        message = await mention_bot(line)
        server.say("three", chat=int(GROUP.chat), sender=43)
        await server.until(lambda: not server.updates)
        said = await line.channel.messages_before(message, since=None, limit=50)
        assert [(each.text, each.sender.id, each.sender.name) for each in said] == [
            ("one", "42", "Ann Bee"),
            ("two", "43", "Ann Bee"),
        ]
        assert await history_before(line, message, limit=1) == ["two"]
        assert await history_before(line, message, since=message.sent_at) == []
        later = await mention_bot(line)
        assert await history_before(line, later) == ["one", "two", "three"]
        in_topic = await mention_bot(line, is_topic_message=True, message_thread_id=7)
        assert await history_before(line, in_topic) == ["in a topic"]
    assert [each.text for each in line.services.accepted] == ["@parlour_bot so?"] * 3
    assert line.services.state.notes == {}


async def test_an_edit_changes_what_was_heard(server: TelegramServer) -> None:
    """The words as they read by now; edited to name us it is a message to us, and no more beside us."""
    async with open_line(server, AdmittingServices()) as line:
        first = server.say("wrong", chat=int(GROUP.chat))
        second = server.say("right", chat=int(GROUP.chat))
        server.edit(first, "mended")
        server.edit({**second, **MENTION}, "@parlour_bot right")
        await server.until(lambda: not server.updates)
        assert await history_before(line, await mention_bot(line)) == ["mended"]


async def test_privacy_mode_leaves_nothing_to_read(server: TelegramServer) -> None:
    """What Telegram hides from us we do not know."""
    server.privacy = True
    async with open_line(server, AdmittingServices()) as line:
        server.say("hidden", chat=int(GROUP.chat))
        assert await history_before(line, await mention_bot(line)) == []


def message(number: int, key: SessionKey = GROUP, *, at: datetime = NOW) -> InboundMessage:
    """Return words of a group."""
    return InboundMessage(
        key=key,
        message_id=str(number),
        sender=Sender(id="42"),
        text=str(number),
        sent_at=at,
        chat_kind=ChatKind.GROUP,
    )


def test_memory_is_bounded_in_each_chat_and_in_all() -> None:
    """A hundred of a chat, and the chat that has been quiet for longest makes room for the others."""
    kept = TelegramHistory(chat_limit=100, total_limit=250)
    chats = [SessionKey("telegram", f"-{n}") for n in (1, 2, 3)]
    for key in chats:
        for number in range(150):
            kept.add(message(number, key))
    left = [len(kept.messages_before(message(999, key), since=None, limit=1000)) for key in chats]
    assert left == [0, 100, 100]
    for number in range(140, 160):
        kept.add(message(number, chats[1]))  # ten of them are known already
    assert kept._count == 200


def test_what_is_a_day_old_is_over() -> None:
    """Yesterday's talk is not what somebody is called into."""
    kept = TelegramHistory()
    kept.add(message(1, at=NOW - timedelta(hours=25)))
    kept.add(message(2, at=NOW - timedelta(hours=23)))
    kept.add(replace(message(3), message_id=""))
    assert [each.text for each in kept.messages_before(message(9), since=None, limit=10)] == ["2"]
