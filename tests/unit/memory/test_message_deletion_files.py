"""A deleted message's files leave the disk, whatever breaks meanwhile, and nobody else's do."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from agent.memory.scopes import attachment_path, transcript_path
from agent.memory.storage import transcript_lines as build
from agent.memory.storage.disk import Disk
from agent.memory.storage.message_deletion import blank_messages
from gateway.ports import Line
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT


class UnreplaceableDisk(Disk):
    """A disk that cannot replace files, until it is mended."""

    def __init__(self) -> None:
        self.is_broken = True

    def replace(self, path: Path, data: bytes) -> None:
        """Refuse."""
        if self.is_broken:
            raise OSError(5, "Input/output error")
        super().replace(path, data)


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


def write(home: Path, *lines: Line, key: str = str(ANN), transcript: str = TRANSCRIPT) -> Path:
    """Write a transcript."""
    path = transcript_path(home, SCOPE, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(build.encode, [build.head_line(transcript, key, START), *lines])))
    return path


def remaining_files(home: Path) -> set[bytes]:
    """Return the bytes of all files that are left."""
    return {path.read_bytes() for path in (home / SCOPE / "attachments").iterdir()}


def test_only_what_nobody_else_names_goes(tmp_path: Path) -> None:
    """Another line of the conversation, or of a second one of the scope, keeps the bytes; lines keep their length."""
    own, both, elsewhere, seen = [keep(tmp_path, data) for data in (b"own", b"both", b"elsewhere", b"seen")]
    photo = {"kind": "image", "name": "a.png", "blob": own, "seen": {"blob": seen, "media_type": "image/png"}}
    mine = message_with_files(
        0, "1", photo, {"kind": "image", "name": "b.png", "blob": both}, {"kind": "document", "blob": elsewhere}
    )
    path = write(tmp_path, mine, message_with_files(1, "2", {"kind": "image", "name": "b.png", "blob": both}))
    write(
        tmp_path,
        message_with_files(0, "9", {"kind": "document", "blob": elsewhere}),
        key=f"{ANN}/7",
        transcript="b" * 16,
    )
    size = path.stat().st_size
    blank_messages(Disk(), path, str(ANN), {"1"}, deletion_turn="t9")
    assert remaining_files(tmp_path) == {b"both", b"elsewhere"}
    assert path.stat().st_size == size
    text = path.read_text()
    assert "words 1" not in text
    assert "words 2" in text
    assert text.count("theirs") == 1
    blank_messages(Disk(), path, str(ANN), {"2"}, deletion_turn="t9")
    assert remaining_files(tmp_path) == {b"elsewhere"}


def test_what_broke_in_the_middle_is_done_again(tmp_path: Path) -> None:
    """The bytes go before the line that names them, so that a repetition finds what is left to do."""
    path = write(tmp_path, message_with_files(0, "1", {"kind": "document", "blob": keep(tmp_path, b"own")}))
    disk = UnreplaceableDisk()
    with pytest.raises(OSError, match="Input"):
        blank_messages(disk, path, str(ANN), {"1"}, deletion_turn="t9")
    assert remaining_files(tmp_path) == set()
    assert "words 1" in path.read_text()
    disk.is_broken = False
    blank_messages(disk, path, str(ANN), {"1"}, deletion_turn="t9")
    assert "words 1" not in path.read_text()


def test_a_name_in_a_transcript_is_no_path(tmp_path: Path) -> None:
    """A transcript is a file that people can edit: what it calls a blob is removed only where it is one."""
    victim = tmp_path / "victim"
    victim.write_text("x")
    names = ["../../../victim", str(victim), "people/x/../../victim", ""]
    path = write(tmp_path, message_with_files(0, "1", *({"kind": "document", "blob": name} for name in names)))
    blank_messages(Disk(), path, str(ANN), {"1"}, deletion_turn="t9")
    assert victim.exists()


def test_the_turn_that_tells_of_it_keeps_its_own(tmp_path: Path) -> None:
    """Who deletes a picture and sends it again in the next message has it there."""
    reference = keep(tmp_path, b"again")
    fact = {"kind": "image", "name": "a.png", "blob": reference}
    path = write(tmp_path, message_with_files(0, "1", fact), message_with_files(1, "2", fact, turn="t9"))
    blank_messages(Disk(), path, str(ANN), {"1"}, deletion_turn="t9")
    assert remaining_files(tmp_path) == {b"again"}
