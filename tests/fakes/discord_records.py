"""Who and what there is on the small Discord, and the small records of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

TOKEN = "MTA0MjAwMDAwMDAwMDAwMDAwMQ.GcanaR.y-canary_canary-canary_canary-canary01"
BOT = "1042000000000000001"
ANN, BEN, EVA = "2001", "2002", "2003"
GUILD, GENERAL, RANDOM = "3001", "4001", "4002"
OTHER_GUILD, LOBBY = str((1 << 22) + 1), "4101"  # of two shards the second has it
BOT_ROLE, TEAM_ROLE, ADMIN_ROLE = "5001", "5002", "5003"

NONCE_LASTS = timedelta(minutes=5)
EPOCH = datetime(2015, 1, 1, tzinfo=UTC)

# docs.discord.com/developers/topics/permissions: what @everyone has here, unless a test takes it away.
RIGHTS = {
    "add_reactions": 1 << 6,
    "view_channel": 1 << 10,
    "send_messages": 1 << 11,
    "attach_files": 1 << 15,
    "read_message_history": 1 << 16,
    "create_public_threads": 1 << 35,
    "send_messages_in_threads": 1 << 38,
}


class FakeDiscordRefusal(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, code: int, message: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"message": message or f"error {code}", "code": code}


def checked(body: dict[str, Any], *, may_be_empty: bool = False) -> str:
    """Return the content of a message, as Discord trims it; raise what Discord refuses."""
    text = str(body.get("content") or "").strip()
    if not text and not may_be_empty:
        raise FakeDiscordRefusal(400, 50006, "Cannot send an empty message")
    if len(text) > 2_000:
        raise FakeDiscordRefusal(400, 50035, "Invalid Form Body")
    return text


def checked_components(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the buttons of a message; raise what Discord refuses."""
    rows: list[dict[str, Any]] = body.get("components") or []
    buttons = [each for row in rows for each in row["components"]]
    names = [each["custom_id"] for each in buttons]
    is_odd = any(
        each["type"] != 2 or each["style"] not in (1, 2, 3, 4) or not 1 <= len(each["label"]) <= 80 for each in buttons
    )
    too_many = len(rows) > 5 or any(row["type"] != 1 or not 1 <= len(row["components"]) <= 5 for row in rows)
    if is_odd or too_many or len(set(names)) < len(names) or any(not 1 <= len(name) <= 100 for name in names):
        raise FakeDiscordRefusal(400, 50035, "Invalid Form Body")
    return rows


def buttons(message: dict[str, Any]) -> list[list[str]]:
    """Return what the buttons below a message say, in rows."""
    return [[each["label"] for each in row["components"]] for row in message.get("components") or ()]


@dataclass(slots=True)
class DiscordFault:
    """What happens to the next request of a kind, instead of or after its effect."""

    method: str
    kind: str  # the last word of the route: messages, typing, reactions, members, channels, users
    what: str  # one of
    # lost: done, and the answer is lost · "done 502": done, and that is the answer · drop: not done ·
    # limit, global, cloudflare: 429 · "403 50013": a status and a code
    seconds: float = 0.05


@dataclass(slots=True)
class DiscordRequest:
    """One request as it came."""

    method: str
    path: str
    kind: str
    body: dict[str, Any]


def role(ident: str, rights: int, position: int = 1) -> dict[str, Any]:
    """Return a role of the server."""
    return {
        "id": ident, "name": f"role {ident}", "permissions": str(rights), "position": position, "color": 0,
        "hoist": False, "managed": ident == BOT_ROLE, "mentionable": True, "flags": 0,
        "colors": {"primary_color": 0, "secondary_color": None, "tertiary_color": None},
        **({"tags": {"bot_id": BOT}} if ident == BOT_ROLE else {}),
    }  # fmt: skip


def guild(
    rights: int,
    channels: list[dict[str, Any]],
    me: dict[str, Any],
    granted: dict[str, int],
    owner: str,
    ident: str = GUILD,
) -> dict[str, Any]:
    """Return a server as GUILD_CREATE tells it; *granted* is what roles may."""
    permissions = {ident: rights, BOT_ROLE: 0, **granted}
    roles = [role(ident, right, place) for place, (ident, right) in enumerate(permissions.items())]
    member = {"joined_at": "2026-01-01T00:00:00+00:00", "deaf": False, "mute": False, "flags": 0, **me}
    is_active = [each for each in channels if not each.get("thread_metadata", {}).get("archived")]
    return {
        "id": ident, "name": "Home" if ident == GUILD else "Club",
        "joined_at": "2026-01-01T00:00:00+00:00", "owner_id": owner,
        "unavailable": False, "member_count": 4, "roles": roles,
        "channels": [each for each in is_active if each["type"] not in (11, 12)],
        "threads": [each for each in is_active if each["type"] == 11],
        "members": [member], "emojis": [], "stickers": [], "features": [], "presences": [],
        "voice_states": [], "stage_instances": [], "guild_scheduled_events": [], "soundboard_sounds": [],
        "verification_level": 0, "default_message_notifications": 0, "explicit_content_filter": 0,
        "mfa_level": 0, "nsfw_level": 0, "premium_tier": 0, "preferred_locale": "en-US", "large": False,
        "system_channel_flags": 0, "afk_timeout": 300, "icon": None, "splash": None, "banner": None,
        "premium_progress_bar_enabled": False, "description": None, "vanity_url_code": None,
    }  # fmt: skip
