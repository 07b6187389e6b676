"""Updates about who is in a group and what they may: nobody's words. Read from the raw objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channels.telegram.codec.parse import KINDS, Account, person_of
from gateway.errors import Unreadable
from gateway.events import ChatKind
from gateway.ports import Joined
from gateway.text import clean
from gateway.text.names import quiet_name

_AWAY = frozenset({"left", "kicked"})
_DECIDES = frozenset({"administrator", "creator"})


def place_of(update: Mapping[str, Any], *, channel: str, me: Account) -> Joined | None:
    """Return the group that we were added to, or are gone from; None for any other update. Raises Unreadable.

    A restricted member may be in the group or not (`is_member`).
    """
    change = update.get("my_chat_member")
    if change is None:
        return None
    try:
        before, after = _is_in(change["old_chat_member"]), _is_in(change["new_chat_member"])
        if KINDS.get(change["chat"]["type"]) is not ChatKind.GROUP or before == after:
            return None
        chat = str(int(change["chat"]["id"]))
        return Joined(
            channel=channel,
            id=f"place/{chat}/{int(change['date'])}/{'in' if after else 'out'}",
            chat=chat,
            title=quiet_name(clean(str(change["chat"].get("title") or ""))),
            by=person_of(change["from"], me),
            is_gone=not after,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Unreadable(f"{type(error).__name__} in my_chat_member") from None


def rights_changed(update: Mapping[str, Any]) -> int | None:
    """Return the chat in which somebody became an admin or is none any more, or None. Never raises."""
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
