"""The supported languages: codes, names and separators of numbers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

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
