"""Detects file types by first bytes and name, and decodes text files. Pure."""

from __future__ import annotations

import codecs

from agent.base.file_facts import extension

_PICTURES = frozenset({"jpg", "jpeg", "png", "webp", "gif", "bmp"})
_PAGES = frozenset({"html", "htm", "xhtml"})
_SOUNDS = frozenset({"ogg", "oga", "opus", "mp3", "m4a", "wav", "flac", "aac", "amr"})
_FILMS = frozenset({"mp4", "mov", "mkv", "webm", "avi", "m4v", "3gp"})
_MAGIC = {
    b"\xff\xd8\xff": "picture",
    b"\x89PNG\r\n\x1a\n": "picture",
    b"GIF87a": "picture",
    b"GIF89a": "picture",
    b"PK\x03\x04": "archive",
    b"PK\x05\x06": "archive",
    b"OggS": "sound",
    b"ID3": "sound",
    b"fLaC": "sound",
}
_SNIFFED = 1_024
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def detect_kind(data: bytes, *, kind: str, name: str, media_type: str) -> str:
    """Return a file's kind: picture, sound, film, pdf, html, text or archive.

    Word documents, spreadsheets and books are archives. The file's bytes take precedence over the channel's media type,
    and that over its name.
    """
    by_name = _kind_by_name(kind, extension(name), media_type)
    if by_name in ("sound", "film") and not data.startswith((b"%PDF", b"PK\x03\x04")):
        return by_name
    for magic, found in _MAGIC.items():
        if data.startswith(magic):
            return found
    if data[:4] == b"RIFF" and data[8:12] in (b"WEBP", b"WAVE"):
        return "picture" if data[8:12] == b"WEBP" else "sound"
    start = data[:_SNIFFED]
    if b"%PDF-" in start:
        return "pdf"
    if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:14].lower().startswith((b"<!doctype html", b"<html")):
        return "html"
    return by_name


def _kind_by_name(kind: str, last: str, media_type: str) -> str:
    if kind in ("voice", "audio") or media_type.startswith("audio/") or last in _SOUNDS:
        return "sound"
    if kind == "video" or media_type.startswith("video/") or last in _FILMS:
        return "film"
    # SVG is a program more than a picture; it is never drawn, and as text it is harmless.
    if "svg" in media_type or last == "svg":
        return "svg"
    if kind == "image" or media_type.startswith("image/") or last in _PICTURES:
        return "picture"
    if media_type in ("text/html", "application/xhtml+xml") or last in _PAGES:
        return "html"
    return "text"


def decode_text(data: bytes, chars: int) -> tuple[str, bool] | None:
    """Return the first *chars* characters of a text file and True if it has more; None if the bytes are not text."""
    for mark, coding in _MARKS:
        if data.startswith(mark):
            return _first(data[len(mark) :], coding, chars)
    start = data[: 4 * chars + 4]
    if _is_utf16(start):
        return _first(data, "utf-16-le" if start[1:2] == b"\0" else "utf-16-be", chars)
    if b"\0" in start:
        return None
    try:
        # A character may be cut in two at the end, and only there.
        codecs.getincrementaldecoder("utf-8")().decode(start, final=len(start) == len(data))
    except UnicodeDecodeError:
        return _first(data, "latin-1", chars) if _is_latin(start) else None
    return _first(data, "utf-8", chars)


def _first(data: bytes, coding: str, chars: int) -> tuple[str, bool]:
    start = data[: 4 * chars + 4]
    text = codecs.getincrementaldecoder(coding)("replace").decode(start, final=len(start) == len(data))
    return text[:chars], len(text) > chars or len(start) < len(data)


def _is_utf16(start: bytes) -> bool:
    """Return True if every second byte at the start is mostly zero, as in Western text without a byte-order mark."""
    sample = start[:512]
    if len(sample) < 4:
        return False
    half = len(sample) // 2
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    return (odd > half * 0.7 and even < half * 0.1) or (even > half * 0.7 and odd < half * 0.1)


def _is_latin(start: bytes) -> bool:
    """Return True if bytes that are not UTF-8 can be Latin-1 text: hardly any control characters."""
    odd = sum(1 for byte in start if (byte < 32 and byte not in b"\t\n\r\f\x1b") or 127 <= byte < 160)
    return odd * 50 <= len(start)
