"""Updates about members of groups and their rights, read from the raw objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channels.telegram.codec.parse import KINDS, TelegramBotIdentity, person_of
from gateway.errors import UnreadableEvent
from gateway.events import ChatKind
from gateway.ports import MembershipChange
from gateway.text import sanitize
from gateway.text.display_names import safe_display_name

_AWAY = frozenset({"left", "kicked"})
_DECIDES = frozenset({"administrator", "creator"})


def parse_membership(update: Mapping[str, Any], *, channel: str, bot: TelegramBotIdentity) -> MembershipChange | None:
    """Return the group that the bot joined or left; None for any other update. Raises UnreadableEvent.

    A restricted member may be in the group or not (`is_member`). A group that became a supergroup is another one.
    """
    change = update.get("my_chat_member")
    if change is None:
        return _moved_place(update["message"], channel) if parse_migration(update) is not None else None
    try:
        before, after = _is_in(change["old_chat_member"]), _is_in(change["new_chat_member"])
        if KINDS.get(change["chat"]["type"]) is not ChatKind.GROUP or before == after:
            return None
        chat = str(int(change["chat"]["id"]))
        return MembershipChange(
            channel=channel,
            id=f"place/{chat}/{int(change['date'])}/{'in' if after else 'out'}",
            chat=chat,
            title=safe_display_name(sanitize(str(change["chat"].get("title") or ""))),
            by=person_of(change["from"], bot),
            is_gone=not after,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UnreadableEvent(f"{type(error).__name__} in my_chat_member") from None


def parse_migration(update: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the old id and the new one of a group that became a supergroup, or None. Never raises.

    Telegram says it in both of them, though not surely before the next message.
    """
    message: Any = update.get("message")
    try:
        here = int(message["chat"]["id"])
        if "migrate_to_chat_id" in message:
            return here, int(message["migrate_to_chat_id"])
        return int(message["migrate_from_chat_id"]), here
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _moved_place(message: Mapping[str, Any], channel: str) -> MembershipChange:
    """Return the old group as left, or the new one as joined; no user caused it."""
    chat, is_gone = str(int(message["chat"]["id"])), "migrate_to_chat_id" in message
    return MembershipChange(
        channel=channel,
        id=f"place/{chat}/moved",
        chat=chat,
        title=safe_display_name(sanitize(str(message["chat"].get("title") or ""))),
        is_gone=is_gone,
    )


def rights_changed(update: Mapping[str, Any]) -> int | None:
    """Return the chat in which a user became or ceased to be an admin, or None. Never raises."""
    change: Any = update.get("my_chat_member") or update.get("chat_member")
    try:
        members = [change[name] for name in ("old_chat_member", "new_chat_member")]
        # An admin may have been given other rights, too: that is no change of who decides.
        is_new = len({each["status"] in _DECIDES for each in members}) > 1
        return int(change["chat"]["id"]) if is_new else None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _is_in(member: Mapping[str, Any]) -> bool:
    status = str(member["status"])
    return bool(member.get("is_member", False)) if status == "restricted" else status not in _AWAY
