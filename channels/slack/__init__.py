"""Slack: a workspace's channels, threads and direct messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from channels.slack.settings import SlackSettings
from gateway.ports import Channel, ChannelContext


class SlackKind:
    """The kind `slack`."""

    name = "slack"
    settings: type[Any] = SlackSettings

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel; the library is loaded now, and connects when it runs."""
        from channels.slack.adapter import SlackChannel

        return SlackChannel(context)

    def routes(self, channel: Channel) -> Sequence[Any]:  # noqa: ARG002 - the port's signature
        """Return nothing: events come over Socket Mode."""
        return ()

    def check(self, settings: Any, environment: Mapping[str, str]) -> Sequence[str]:  # noqa: ARG002 - the port's signature
        """Return what would keep the block from working; the tokens' shapes are the settings' own affair."""
        wrong: list[str] = []
        if find_spec("slack_bolt") is None or find_spec("aiohttp") is None:
            wrong.append("needs Slack's library; run pip install 'parlour[slack]'")
        if settings.app_token is None:
            wrong.append(
                "needs an app-level token (xapp-…), since events come by Socket Mode: create one under Basic"
                " Information with the scope connections:write, and set `app_token`"
            )
        return wrong


kind = SlackKind()
