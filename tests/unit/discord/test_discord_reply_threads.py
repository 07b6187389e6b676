"""Threads that `reply_in: thread` starts: which messages started one, over a restart and within a limit."""

from __future__ import annotations

from typing import Any, cast

import pytest

from channels.discord import chats
from channels.discord.chats import DiscordReplyThreads
from gateway.events import ChatKind, InboundKind, InboundMessage, Sender, SessionKey
from tests.fakes.turns import START
from tests.fakes.web_services import FakeState


class ThreadlessApi:
    """Starts every thread."""

    async def start_thread(self, parent: str, message: str, name: str) -> None:
        """Accept."""


def threads_over(state: FakeState) -> DiscordReplyThreads:
    """Return the threads of a channel that answers every mention in one."""
    return DiscordReplyThreads(
        cast("Any", state),
        cast("Any", ThreadlessApi()),
        name="discord",
        is_on=lambda _: True,
        anywhere=True,
        exists=lambda _: False,
        language=lambda _: "en",
    )


def accepted(number: int) -> InboundMessage:
    """Return a message that started its thread."""
    key = SessionKey("discord", f"900/{number}")
    sender = Sender(id="1")
    return InboundMessage(
        key=key, message_id=str(number), sender=sender, text="hi", sent_at=START, chat_kind=ChatKind.GROUP
    )


def deletion(number: int) -> InboundMessage:
    """Return the deletion of a message of the channel."""
    key = SessionKey("discord", "900")
    return InboundMessage(
        key=key, message_id=str(number), sender=Sender(id=""), text="", sent_at=START, kind=InboundKind.DELETION
    )


async def test_notes_of_started_threads_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest notes go, by the age of their messages; a restart knows the others."""
    monkeypatch.setattr(chats, "_START_LIMIT", 3)
    state = FakeState()
    threads = threads_over(state)
    for number in (9, 10, 11):
        await threads.start(accepted(number))
    threads = threads_over(state)
    await threads.start(accepted(100))
    place = cast("Any", type("Place", (), {"has_threads": True})())
    for known in (threads, threads_over(state)):
        found = [str((await known.with_thread(deletion(n), place)).key) for n in (9, 10, 11, 100)]
        assert found == ["discord:900", "discord:900/10", "discord:900/11", "discord:900/100"]
