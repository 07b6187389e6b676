"""The OAuth scopes, and the manifests that request them; `deploy/slack-*.yaml` contains the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OAuthScope:
    """One right of the bot."""

    name: str
    use: str  # the reason that stands in the manifest
    lost: str  # what does not work without it
    methods: Sequence[str] = ()  # of the Web API, that we call by it
    is_least: bool = False  # it is asked for even where as little as possible is granted
    is_needed: bool = False  # without it nobody is answered


SCOPES: Sequence[OAuthScope] = (
    OAuthScope(
        "app_mentions:read",
        "somebody names the bot in a channel",
        "mentions in channels are not heard",
        is_least=True,
    ),
    OAuthScope(
        "assistant:write",
        '"is thinking…" below a thread',
        'no "is thinking…" below threads',
        ("assistant.threads.setStatus",),
    ),
    OAuthScope(
        "channels:history",
        "follow threads, read what was said before, read back what was sent, catch up: public channels",
        "in public channels each message needs a mention, what was said before it is not known, and what was said"
        " while Parlour was down is lost",
        ("conversations.history", "conversations.replies"),
    ),
    OAuthScope(
        "channels:read",
        "who made a public channel may decide there; being added to one is noticed; catch up where it never spoke",
        "in public channels only the workspace's admins decide, being added to one is not noticed, and a mention while"
        " Parlour was down is lost where it never spoke",
        ("conversations.info", "users.conversations"),
    ),
    OAuthScope(
        "chat:write",
        "answer",
        "nothing can be answered",
        (
            *("chat.postMessage", "chat.postEphemeral", "chat.update"),
            *("chat.startStream", "chat.appendStream", "chat.stopStream"),
        ),
        is_least=True,
        is_needed=True,
    ),
    OAuthScope("commands", "/parlour", "there is no /parlour; `!stop` and the like work all the same"),
    OAuthScope(
        "files:read",
        "read what people send: images, documents, voice",
        "files that people send cannot be read",
        ("files.info",),
    ),
    OAuthScope(
        "files:write",
        "send files; a long answer in a channel comes as one",
        "no files can be sent; long answers come as several messages",
        ("files.getUploadURLExternal", "files.completeUploadExternal"),
    ),
    OAuthScope(
        "groups:history",
        "the same in private channels it is invited to",
        "private channels: as for channels:history",
    ),
    OAuthScope(
        "groups:read",
        "the same for private channels",
        "private channels: as for channels:read",
    ),
    OAuthScope(
        "im:history",
        "hear direct messages; the same there",
        "direct messages are not heard",
        is_least=True,
        is_needed=True,
    ),
    OAuthScope(
        "metadata.message:read",
        "recognise an answer of its own whose fate is unknown",
        "an answer whose fate is unknown is sent again with a visible mark",
    ),
    OAuthScope("mpim:history", "the same in group direct messages", "group direct messages: as for channels:history"),
    OAuthScope(
        "reactions:write",
        "the eyes on what was heard",
        "no 👀 on what was heard",
        ("reactions.add", "reactions.remove"),
    ),
    OAuthScope(
        "users:read",
        "display names; guests are told from members",
        "people have no names, and where `team:` or `chat:` lets people in, everybody counts as a guest",
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
