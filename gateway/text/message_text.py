"""Words of a message: how platforms count them, and what can be sent at all.

Also names that are safe to show, commands that a sender typed, buttons as rows or as commands to type, the sources
below an answer, and texts cut to one line or written whole as code.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import groupby
from urllib.parse import quote, unquote, urlsplit

import regex

from gateway.events import AnswerSource, MessageButton
from gateway.i18n import translate

_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_TERMINAL_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_CLUSTER = regex.compile(r"\X")
_SLICE = 128  # characters looked at in one go
# Between two characters that have no part in clusters there is always a boundary (UAX 29, GB999).
_LAST_PAIR = regex.compile(r"(?r)\p{GCB=Other}{2}")


class LengthUnit(StrEnum):
    """The unit of a platform's limit. The value is stored in `ChannelCapabilities.unit`."""

    CHARACTERS = "characters"  # code points: Slack, Discord
    UTF16 = "utf16"  # Telegram
    BYTES = "bytes"  # of UTF-8


WIDEST = {LengthUnit.CHARACTERS: 1, LengthUnit.UTF16: 2, LengthUnit.BYTES: 4}  # units of the widest code point


def sanitize(text: str) -> str:
    r"""Return *text* as every platform takes it.

    Line ends become "\n", control characters other than tab and newline go, two halves of a
    surrogate pair become their character, and a lone half becomes U+FFFD.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if _SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _CONTROL.sub("", text)


def strip_control_characters(text: str) -> str:
    """Return *text* without what a terminal obeys or shows backwards: only line ends and tabs of the controls stay."""
    return _TERMINAL_CONTROL.sub("", text)


def width(text: str, unit: LengthUnit) -> int:
    """Count *text* in *unit*."""
    if unit is LengthUnit.CHARACTERS or text.isascii():
        return len(text)
    if unit is LengthUnit.UTF16:
        return len(text.encode("utf-16-le", "surrogatepass")) // 2
    return len(text.encode("utf-8", "surrogatepass"))


def fit_index(text: str, start: int, limit: int, unit: LengthUnit) -> int:
    """Return the greatest index so that sanitized *text* from *start* up to it has at most *limit* units."""
    window = text[start : start + max(limit, 0)]
    if unit is LengthUnit.CHARACTERS or window.isascii():
        return start + len(window)
    encoding, size = ("utf-16-le", 2 * limit) if unit is LengthUnit.UTF16 else ("utf-8", limit)
    return start + len(window.encode(encoding)[:size].decode(encoding, "ignore"))


def grapheme_boundary(text: str, start: int, end: int) -> int:
    """Return the last end of a grapheme cluster in (*start*, *end*], or *start*.

    *start* counts as a boundary. Costs no more than the distance back to two ordinary characters.
    """
    if end >= len(text) or end <= start or text[end - 1] == "\n":
        return min(end, len(text))
    pair = _LAST_PAIR.search(text, start, end + 1)
    found: int = pair.start() + 1 if pair else start
    # In slices, since the library looks back over a whole run of flags for every single one.
    size = _SLICE
    while found < end:
        ends = [found + cluster.end() for cluster in _CLUSTER.finditer(text[found : min(found + size, end + 1)])]
        if found + size > end:
            # Whether a cluster ends at `end` depends on nothing beyond the character that stands there.
            return max((place for place in ends if place <= end), default=found)
        # The last one may go on in the next slice.
        size = _SLICE if len(ends) > 1 else 2 * size
        found = ends[-2] if len(ends) > 1 else found
    return found


LONGEST = 40  # characters
_SIGNS = re.compile(r"[\[\](){}<>`*_~|\\@#]")  # what a platform could take for a link, a call or a form


def safe_display_name(name: str, longest: int = LONGEST) -> str:
    """Return *name* as one line of at most *longest* characters without links, mentions or hidden characters."""
    flat = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in name)
    return " ".join(_SIGNS.sub(" ", flat).split())[:longest].strip()


# Two expressions that never backtrack: one that requires a last label of letters is quadratic in `a.a.a.`.
_DOTTED_NAME = re.compile(r"[\w-]+(?:\.[\w-]+)*")
_LETTERS_AFTER_DOT = re.compile(r"\.[^\W\d_]{2,}")


def names_other_host(label: str, host: str) -> bool:
    """Return True if *label* contains what reads as a host name, and it is not *host*.

    A leading `www.` and the case make no difference. The cost is linear in the length of *label*.
    """
    actual = _bare_host(host)
    names = (name for name in _DOTTED_NAME.findall(label) if _LETTERS_AFTER_DOT.search(name))
    return any(_bare_host(name) != actual for name in names)


def _bare_host(host: str) -> str:
    return host.lower().removeprefix("www.")


_OWN_MENTION = re.compile(r"@(\S+)\s+")
_COMMAND = re.compile(r"([/!]?)([a-z][a-z0-9_-]{0,31})(?:@(\S+))?(?:\s+(.*))?\Z", re.IGNORECASE | re.DOTALL)


def find_command(raw: str, handle: str = "", spell: Callable[[str], str] = str) -> str:
    """Return the command that *raw* can be, "" for none.

    *raw* is the platform's raw text, in which our own mention alone is replaced, by ``@handle``. The result is
    "/name arguments" or "!name arguments", or one bare word if our mention and that word are the whole text.
    *spell* is applied to the arguments only; it must write each name that it resolves as one word (`as_one_word`).
    """
    text = raw.strip()
    mention = _OWN_MENTION.match(text)
    calls_us = mention is not None and _is_same(mention[1], handle)
    found = _COMMAND.match(text, mention.end() if mention is not None and calls_us else 0)
    if found is None or (found[3] and not _is_same(found[3], handle)):
        return ""
    sign, name, arguments = found[1], found[2], found[4]
    if not sign:
        return name if calls_us and not found[3] and not arguments else ""
    return f"{sign}{name} {spell(arguments)}" if arguments else f"{sign}{name}"


def as_one_word(name: str) -> str:
    """Return *name* without blanks, so that it can stand among the words of a command and add none."""
    return "_".join(name.split())


def _is_same(handle: str, ours: str) -> bool:
    return bool(ours) and handle.lower() == ours.lower()


def button_rows(choices: Sequence[MessageButton]) -> list[list[MessageButton]]:
    """Return *choices* as rows of buttons."""
    return [list(row) for _, row in groupby(choices, key=lambda choice: choice.row)]


def append_commands(text: str, choices: Sequence[MessageButton], prefix: str = "/") -> str:
    """Return *text* (Markdown) with what would be buttons as commands that can be typed, behind *prefix*."""
    if not choices:
        return text
    lines = [
        " · ".join(f"{each.label}: `{prefix}{each.command.removeprefix('/')}`" for each in row)
        for row in button_rows(choices)
    ]
    return "\n".join([text, "", *(f"- {line}" for line in lines)])


# -- answer sources --------------------------------------------------------------------------------
# The sources of an answer as one line of Markdown, for channels that have no footnotes.

MOST_SOURCES = 8  # below one answer
LONGEST_TITLE = 80  # characters
_LONGEST_URL = 2_000
_FILE = "chat-file:"
_MARKUP = re.compile(r"[\[\]()<>*_`~|\\#!\x00-\x1f\x7f]")  # a page chooses its title: no sign of it is markup
_SAFE = "/:?#@!$&'*+,;=%-._~"  # of an address; parentheses and blanks would end the link early


def format_sources(sources: Iterable[AnswerSource], text: str, language: str) -> str:
    """Return the Markdown line with the *sources* that *text* does not link itself; "" for none."""
    kept = [each for each in sources if is_source(each.url) and each.url not in text]
    links = [
        f"[{_plain_title(each)}]({quote(each.url, safe=_SAFE)})"
        if is_source_address(each.url)
        # As code: a platform makes links and mentions of names.
        else f"`{_plain_title(each)}`"
        for each in kept
    ]
    return translate("delivery.sources", language, links=" · ".join(links)) if links else ""


def _plain_title(source: AnswerSource) -> str:
    plain = " ".join(_MARKUP.sub(" ", source.title).split())[:LONGEST_TITLE]
    return plain or urlsplit(source.url).hostname or "file"


def file_address(name: str, place: str) -> str:
    """Return the address of a *place* in a file as a source; it is never opened."""
    return f"{_FILE}{quote(name)}#{quote(place)}"[:_LONGEST_URL]


def file_place(url: str) -> tuple[str, str] | None:
    """Return the name of the file and the place of a `file_address`; None for another address."""
    if not url.startswith(_FILE):
        return None
    name, _, place = url.removeprefix(_FILE).partition("#")
    return unquote(name), unquote(place)


def is_source(url: str) -> bool:
    """Return True for the address of a page or a file that can be listed below an answer."""
    return (url.startswith(_FILE) and len(_FILE) < len(url) <= _LONGEST_URL) or is_source_address(url)


def is_source_address(url: str) -> bool:
    """Return True for an address of http or https that is short enough to be listed."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and len(url) <= _LONGEST_URL


NAME_LENGTH = 64  # characters of a display name
_BRACKETS = "<>:"  # in a name, with every kind of bracket
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Me", "Zl", "Zp"})
# Letters and marks that are drawn as nothing or as a blank: variation selectors and fillers can hold a hidden text.
_BLANK = (
    *((0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800), (0x2D7F, 0x2D7F)),
    *((0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0x16FE4, 0x16FE4), (0x1D159, 0x1D159)),
    (0xE0000, 0xE0FFF),
)
_OVERLAY = 1  # combining class of marks that strike letters out
# What pushes text out of sight, or covers what stands around it.
_MOST_BLANKS, _MOST_LINE_ENDS, _MOST_MARKS = 16, 3, 4  # in a row
_LONGEST_INLINE = 200  # characters


def one_line(text: str, most: int) -> str:
    """Return *text* in one line: its first *most* characters, with "…" behind them if there are more."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[:most]}…"


@lru_cache(maxsize=1_024)
def clean_name(name: str) -> str:
    """Make a display name harmless in a prompt: one line, no brackets, colons or controls, at most 64 characters."""
    flat = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in name)
    kept = (each for each in flat if each not in _BRACKETS and unicodedata.category(each) not in ("Ps", "Pe"))
    return " ".join("".join(kept).split())[:NAME_LENGTH].strip()


def show_escapes(text: str) -> str:
    """Return *text* with every character that hides itself or other text as an escape.

    They are invisible, turn text around, strike it out or cover it; also the surplus of a long row of blanks, line ends
    or marks, which would push or keep text out of sight.
    """
    shown: list[str] = []
    line_ends = blanks = marks = 0  # since the last character that is seen
    for each in text:
        if each.isascii() and each.isalnum():  # most characters
            line_ends = blanks = marks = 0
            shown.append(each)
            continue
        category = unicodedata.category(each)
        marks = marks + 1 if category == "Mn" else 0
        blanks = blanks + 1 if category == "Zs" else 0
        line_ends = line_ends + 1 if each == "\n" else line_ends if category == "Zs" else 0
        is_surplus = marks > _MOST_MARKS or blanks > _MOST_BLANKS or line_ends > _MOST_LINE_ENDS
        shown.append(_escape(each) if is_surplus or _is_hidden(each) else each)
    return "".join(shown)


def _is_hidden(character: str) -> bool:
    if character.isascii():
        return character != "\n" and not character.isprintable()
    number = ord(character)
    is_invisible = unicodedata.category(character) in _INVISIBLE or any(low <= number <= high for low, high in _BLANK)
    return is_invisible or unicodedata.combining(character) == _OVERLAY


def _escape(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def code_block(text: str, language: str = "") -> str:
    """Return the whole *text* with escapes as a block of code, which nothing in it can end."""
    shown, fence = show_escapes(text), "```"
    while fence in shown:
        fence += "`"
    return f"{fence}{language}\n{shown}\n{fence}"


def show_code(text: str) -> str:
    """Return the whole *text* with escapes as code: within a sentence if it is short, else as a block."""
    shown = show_escapes(text)
    is_short = 0 < len(shown) <= _LONGEST_INLINE and shown == shown.strip() and "\n" not in shown
    return f"`{shown}`" if is_short and "`" not in shown else f"\n{code_block(text)}\n"


def show_json(text: str) -> str:
    """Return a JSON *text* as people read it, with escapes for what is hidden.

    If it has escapes for letters, or an object with two values of one name, what it means is shown below it.
    """
    try:
        plain = json.dumps(json.loads(text), ensure_ascii=False)
    except (ValueError, RecursionError):
        plain = text
    same = _WHITESPACE.sub("", plain) == _WHITESPACE.sub("", text)
    return show_escapes(text if same else f"{text}\n{plain}")


_WHITESPACE = re.compile(r"\s")
