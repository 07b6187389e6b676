"""A deleted message's words and files leave rows and disk, whatever breaks meanwhile, and nobody else's do."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.base import transcript_lines as build
from agent.base.disk import Disk
from agent.base.scopes import transcript_path
from agent.base.transcript_lines import FORGOTTEN
from agent.memory.erasure.message_deletions import remove_unreferenced
from agent.memory.storage.session_file_writer import SessionFileWriter
from gateway.events import SessionKey
from gateway.ports.journal import Line, TurnRecord
from gateway.ports.memory import UNINDEX, FileKind
from gateway.text.json_lines import blank_message, find_message
from tests.fakes.memory import ANN, SCOPE, START, FakeRecords, exchange, turn_name
from tests.fakes.store import open_inline_store

THREAD = SessionKey("telegram", "42/7")


class BrokenDisk(Disk):
    """A disk that fails at each write until it is mended."""

    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, fd: int, data: bytes) -> None:
        """Write, or fail."""
        if self.name == "write":
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, data)

    def replace(self, path: Path, data: bytes) -> None:
        """Replace, or fail."""
        if self.name == "write":
            raise OSError(errno.ENOSPC, "No space left on device")
        super().replace(path, data)


async def keep(records: FakeRecords, data: bytes) -> str:
    """Store bytes in the scope; return their reference."""
    return f"{SCOPE}/{(await records.files.put(SCOPE, FileKind.ATTACHMENT, data, at=START)).name}"


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


async def remaining_files(records: FakeRecords) -> set[bytes | None]:
    """Return the bytes of all files that are left."""
    return {await records.files.load(SCOPE, each) for each in await records.files.files(SCOPE)}


def text(home: Path) -> str:
    """Return Ann's transcript."""
    return transcript_path(home, SCOPE, str(ANN)).read_text()


async def stored(records: FakeRecords) -> bytes:
    """Return every body of the scope."""
    return b"".join(each.body for each in await records.transcripts.scan(SCOPE))


async def clean(records: FakeRecords) -> None:
    """Do as the jobs do that deletions have queued."""
    jobs = await records.engine.writer.submit(
        lambda database: database.execute("SELECT payload FROM job WHERE kind = ?", (UNINDEX,)).fetchall()
    )
    for (payload,) in jobs:
        await remove_unreferenced(records.files, records.transcripts, SCOPE, json.loads(payload)["files"])


async def test_only_what_nobody_else_names_goes(tmp_path: Path) -> None:
    """Another line of the conversation, or of a second one of the scope, keeps the bytes."""
    records = FakeRecords()
    own, both, elsewhere, seen = [await keep(records, data) for data in (b"own", b"both", b"elsewhere", b"seen")]
    photo = {"kind": "image", "name": "a.png", "blob": own, "seen": {"blob": seen, "media_type": "image/png"}}
    shared = {"kind": "image", "name": "b.png", "blob": both}
    document = {"kind": "document", "blob": elsewhere}
    for record in (said(0, "1", photo, shared, document), said(1, "2", shared), said(2, "9", document, key=THREAD)):
        records.commit(record)
    mirror = SessionFileWriter(tmp_path, records, records.transcripts)
    await mirror.flush()
    records.commit(deleted(3, "1"))
    assert b"words 1" not in await stored(records)
    await mirror.flush()
    await clean(records)
    assert await remaining_files(records) == {b"both", b"elsewhere"}
    assert "words 1" not in text(tmp_path)
    assert "words 2" in text(tmp_path)
    assert text(tmp_path).count("theirs") == 1
    records.commit(deleted(4, "2"))
    await clean(records)
    assert await remaining_files(records) == {b"elsewhere"}


async def test_with_a_full_disk_the_words_leave_the_rows_at_once(tmp_path: Path) -> None:
    """No turn and no reader sees them; the file follows when there is room, and lines of nobody else change."""
    records = FakeRecords(said(0, "1"), said(1, "2"))
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    disk = BrokenDisk("write")
    mirror = SessionFileWriter(tmp_path, records, records.transcripts, disk=disk)
    records.commit(deleted(2, "1"))
    assert not await mirror.flush()
    assert b"words 1" not in await stored(records)
    assert b"words 2" in await stored(records)
    assert "words 1" in text(tmp_path)
    disk.name = ""
    assert await mirror.flush()
    assert "words 1" not in text(tmp_path)


async def test_files_that_could_not_be_removed_are_removed_later() -> None:
    """The job that removes them is stored with the deletion, and has their names."""
    records = FakeRecords()
    files = [{"kind": "document", "blob": await keep(records, data)} for data in (b"one", b"two")]
    records.commit(said(0, "1", *files))
    records.commit(deleted(1, "1"))
    assert len(await remaining_files(records)) == 2
    await clean(records)
    assert await remaining_files(records) == set()


async def test_a_message_is_blanked_wherever_its_turn_is() -> None:
    """The journal looks for it in slices before the commit; what was committed meanwhile is looked through, too."""
    store = await open_inline_store()
    for n in range(300):
        await store.records.append(said(n, str(n)))
    await store.records.append(deleted(300, "0", "150", "299"))
    bodies = b"".join(each.body for each in await store.transcripts.newest(SCOPE, ANN, 1_000))
    await store.close()
    for n in range(300):
        assert (f'"words {n}"'.encode() in bodies) is (n not in (0, 150, 299))


async def test_a_name_in_a_line_is_no_path(tmp_path: Path) -> None:
    """Lines of an earlier release come from files that people can edit: what is no digest is not removed."""
    victim = tmp_path / "victim"
    victim.write_text("x")
    names = ["../../../victim", str(victim), "people/x/../../victim", ""]
    records = FakeRecords(said(0, "1", *({"kind": "document", "blob": name} for name in names)), deleted(1, "1"))
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    await clean(records)
    assert victim.exists()
    assert "words 1" not in text(tmp_path)


async def test_the_turn_that_tells_of_it_keeps_its_own(tmp_path: Path) -> None:
    """Who deletes a picture and sends it again in the next message has it there."""
    records = FakeRecords()
    fact = {"kind": "image", "name": "a.png", "blob": await keep(records, b"again")}
    again = said(1, "2", fact)
    again = replace(again, lines=(build.forgotten_line("1"), *again.lines))
    records.commit(said(0, "1", fact))
    records.commit(again)
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    await clean(records)
    assert await remaining_files(records) == {b"again"}
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
    """Whatever kind of line it is: no words, no files; a second time nothing changes."""
    raw = build.encode(line)
    found = find_message(raw, {"1"})
    assert found is not None
    assert found[1] == words
    blank, digests = blank_message(raw, {"1"}, "t9")
    assert digests == ({"a" * 64} if "files" in line else frozenset())
    assert words.encode() not in blank
    assert FORGOTTEN.encode() in blank
    assert blank_message(blank, {"1"}, "t9") == (blank, frozenset())
    assert find_message(blank, {"1"}) is not None
    assert blank_message(raw, {"2"}, "t9") == (raw, frozenset())
    assert blank_message(raw, {"1"}, "t1") == (raw, frozenset())  # the turn that tells of it


@pytest.mark.parametrize("raw", [b"", b"\n", b'"mid"', b'{"mid":"1"}\n', b'["mid"]', b'\xff"mid"\n', b'{"mid":1}'])
def test_what_is_no_message_stays(raw: bytes) -> None:
    """Lines that are damaged, or no objects, or of a kind without words, are returned as they are."""
    assert find_message(raw, {"1"}) is None
    assert blank_message(raw, {"1"}, "t9") == (raw, frozenset())
