"""Slack: a workspace's channels, threads and direct messages."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, SecretStr, model_validator

from channels.kit import secret_matching, text_matching
from channels.slack.oauth_scopes import manifest
from gateway.channel import Channel, ChannelContext
from gateway.events import SessionKey
from gateway.installation import HOW_TO_INSTALL
from gateway.ports.channel import PlatformTraits
from gateway.ports.setup import Finding, SetupQuestion, fail

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
