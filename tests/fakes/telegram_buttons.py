"""Buttons on the Bot API server: what it refuses of a keyboard, a press, and what the press is answered with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.fakes.telegram_rules import ApiError

if TYPE_CHECKING:
    from tests.fakes.telegram_server import TelegramPost, TelegramServer


def checked_markup(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyboard of a call, refused as Telegram refuses it."""
    markup: dict[str, Any] = dict(fields.get("reply_markup") or {})
    buttons = [each for row in markup.get("inline_keyboard", ()) for each in row]
    if len(buttons) > 100:
        raise ApiError(400, "Bad Request: reply markup is too long")
    if any(not each.get("text") for each in buttons):
        raise ApiError(400, "Bad Request: text buttons are unallowed in the inline keyboard")
    if any(not 1 <= len(str(each.get("callback_data", "")).encode()) <= 64 for each in buttons):
        raise ApiError(400, "Bad Request: BUTTON_DATA_INVALID")
    return markup


class FakeTelegramButtons:
    """The presses of one bot's buttons."""

    def __init__(self, server: TelegramServer) -> None:
        self._server = server
        self._pressed = 0
        self._done: set[str] = set()
        self.alerts: list[tuple[str, str]] = []  # the query, and the line its presser alone was shown

    def press(self, post: TelegramPost, data: str, *, sender: int = 42) -> dict[str, Any]:
        """Let somebody press a button below *post*; return the update."""
        self._pressed += 1
        query = {
            "id": str(self._pressed),
            "from": {"id": sender, "is_bot": False, "first_name": "Ann"},
            "message": self._server.message_of(post),
            "chat_instance": "-77",
            "data": data,
        }
        self._server.push({"callback_query": query})
        return {"callback_query": query}

    async def do_answer_callback_query(self, fields: Mapping[str, Any]) -> Any:
        """End the turning of a button, once."""
        query = str(fields["callback_query_id"])
        if query in self._done:
            raise ApiError(400, "Bad Request: query is too old and response timeout expired or query ID is invalid")
        if len(str(fields.get("text", ""))) > 200:
            raise ApiError(400, "Bad Request: MESSAGE_TOO_LONG")
        self._done.add(query)
        self._server.answered.append(query)
        if fields.get("text"):
            self.alerts.append((query, str(fields["text"])))
        return True

    async def do_edit_message_reply_markup(self, fields: Mapping[str, Any]) -> Any:
        """Replace the keyboard below a message."""
        chat = self._server.place(fields)
        found = [each for each in self._server.posts if each.chat == chat.id and each.id == int(fields["message_id"])]
        if not found or found[0].id in chat.deleted:
            raise ApiError(400, "Bad Request: message to edit not found")
        markup = checked_markup(fields)
        if markup == found[0].markup:
            raise ApiError(400, "Bad Request: message is not modified")
        found[0].markup = markup
        return self._server.message_of(found[0])
