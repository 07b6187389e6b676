"""The message catalogue: every sentence that a person in a chat can see, in each language.

`locales/en.pot` holds the English sentences, `locales/<language>.po` their translations. A sentence that a
language lacks is shown in English. Channels and agent may import this package (docs/adr/0002-words.md): it
is data. A language is read when it is first used.

Whole numbers among the fields are written with the language's separators. ``{count:# line|# lines}`` holds one
text per plural form of the language, # being the number (docs/adr/0040-message-catalogues.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from gateway.i18n.command_prefixes import SLASH as SLASH
from gateway.i18n.command_prefixes import ChatLanguage as ChatLanguage
from gateway.i18n.command_prefixes import command_sign as command_sign
from gateway.i18n.command_prefixes import with_sign
from gateway.i18n.languages import FALLBACK as FALLBACK
from gateway.i18n.languages import THOUSANDS
from gateway.i18n.message_catalogue import MessageCatalogue, read_catalogue

HELP = "commands.help_"  # prefix of the keys of the lines of /help


def load_catalogue(language: str) -> Mapping[str, str]:
    """Return the sentences of *language* by key ``area.name``; empty for an unknown language."""
    catalogue = _catalogue(language)
    return {} if catalogue is None else catalogue.messages


@cache
def _catalogue(language: str) -> MessageCatalogue | None:
    try:
        return read_catalogue(language)
    except FileNotFoundError:
        return None


@cache
def command_names() -> tuple[str, ...]:
    """Return the names of all commands: each has a line of /help."""
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
    return template.format_map({name: _format_field(value, language) for name, value in fields.items()})


def _format_field(value: object, language: str) -> object:
    return _PluralNumber(value, language) if type(value) is int else value


class _PluralNumber:
    """A whole number as a sentence takes it: alone, with its noun, or in a format of its own."""

    def __init__(self, value: int, language: str) -> None:
        self._value = value
        self._language = language

    def __format__(self, spec: str) -> str:
        if spec and "|" not in spec:
            return format(self._value, spec)
        number = f"{self._value:,}".replace(",", THOUSANDS.get(self._language, ","))
        if not spec:
            return number
        catalogue = _catalogue(self._language)
        forms = spec.split("|")
        form = 0 if catalogue is None else min(catalogue.plural_form(self._value), len(forms) - 1)
        return forms[form].replace("#", number)
