"""Which addresses a tainted turn may open without approval: those that people wrote, and a few links of what it read.

Untrusted text can ask for an address that carries what the conversation holds. So the model cannot make addresses up;
it can only choose among those that people or pages wrote, and of the latter only a few.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from agent.base.file_facts import UNTRUSTED
from agent.base.transcript_lines import decode
from agent.tools.tool import CallFacts
from gateway.ports.journal import Line

FETCH, SEARCH = "web_fetch", "web_search"  # names of the tools
MOST_LINKS, MOST_LINKS_OF_HOST = 8, 3  # that one turn follows

# Some scripts write no blank beside an address: its own characters alone, and everything between blanks.
_TOKENS = (re.compile(r"[A-Za-z0-9./:?#@!$&'*+,;=%_~()\[\]-]+"), re.compile(r"\S+"))
_EDGES = "<>()[]\"'.,;:!?*_`"
_LINK = re.compile(r"\]\((https?://(?:(?!\]\()[^)\s])+)\)|^(https?://\S+)$", re.MULTILINE)


def is_allowed_address(url: str, facts: CallFacts) -> bool:
    """Return True if the call that *facts* describe may open *url* unasked, although its turn is tainted."""
    lines = facts.lines()
    if is_named(url, lines) or url in _opened_addresses(lines):
        return True
    if not _is_offered(url, lines):
        return False
    turn = [line for line in lines if line.get("turn") == facts.turn]
    followed = {each for each in _earlier_addresses(turn, facts.call) if each and not is_named(each, lines)} - {url}
    of_host = sum(host_of(each) == host_of(url) for each in followed)
    return len(followed) < MOST_LINKS and of_host < MOST_LINKS_OF_HOST


def is_named(url: str, lines: Sequence[Line]) -> bool:
    """Return True if a message of an admitted person in *lines* contains the address, with or without its scheme."""
    wanted = _comparable(url)
    for line in lines:
        if line.get("role") == "user" and line.get("origin") != UNTRUSTED:
            text = _text_of(line.get("content"))
            tokens = [each for pattern in _TOKENS for each in pattern.findall(text)]
            if any(wanted in (_comparable(each), _comparable(each.strip(_EDGES))) for each in tokens):
                return True
    return False


def host_of(url: str) -> str:
    """Return the host that *url* names; "" if it names none."""
    try:
        return (urlsplit(url.strip()).hostname or "")[:253]
    except ValueError:
        return ""


def _opened_addresses(lines: Sequence[Line]) -> set[str]:
    """Return the addresses of pages that were read in this conversation: reading on in them reveals nothing."""
    requested: dict[str, str] = {}
    opened: set[str] = set()
    for line in lines:
        for each in line.get("tool_calls") or ():
            requested[each["id"]] = _address_in(each["function"]["arguments"])
        if line.get("role") == "tool" and line.get("name") == FETCH and line.get("sources"):
            opened.update(str(each.get("url", "")) for each in line["sources"])
            opened.add(requested.get(line.get("tool_call_id", ""), ""))
    return opened


def _is_offered(url: str, lines: Sequence[Line]) -> bool:
    """Return True if *url* is a result of a search in *lines*, or a link of a page of the same host.

    Those of earlier turns count: a person asks for "the second result" in the next one. The model could repeat the
    search or open the page again, so that it gains nothing.
    """
    for line in lines:
        if line.get("role") != "tool" or line.get("name") not in (FETCH, SEARCH):
            continue
        links = {first or second for first, second in _LINK.findall(_text_of(line.get("content")))}
        if url not in links:
            continue
        if line.get("name") == SEARCH:
            return True
        if any(host_of(str(each.get("url", ""))) == host_of(url) for each in line.get("sources") or ()):
            return True
    return False


def _earlier_addresses(turn: Sequence[Line], call: str) -> Iterator[str]:
    """Yield the addresses that the turn's calls before *call* asked for, in the model's order."""
    for line in turn:
        for each in line.get("tool_calls") or ():
            if each["id"] == call:
                return
            if each["function"]["name"] == FETCH:
                yield _address_in(each["function"]["arguments"])


def _address_in(arguments: str) -> str:
    return str((decode(arguments) or {}).get("url", ""))


def _text_of(content: Any) -> str:
    return content if isinstance(content, str) else ""


def _comparable(url: str) -> str:
    """Return *url* without what people leave out: the scheme, and a slash at the end. The host is in lower case."""
    rest = re.sub(r"^https?://", "", url.strip(), flags=re.IGNORECASE).removesuffix("/")
    host, slash, path = rest.partition("/")
    return host.lower() + slash + path
