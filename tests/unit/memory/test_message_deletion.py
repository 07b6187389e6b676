"""A deleted message's words and files leave rows and disk, whatever breaks meanwhile, and nobody else's do."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.memory.scopes import attachment_path, transcript_path
from agent.memory.storage import transcript_lines as build
from agent.memory.storage.disk import Disk
from agent.memory.storage.message_deletion import blank_line, files_of_messages, find_message, refers_to
from agent.memory.storage.session_file_writer import SessionFileWriter
from agent.memory.storage.transcript_lines import FORGOTTEN
from gateway.events import SessionKey
from gateway.ports import Line, TurnRecord
from tests.fakes.memory import ANN, SCOPE, START, FakeRecords, ProcessCrash, exchange, turn_name

THREAD = SessionKey("telegram", "42/7")
MIDS = frozenset({"1"})


class BrokenDisk(Disk):
    """A disk that fails before or after each removal, until it is mended."""

    def __init__(self, error: BaseException, *, removes: bool) -> None:
        self.error: BaseException | None = error
        self.removes = removes

    def remove(self, path: Path) -> None:
        """Remove, or fail."""
        if self.error is not None and not self.removes:
            raise self.error
        super().remove(path)
        if self.error is not None:
            raise self.error


def keep(home: Path, data: bytes) -> str:
    """Store bytes in the scope; return their reference."""
    digest = hashlib.sha256(data).hexdigest()
    path = attachment_path(home, SCOPE, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return f"{SCOPE}/{digest}"


def message_with_files(i: int, mid: str, *files: dict[str, Any], turn: str = "t1") -> Line:
    """A line of a person with files."""
    return build.message(
        i, turn, "user", f"words {mid}", START, mid=mid, files=list(files), quoted="[background] theirs"
    )


def said(n: int, mid: str, *files: dict[str, Any], key: SessionKey = ANN, **fields: Any) -> TurnRecord:
    """Return a turn with a message that has files."""
    record = exchange(n, 2 * n, key=key, **fields)
    user = message_with_files(2 * n, mid, *files, turn=record.turn)
    return replace(record, lines=(user, *record.lines[1:]))


def deleted(n: int, *mids: str) -> TurnRecord:
    """Return the record that says which messages were deleted."""
    lines = tuple(map(build.forgotten_line, mids))
    return replace(exchange(n, 2 * n), turn=turn_name(f"d{n}"), lines=lines, to_index=2 * n, inbox=())


def remaining_files(home: Path) -> set[bytes]:
    """Return the bytes of all files that are left."""
    return {path.read_bytes() for path in (home / SCOPE / "attachments").iterdir()}


def text(home: Path) -> str:
    """Return Ann's transcript."""
    return transcript_path(home, SCOPE, str(ANN)).read_text()


async def stored(records: FakeRecords) -> bytes:
    """Return every body of the scope."""
    return b"".join(each.body for each in await records.transcripts.scan(SCOPE))


async def test_only_what_nobody_else_names_goes(tmp_path: Path) -> None:
    """Another line of the conversation, or of a second one of the scope, keeps the bytes; lines keep their length."""
    own, both, elsewhere, seen = [keep(tmp_path, data) for data in (b"own", b"both", b"elsewhere", b"seen")]
    photo = {"kind": "image", "name": "a.png", "blob": own, "seen": {"blob": seen, "media_type": "image/png"}}
    shared = {"kind": "image", "name": "b.png", "blob": both}
    document = {"kind": "document", "blob": elsewhere}
    records = FakeRecords(
        said(0, "1", photo, shared, document), said(1, "2", shared), said(2, "9", document, key=THREAD)
    )
    mirror = SessionFileWriter(tmp_path, records, records.transcripts)
    await mirror.flush()
    before = len(await stored(records))
    records.commit(deleted(3, "1"))
    await mirror.flush()
    assert remaining_files(tmp_path) == {b"both", b"elsewhere"}
    assert "words 1" not in text(tmp_path)
    assert "words 2" in text(tmp_path)
    assert text(tmp_path).count("theirs") == 1
    assert len(await stored(records)) == before + len(await last_body(records))
    records.commit(deleted(4, "2"))
    await mirror.flush()
    assert remaining_files(tmp_path) == {b"elsewhere"}


async def last_body(records: FakeRecords) -> bytes:
    """Return the newest body of Ann's."""
    return (await records.transcripts.newest(SCOPE, ANN, 1))[0].body


@pytest.mark.parametrize("removes", [False, True])
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ProcessCrash()], ids=["error", "kill"])
async def test_what_broke_in_the_middle_is_done_again(tmp_path: Path, error: BaseException, removes: bool) -> None:
    """The bytes go before the line that names them, so that a repetition finds what is left to do."""
    files = [{"kind": "document", "blob": keep(tmp_path, data)} for data in (b"one", b"two")]
    records = FakeRecords(said(0, "1", *files))
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    records.commit(deleted(1, "1"))
    disk = BrokenDisk(error, removes=removes)
    mirror = SessionFileWriter(tmp_path, records, records.transcripts, disk=disk)
    try:
        assert not await mirror.flush()
    except ProcessCrash:
        mirror = SessionFileWriter(tmp_path, records, records.transcripts, disk=disk)
    assert b"words 1" in await stored(records)
    assert len(remaining_files(tmp_path)) == 2 - removes
    disk.error = None
    assert await mirror.flush()
    assert remaining_files(tmp_path) == set()
    assert b"words 1" not in await stored(records)
    assert "words 1" not in text(tmp_path)
    assert not records.stored


async def test_a_name_in_a_line_is_no_path(tmp_path: Path) -> None:
    """Lines of an earlier release come from files that people can edit: what is no digest is not removed."""
    victim = tmp_path / "victim"
    victim.write_text("x")
    names = ["../../../victim", str(victim), "people/x/../../victim", ""]
    records = FakeRecords(said(0, "1", *({"kind": "document", "blob": name} for name in names)), deleted(1, "1"))
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    assert victim.exists()
    assert "words 1" not in text(tmp_path)


async def test_the_turn_that_tells_of_it_keeps_its_own(tmp_path: Path) -> None:
    """Who deletes a picture and sends it again in the next message has it there."""
    fact = {"kind": "image", "name": "a.png", "blob": keep(tmp_path, b"again")}
    again = said(1, "2", fact)
    again = replace(again, lines=(build.forgotten_line("1"), *again.lines))
    records = FakeRecords(said(0, "1", fact), again)
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    assert remaining_files(tmp_path) == {b"again"}
    assert "words 1" not in text(tmp_path)
    assert "words 2" in text(tmp_path)


async def test_another_conversation_with_the_same_id_keeps_its_words(tmp_path: Path) -> None:
    """Platform ids are unique within a chat only."""
    records = FakeRecords(said(0, "1"), said(1, "1", key=THREAD), deleted(2, "1"))
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    assert (await stored(records)).count(b"words 1") == 1


KINDS = [
    (message_with_files(0, "1", {"kind": "document", "blob": f"{SCOPE}/{'a' * 64}"}), "words 1"),
    (build.command("t1", "/remember words", "done", START, mid="1"), "/remember words"),
    (build.notice("t1", "failed", START, mid="1", asked="my own words"), "my own words"),
]


@pytest.mark.parametrize(("line", "words"), KINDS, ids=["message", "command", "notice"])
def test_a_message_is_found_and_blanked_in_place(line: Line, words: str) -> None:
    """Whatever kind of line it is: same length, no words, no files; a second time nothing changes."""
    raw = build.encode(line)
    found = find_message(raw, "1")
    assert found is not None
    assert found[1] == words
    blank = blank_line(raw, MIDS, "t9")
    assert len(blank) == len(raw)
    assert words.encode() not in blank
    assert FORGOTTEN.encode() in blank
    assert files_of_messages(blank, MIDS, "t9") == set()
    assert blank_line(blank, MIDS, "t9") == blank
    assert find_message(blank, "1") is not None
    assert blank_line(raw, frozenset({"2"}), "t9") == raw
    assert blank_line(raw, MIDS, "t1") == raw  # the turn that tells of it


def test_short_words_are_blanked_without_growing() -> None:
    """`[forgotten]` is longer than "hi": fields that nothing refers to make room."""
    raw = build.encode(build.message(0, "t1", "user", "hi", START, mid="1", head="Sat 21 Nov, Ann", origin="user"))
    assert len(blank_line(raw, MIDS, "t9")) == len(raw)
    assert b"hi" not in blank_line(raw, MIDS, "t9")


@pytest.mark.parametrize("raw", [b"", b"\n", b'"mid"', b'{"mid":"1"}\n', b'["mid"]', b'\xff"mid"\n', b'{"mid":1}'])
def test_what_is_no_message_stays(raw: bytes) -> None:
    """Lines that are damaged, or no objects, or of a kind without words, are returned as they are."""
    assert find_message(raw, "1") is None
    assert blank_line(raw, MIDS, "t9") == raw
    assert files_of_messages(raw, MIDS, "t9") == set()


def test_references_are_those_of_other_lines() -> None:
    """A deleted line does not keep its own files."""
    digest = "a" * 64
    raw = build.encode(message_with_files(0, "1", {"kind": "document", "blob": f"{SCOPE}/{digest}"}))
    assert refers_to(raw, {digest, "b" * 64}, MIDS, "t9") == set()
    assert refers_to(raw, {digest, "b" * 64}, frozenset({"2"}), "t9") == {digest}
