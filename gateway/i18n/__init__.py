"""The supported languages, and the message catalogue: every sentence that a person in a chat can see, in each.

`locales/en.pot` holds the English sentences, `locales/<language>.po` their translations. A sentence that a
language lacks is shown in English. Channels and agent may import this package (docs/adr/0002-words.md): it
is data. A language is read when it is first used.

Whole numbers among the fields are written with the language's separators. ``{count:# line|# lines}`` holds one
text per plural form of the language, # being the number (docs/adr/0002-words.md).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from gettext import c2py
from pathlib import Path
from sys import intern

from gateway.installation import with_operator_commands

FALLBACK = "en"

# Each language's own name first, then its names in the other languages.
NAMES: Mapping[str, tuple[str, ...]] = {
    "en": ("English", "Englisch", "inglés", "英语", "英文"),
    "de": ("Deutsch", "German", "alemán", "德语", "德文"),
    "es": ("español", "Spanish", "Spanisch", "castellano", "西班牙语", "西班牙文"),
    "zh": ("简体中文", "中文", "Chinese", "Chinesisch", "chino", "汉语", "Mandarin"),
}
LANGUAGES = tuple(NAMES)
_LONGEST_HEADER, _MOST_ACCEPTED = 1_000, 20  # characters and codes of Accept-Language
_WEIGHT = re.compile(r"[01](\.[0-9]{1,3})?")

# Between groups of three digits. Spanish takes a narrow blank (Ortografía de la lengua española, 2010).
THOUSANDS: Mapping[str, str] = {"en": ",", "de": ".", "es": "\u202f", "zh": ","}
DECIMAL: Mapping[str, str] = {"en": ".", "de": ",", "es": ",", "zh": "."}


def resolve_language(code: str) -> str:
    """Return the language of *code*, which may name a region (``de-AT``, ``zh_CN``); "" if it is not supported."""
    language = code.strip().replace("_", "-").partition("-")[0].lower()
    return language if language in NAMES else ""


def accepted_languages(header: str) -> list[str]:
    """Return the codes in an Accept-Language *header*, the preferred ones first, 20 at most."""
    ranked = []
    for each in header[:_LONGEST_HEADER].split(",")[:_MOST_ACCEPTED]:
        code, _, weight = each.partition(";")
        ranked.append((_weight(weight), code.strip()))
    return [code for weight, code in sorted(ranked, key=lambda entry: -entry[0]) if weight > 0]


def _weight(text: str) -> float:
    name, _, value = text.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    return float(value) if _WEIGHT.fullmatch(value.strip()) else 0.0


def parse_language(text: str) -> str:
    """Return the language with the code or name *text*, in any language; "" if it is not supported."""
    name = _folded(text)
    matches = (code for code, names in NAMES.items() if name in {_folded(each) for each in names})
    return resolve_language(text) or next(matches, "")


def own_name(language: str) -> str:
    """Return the name of *language* in that language."""
    return NAMES[language][0]


def list_languages() -> str:
    """Return codes and names of all languages: ``de (Deutsch), en (English), …``."""
    return ", ".join(f"{code} ({own_name(code)})" for code in sorted(NAMES))


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.strip().casefold())
    return "".join(sign for sign in plain if not unicodedata.combining(sign))


SLASH = "/"  # the prefix of commands in the sentences; a chat may have another: "!stop", "/parlour stop"
HELP = "commands.help_"  # prefix of the keys of the lines of /help
FOLDER = Path(__file__).with_name("locales")

_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
_PLURAL = re.compile(r"^Plural-Forms: *nplurals=(\d+); *plural=([^;\n]+)", re.MULTILINE)


class ChatLanguage(str):
    """The language of a chat, with the prefix of its commands."""

    __slots__ = ("command_prefix",)
    command_prefix: str

    def __new__(cls, language: str, command_prefix: str) -> ChatLanguage:
        """Return *language* with *command_prefix*."""
        chat_language = super().__new__(cls, language)
        chat_language.command_prefix = command_prefix
        return chat_language


def command_prefix(language: str) -> str:
    """Return the prefix of commands that goes with *language*."""
    return language.command_prefix if isinstance(language, ChatLanguage) else SLASH


@lru_cache(maxsize=4096)
def with_command_prefix(template: str, prefix: str, names: tuple[str, ...]) -> str:
    """Return *template* with *prefix* instead of a slash before *names* and before fields that name a command."""
    known = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<![\w/.:<])/(?=\{{(?:name|near|command)\}}|(?:{known})(?![\w-]))", prefix, template)


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
        template, language = load_catalogue(FALLBACK)[key], ChatLanguage(FALLBACK, command_prefix(language))
    if (prefix := command_prefix(language)) != SLASH:
        template = with_command_prefix(template, prefix, command_names())
    if not fields:
        return template
    return template.format_map({name: _format_field(value, language) for name, value in fields.items()})


def _format_field(value: object, language: str) -> object:
    return _PluralNumber(value, language) if type(value) is int else value


class _PluralNumber:
    """A whole number in a sentence: alone, in a plural form, or with a format specification."""

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


# -- gettext's .po files, read as they are, so that nothing has to be compiled ---------------------


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One message: its key, its English text and its translation. The header has the key ""."""

    key: str
    source: str
    translation: str
    is_fuzzy: bool  # marked as outdated: not shown


@dataclass(frozen=True, slots=True)
class MessageCatalogue:
    """The messages of one language by key, and the language's plural rule."""

    messages: Mapping[str, str]
    plural_count: int
    plural_form: Callable[[int], int]  # the number of the form that a count takes


def catalogue_path(language: str) -> Path:
    """Return the file of *language*: a translation, or the English template."""
    return FOLDER / f"{language}.{'pot' if language == FALLBACK else 'po'}"


def parse_entries(text: str) -> Iterator[CatalogueEntry]:
    """Yield the entries of a catalogue, the header first; obsolete ones (``#~``) are left out."""
    for block in text.replace('"\n"', "").split("\n\n"):  # a folded text is one line again
        fields: dict[str, str] = {}
        is_fuzzy = False
        for line in block.split("\n"):
            if line.startswith("msg"):
                name, _, quoted = line.partition(" ")
                fields[name] = _unescape(quoted[1:-1])
            elif line.startswith("#,"):
                is_fuzzy = "fuzzy" in line
        if "msgid" in fields:
            yield CatalogueEntry(fields.get("msgctxt", ""), fields["msgid"], fields.get("msgstr", ""), is_fuzzy)


def read_catalogue(language: str) -> MessageCatalogue:
    """Return the messages of *language*, with the operator's commands as they are typed for this installation.

    Raises FileNotFoundError when it has no catalogue. Blocks.
    """
    header, *entries = parse_entries(catalogue_path(language).read_text(encoding="utf-8"))
    rule = _PLURAL.search(header.translation)
    if rule is None:
        raise ValueError(f"{catalogue_path(language)} has no Plural-Forms in its header")
    shown = {
        intern(entry.key): with_operator_commands(entry.source if language == FALLBACK else entry.translation)
        for entry in entries
        if not entry.is_fuzzy and (language == FALLBACK or entry.translation)
    }
    return MessageCatalogue(shown, int(rule[1]), c2py(rule[2]))


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text) if "\\" in text else text
