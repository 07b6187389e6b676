"""The one catalogue: every sentence that a person in a chat can see, in the languages there are.

English first; another language is a package beside `en` with the same keys, and what it lacks
falls back. Areas are modules so that a sentence stands near its siblings. Channels and agent may
import this package (docs/adr/0002-words.md): it is data. A language is imported when it first says something.

Whole numbers among the fields are written as the language writes them. ``{count:# line|# lines}`` is the
first half for one and the second for any other number, # being the number (docs/adr/0021-languages.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from gateway.i18n.command_prefixes import SLASH as SLASH
from gateway.i18n.command_prefixes import ChatLanguage as ChatLanguage
from gateway.i18n.command_prefixes import command_sign as command_sign
from gateway.i18n.command_prefixes import with_sign
from gateway.i18n.languages import FALLBACK as FALLBACK
from gateway.i18n.languages import THOUSANDS

_areas = (
    "alerts", "asking", "caps", "commands", "console", "delivery", "discord", "dream", "failures", "figures", "forget",
    "frames", "links", "memory", "model", "offline", "people", "pool", "rights", "search", "settings", "slack",
    "strangers", "telegram", "usage", "web",
)  # fmt: skip


HELP = "commands.help_"  # what the keys of the lines of help begin with


@cache
def load_catalogue(language: str) -> Mapping[str, str]:
    """Return the sentences of *language* by key ``area.name``; nothing for a language that is not there."""
    sentences: dict[str, str] = {}
    for area in _areas:
        try:
            module = import_module(f"gateway.i18n.{language}.{area}")
        except ModuleNotFoundError:
            continue
        sentences |= {f"{area}.{name}": text for name, text in module.SENTENCES.items()}
    return sentences


@cache
def command_names() -> tuple[str, ...]:
    """Return the names of all commands: each has its line of help."""
    return tuple(
        sorted({key.removeprefix(HELP) for key in load_catalogue(FALLBACK) if key.startswith(HELP)} - {"title"})
    )


def translate(key: str, /, language: str = FALLBACK, **fields: object) -> str:
    """Return the sentence *key* with its fields filled in; raise KeyError for a key that is not English."""
    template = load_catalogue(language).get(key)
    if template is None:
        template, language = load_catalogue(FALLBACK)[key], ChatLanguage(FALLBACK, command_sign(language))
    if (sign := command_sign(language)) != SLASH:
        template = with_sign(template, sign, command_names())
    if not fields:
        return template
    return template.format_map({name: _written(value, language) for name, value in fields.items()})


def _written(value: object, language: str) -> object:
    return _PluralNumber(value, language) if type(value) is int else value


class _PluralNumber:
    """A whole number as a sentence takes it: alone, with its noun, or in a format of its own."""

    def __init__(self, value: int, language: str) -> None:
        self._value = value
        self._language = language

    def __format__(self, how: str) -> str:
        if how and "|" not in how:
            return format(self._value, how)
        number = f"{self._value:,}".replace(",", THOUSANDS.get(self._language, ","))
        if not how:
            return number
        one, _, other = how.partition("|")
        return (one if self._value == 1 else other).replace("#", number)
