"""Addresses in a text that must not become links, because the text may have been written to carry data away by them.

An answer that untrusted text may have influenced lists the addresses that may be links (`OutboundMessage.links`).
Every other one is shown as code, which no client makes a link of, or broken in plain text: `https[:]//a[.]b`.
The decision is made on parsed tokens, and everything that any client could take for an address counts as one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence

from markdown_it.common.normalize_url import normalizeLink
from markdown_it.token import Token

Links = Collection[str]  # comparable addresses
LONGEST = 2_000  # characters of an address that may be a link; clients take no more
AddressWriter = Callable[[str], str]

# No client takes a link beyond these. Fewer of them make longer addresses, which equal none that is allowed.
_RUN = re.compile("[^ \t\n\xa0\u3000<]+")
_SCHEME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-")
# A dot between what can be two labels of a host name, or the numbers of an IPv4 address.
_HOST_DOT = re.compile(r"(?<=[\w\-\x80-\U0010ffff])\.(?=xn--|[^\W\d_](?:[^\W\d_]|[^\x00-\x7f])|\d+\.\d+\.\d)")
# Scripts that are written without blanks: beside an address they are shown as the text that they are.
_PIECE = re.compile("[^\u0e00-\u0e7f\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af\uff00-\uffef]+")
_BEFORE, _AFTER = "([{\"'", ".,:;!?)]}\"'*_~…。，、；：！？）」』"
_MOST_AFTER = 3  # characters: any more could carry something
_WEB = re.compile(r"https?://|mailto:", re.IGNORECASE)
_OTHER_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def comparable_address(address: str) -> str:
    """Return *address* without what people leave out, and encoded: two that are equal lead to the same place.

    It lacks `http(s)://` or `mailto:` and a slash at the end; the host is in lower case. One that is longer than
    `LONGEST` stays as it is.
    """
    stripped = address.strip()
    if len(stripped) > LONGEST:
        return stripped
    rest = stripped[found.end() :] if (found := _WEB.match(stripped)) else stripped
    if _OTHER_SCHEME.match(rest):
        return normalizeLink(rest)
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    user, at, host = authority.rpartition("@")
    normal = normalizeLink(f"http://{user}{at}{host.lower()}{rest[len(authority) :]}")
    return normal.removeprefix("http://").removesuffix("/")


def break_address(address: str) -> str:
    """Return *address* as people read it and no client makes a link of it."""
    return address.replace(":", "[:]").replace(".", "[.]")


def break_addresses(text: str, links: Links | None, *, is_code: bool = False) -> str:
    """Return plain *text* with every address broken that is not in *links*. Without *links*, nothing changes.

    *is_code* keeps what has neither slashes nor `www.`: most dots in code do not belong to a host.
    """
    return text if links is None else _replace_spans(text, _spans(text, links, is_code=is_code), break_address)


def addresses_in(text: str) -> Iterator[str]:
    """Yield what clients could take for addresses in plain *text*: each with and without the signs behind it."""
    for run in _RUN.finditer(text):
        if _has_address(run[0]):
            yield from _candidates(run[0])


def linked_addresses(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the addresses of parsed *tokens*: where links and pictures lead, and those in text and code."""
    for token in tokens:
        if token.type == "inline":
            children = _with_pictures_as_links(token.children or ())
            yield from (_href(each) for each in children if each.type == "link_open")
            yield from addresses_in("".join(map(_text_of, children)))
        elif token.type in ("fence", "code_block"):
            yield from addresses_in(token.content)


def restrict_tokens(tokens: Sequence[Token], links: Links, write: AddressWriter = str) -> None:
    """Change *tokens* so that only addresses in *links* are links; the others are code, as *write* gives them."""
    has_code = False
    for token in tokens:
        if token.type == "inline":
            restriction = _InlineRestriction(_with_pictures_as_links(token.children or ()), links, write)
            token.children = restriction.apply()
            has_code = has_code or restriction.has_code
        elif token.type in ("fence", "code_block"):
            token.content = _replace_spans(token.content, _spans(token.content, links, is_code=True), write)
    if has_code:
        for token in tokens:
            for each in (token.children or ()) if token.type == "inline" else ():
                # Not every platform can escape a backtick: in a text or in code, it would end the code of an address.
                each.content = each.content.replace("`", "ˋ")


class _InlineRestriction:
    """One run of inline tokens. Emphasis may begin in the middle of an address, so their text is looked at as one."""

    def __init__(self, tokens: Sequence[Token], links: Links, write: AddressWriter) -> None:
        self._tokens = tokens
        self._links = links
        self._write = write
        self._all = "".join(map(_text_of, tokens))
        self._spans = _spans(self._all, links)
        self._ends = [end for _, end in self._spans]
        self._place = 0
        # Of links: address, where the label begins in the text, in the tokens, and among the addresses shown as code.
        self._open: list[tuple[str, int, int, int]] = []
        self._shown = 0
        self.has_code = False
        self._kept: list[Token] = []

    def apply(self) -> list[Token]:
        """Return the tokens that replace them."""
        for token in self._tokens:
            if token.type == "link_open":
                self._open.append((_href(token), self._place, len(self._kept), self._shown))
            elif token.type == "link_close":
                self._close()
            else:
                self._leaf(token)
                self._place += len(_text_of(token))
        return self._kept

    def _leaf(self, token: Token) -> None:
        text = _text_of(token)
        inside = [
            (max(start - self._place, 0), min(end - self._place, len(text)))
            for start, end in self._spans_between(self._place, self._place + len(text))
        ]
        if not inside or token.type not in ("text", "code_inline"):
            self._kept.append(token)
        elif token.type == "code_inline":
            self._code(_replace_spans(text, inside, self._write))
        else:
            place = 0
            for start, end in inside:
                self._text(text[place:start])
                self._code(self._write(text[start:end]))
                place = end
            self._text(text[place:])

    def _close(self) -> None:
        href, start, at, shown = self._open.pop()
        label, address = self._all[start : self._place], comparable_address(href)
        is_whole = self._shown == shown and not self._spans_between(start, self._place)
        if address in self._links and label.strip() and is_whole:
            self._kept[at:] = _link(href, self._kept[at:])
            if self._is_followed():  # some platforms write the address behind the label
                self._text(" ")
        elif href and comparable_address(label) != address:
            self._shown += 1
            self._text(" (")
            self._code(self._write(href))
            self._text(")")

    def _spans_between(self, start: int, end: int) -> list[tuple[int, int]]:
        place = bisect_right(self._ends, start)
        found: list[tuple[int, int]] = []
        while place < len(self._spans) and self._spans[place][0] < end:
            found.append(self._spans[place])
            place += 1
        return found

    def _is_followed(self) -> bool:
        """Return True if the link is followed by more signs than clients leave out of an address."""
        beside = _RUN.match(self._all, self._place)
        return beside is not None and (len(beside[0]) > _MOST_AFTER or bool(beside[0].strip(_AFTER)))

    def _text(self, text: str) -> None:
        if text:
            self._kept.append(_leaf("text", text))

    def _code(self, text: str) -> None:
        self.has_code = True
        if self._kept and self._kept[-1].type == "code_inline":  # two of them side by side are none on some platforms
            text = self._kept.pop().content + text
        self._kept.append(_leaf("code_inline", text))


def _spans(text: str, links: Links, *, is_code: bool = False) -> list[tuple[int, int]]:
    """Return where the addresses stand in *text* that are not in *links*; in code, those that say they are one."""
    spans: list[tuple[int, int]] = []
    # Some signs that may stand behind a host are encoded in a comparable address.
    hosts = {re.split("[/?#]", each, maxsplit=1)[0].rpartition("@")[2].partition("%")[0] for each in links}
    for run in _RUN.finditer(text):
        word = run[0]
        if is_code and "//" not in word and "www." not in word.lower():
            continue
        if not _has_address(word):
            continue
        # Comparing takes longer than all the rest, and a text can consist of addresses.
        may_be_link = not word.isascii() or any(host in word.lower() for host in hosts)
        if may_be_link and any(comparable_address(each) in links for each in _candidates(word)):
            continue
        marks = [found.start() for found in _HOST_DOT.finditer(word)]
        marks = sorted([*marks, *(found.start() for found in re.finditer("://", word))])
        for piece in _PIECE.finditer(word):
            inside = [mark for mark in marks if piece.start() <= mark < piece.end()]
            if inside:
                start = min(piece.end() - len(piece[0].lstrip(_BEFORE)), inside[0])
                end = max(piece.start() + len(piece[0].rstrip(_AFTER)), inside[-1] + 1)
                spans.append((run.start() + start, run.start() + end))
    return spans


def _replace_spans(text: str, spans: Sequence[tuple[int, int]], write: AddressWriter) -> str:
    pieces, place = [], 0
    for start, end in spans:
        pieces += [text[place:start], write(text[start:end])]
        place = end
    return "".join([*pieces, text[place:]])


def _has_address(word: str) -> bool:
    return "://" in word or ("." in word and _HOST_DOT.search(word) is not None)


def _candidates(word: str) -> Iterator[str]:
    """Yield the address that begins in *word*, unchanged and without up to three signs at its end."""
    start = _address_start(word)
    end = len(word) if len(word) - start <= LONGEST + _MOST_AFTER else start
    for _ in range(_MOST_AFTER + 1):
        yield word[start:end]
        if end <= start or word[end - 1] not in _AFTER:
            return
        end -= 1


def _address_start(word: str) -> int:
    """Return where clients let the address in *word* begin: at its scheme, else with the first sign of its host."""
    colon = word.find("://")
    start = colon
    while start > 0 and word[start - 1] in _SCHEME_CHARACTERS:
        start -= 1
    host = _HOST_DOT.search(word)
    if colon >= 0 and (host is None or start <= host.start()):
        return start
    return min(len(word) - len(word.lstrip(_BEFORE)), _MOST_AFTER)


def _with_pictures_as_links(tokens: Sequence[Token]) -> list[Token]:
    """Return *tokens* with each picture as a link around its description."""
    found: list[Token] = []
    for token in tokens:
        if token.type == "image":
            found += _link(str(token.attrs.get("src", "")), _with_pictures_as_links(token.children or ()))
        else:
            found.append(token)
    return found


def _link(href: str, label: Sequence[Token]) -> list[Token]:
    return [Token("link_open", "a", 1, attrs={"href": href}), *label, Token("link_close", "a", -1)]


def _leaf(kind: str, text: str) -> Token:
    return Token(kind, "code" if kind == "code_inline" else "", 0, content=text)


def _href(token: Token) -> str:
    return str(token.attrs.get("href", ""))


def _text_of(token: Token) -> str:
    return "\n" if token.type in ("softbreak", "hardbreak") else token.content if not token.nesting else ""
