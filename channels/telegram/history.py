"""What was said in groups beside us, since the start: Telegram has no history for bots. In memory only, and bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime, timedelta

from gateway.events import InboundMessage, SessionKey

_OF_A_CHAT = 100  # messages
_IN_ALL = 5_000
_FOR = timedelta(hours=24)


class TelegramHistory:
    """The newest words of each group and topic, by message id; an edit changes what was heard."""

    def __init__(self, *, of_a_chat: int = _OF_A_CHAT, in_all: int = _IN_ALL) -> None:
        self._of_a_chat = of_a_chat
        self._in_all = in_all
        self._chats: OrderedDict[SessionKey, OrderedDict[str, InboundMessage]] = OrderedDict()
        self._count = 0

    def note(self, message: InboundMessage) -> None:
        """Keep *message*; the oldest of its chat, and the chat that has been quiet for longest, make room."""
        if not message.message_id:
            return
        said = self._chats.setdefault(message.key, OrderedDict())
        self._chats.move_to_end(message.key)
        if message.message_id not in said:
            self._count += 1
        said[message.message_id] = message
        if len(said) > self._of_a_chat:
            said.popitem(last=False)
            self._count -= 1
        while self._count > self._in_all:
            _, quiet = self._chats.popitem(last=False)
            self._count -= len(quiet)

    def forget(self, message: InboundMessage) -> None:
        """Drop what was heard under the id of *message*: it was edited to be for us."""
        if self._chats.get(message.key, OrderedDict()).pop(message.message_id, None) is not None:
            self._count -= 1

    def messages_before(
        self, message: InboundMessage, *, since: datetime | None, limit: int
    ) -> Sequence[InboundMessage]:
        """Return what was said in the place of *message* before it, oldest first; not older than a day."""
        oldest = message.sent_at - _FOR
        found = [
            each
            for each in self._chats.get(message.key, OrderedDict()).values()
            if _order(each) < _order(message) and each.sent_at > oldest and (since is None or each.sent_at > since)
        ]
        return sorted(found, key=_order)[-limit:]


def _order(message: InboundMessage) -> int:
    return int(message.message_id) if message.message_id.isdecimal() else 0
