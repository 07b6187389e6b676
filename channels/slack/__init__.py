"""Slack: a workspace's channels, threads and direct messages; its settings, and the OAuth scopes of its apps.

The manifests that request the scopes are built here; `deploy/slack-*.yaml` contains the same.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, SecretStr, model_validator

from channels.kit import secret_matching, text_matching
from gateway.channel import Channel, ChannelContext
from gateway.events import SessionKey
from gateway.installation import HOW_TO_INSTALL
from gateway.ports.channel import PlatformTraits
from gateway.ports.setup import Finding, SetupQuestion, fail


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


_bot_token = secret_matching(
    r"xoxb-[A-Za-z0-9-]{10,}", "is not a Slack bot token; it begins with xoxb- (OAuth & Permissions)"
)
_app_token = secret_matching(
    r"xapp-[A-Za-z0-9-]{10,}", "is not a Slack app-level token; it begins with xapp- (Basic Information)"
)
_signing_secret = secret_matching(
    r"[0-9a-f]{32}", "is not a Slack signing secret; it is 32 of 0-9 a-f (Basic Information)"
)
_reaction = text_matching(r"[a-z0-9_+'-]{0,100}", "must be empty or an emoji's name without colons, such as eyes")
_api_url = text_matching(
    r"https?://[^\s/]+/(.*/)?api/", "must be an address that ends in /api/, such as https://slack.com/api/"
)


class SlackSettings(BaseModel):
    """An app in one workspace: events come over Socket Mode, or by HTTP if only the signing secret is set."""

    entry_shapes: ClassVar[Mapping[str, str]] = {
        "user": r"[UW][A-Z0-9]{2,20}",
        "team": r"[TE][A-Z0-9]{2,20}",
        "chat": r"[CDG][A-Z0-9]{2,20}",
    }
    traits: ClassVar[PlatformTraits] = PlatformTraits(has_teams=True)
    one_bot: ClassVar[Sequence[str]] = ("bot_token", "app_token")

    enabled: bool = True
    bot_token: Annotated[SecretStr | None, _bot_token] = None
    app_token: Annotated[SecretStr | None, _app_token] = None
    signing_secret: Annotated[SecretStr | None, _signing_secret] = None
    base_url: Annotated[str, _api_url] = "https://slack.com/api/"
    reply_in: Literal["thread", "channel"] = "thread"
    streaming: Literal["edit", "native"] = "edit"  # how an answer grows: by edits, or by Slack's own streams
    reaction: Annotated[str, _reaction] = "eyes"  # on accepted messages until they are answered; empty = none

    @property
    def by_http(self) -> bool:
        """Return True if Slack calls the webhook instead of using Socket Mode."""
        return self.app_token is None and self.signing_secret is not None

    @model_validator(mode="after")
    def _check_required(self) -> SlackSettings:
        if self.enabled and self.bot_token is None:
            raise ValueError("needs a bot token (xoxb-…); set `bot_token`, or `enabled` to false")
        if self.enabled and self.app_token is None and self.signing_secret is None:
            raise ValueError(
                "needs an app-level token (xapp-…) for socket mode, or a signing secret for HTTP; set `app_token`"
                " (or `signing_secret`), or `enabled` to false"
            )
        return self


_DIRECT = "D"  # the first letter of a direct message's id
_NO_LIBRARY = f"needs Slack's library; {HOW_TO_INSTALL}"
# Below this level the library logs addresses, headers or bodies, which hold the token.
logging.getLogger("slack_bolt").setLevel(logging.WARNING)
logging.getLogger("slack_sdk").setLevel(logging.WARNING)


class SlackPlugin:
    """Builds Slack channels. Implements `ChannelPlugin`, `SupportsCommandPrefix` and `SupportsSetup`."""

    name = "slack"
    settings: type[Any] = SlackSettings
    title = "Slack"
    steps: Sequence[str] = (
        "Open https://api.slack.com/apps, choose Create New App, From a manifest, and your workspace.",
        f"Choose JSON and paste this: {json.dumps(manifest(), ensure_ascii=False)}",
        "(deploy/slack-least.yaml grants as little as works; in both files each scope says what it is for.)",
        "Basic Information, App-Level Tokens, Generate: add the scope connections:write.",
        "Install App, Install to Workspace.",
    )

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel; the library is loaded now, and connects when it runs."""
        from channels.slack.adapter import SlackChannel

        return SlackChannel(context)

    def routes(self, channel: Channel) -> Sequence[Any]:
        """Return the route of the webhook; none in Socket Mode."""
        from channels.slack.adapter import SlackChannel

        return channel.routes() if isinstance(channel, SlackChannel) else ()

    def command_prefix(self, key: SessionKey) -> str:
        """Return the prefix of commands: Slack consumes a slash, and its own commands do not work in threads."""
        works_with_mark = bool(key.thread) or key.chat.startswith(_DIRECT)
        return "!" if works_with_mark else "/parlour "

    def check(self, settings: Any, environment: Mapping[str, str]) -> Sequence[str]:  # noqa: ARG002 - the port's signature
        """Return the errors of the settings; makes no calls."""
        errors: list[str] = []
        if not _has_library():
            errors.append(_NO_LIBRARY)
        if settings.app_token is None and settings.signing_secret is None:
            errors.append(
                "needs an app-level token (xapp-…): create one under Basic Information with the scope"
                " connections:write, and set `app_token`; or set `signing_secret` to have events by HTTP"
            )
        return errors

    def questions(self) -> Sequence[SetupQuestion]:
        """Return the questions of `parlour init`: two tokens and the first senders."""
        return (
            SetupQuestion(
                setting="bot_token",
                text="The bot token (xoxb-…)",
                help="Install App, Bot User OAuth Token",
                is_secret=True,
            ),
            SetupQuestion(
                setting="app_token",
                text="The app-level token (xapp-…)",
                help="Basic Information, App-Level Tokens; it has the scope connections:write",
                is_secret=True,
            ),
            SetupQuestion(
                setting="allow_from",
                text="Who may write: your own member id (U…), or team:T… for the whole workspace (several with commas)",
                help="your profile, ⋮, Copy member ID; the workspace's id begins with T in the address of its web page",
                is_optional=True,
            ),
        )

    async def verify(self, settings: Any, environment: Mapping[str, str]) -> Sequence[Finding]:
        """Return findings on tokens, scopes, Socket Mode and workspace, by real calls."""
        if not _has_library():
            return (fail(_NO_LIBRARY),)
        from channels.slack.setup import verify

        return await verify(settings, environment)


def _has_library() -> bool:
    return all(find_spec(name) is not None for name in ("slack_bolt", "aiohttp"))


plugin = SlackPlugin()
