"""The settings of one chat: an entry of `chats`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.settings.setting_types import FrozenModel, GroupPolicy, Language, ReplyIn, TextList, TimeZone


class ChatTools(FrozenModel):
    """Which tools the model has in one chat. A tool that both lists name is off."""

    allow: TextList | None = None  # these alone; None = all
    deny: TextList | None = None


class ChatCaps(FrozenModel):
    """The caps of one chat; None = the global value, 0 = no cap."""

    person_turns_per_10_min: Annotated[int, Field(ge=0)] | None = None
    chat_turns_per_10_min: Annotated[int, Field(ge=0)] | None = None
    person_tokens_per_day: Annotated[int, Field(ge=0)] | None = None
    chat_tokens_per_day: Annotated[int, Field(ge=0)] | None = None


class ChatSettings(FrozenModel):
    """The operator's settings for one chat; None = the value of the block, then the global one."""

    timezone: TimeZone | None = None
    language: Language | None = None
    model: Annotated[str, Field(min_length=1)] | None = None  # an alias of llm.models, or as litellm names it
    soul: Annotated[str, Field(min_length=1)] | None = None  # a text, or the name of a file of the home
    group_policy: GroupPolicy | None = None
    reply_in: ReplyIn | None = None
    follow_threads: bool | None = None
    memory_window: Annotated[int, Field(ge=0, le=100_000)] | None = None
    tools: ChatTools = ChatTools()
    caps: ChatCaps = ChatCaps()
