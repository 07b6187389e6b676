"""Which languages there are, what people call them, and how a regional form maps to one of them."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

FALLBACK = "en"

# What a language is called: by itself first, then in the other languages.
NAMES: Mapping[str, tuple[str, ...]] = {
    "en": ("English", "Englisch", "inglés", "英语", "英文"),
    "de": ("Deutsch", "German", "alemán", "德语", "德文"),
    "es": ("español", "Spanish", "Spanisch", "castellano", "西班牙语", "西班牙文"),
    "zh": ("简体中文", "中文", "Chinese", "Chinesisch", "chino", "汉语", "Mandarin"),
}
LANGUAGES = tuple(NAMES)

# Between groups of three digits. Spanish takes a narrow blank (Ortografía de la lengua española, 2010).
THOUSANDS: Mapping[str, str] = {"en": ",", "de": ".", "es": "\u202f", "zh": ","}
DECIMAL: Mapping[str, str] = {"en": ".", "de": ",", "es": ",", "zh": "."}


def resolve_language(code: str) -> str:
    """Return the language that *code* stands for, a regional form included (``de-AT``, ``zh_CN``); "" for none."""
    language = code.strip().replace("_", "-").partition("-")[0].lower()
    return language if language in NAMES else ""


def parse_language(text: str) -> str:
    """Return the language that a person means by its code or by its name in any of the languages; "" for none."""
    wanted = _folded(text)
    found = (code for code, names in NAMES.items() if wanted in {_folded(name) for name in names})
    return resolve_language(text) or next(found, "")


def own_name(language: str) -> str:
    """Return what a language calls itself."""
    return NAMES[language][0]


def list_languages() -> str:
    """Return all languages as people can choose them: ``de (Deutsch), en (English), …``."""
    return ", ".join(f"{code} ({own_name(code)})" for code in sorted(NAMES))


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.strip().casefold())
    return "".join(sign for sign in plain if not unicodedata.combining(sign))
