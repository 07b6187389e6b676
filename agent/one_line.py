"""Texts of several lines, or of any length, as people are shown them: cut to one line, or whole as code."""

from __future__ import annotations

import unicodedata

_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Letters and marks that are drawn as nothing or as a blank: variation selectors and fillers can hold a hidden text.
_BLANK = (
    *((0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800), (0x3164, 0x3164)),
    *((0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0000, 0xE0FFF)),
)
_LONGEST_INLINE = 200  # characters


def one_line(text: str, most: int) -> str:
    """Return *text* in one line: its first *most* characters, with "…" behind them if there are more."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[:most]}…"


def show_escapes(text: str) -> str:
    """Return *text* with every invisible character, and those that turn text around, as an escape."""
    return "".join(_escape(each) if _is_invisible(each) else each for each in text)


def _is_invisible(character: str) -> bool:
    if character.isascii():
        return character != "\n" and not character.isprintable()
    number = ord(character)
    return unicodedata.category(character) in _INVISIBLE or any(low <= number <= high for low, high in _BLANK)


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
