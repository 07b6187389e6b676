"""Settings of a Slack channel. No library is imported here: settings are read on every start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, SecretStr, model_validator

from channels.kit.settings import secret_matching, text_matching
from gateway.ports.channel import PlatformTraits

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
