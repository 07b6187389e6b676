"""The one catalogue: every sentence that a person in a chat can see.

English first; another language is a package beside `en` with the same keys, and what it lacks
falls back. Areas are modules so that a sentence stands near its siblings. Channels and agent may
import this package (docs/adr/0002-words.md): it is data.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

FALLBACK = "en"
_areas = (
    "asking", "commands", "console", "delivery", "discord", "dream", "failures", "forget", "frames", "links", "memory",
    "offline", "pool", "rights", "search", "slack",
    "telegram", "web",
)  # fmt: skip


@cache
def catalogue(language: str) -> Mapping[str, str]:
    """Return the sentences of *language* by key ``area.name``; an unknown language is English."""
    sentences: dict[str, str] = {}
    for area in _areas:
        try:
            module = import_module(f"gateway.words.{language}.{area}")
        except ModuleNotFoundError:
            continue
        sentences |= {f"{area}.{name}": text for name, text in module.SENTENCES.items()}
    return sentences


def say(key: str, /, language: str = FALLBACK, **fields: object) -> str:
    """Return the sentence *key* with its fields filled in; raise KeyError for a key that is not English."""
    template = catalogue(language).get(key)
    if template is None:
        template = catalogue(FALLBACK)[key]
    return template.format_map(fields) if fields else template
