"""A history in rows is the history in files: whatever happens to it, what is printed is what the files would be."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.base.disk import Disk
from agent.base.transcript_lines import decode, encode
from agent.memory.history.history_files import LOCK, format_entry, printed_files, read_files
from gateway.ports.memory import HistoryEntry, MarkKind, ScopeHistory, StoredNote
from gateway.text.json_lines import encode_entry
from tests.fakes.history_log import HistoryLog
from tests.fakes.memory import SCOPE
from tests.fakes.store import open_inline_store

TEXT = st.text(max_size=12) | st.text('\ud800\0\r\n\x0c\u2028 "[x', max_size=8)
ENTRIES = st.builds(
    HistoryEntry,
    timestamp=st.sampled_from(["2026-11-21 21:00", "2026-11-22 09:30"]),
    content=TEXT,
    session=st.sampled_from(["", "telegram:42"]),
    start=st.integers(0, 9),
    end=st.integers(10, 19),
    origin=st.sampled_from(["user", "untrusted"]),
    entry=st.sampled_from(["", *(f"e{n}" for n in range(4))]),
    sources=st.dictionaries(st.text("ab", max_size=2), st.integers(0, 9), max_size=2),
    keys=st.dictionaries(st.text("ab", max_size=2), TEXT, max_size=2),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(ENTRIES, min_size=1, max_size=3, unique_by=lambda each: each.entry)),
        st.tuples(
            st.just("raw"), ENTRIES.filter(lambda each: each.entry != ""), st.lists(TEXT, min_size=1, max_size=2)
        ),
        st.tuples(st.just("dream"), st.integers(0, 6)),
        st.tuples(st.just("erase"), st.sampled_from(["x", "[", "é"])),
    ),
    max_size=8,
)
NOTES = st.dictionaries(
    st.sampled_from(["2026-11-28.md", "2026-11-28-a-walk.md", "2026-11-28.archive.md"]),
    st.binary(min_size=1, max_size=9),
)
MARKS = st.dictionaries(st.sampled_from(MarkKind), st.dictionaries(st.text(max_size=3), TEXT, min_size=1, max_size=2))


async def play(folder: Path, steps: list[tuple[Any, ...]]) -> ScopeHistory:
    """Do the same to files and to rows; return the rows."""
    store = await open_inline_store()
    rows, files = store.history, HistoryLog(folder)
    for step in steps:
        match step:
            case ("append", entries):
                assert [*await rows.append(SCOPE, *entries)] == [*files.append(*entries)]
            case ("raw", entry, texts):
                said = [{"role": "user", "content": text} for text in texts]
                is_raw = (await rows.keep_raw(SCOPE, entry, said)).raw
                if is_raw or files.find(entry.entry) is None:
                    assert bool(is_raw) == bool(files.keep_raw(entry, said).raw)
            case ("dream", cursor):
                newest = max((each.cursor for each in files.after(0)), default=0)
                await rows.advance_dream(SCOPE, min(cursor, newest))
                files.dream_cursor = min(cursor, newest)
            case ("erase", word):
                erase_files(folder, word)
                await rows.rewrite(SCOPE, lambda name, raw, word=word: erase(name, raw, word))  # type: ignore[misc]
        for entry in {each.entry for each in files.after(0)}:
            assert await rows.raw_messages(SCOPE, entry) == files.raw_messages(entry)
    found = await rows.load(SCOPE)
    assert [*await rows.after(SCOPE)] == [*files.after(0)]
    assert await rows.dream_cursor(SCOPE) == files.dream_cursor
    await store.close()
    return found


def erase(name: str, raw: bytes, word: str) -> bytes:
    """Erase a word from a line as the files' own function does; keys of no line go."""
    line = dict(decode(raw) or {})
    if name != "history.jsonl":
        is_match = word in str(line["message"])
        return encode({**line, "message": {"role": "user", "content": "[forgotten]"}}) if is_match else raw
    if isinstance(line.get("keys"), dict):
        line["keys"] = {}
    return encode({**line, "content": line["content"].replace(word, "-")})


def erase_files(folder: Path, word: str) -> None:
    """Erase a word from the files."""
    for name in ("history.jsonl", "raw.jsonl"):
        path = folder / name
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join(erase(name, raw, word) for raw in lines))
    entries = HistoryLog(folder).after(0)
    if entries:
        markdown = "".join(format_entry((each.timestamp, each.content)) for each in entries)
        (folder / "HISTORY.md").write_bytes(markdown.encode("utf-8", "replace"))


def files_of(folder: Path) -> Mapping[str, bytes]:
    """Return the files of a folder, without its lock and the empty ones."""
    return {path.name: data for path in folder.iterdir() if path.name != LOCK and (data := path.read_bytes())}


@given(STEPS)
def test_rows_are_printed_as_the_files_would_be(steps: list[tuple[Any, ...]]) -> None:
    """Byte for byte, history.jsonl, HISTORY.md, raw.jsonl and the cursors; read again, they are the same rows."""
    with tempfile.TemporaryDirectory() as folder:
        memory = Path(folder) / "memory"
        memory.mkdir()
        found = asyncio.run(play(memory, steps))
        printed = printed_files(found)
        written = files_of(memory)
        assert printed.pop("HISTORY.md", b"").split() == dict(written).pop("HISTORY.md", b"").split()
        assert printed == {name: data for name, data in written.items() if name != "HISTORY.md"}
        again = read_files(memory, Disk())
        assert (again.entries, again.raws, again.dream_cursor) == (found.entries, found.raws, found.dream_cursor)


@given(st.lists(ENTRIES, max_size=4), NOTES, MARKS)
def test_files_and_rows_are_each_others_copy(
    entries: list[HistoryEntry], notes: dict[str, bytes], marks: dict[MarkKind, dict[str, str]]
) -> None:
    """Notes and marks too: taken over, stored, printed, and taken over from what was printed."""

    async def store_and_load(contents: ScopeHistory) -> ScopeHistory:
        store = await open_inline_store()
        await store.history.append(SCOPE, *entries)
        assert await store.history.replace({SCOPE: contents}, was={SCOPE: await store.history.load(SCOPE)})
        assert await store.history.load(SCOPE) == contents
        await store.history.append(SCOPE, *entries)
        found = await store.history.load(SCOPE)
        await store.close()
        return found

    contents = ScopeHistory(notes={name: StoredNote(body=body) for name, body in notes.items()}, marks=marks)
    found = asyncio.run(store_and_load(contents))
    with tempfile.TemporaryDirectory() as folder:
        memory = Path(folder) / "memory"
        memory.mkdir()
        for name, data in printed_files(found).items():
            (memory / name).write_bytes(data)
        again = read_files(memory, Disk())
        assert (again.entries, again.notes, again.cursor) == (found.entries, found.notes, found.cursor)


@given(st.lists(ENTRIES), st.lists(st.integers(-1, 5), min_size=6))
def test_edited_cursors_are_made_to_rise(entries: list[HistoryEntry], cursors: list[int]) -> None:
    """A file in which a person copied or moved lines is taken over with all of them, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        memory = Path(folder)
        raws = [
            encode({**(decode(encode_entry(each)) or {}), "cursor": n})
            for each, n in zip(entries, cursors, strict=False)
        ]
        (memory / "history.jsonl").write_bytes(b"".join(raws))
        found = read_files(memory, Disk())
    kept = [decode(raw) or {} for raw in raws if (decode(raw) or {})["cursor"] >= 0]
    taken = [decode(raw) or {} for raw in found.entries]
    assert [{**each, "cursor": 0} for each in taken] == [{**each, "cursor": 0} for each in kept]
    numbers = [each["cursor"] for each in taken]
    assert numbers == sorted(set(numbers))
    assert 0 not in numbers
