"""Packing an export: no zip is larger than a channel takes, nothing is lost, and what others said stays out."""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from functools import partial
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as some

from agent.base.disk import Disk
from agent.memory.privacy import ArchiveMember, PackedArchives, members, write_archives

SCOPE = "people/pocket%3aann"


def content(seed: int, size: int, *, is_noise: bool) -> bytes:
    """Return bytes that a packer makes smaller, or not."""
    if not is_noise:
        return (b"the same words again and again " * (size // 31 + 1))[:size]
    return b"".join(hashlib.sha256(f"{seed}.{n}".encode()).digest() for n in range(size // 32 + 1))[:size]


@given(
    some.lists(some.tuples(some.integers(0, 90_000), some.booleans(), some.text(max_size=40)), max_size=12),
    some.integers(65_536, 200_000),
)
def test_every_zip_fits_and_every_file_is_somewhere(files: list[tuple[int, bool, str]], limit: int) -> None:
    """Noise and prose of any size and name: in exactly one zip, byte for byte, or named as too large."""
    given_files = {
        f"files/{n} {name.replace(chr(0), '').encode('utf-8', 'replace').decode()}": content(n, size, is_noise=noise)
        for n, (size, noise, name) in enumerate(files)
    }
    found = (ArchiveMember(name, partial(bytes, data)) for name, data in given_files.items())
    told: list[PackedArchives] = []

    def about(packed: PackedArchives) -> str:
        told.append(packed)
        return "é" * 100_000

    with tempfile.TemporaryDirectory() as folder:
        packed = write_archives(found, lambda n: Path(folder) / f"{n}.zip", limit=limit, about=about)
        assert told == [packed]
        seen: dict[str, bytes] = {}
        for path in packed.zips:
            assert path.stat().st_size <= limit
            assert path.stat().st_mode & 0o777 == 0o600
            with zipfile.ZipFile(path) as archive:
                assert archive.testzip() is None
                names = [name for name in archive.namelist() if name != "README.md"]
                assert not set(names) & seen.keys()
                seen |= {name: archive.read(name) for name in names}
    assert seen.keys() | set(packed.left_out) == given_files.keys()
    assert all(seen[name] == given_files[name] for name in seen)
    assert all(len(given_files[name]) > limit - 16_384 for name in packed.left_out)


def test_what_others_said_is_in_no_export(tmp_path: Path) -> None:
    """What a line quotes, in a transcript and in the raw archive, and what a provider keeps: none of it, in no form."""
    folder = tmp_path / SCOPE
    (folder / "memory").mkdir(parents=True)
    line = {"i": 0, "turn": "t", "role": "user", "content": "mine", "timestamp": "2026-11-22T10:00:00Z"}
    foreign = {"quoted": "Bob's secret", "thinking": {"model": "m", "message": "sealed"}}
    head = {"v": 1, "kind": "head", "transcript": "x", "key": "pocket:ann", "created": "2026-11-22T10:00:00Z"}
    raw = {"entry": "e", "session": "pocket:ann", "i": 0, "message": line | foreign}
    transcript = f"{json.dumps(head)}\n{json.dumps(line | foreign)}\n".encode()
    conversations = [ArchiveMember("k.jsonl", lambda: transcript)]
    documents = {"raw.jsonl": f"{json.dumps(raw)}\n".encode()}
    rows = [
        {
            "purpose": "answer",
            "model": "m",
            "calls": 1,
            "tokens_in": 2,
            "tokens_out": 3,
            "tokens_cached": 0,
            "cost": None,
        }
    ]
    exported = members(
        tmp_path, SCOPE, rows, documents=documents, conversations=conversations, zone="Europe/Berlin", disk=Disk()
    )
    found = {each.name: each.read() or b"" for each in exported}
    assert sorted(found) == ["conversations/k.jsonl", "conversations/k.md", "memory/raw.jsonl", "usage.csv"]
    assert all(b"mine" in data for name, data in found.items() if name != "usage.csv")
    assert not any(b"secret" in data or b"sealed" in data for data in found.values())
    assert found["conversations/k.md"].decode().startswith("# pocket:ann\n\nbegun 2026-11-22 11:00 (Europe/Berlin)\n")
    assert found["usage.csv"].decode().splitlines()[1] == "answer,m,1,2,3,0,unknown"
