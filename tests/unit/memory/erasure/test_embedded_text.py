"""Words are found whatever they are wrapped in, and not where they are not."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import time
import zipfile
import zlib
from collections.abc import Callable
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.commands.privacy import _PURGE
from agent.memory.erasure.word_match import ErasurePattern

Wrap = Callable[[bytes], bytes]


def zipped(data: bytes) -> bytes:
    """A member of an archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b.xml", data)
    return buffer.getvalue()


WRAPPINGS: dict[str, Wrap] = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "zip": zipped,
    "pdf": lambda data: b"%PDF-1.4\n<< /Filter /FlateDecode >>\nstream\n" + zlib.compress(data) + b"\nendstream",
    "base64": lambda data: b"data:text/plain;base64," + base64.b64encode(data),
    "json": lambda data: json.dumps({"text": data.decode("utf-8", "replace")}).encode(),
    "program": lambda data: f"data = {data!r}".encode(),
    "address": lambda data: f"https://example.org/?q={quote_plus(data)}".encode(),
    "beside": lambda data: b"\xff\xfe\xfd" * 30_000 + data + b"\x80" * 30_000,  # large, and no text
}
WORDS = ["quokkazeppelin", "дирижабль секрет", "🦓🚁🛸🦑"]


@pytest.mark.parametrize("first", WRAPPINGS)
@pytest.mark.parametrize("second", [each for each in WRAPPINGS if each != "beside"] + [""])
@pytest.mark.parametrize("word", WORDS)
def test_words_are_found_two_wrappings_deep(first: str, second: str, word: str) -> None:
    """In capitals, too; another word is not found there."""
    data = WRAPPINGS[first](f"so, {word.upper()}! ".encode() * 3)
    data = WRAPPINGS[second](data) if second else data
    texts = ("json", "base64", "program", "address")
    if second in texts and second != "base64" and first not in texts:
        return  # these hold text: bytes do not survive in them
    wanted, other = ErasurePattern.of(word), ErasurePattern.of("something else")
    assert wanted is not None
    assert other is not None
    assert wanted.in_bytes(data)
    assert not other.in_bytes(data)


@given(st.binary(max_size=2_000))
def test_no_bytes_break_it(data: bytes) -> None:
    """Whatever lies in a folder, and whatever it pretends to be."""
    wanted = ErasurePattern("quokkazeppelin")
    for head in (b"", b"\x1f\x8b", b"\x78\x9c", b"PK\x03\x04", b"%PDF-stream\n", b"\xff\xfe", b"\\ud800 "):
        assert not wanted.in_bytes(head + data)


def test_a_bomb_is_opened_to_a_limit() -> None:
    """A few kilobytes that would be gigabytes cost what the limit says."""
    bomb = gzip.compress(b"\0" * 20_000_000)
    assert not ErasurePattern("quokkazeppelin").in_bytes(bomb)


def test_a_picture_is_no_text() -> None:
    """What stands in it raw is found all the same, across the pieces it is searched in."""
    wanted = ErasurePattern("quokkazeppelin")
    noise = os.urandom(512 * 1024 - 7)
    assert wanted.in_bytes(b"\xff" + noise + b"QuokkaZeppelin" + noise)
    assert not wanted.in_bytes(b"\xff" + noise + b"QuokkaZ" + noise)


@pytest.mark.parametrize("typed", ["tea --purge", "--purge tea", "tea —purge", "tea --PURGE", "tea –purge milk"])
def test_a_telephones_dash_is_two_hyphens(typed: str) -> None:
    """Keyboards that correct `--` into a dash mean the same."""
    words, found = _PURGE.subn(" ", typed)
    assert found == 1
    assert "purge" not in words.casefold()
    assert not _PURGE.search("the --purged tea")


@pytest.mark.parametrize("hostile", ["\\", "\\x", "%4", "%41", "+a", "a+", "\\u{", "Aa0", "A" * 11 + "-"])
def test_packed_texts_are_looked_for_in_time(hostile: str) -> None:
    """Whatever somebody repeats in a message: 100,000 characters of it take a fraction of a second."""
    begun = time.process_time()
    assert not ErasurePattern("quokkazeppelin").deep.in_text((hostile * 100_000)[:100_000])
    assert time.process_time() - begun < 3
