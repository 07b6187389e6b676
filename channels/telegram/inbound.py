"""From updates to the intake: receive, parse, accept, then show the sender the result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from channels.telegram.buttons import TelegramButtons
from channels.telegram.chats import TelegramChats
from channels.telegram.codec import (
    TelegramBotIdentity,
    event_id,
    is_bot_added,
    origin_of,
    parse_membership,
    parse_migration,
    parse_update,
    rights_changed,
)
from channels.telegram.history import TelegramHistory
from channels.telegram.members import TelegramMembers
from channels.telegram.reactions import TelegramReactions
from gateway.events import InboundKind, InboundMessage
from gateway.i18n import translate
from gateway.ports import ChannelContext, IntakeResult, IntakeVerdict, PlatformEvent, ReplyPolicy

_MEMBERSHIP_UPDATES = ("my_chat_member", "chat_member")


class TelegramInbound:
    """Takes the updates of one bot in."""

    def __init__(
        self,
        context: ChannelContext,
        *,
        chats: TelegramChats,
        members: TelegramMembers,
        reactions: TelegramReactions,
        buttons: TelegramButtons,
        history: TelegramHistory,
    ) -> None:
        self._name = context.name
        self._intake = context.intake
        self._language = context.language
        self._reply_policy = context.reply_policy
        self._chats = chats
        self._members = members
        self._reactions = reactions
        self._buttons = buttons
        self._history = history
        self.bot = TelegramBotIdentity(id="", username="")
        self.reads_all = False  # privacy mode is off: the bot sees every message of its groups

    async def receive(self, update: Mapping[str, Any]) -> None:
        """Take one update in; return when Telegram may be acknowledged. An exception lets the update come again."""
        event = PlatformEvent(channel=self._name, id=event_id(update), raw=json.dumps(update), origin=origin_of(update))
        await self._intake.handle(event, partial(self.accept, update))

    async def replay(self, event: PlatformEvent) -> None:
        """Take in an update that was quarantined; raises as `accept`."""
        await self.accept(json.loads(event.raw))

    async def accept(self, update: Mapping[str, Any]) -> None:
        """Parse *update* and hand it to the intake; raise UnreadableEvent or StoreUnavailable."""
        await self._note_membership(update)
        message = self.parse(update)
        if message is None:
            return
        if message.is_addressed:
            # The mention may be on any photo: those before it were nobody's question until now.
            for part in self._history.album_of(message):
                await self._intake.receive(replace(part, is_addressed=True))
                self._history.remove(part)
        result = await self._intake.receive(message)
        self._history.update(message, result)
        if message.kind is InboundKind.BUTTON:
            await self._answer_press(update, message, result)
        else:
            self._show_result(message, result)

    def parse(self, update: Mapping[str, Any]) -> InboundMessage | None:
        """Return the message of *update*, or None if it has none; raise UnreadableEvent."""
        message = parse_update(update, channel=self._name, bot=self.bot, now=datetime.now(UTC))
        return None if message is None else self._chats.address_album(message)

    def misses_messages(self, policy: ReplyPolicy) -> bool:
        """Return True if *policy* answers every message of a group, but privacy mode hides most of them."""
        return policy.group_policy == "open" and not self.reads_all

    async def _note_membership(self, update: Mapping[str, Any]) -> None:
        if (ids := parse_migration(update)) is not None:
            await self._chats.save_migration(*ids)
        elif update.keys().isdisjoint(_MEMBERSHIP_UPDATES):
            return
        changed = rights_changed(update)
        if changed is not None:
            self._members.admins.forget(changed)
        membership = parse_membership(update, channel=self._name, bot=self.bot)
        if membership is not None:
            await self._intake.membership_changed(membership)

    async def _answer_press(self, update: Mapping[str, Any], message: InboundMessage, result: IntakeResult) -> None:
        if result.verdict is not IntakeVerdict.REJECTED:
            await self._buttons.hold_press(update, message)
        elif result.line:
            self._buttons.refuse_press(update, message, result.line)

    def _show_result(self, message: InboundMessage, result: IntakeResult) -> None:
        # Nothing is shown before admission.
        if result.verdict is IntakeVerdict.ACCEPTED:
            self._reactions.acknowledge(message, is_repeated=result.is_repeated)
            if is_bot_added(message) and self.misses_messages(self._reply_policy(message.key.chat)):
                self._reactions.send_line(message.key, translate("telegram.privacy", self._language(message.key)))
        if result.line:
            self._reactions.send_line(message.key, result.line)
