"""The OAuth scopes, and the manifests that request them; `deploy/slack-*.yaml` contains the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OAuthScope:
    """One right of the bot."""

    name: str
    use: str  # the comment in the manifest
    lost: str  # what does not work without it, as a clause
    methods: Sequence[str] = ()  # methods of the Web API that need it
    is_least: bool = False  # part of the smallest manifest
    is_needed: bool = False  # without it no message is answered


SCOPES: Sequence[OAuthScope] = (
    OAuthScope(
        "app_mentions:read",
        "receive mentions of the bot in channels",
        "mentions in channels are not received",
        is_least=True,
    ),
    OAuthScope(
        "assistant:write",
        'show "is thinking…" below a thread',
        'threads show no "is thinking…"',
        ("assistant.threads.setStatus",),
    ),
    OAuthScope(
        "channels:history",
        "in public channels: follow threads, read earlier messages, look up sent messages, catch up",
        "each message in a public channel needs a mention, the bot does not see earlier messages, and messages sent"
        " while Parlour was down are lost",
        ("conversations.history", "conversations.replies"),
    ),
    OAuthScope(
        "channels:read",
        "creators of public channels are admins there; notice being added; catch up in silent channels",
        "only workspace admins are admins in public channels, the bot does not notice being added to one, and a mention"
        " while Parlour was down is lost in channels where it never wrote",
        ("conversations.info", "users.conversations"),
    ),
    OAuthScope(
        "chat:write",
        "answer",
        "the bot cannot answer",
        (
            *("chat.postMessage", "chat.postEphemeral", "chat.update"),
            *("chat.startStream", "chat.appendStream", "chat.stopStream"),
        ),
        is_least=True,
        is_needed=True,
    ),
    OAuthScope(
        "commands", "/parlour", "the command /parlour does not exist; `!stop` and the other ! commands still work"
    ),
    OAuthScope(
        "files:read",
        "read files that people send: images, documents, voice",
        "files that people send cannot be read",
        ("files.info",),
    ),
    OAuthScope(
        "files:write",
        "send files; send a long answer in a channel as a file",
        "the bot cannot send files; long answers are sent as several messages",
        ("files.getUploadURLExternal", "files.completeUploadExternal"),
    ),
    OAuthScope(
        "groups:history",
        "as channels:history, for private channels",
        "private channels have the limits of channels:history",
    ),
    OAuthScope(
        "groups:read",
        "as channels:read, for private channels",
        "private channels have the limits of channels:read",
    ),
    OAuthScope(
        "im:history",
        "receive direct messages; as channels:history there",
        "direct messages are not received",
        is_least=True,
        is_needed=True,
    ),
    OAuthScope(
        "metadata.message:read",
        "look up answers whose delivery is uncertain",
        "an answer whose delivery is uncertain is sent again with a notice",
    ),
    OAuthScope(
        "mpim:history",
        "as channels:history, for group direct messages",
        "group direct messages have the limits of channels:history",
    ),
    OAuthScope(
        "reactions:write",
        "the 👀 reaction on received messages",
        "received messages get no 👀 reaction",
        ("reactions.add", "reactions.remove"),
    ),
    OAuthScope(
        "usergroups:read",
        "names of mentioned user groups",
        "mentioned user groups have no names",
        ("usergroups.list",),
    ),
    OAuthScope(
        "users:read",
        "display names; distinguish guests from members",
        "people have no names, and everyone admitted by `team:` or `chat:` counts as a guest",
        ("users.info", "bots.info"),
        is_least=True,
    ),
)

_EVENTS: Mapping[str, str] = {
    "app_mention": "app_mentions:read",
    "message.channels": "channels:history",
    "message.groups": "groups:history",
    "message.im": "im:history",
    "message.mpim": "mpim:history",
    "member_joined_channel": "channels:read",
    "channel_left": "channels:read",
    "group_left": "groups:read",
}


def missing(granted: Collection[str]) -> Sequence[OAuthScope]:
    """Return the scopes that an app with *granted* lacks."""
    return [scope for scope in SCOPES if scope.name not in granted]


def manifest(*, full: bool = True) -> dict[str, Any]:
    """Return the manifest of an app with every useful scope, or with as few as work."""
    scopes = [scope.name for scope in SCOPES if full or scope.is_least]
    features: dict[str, Any] = {
        "app_home": {"messages_tab_enabled": True, "messages_tab_read_only_enabled": False},
        "bot_user": {"display_name": "parlour", "always_online": True},
    }
    if full:
        features["slash_commands"] = [
            {
                "command": "/parlour",
                "description": "Talk to Parlour's commands",
                "usage_hint": "help | status | stop | new",
                "should_escape": False,
            }
        ]
    return {
        "display_information": {"name": "Parlour", "description": "A self-hosted assistant"},
        "features": features,
        "oauth_config": {"scopes": {"bot": scopes}},
        "settings": {
            "event_subscriptions": {"bot_events": [event for event, scope in _EVENTS.items() if scope in scopes]},
            "interactivity": {"is_enabled": True},  # or a button says that the app is not set up for it
            "org_deploy_enabled": False,
            "socket_mode_enabled": True,
            "token_rotation_enabled": False,
        },
    }
