"""From the operator's model string to a model: one entry point of `parlour.models` each."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import cast

from agent.llm.chat_model import ChatModel, ModelConfig
from agent.llm.openai_model import is_openai_compatible
from gateway.errors import SettingsError
from gateway.installation import load_entry_points

GROUP = "parlour.models"
DEFAULT = "offline"
DIRECT = "openai"  # takes names of models on servers that are known to speak OpenAI's protocol
REST = "litellm"  # takes every other name


def open_model(
    config: ModelConfig, *, entries: Iterable[EntryPoint] | None = None, setting: str = "llm.model"
) -> ChatModel:
    """Open the model that *config.model* names.

    Empty is `offline`; ``<entry point>`` or ``<entry point>:<anything>`` is that entry point; a model on an
    OpenAI-compatible server is called directly, unless *config.client* is `litellm`; everything else goes to litellm.
    Raises SettingsError, about *setting*, for a name that cannot be a model.
    """
    name = config.model.strip() or DEFAULT
    found = {entry.name: entry for entry in (load_entry_points(GROUP) if entries is None else entries)}
    config = replace(config, model=name)
    choice = _choose(name, found, setting)
    if choice == REST and DIRECT in found and config.client != REST and is_openai_compatible(config):
        choice = DIRECT
    entry = found[choice]
    try:
        factory = cast("Callable[[ModelConfig], ChatModel]", entry.load())
    except ImportError as error:
        raise SettingsError(f"{setting}: {name!r} needs a package that is not installed: {error.name}") from error
    return factory(config)


def _choose(name: str, entries: Mapping[str, EntryPoint], setting: str) -> str:
    own = name.partition(":")[0]
    if own in entries and own not in (DIRECT, REST):
        return own
    if any(letter.isspace() for letter in name):
        raise SettingsError(f"{setting}: the model name {name!r} contains a space; remove it")
    # A bare word may be a model of a known provider (gpt-4o), but not one that is nearly a word of ours.
    near = difflib.get_close_matches(
        own.lower(), [known for known in entries if known not in (DIRECT, REST)], n=1, cutoff=0.75
    )
    if "/" not in name and near:
        raise SettingsError(f"{setting}: there is no model {name!r}; did you mean {near[0]!r}?")
    if REST not in entries:
        raise SettingsError(f"{setting}: no installed provider supports {name!r}; use one of {sorted(entries)}")
    return REST
