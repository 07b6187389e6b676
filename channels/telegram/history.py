"""Group messages that were not addressed to the bot, since its start: Telegram gives bots no history.

They are kept in memory only, within limits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime, timedelta

from channels.kit.followed_threads import is_from_member
from gateway.events import ChatKind, InboundKind, InboundMessage, SessionKey
from gateway.ports import IntakeResult, IntakeVerdict

_CHAT_LIMIT = 100  # messages
_TOTAL_LIMIT = 5_000
_LIFETIME = timedelta(hours=24)


class TelegramHistory:
    """The newest messages of each group and topic by id, as they read after their last edit."""

    def __init__(self, *, chat_limit: int = _CHAT_LIMIT, total_limit: int = _TOTAL_LIMIT) -> None:
        self._chat_limit = chat_limit
        self._total_limit = total_limit
        self._chats: OrderedDict[SessionKey, OrderedDict[str, InboundMessage]] = OrderedDict()
        self._count = 0

    def update(self, message: InboundMessage, result: IntakeResult) -> None:
        """Keep a group message that its members wrote to each other; drop one that was edited to be for the bot."""
        if message.chat_kind is not ChatKind.GROUP or message.kind is not InboundKind.MESSAGE:
            return
        if result.verdict is IntakeVerdict.REJECTED and is_from_member(result):
            self.add(message)
        else:
            self.remove(message)

    def add(self, message: InboundMessage) -> None:
        """Keep *message* and drop the oldest of its chat, or the chat that has been quiet for longest, if too many."""
        if not message.message_id:
            return
        messages = self._chats.setdefault(message.key, OrderedDict())
        self._chats.move_to_end(message.key)
        if message.message_id not in messages:
            self._count += 1
        messages[message.message_id] = message
        if len(messages) > self._chat_limit:
            messages.popitem(last=False)
            self._count -= 1
        while self._count > self._total_limit:
            _, quiet = self._chats.popitem(last=False)
            self._count -= len(quiet)

    def remove(self, message: InboundMessage) -> None:
        """Drop the message with the id of *message*."""
        if self._chats.get(message.key, OrderedDict()).pop(message.message_id, None) is not None:
            self._count -= 1

    def album_of(self, message: InboundMessage) -> Sequence[InboundMessage]:
        """Return the other parts of the album of *message*, oldest first."""
        parts = [
            each
            for each in self._chats.get(message.key, OrderedDict()).values()
            if message.album and each.album == message.album and each.message_id != message.message_id
        ]
        return sorted(parts, key=_order)

    def messages_before(
        self, message: InboundMessage, *, since: datetime | None, limit: int
    ) -> Sequence[InboundMessage]:
        """Return the messages of the same chat before *message*, oldest first; none is older than a day."""
        oldest = message.sent_at - _LIFETIME
        matches = [
            each
            for each in self._chats.get(message.key, OrderedDict()).values()
            if _order(each) < _order(message) and each.sent_at > oldest and (since is None or each.sent_at > since)
        ]
        return sorted(matches, key=_order)[-limit:]


def _order(message: InboundMessage) -> int:
    return int(message.message_id) if message.message_id.isdecimal() else 0
