"""Tool results and their sources, which are stored with a result's line and listed below the answer as links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.events import AnswerSource
from gateway.ports.journal import Line
from gateway.text.message_text import LONGEST_TITLE, MOST_SOURCES, is_source_address

LONGEST_RESULT = 1_000_000  # bytes of a result's text


def encode_sources(sources: Iterable[AnswerSource]) -> Sequence[Mapping[str, str]]:
    """Return *sources* for a transcript line; other addresses than http and https are left out."""
    kept = [{"url": each.url, "title": each.title[:LONGEST_TITLE]} for each in sources if is_source_address(each.url)]
    return kept[:MOST_SOURCES]


def collect_sources(lines: Iterable[Line]) -> tuple[AnswerSource, ...]:
    """Return the sources of the results among a turn's *lines*, each address once."""
    found = {str(each.get("url", "")): str(each.get("title", "")) for line in lines for each in line.get("sources", ())}
    kept = [AnswerSource(url, title[:LONGEST_TITLE]) for url, title in found.items() if is_source_address(url)]
    return tuple(kept[:MOST_SOURCES])


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
    sources: Sequence[AnswerSource] = ()
    is_error: bool = False
