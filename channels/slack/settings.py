"""What only a Slack block holds. No library is imported here: settings are read on every start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel, SecretStr, ValidationInfo, field_validator, model_validator

from gateway.ports import PlatformTraits

_SHAPES: Mapping[str, tuple[str, str]] = {
    "bot_token": (r"xoxb-[A-Za-z0-9-]{10,}", "a Slack bot token; it begins with xoxb- (OAuth & Permissions)"),
    "app_token": (r"xapp-[A-Za-z0-9-]{10,}", "a Slack app-level token; it begins with xapp- (Basic Information)"),
    "signing_secret": (r"[0-9a-f]{32}", "a Slack signing secret; it is 32 of 0-9 a-f (Basic Information)"),
}


class SlackSettings(BaseModel):
    """An app in one workspace: events come by Socket Mode, or by HTTP where only the signing secret is there."""

    entry_shapes: ClassVar[Mapping[str, str]] = {
        "user": r"[UW][A-Z0-9]{2,20}",
        "team": r"[TE][A-Z0-9]{2,20}",
        "chat": r"[CDG][A-Z0-9]{2,20}",
    }
    traits: ClassVar[PlatformTraits] = PlatformTraits(has_teams=True)
    one_bot: ClassVar[Sequence[str]] = ("bot_token", "app_token")

    enabled: bool = True
    bot_token: SecretStr | None = None
    app_token: SecretStr | None = None
    signing_secret: SecretStr | None = None
    base_url: str = "https://slack.com/api/"
    reply_in: Literal["thread", "channel"] = "thread"
    streaming: Literal["edit", "native"] = "edit"  # how an answer grows: by edits, or by Slack's own streams
    reaction: str = "eyes"  # on what was heard, until it is answered; empty = none

    @field_validator("bot_token", "app_token", "signing_secret")
    @classmethod
    def _looks_like_one(cls, secret: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if secret is None:
            return None
        shape, name = _SHAPES[str(info.field_name)]
        if not secret.get_secret_value():
            raise ValueError("is empty; give it a value, or remove it")
        if not re.fullmatch(shape, secret.get_secret_value(), re.ASCII):
            raise ValueError(f"is not {name}")
        return secret

    @property
    def by_http(self) -> bool:
        """Say whether Slack brings events to us, rather than over a connection of ours."""
        return self.app_token is None and self.signing_secret is not None

    @field_validator("reaction")
    @classmethod
    def _a_name(cls, reaction: str) -> str:
        if not re.fullmatch(r"[a-z0-9_+'-]{0,100}", reaction):
            raise ValueError("must be empty or an emoji's name without colons, such as eyes")
        return reaction

    @field_validator("base_url")
    @classmethod
    def _address(cls, address: str) -> str:
        if not re.match(r"https?://[^\s/]+/(.*/)?api/\Z", address):
            raise ValueError("must be an address that ends in /api/, such as https://slack.com/api/")
        return address

    @model_validator(mode="after")
    def _has_its_tokens(self) -> SlackSettings:
        if self.enabled and self.bot_token is None:
            raise ValueError("needs a bot token (xoxb-…); set `bot_token`, or `enabled` to false")
        if self.enabled and self.app_token is None and self.signing_secret is None:
            raise ValueError(
                "needs an app-level token (xapp-…) for socket mode, or a signing secret for HTTP; set `app_token`"
                " (or `signing_secret`), or `enabled` to false"
            )
        return self
