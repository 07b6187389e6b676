"""Match the words of an erasure request in a text: whole words with their inflections, also through Markdown. Pure.

Words are compared by the terms of the search index, in the language of the text. The words of a request must follow
each other in the text; line wraps and Markdown signs between them do not count, other punctuation does.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import io
import re
import sys
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from html import unescape
from itertools import groupby, takewhile

import regex

from agent.memory.search.tokenizer import PLAIN, STEMMERS, STOP, UNSPACED, detect, fold, stem
from gateway.text.markdown_tree import MOST_WEIGHT, MarkdownNode, NodeKind, parse, weight

MOST = 16 * 1024 * 1024  # bytes that are unpacked from one container
_BYTES_AT_ONCE = 512 * 1024  # bytes that are searched in one call
_SMALL = 64 * 1024  # up to so many bytes, binary data is decoded as text too
_DEPTH = 3  # nested containers
_CODES = ("utf-8", "utf-16-le", "utf-16-be")
_CONTEXT = 8  # readable characters around a text, from which on it is no noise
_CERTAIN = 8  # bytes that noise does not contain by chance
_REACH = 256  # bytes read before and after a text
_UNREADABLE = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]")
_ESCAPE = re.compile(r"(?<!\\)\\+(?:u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}|U([0-9a-fA-F]{8}))")  # once or again
_ESCAPED_BYTES = re.compile(r"(?<!\\)(?:(?:\\+x|%)[0-9a-fA-F]{2})+")  # of programs, and of addresses
_ESCAPED_BLANK = re.compile(r"(?<=[^\W_])\+(?=[^\W_])")  # of addresses
_HAS_ESCAPES = re.compile(r"\\[uUx]|%[0-9a-fA-F]{2}|[^\W_]\+[^\W_]")
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{12,}={0,2}")
_BASE64_TEXT = re.compile(_BASE64.pattern.decode())
_MIXED = re.compile("[A-Z0-9]")
_STREAM = re.compile(rb"stream\r?\n")  # of a PDF; usually deflated
_WIDE = 8  # one in so many bytes is NUL in a UTF-16 text of European letters


def extract_texts(data: bytes, depth: int = _DEPTH) -> Iterator[str | bytes]:
    """Yield every text in *data*, plain, escaped or packed; some twice, and some that are not really text.

    Large binary data is yielded as bytes, because decoding a picture as text would take seconds.
    """
    plain = _text(data)
    if plain is None:
        yield data
    else:
        yield plain
        if depth and _HAS_ESCAPES.search(plain):
            yield from extract_texts(unescaped(plain).encode("utf-8", "replace"), depth - 1)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield data.decode("utf-16", "replace")
    elif plain is not None and data[:4096].count(0) * _WIDE > len(data[:4096]):
        yield data.decode("utf-16-le", "replace")
        yield data.decode("utf-16-be", "replace")
    if depth:
        for inner in _unpack(data, is_text=plain is not None):
            yield from extract_texts(inner, depth - 1)


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace") if len(data) <= _SMALL else None


def contains_text(data: bytes, folded: str, is_match: Callable[[str], bool]) -> bool:
    """Return True if binary *data* contains a folded text in UTF-8 or UTF-16, in lower, upper or title case.

    *is_match* decides where there is readable text around it. In noise, a short text would be found by chance, so only
    one of at least 8 bytes counts.
    """
    # A search holds the interpreter lock, so long data is searched in chunks.
    overlap = 8 * len(folded) + 64
    for code in _CODES:
        pattern = _pattern(folded, code)
        for at in range(0, len(data), _BYTES_AT_ONCE):
            for found in pattern.finditer(data, at, at + _BYTES_AT_ONCE + overlap):
                run = _readable_run(data, found.start(), found.end(), code)
                is_noise = len(run) < len(folded) + _CONTEXT
                if found.end() - found.start() >= _CERTAIN if is_noise else is_match(run):
                    return True
    return False


def _readable_run(data: bytes, start: int, end: int, code: str) -> str:
    """Return the text from *start* to *end* with the readable characters around it."""
    reach = _REACH * (1 if code == "utf-8" else 2)
    before = data[max(start - reach, start % 2 if code != "utf-8" else 0) : start].decode(code, "replace")
    after = data[end : end + reach].decode(code, "replace")
    text = data[start:end].decode(code, "replace")
    return _UNREADABLE.split(before)[-1] + text + _UNREADABLE.split(after, maxsplit=1)[0]


@lru_cache(maxsize=64)
def _pattern(folded: str, code: str) -> re.Pattern[bytes]:
    return re.compile(b"".join(_character(each, code) for each in folded))


def _character(character: str, code: str) -> bytes:
    if character == " ":
        return b"(?:" + b"|".join(re.escape(each.encode(code)) for each in " \t\n\r\u00a0") + b")+"
    forms = {character, character.upper(), character.title()}
    return b"(?:" + b"|".join(re.escape(each.encode(code, "surrogatepass")) for each in sorted(forms)) + b")"


def unescaped(text: str) -> str:
    """Return *text* with the escapes of JSON, programs and addresses replaced by their characters."""
    replaced = _ESCAPE.sub(_decode_escape, _ESCAPED_BLANK.sub(" ", text))
    replaced = _ESCAPED_BYTES.sub(_decode_bytes, replaced)
    return replaced.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _decode_escape(escape: re.Match[str]) -> str:
    code = int(escape[1] or escape[2] or escape[3], 16)
    return chr(code) if code <= sys.maxunicode else escape[0]


def _decode_bytes(escapes: re.Match[str]) -> str:
    return bytes.fromhex(re.sub(r"[\\x%]", "", escapes[0])).decode("utf-8", "replace")


def packed_parts(text: str) -> Iterator[bytes]:
    """Yield the parts of a readable *text* that may be base64, or all of it if it has escapes.

    A long word looks like base64, and trying it takes a hundred times as long as reading it. Base64 of a text has a
    capital or a digit behind its first letter: of 600,000 texts of 8 to 10 characters, 7 had none.
    """
    if _HAS_ESCAPES.search(text):
        yield text.encode("utf-8", "replace")
        return
    for run in _BASE64_TEXT.finditer(text):
        if _MIXED.search(run[0], 1):
            yield run[0].encode()


def _unpack(data: bytes, *, is_text: bool) -> Iterator[bytes]:
    if data[:2] == b"\x1f\x8b":
        yield _inflate(data, zlib.MAX_WBITS | 16)
    elif data[:1] == b"\x78":
        yield _inflate(data, zlib.MAX_WBITS)
    elif data[:4] == b"PK\x03\x04":
        yield from _members(data)
    elif data[:5] == b"%PDF-":
        for stream in _STREAM.finditer(data):
            yield _inflate(data[stream.end() :], zlib.MAX_WBITS)
    for match in _BASE64.finditer(data) if is_text else ():
        run = match[0].rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
        # Preceding letters may look like a part of it, so every possible alignment is tried.
        for start in range(min(4, len(run))):
            piece = run[start:]
            piece = piece[: len(piece) - (len(piece) % 4 == 1)]
            try:
                yield base64.b64decode(piece + b"=" * (-len(piece) % 4))
            except (binascii.Error, ValueError):
                continue


def _inflate(data: bytes, wbits: int) -> bytes:
    """Decompress *data*; a truncated stream gives its beginning."""
    worker = zlib.decompressobj(wbits)
    pieces: list[bytes] = []
    size = 0
    with suppress(zlib.error):
        while data and size < MOST and not worker.eof:
            piece = worker.decompress(data, MOST - size)
            data = worker.unconsumed_tail
            pieces.append(piece)
            size += len(piece)
    return b"".join(pieces)


def _members(data: bytes) -> Iterator[bytes]:
    left = MOST
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.infolist():
                with archive.open(member) as file:
                    inner = file.read(left)
                left -= len(inner)
                yield inner
                if left <= 0:
                    return
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError, zlib.error, EOFError):
        return


SHORTEST = 3  # letters of a request without quotes; a sign of a script without spaces counts as two
_CHUNK = 1 << 16  # characters that are searched in one call
_LONGEST_WORD = 64  # letters that are stemmed
_LONGEST_BEGINNING = 12  # letters of a word that are looked for before a link or a tag
_SHORTEST_STEM = 3  # a shorter stem is shared by unrelated words

_SPACED = rf"(?!{UNSPACED.pattern})[\p{{L}}\p{{M}}\p{{N}}]"
_UNIT = regex.compile(rf"(?P<sign>{UNSPACED.pattern}[\p{{M}}ー]*)|(?P<word>(?:{_SPACED})+)|(?P<symbol>(?=\p{{So}})\X)")
_WORD = regex.compile(rf"(?:{_SPACED})+")
_EDGE = regex.compile(_SPACED)
_INVISIBLE = regex.compile(r"[\p{Cf}\ufe0e\ufe0f]")  # soft hyphens, joiners, forms of emoji
_CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")  # colours and cursor moves of a terminal
_MARKS = regex.compile(r"\p{M}")
_NOT_LETTERS = re.compile(r"[\W_]+")
_QUOTED = re.compile(r"[\"“”„«»](?P<literal>.+)[\"“”„«»]", re.DOTALL)
# Between two words of a phrase: blanks, signs of emphasis, brackets, quotes, and one line wrap, in a quotation too.
_INLINE = r"(?:[ \t\u00a0*_~`\[\]\\\"'“”„‘’«»]|\|\|)*"
_GAP = re.compile(rf"{_INLINE}(?:\n[ \t>]*+{_INLINE})?|[-‐‑–]")
_APOSTROPHES = ("'", "’")
_MARKUP_SIGNS = regex.compile(r"[*_~`\[<&\\]")
# These may stand for letters: escapes, in JSON too, and entities.
_ENCODED = re.compile(r"\\|&[#A-Za-z]")
_ENCODED_IN_LINE = re.compile(rb"\\[\\u]|&[#A-Za-z]")
_SPLITS = re.compile(r"\][(\[]|<[/A-Za-z]")  # a link's target, a reference or a tag, which may divide a word
_SPLITS_IN_LINE = re.compile(_SPLITS.pattern.encode())
# "assistant" has the letters of other words, and the texts of messages never have such a pair without escapes.
_JSON_KEY = re.compile(rb'"(?:role|kind)":"[a-z]+"|"[A-Za-z_]+":')
_JSON_ESCAPE = re.compile(rb"\\.")
_ENDS = '"\n'  # of the texts of a line, and of lines
_NO_LETTERS = bytes(each for each in range(128) if not chr(each).isalnum() and chr(each) not in _ENDS)
_LOWER = bytes(range(256)).lower()
_NOT_LETTERS_IN_LINE = re.compile(r'(?:[^\w"\n]|_)+')
_NOT_PLAIN = (b"\\", b"&", b"<", b"](", b"][")  # in a line: these may stand for letters or divide a word
_WIDE_QUOTE = "\uff02"  # simplified, it would end a text
_ESCAPED_CONTROL = re.compile(r"(?<!\\)\\+[abfnrtv]")
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
_REFERENCE = re.compile(r"\]\[[^\[\]\n]{0,100}\]")
_UNFOLDED = {"ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "þ": "th", "ð": "d", "ı": "i"}


@dataclass(frozen=True, slots=True)
class _WordUnit:
    """A word, a sign of a script without spaces, or a symbol; and the punctuation before it."""

    text: str
    is_word: bool
    gap: str


class PhraseMatcher:
    """The words of one request, prepared for many texts."""

    def __init__(self, request: str, language: str = PLAIN) -> None:
        """Match *request*; a request in double quotes is matched literally. *language* is that of the chat.

        A text whose language is not recognised is read in *language*.
        """
        self._request = request
        quoted = _QUOTED.fullmatch(request.strip())
        self._literal = _flatten(quoted["literal"]) if quoted else ""
        self._units = () if quoted else tuple(_split(_normalize(request)))
        self._language = language
        self._needles = (
            (_NOT_LETTERS.sub("", _simplify(self._literal)),)
            if quoted
            else tuple(_common_part(each.text) for each in self._units if each.is_word)
        )
        # Signs of a script without spaces have no inflections: those that follow each other are looked for together.
        runs = () if quoted else tuple(_NOT_LETTERS.sub("", _simplify(each)) for each in _sign_runs(self._units))
        self._letters = (*self._needles, *filter(None, runs))
        needle = regex.escape(self._literal)
        before = rf"(?<!{_SPACED})" if _EDGE.match(self._literal) else ""
        after = rf"(?!{_SPACED})" if _EDGE.match(self._literal[-1:]) else ""
        self._raw_letters = tuple(each.encode("utf-8", "replace") for each in self._letters)
        self._literal_pattern = regex.compile(f"{before}{needle}{after}")
        self._split_patterns = tuple(re.compile(_split_pattern(each)) for each in self._letters)
        self._exact_pattern = _exact_pattern(self._units)

    @property
    def is_too_short(self) -> bool:
        """True if the request names too little to search for."""
        if self._literal:
            return not any(_UNIT.finditer(self._literal))
        return sum(len(each.text) if each.is_word else 2 for each in self._units) < SHORTEST

    def is_in(self, text: str) -> bool:
        """Return True if *text* contains the words."""
        if not self._units and not self._literal:
            return False
        # Matching holds the interpreter lock, so a long text is searched in chunks.
        return any(
            self._has_exact(chunk) or any(self._is_in_variant(each) for each in self._variants(chunk))
            for chunk in _chunks(text)
        )

    def _has_exact(self, text: str) -> bool:
        """Return True if *text* has the words as they were typed: most matches are such, and it takes least time."""
        return self._exact_pattern is not None and self._exact_pattern.search(_normalize(text)) is not None

    def may_be_in_lines(self, raw: bytes) -> bool:
        """Return False if the letters of lines of JSON rule the words out in all of their texts.

        It takes a hundredth of the time of decoding the lines and searching their texts.
        """
        if b"\\" in raw or b"&" in raw:
            if _ENCODED_IN_LINE.search(raw):
                return True
            raw = _JSON_ESCAPE.sub(b" ", raw)
        if self._has_letters(raw) and self._has_letters(_JSON_KEY.sub(b"", raw)):
            return True
        if b"<" not in raw and b"][" not in raw and b"](" not in raw:
            return False
        return _SPLITS_IN_LINE.search(raw) is not None and self._may_be_split(_simplify(raw.decode("utf-8", "replace")))

    def select_lines(self, raw: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield each line of *raw* and whether it may have the words; all plain lines are looked at at once."""
        lines = raw.split(b"\n")[:-1]
        plain = lines
        if any(map(raw.__contains__, _NOT_PLAIN)):
            plain = [b"" if any(map(each.__contains__, _NOT_PLAIN)) else each for each in lines]
        letters = _letters_of_lines(_JSON_KEY.sub(b"", b"\n".join(plain))).split(b"\n")
        for line, own in zip(lines, letters, strict=True):
            has_words = all(map(own.__contains__, self._raw_letters)) if own else self.may_be_in_lines(line)
            yield line + b"\n", has_words

    def _has_letters(self, raw: bytes) -> bool:
        letters = _letters_of_lines(raw)
        return all(each in letters for each in self._raw_letters)

    @property
    def spelling(self) -> str:
        """The request as one folded line, for searches in binary data."""
        return self._literal or _flatten(self._request)

    @property
    def words(self) -> list[str]:
        """The words of the request in lower case."""
        return [each.text for each in self._units or _split(self._literal) if each.is_word]

    def _variants(self, text: str) -> Iterator[str]:
        """Yield *text* as it is, without the escapes of JSON, and as a reader of its Markdown sees it."""
        if not self._may_contain(text):
            return
        yield text
        if "\\" in text:
            yield _ESCAPED_CONTROL.sub(" ", unescaped(text))
        if _MARKUP_SIGNS.search(text):
            yield _visible_text(text)

    def _may_contain(self, text: str) -> bool:
        """Return False if the letters of *text* rule the words out, markup or not. Much faster than a search."""
        if _ENCODED.search(text):
            return True
        simple = _simplify(_CONTROL_SEQUENCE.sub(" ", text) if "\x1b" in text else text)
        letters = _NOT_LETTERS.sub("", simple)
        if all(each in letters for each in self._letters):
            return True
        return _SPLITS.search(text) is not None and self._may_be_split(simple)

    def _may_be_split(self, simple: str) -> bool:
        """Return False if one of the words is neither in a text nor begun there before a link's target or a tag."""
        letters = _NOT_LETTERS.sub("", simple)
        pairs = zip(self._letters, self._split_patterns, strict=True)
        return all(each in letters or pattern.search(simple) is not None for each, pattern in pairs)

    def _is_in_variant(self, text: str) -> bool:
        if self._literal:
            return self._literal_pattern.search(_flatten(text)) is not None
        normal = _normalize(text)
        simple = _simplify(normal)
        if not all(needle in simple for needle in self._needles):
            return False
        first = self._units[0]
        needle = self._needles[0] if first.is_word else _simplify(first.text)
        if self._exact_pattern is not None and self._exact_pattern.search(normal) is not None:
            return True
        if len(self._units) == 1 and first.is_word and not self._has_word(normal, needle):
            return False
        units = list(_split(normal))
        starts = [n for n in range(len(units) - len(self._units) + 1) if needle in _simplify(units[n].text)]
        if not starts:
            return False
        languages = self._languages([each.text for each in units if each.is_word])
        return any(self._is_at(units[n : n + len(self._units)], languages) for n in starts)

    def _has_word(self, normal: str, needle: str) -> bool:
        """Return True if a word of *normal* may be the one of the request, in any language. Faster than `_split`."""
        mine = self._units[0].text
        return any(_may_be_same(mine, each) for each in set(_WORD.findall(normal)) if needle in _simplify(each))

    def _is_at(self, units: Sequence[_WordUnit], languages: Iterable[str]) -> bool:
        pairs = list(zip(self._units, units, strict=True))
        return all(_is_same(mine, theirs, languages) for mine, theirs in pairs) and all(
            _is_same_gap(mine.gap, theirs.gap) for mine, theirs in pairs[1:]
        )

    def _languages(self, words: Sequence[str]) -> frozenset[str]:
        languages = frozenset({detect(words, before=self._language), self._language})
        # English words are common in every chat, and a text of few words shows no language.
        return languages if languages & STEMMERS.keys() else languages | {"en"}


def _split_pattern(needle: str) -> str:
    """Return the pattern of the beginnings of *needle* before a sign that may divide it from its rest."""
    between = r"(?:[^\w]|_)*"
    letters = [re.escape(each) for each in needle[:_LONGEST_BEGINNING]]
    rest = ""
    for letter in reversed(letters[1:]):
        rest = f"(?:{between}{letter}{rest})?"
    return f"{between.join(letters)}|{letters[0]}{rest}{between}(?:{_SPLITS.pattern})" if letters else ""


def _exact_pattern(units: Sequence[_WordUnit]) -> regex.Pattern[str] | None:
    """Return the pattern of the same units with plain gaps; None if a text may have them as parts of other units."""
    if not units or any(each.text == "s" or not (each.is_word or UNSPACED.match(each.text)) for each in units):
        return None
    exact = (
        rf"(?<!{_SPACED}){regex.escape(each.text)}(?!{_SPACED})"
        if each.is_word
        else rf"{regex.escape(each.text)}(?![\p{{M}}ー])"
        for each in units
    )
    return regex.compile(f"(?:{_GAP.pattern})".join(exact))


def _sign_runs(units: Sequence[_WordUnit]) -> Iterator[str]:
    """Yield the signs of scripts without spaces that follow each other in *units*."""
    for is_sign, run in groupby(units, lambda each: not each.is_word and UNSPACED.match(each.text) is not None):
        if is_sign:
            yield "".join(each.text for each in run)


def _is_same(mine: _WordUnit, theirs: _WordUnit, languages: Iterable[str]) -> bool:
    if mine.text == theirs.text:
        return True
    if not (mine.is_word and theirs.is_word):
        return False
    if fold(mine.text) == fold(theirs.text):
        return True
    return any(_has_same_stem(mine.text, theirs.text, each) for each in languages)


def _has_same_stem(mine: str, theirs: str, language: str) -> bool:
    """Return True for two inflections of one word. Function words ("not" beside "note") have none."""
    if mine in STOP.get(language, ()) or theirs in STOP.get(language, ()):
        return False
    term = stem(mine[:_LONGEST_WORD], language)
    return len(term) >= _SHORTEST_STEM and term == stem(theirs[:_LONGEST_WORD], language)


@lru_cache(maxsize=65_536)
def _may_be_same(mine: str, theirs: str) -> bool:
    return fold(mine) == fold(theirs) or any(_has_same_stem(mine, theirs, each) for each in STEMMERS)


def _is_same_gap(mine: str, theirs: str) -> bool:
    punctuation = "".join(mine.split())
    return _GAP.fullmatch(theirs) is not None or (bool(punctuation) and punctuation == "".join(theirs.split()))


def _split(normal: str) -> Iterator[_WordUnit]:
    end = 0
    is_word = False
    for match in _UNIT.finditer(normal):
        if is_word and match.group() == "s" and normal[end : match.start()] in _APOSTROPHES:
            end = match.end()  # "Ann's"
            continue
        is_word = match.lastgroup == "word"
        yield _WordUnit(match.group(), is_word, normal[end : match.start()])
        end = match.end()


def _normalize(text: str) -> str:
    if text.isascii():
        return (_CONTROL_SEQUENCE.sub(" ", text) if "\x1b" in text else text).lower()
    return _strip_invisible(text).lower()


def _flatten(text: str) -> str:
    return " ".join(_strip_invisible(text).casefold().split())


def _strip_invisible(text: str) -> str:
    plain: str = _INVISIBLE.sub("", unicodedata.normalize("NFKC", _CONTROL_SEQUENCE.sub(" ", text)))
    return plain


def _simplify(text: str) -> str:
    """Return *text* in lower case without diacritics: contains the folded form of each of its words."""
    if text.isascii():
        return text.lower()
    plain: str = _MARKS.sub("", unicodedata.normalize("NFKD", text).casefold())
    for letter, folded in _UNFOLDED.items():  # a table of one entry for each would be asked for every letter
        if letter in plain:
            plain = plain.replace(letter, folded)
    return plain


def _letters_of_lines(raw: bytes) -> bytes:
    """Return the letters of lines of JSON, simplified, with the quotes between their texts and the ends of lines."""
    if raw.isascii():
        return raw.translate(_LOWER, _NO_LETTERS)
    simple = _simplify(raw.decode("utf-8", "replace").replace(_WIDE_QUOTE, " "))
    letters = simple.encode("utf-8", "replace").translate(_LOWER, _NO_LETTERS)
    text = letters.decode()
    return letters if text.replace('"', "").replace("\n", "").isalnum() else _NOT_LETTERS_IN_LINE.sub("", text).encode()


@lru_cache(maxsize=256)
def _common_part(word: str) -> str:
    """Return the beginning that all inflections of *word* have in common; stemmers change the end of a word."""
    simple = _simplify(word)
    stems = [_simplify(stem(word[:_LONGEST_WORD], language)) for language in STEMMERS]
    columns = zip(simple, *(each[:-1] for each in stems if len(each) >= _SHORTEST_STEM), strict=False)
    return "".join(signs[0] for signs in takewhile(lambda signs: len(set(signs)) == 1, columns))


def _visible_text(text: str) -> str:
    """Return *text* (Markdown) without markup, HTML tags and the targets of links."""
    plain = unescape(_REFERENCE.sub("]", _TAG.sub("", text)))
    if weight(plain) > MOST_WEIGHT:
        return re.sub(r"[*_~`\\]+", "", plain)
    return _write_visible(parse(plain))


def _write_visible(node: MarkdownNode) -> str:
    match node.kind:
        case NodeKind.SOFT_BREAK | NodeKind.HARD_BREAK:
            return "\n"
        case NodeKind.RULE:
            return "\n\n"
    inner = "".join(map(_write_visible, node.children)) or node.text
    return inner if node.kind in _INLINE_KINDS else f"{inner}\n\n"


_INLINE_KINDS = frozenset(
    {NodeKind.TEXT, NodeKind.CODE, NodeKind.STRONG, NodeKind.EMPHASIS}
    | {NodeKind.STRIKE, NodeKind.LINK, NodeKind.IMAGE}
)


def _chunks(text: str) -> Iterator[str]:
    """Yield overlapping pieces of *text* that begin and end between words, where it has blanks."""
    start = 0
    while len(text) - start > _CHUNK:
        end = _blank_before(text, start + _CHUNK)
        yield text[start:end]
        start = _blank_before(text, end - _OVERLAP)
    yield text[start:]


_OVERLAP = 4_096
_LOOK_BACK = 1_024


def _blank_before(text: str, end: int) -> int:
    found = max(text.rfind(" ", end - _LOOK_BACK, end), text.rfind("\n", end - _LOOK_BACK, end))
    return found if found > 0 else end
