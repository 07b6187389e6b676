"""Texts of several lines, or of any length, as people are shown them: cut to one line, or whole as code."""

from __future__ import annotations

import json
import re
import unicodedata
from functools import lru_cache

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
