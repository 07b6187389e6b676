"""The model that answers, and those that people may choose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from gateway.settings.setting_types import Dollars, FrozenModel, MaybeEffort, MaybeWebAddress, Seconds, Secret, TextList

OFFLINE = "offline"  # what answers when no model is set
MOST_ALIAS = 57  # characters: `/model <alias>` is what a button stands for


def _alias(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9._/:@+-]*", name, re.ASCII | re.IGNORECASE):
        raise ValueError(f"{name!r} is not a valid model name; use only a-z, 0-9 and . _ - / : @ +")
    if name.lower() == "default":
        raise ValueError(f"{name!r} always means llm.model; choose another name")
    if len(name) > MOST_ALIAS:
        raise ValueError(f"{name!r} is too long for a button; give it a shorter name: {{short: {{model: …}}}}")
    return name


class ModelSettings(FrozenModel):
    """A model that users may choose. Without an address and key it uses those of `llm` (same provider)."""

    model: Annotated[str, Field(min_length=1)]  # as litellm names it
    api_base: MaybeWebAddress = None
    api_key: Secret | None = None
    context_window: Annotated[int, Field(ge=1_000)] | None = None  # tokens; None = what litellm knows
    vision: Literal["auto", "on", "off"] = "auto"
    effort: MaybeEffort = None  # None = that of `llm`
    usd_per_million_input: Dollars | None = None  # None = what litellm's table says
    usd_per_million_output: Dollars | None = None

    @property
    def prices(self) -> tuple[float, float] | None:
        """The prices of a million tokens in and out, or None if the operator gives none."""
        if self.usd_per_million_input is None or self.usd_per_million_output is None:
            return None
        return self.usd_per_million_input, self.usd_per_million_output

    @model_validator(mode="after")
    def _require_both_prices(self) -> ModelSettings:
        if (self.usd_per_million_input is None) != (self.usd_per_million_output is None):
            raise ValueError("set both usd_per_million_input and usd_per_million_output, or neither")
        return self


class LlmSettings(FrozenModel):
    """The model that answers; without one, `offline` does."""

    model: str = ""  # as litellm names it, e.g. openai/gpt-5, or a name of `models`; empty = offline
    models: Mapping[Annotated[str, AfterValidator(_alias)], ModelSettings] = Field(default={})  # to choose from
    api_base: MaybeWebAddress = None
    api_key: Secret | None = None
    fallbacks: TextList = ()  # models asked in turn when the first fails
    context_window: Annotated[int, Field(ge=1_000)] | None = None  # tokens; None = what litellm knows
    timeout_seconds: Seconds = 120
    stream_silence_seconds: Seconds = 30
    attempts: Annotated[int, Field(ge=1, le=10)] = 2
    vision: Literal["auto", "on", "off"] = "auto"  # whether it looks at pictures; auto = what litellm knows
    effort: MaybeEffort = None  # how long it thinks before an answer; None = as the provider has it
    client: Literal["auto", "litellm"] = "auto"  # auto = without litellm where the server speaks OpenAI's protocol
    transcription_model: str = ""  # as litellm names it; empty = voice messages are not listened to

    def asking(self, name: str = "") -> LlmSettings:
        """Return these settings with *name*, by default the usual model, as the one model there is."""
        entry = self.entry(name or self.model)
        return self.model_copy(
            update={
                "model": entry.model if name or self.model else "",
                "models": {},
                "api_base": entry.api_base,
                "api_key": entry.api_key,
                "context_window": entry.context_window,
                "vision": entry.vision,
                "effort": entry.effort,
            }
        )

    def entry(self, name: str) -> ModelSettings:
        """Return the model that *name* means (one of `models`, or as litellm names it) and how it is asked.

        Address and key of the usual model are for its own provider's models alone.
        """
        found = self.models.get(name) or ModelSettings(model=name or OFFLINE)
        found = found.model_copy(update={"effort": found.effort or self.effort})
        if name == self.model or name not in self.models:
            found = found.model_copy(
                update={
                    "context_window": found.context_window or self.context_window,
                    "vision": self.vision if found.vision == "auto" else found.vision,
                }
            )
        if found.api_base or found.api_key:
            return found
        usual = self.models.get(self.model) or ModelSettings(model=self.model or OFFLINE)
        if provider_of(found.model) != provider_of(usual.model):
            return found
        if not usual.api_base and not usual.api_key:
            return found.model_copy(update={"api_base": self.api_base, "api_key": self.api_key})
        return found.model_copy(update={"api_base": usual.api_base, "api_key": usual.api_key})


def provider_of(model: str) -> str:
    """Return the provider in a model's name; "" where litellm has to know."""
    return model.partition("/")[0] if "/" in model else ""
