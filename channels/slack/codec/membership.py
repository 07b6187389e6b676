"""Events about members of channels and changes of users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channels.slack.codec.parse import SlackBotIdentity
from gateway.errors import UnreadableEvent
from gateway.events import Sender
from gateway.ports import MembershipChange

_IN = frozenset({"member_joined_channel"})
# The first of what is said of everybody, the others of us alone (docs.slack.dev/reference/events).
_OUT = frozenset({"member_left_channel", "channel_left", "group_left"})


def parse_membership(body: Mapping[str, Any], *, channel: str, bot: SlackBotIdentity) -> MembershipChange | None:
    """Return the channel that we were added to, or are gone from; None for any other event. Raises Unreadable.

    Slack says no title, and who added us by id alone.
    """
    event = body.get("event")
    if not isinstance(event, dict) or event.get("user", bot.user) != bot.user:
        return None
    kind = str(event.get("type"))
    if kind not in _IN | _OUT:
        return None
    chat, by = event.get("channel"), event.get("inviter") or event.get("actor_id")
    if not (isinstance(chat, str) and chat):
        raise UnreadableEvent(f"{kind} without a channel")
    return MembershipChange(
        channel=channel,
        id=f"place/{body.get('event_id') or event.get('event_ts') or chat}",
        chat=chat,
        team=bot.team,
        by=Sender(id=by, team=bot.team) if isinstance(by, str) and by else None,
        is_gone=kind in _OUT,
    )


def changed_user(body: Mapping[str, Any]) -> str:
    """Return of whom Slack says that they changed (a guest, an admin, removed), or ""; never raises."""
    event = body.get("event")
    if not isinstance(event, dict) or event.get("type") != "user_change":
        return ""
    user = event.get("user")
    found = user.get("id") if isinstance(user, dict) else ""
    return found if isinstance(found, str) else ""
