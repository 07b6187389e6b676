"""Reader of message catalogues: gettext's .po files as they are, so that nothing has to be compiled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from gettext import c2py
from pathlib import Path
from sys import intern

from gateway.i18n.languages import FALLBACK
from gateway.installation import with_operator_commands

FOLDER = Path(__file__).with_name("locales")

_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
_PLURAL = re.compile(r"^Plural-Forms: *nplurals=(\d+); *plural=([^;\n]+)", re.MULTILINE)


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
