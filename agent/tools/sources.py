"""Sources of tool results: stored with a result's line, listed below the answer as links."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from gateway.i18n import translate
from gateway.ports import Line

_MOST = 8  # below one answer
_LONGEST_TITLE = 80  # characters
_LONGEST_URL = 2_000
_MARKUP = re.compile(r"[\[\]()<>*_`~|\\#!\x00-\x1f\x7f]")  # a page chooses its title: no sign of it is markup
_SAFE = "/:?#@!$&'*+,;=%-._~"  # of an address; parentheses and blanks would end the link early


@dataclass(frozen=True, slots=True)
class ToolSource:
    """A page that a result was made from."""

    url: str
    title: str = ""


def encode_sources(sources: Iterable[ToolSource]) -> Sequence[Mapping[str, str]]:
    """Return *sources* for a transcript line; other addresses than http and https are left out."""
    kept = [{"url": each.url, "title": each.title[:_LONGEST_TITLE]} for each in sources if _is_link(each.url)]
    return kept[:_MOST]


def format_sources(lines: Iterable[Line], text: str, language: str) -> str:
    """Return the Markdown line with the sources of a turn's *lines* that *text* does not link itself; "" for none."""
    found = {str(each.get("url", "")): str(each.get("title", "")) for line in lines for each in line.get("sources", ())}
    links = [_link(url, title) for url, title in found.items() if _is_link(url) and url not in text]
    return translate("delivery.sources", language, links=" · ".join(links[:_MOST])) if links else ""


def _link(url: str, title: str) -> str:
    plain = " ".join(_MARKUP.sub(" ", title).split())[:_LONGEST_TITLE] or urlsplit(url).hostname or url
    return f"[{plain}]({quote(url, safe=_SAFE)})"


def _is_link(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and len(url) <= _LONGEST_URL


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file that a result brings to the person, with the answer."""

    name: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ResultPicture:
    """A picture that a result brings to the model; it is not sent to the person."""

    source: str  # whose it is, such as a host
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a tool that returns more than a text."""

    text: str
    files: Sequence[ResultFile] = ()
    picture: ResultPicture | None = None
    sources: Sequence[ToolSource] = ()
    is_error: bool = False
