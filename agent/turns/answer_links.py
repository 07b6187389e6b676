"""Which addresses of an answer may be links although untrusted text was in its prompt: those that others wrote first.

A hijacked model can write an address that carries what the conversation holds; a click sends it. So an
address may be a link only if it is found, letter for letter, in the settings and memory, in what people typed or sent,
or in what the web tools brought. Other tools return text that the model may have composed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any

from markdown_it.common.normalize_url import normalizeLinkText

from agent.base.file_facts import UNTRUSTED, facts_in
from gateway.ports.journal import Line
from gateway.text import comparable_address, find_addresses
from gateway.text.linked_addresses import LONGEST

# An address ends where none of its own signs follows; CJK scripts write the next word right beside it.
_BEFORE, _BEYOND = r"(?<![A-Za-z0-9.@_%-])", r"/?(?![A-Za-z0-9_#&=%~@+-]|[/?.][A-Za-z0-9_%#&=~+-])"

MOST_ADDRESSES = 200  # of one answer; a millisecond for each in a prompt of a megabyte


class _Author(Enum):
    PERSON = auto()  # or operator
    PAGE = auto()  # a web tool's result, or a forwarded message
    MODEL = auto()


class AnswerLinks:
    """Finds the links that an answer to one prompt may have."""

    def __init__(self, system: str, lines: Callable[[], Sequence[Line]], is_from_web: Callable[[Line], bool]) -> None:
        """*system* is the system prompt, *lines* the rest; *is_from_web* is asked about lines of results."""
        self._system = system
        self._lines = lines
        self._is_from_web = is_from_web
        self._texts: list[tuple[_Author, str, str]] | None = None  # with the text in lower case, read once
        self._known: dict[str, bool] = {}

    def find(self, markdown: str) -> tuple[str, ...]:
        """Return the addresses in *markdown* that may be links, comparable and each once.

        Only the first `MOST_ADDRESSES` are looked for in the prompt. Takes longer than the event loop has for an answer
        with many; safe in a thread.
        """
        found = dict.fromkeys(comparable_address(each) for each in find_addresses(markdown))
        candidates = [each for each in found if each and len(each) <= LONGEST][:MOST_ADDRESSES]
        return tuple(each for each in candidates if self._may_be_link(each))

    def _may_be_link(self, address: str) -> bool:
        if address not in self._known:
            self._known[address] = self._stands_in_prompt(address)
        return self._known[address]

    def _stands_in_prompt(self, address: str) -> bool:
        if self._texts is None:
            texts = [(_Author.PERSON, self._system), *(each for line in self._lines() for each in self._texts_of(line))]
            self._texts = [(author, text, text.lower()) for author, text in texts]
        forms = {address, normalizeLinkText(f"http://{address}").removeprefix("http://")}  # encoded, and as it is read
        hosts = {re.split("[/?#]", each, maxsplit=1)[0].lower() for each in forms}
        pattern = re.compile(f"{_BEFORE}(?:{'|'.join(map(re.escape, forms))}){_BEYOND}", re.IGNORECASE)
        is_models = False
        for author, text, lowered in self._texts:
            if (author is _Author.PAGE and is_models) or not any(host in lowered for host in hosts):
                continue
            if any(comparable_address(found[0]) == address for found in pattern.finditer(text)):
                if author is not _Author.MODEL:
                    return True
                is_models = True  # what a page says after the model may be its echo
        return False

    def _texts_of(self, line: Line) -> Iterator[tuple[_Author, str]]:
        content = line.get("content")
        text = content if isinstance(content, str) else ""
        match line.get("role"):
            case "user":
                is_others = line.get("origin") == UNTRUSTED
                yield _Author.PAGE if is_others else _Author.PERSON, text
                for fact in facts_in(line):
                    yield _Author.PAGE, "\n".join(str(fact.get(name, "")) for name in ("text", "said", "caption"))
            case "assistant":
                calls = [str(_function(each).get("arguments", "")) for each in line.get("tool_calls") or ()]
                yield _Author.MODEL, "\n".join([text, *calls])
            case "tool" if self._is_from_web(line):
                yield _Author.PAGE, "\n".join([text, *(str(each.get("url", "")) for each in line.get("sources") or ())])


def _function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    found = call.get("function")
    return found if isinstance(found, Mapping) else {}
