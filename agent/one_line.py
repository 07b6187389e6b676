"""Texts of several lines, or of any length, as they stand in a list: in one line, cut."""

from __future__ import annotations


def one_line(text: str, most: int) -> str:
    """Return *text* in one line: its first *most* characters, with "…" behind them if there are more."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[:most]}…"
