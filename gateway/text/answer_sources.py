"""The sources of an answer as one line of Markdown, for channels that have no footnotes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, urlsplit

from gateway.events import AnswerSource
from gateway.i18n import translate

MOST_SOURCES = 8  # below one answer
LONGEST_TITLE = 80  # characters
_LONGEST_URL = 2_000
_MARKUP = re.compile(r"[\[\]()<>*_`~|\\#!\x00-\x1f\x7f]")  # a page chooses its title: no sign of it is markup
_SAFE = "/:?#@!$&'*+,;=%-._~"  # of an address; parentheses and blanks would end the link early


def format_sources(sources: Iterable[AnswerSource], text: str, language: str) -> str:
    """Return the Markdown line with the *sources* that *text* does not link itself; "" for none."""
    kept = [each for each in sources if is_source_address(each.url) and each.url not in text]
    links = [f"[{_plain_title(each)}]({quote(each.url, safe=_SAFE)})" for each in kept]
    return translate("delivery.sources", language, links=" · ".join(links)) if links else ""


def _plain_title(source: AnswerSource) -> str:
    plain = " ".join(_MARKUP.sub(" ", source.title).split())[:LONGEST_TITLE]
    return plain or urlsplit(source.url).hostname or source.url


def is_source_address(url: str) -> bool:
    """Return True for an address of http or https that is short enough to be listed."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and len(url) <= _LONGEST_URL
