"""The inventory of a home: every file has its kind, and a kind that nobody named makes a test fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.home_files import DataKind, data_kind_of, unknown_files

DIGEST = "a" * 64


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("people/telegram%3a42/sessions/telegram%3a42.jsonl", DataKind.TRANSCRIPTS),
        ("people/telegram%3a42/sessions/telegram%3a42.abcd.tq2.jsonl.corrupt", DataKind.TRANSCRIPTS),
        (f"chats/slack%3ac1/bytes/.{DIGEST}-0a1b2c3d.4e5f6071.tmp", DataKind.FILES),
        ("people/a/files/deep/own.txt", DataKind.FILES),
        (f"people/a/bytes/{DIGEST}-0a1b2c3d", DataKind.FILES),
        ("people/a/exports/export-1.zip", DataKind.FILES),
        ("people/a/index.db-wal", DataKind.INDEX),
        ("shared/memory/MEMORY.md", DataKind.MEMORY),
        ("people/a/memory/.MEMORY.md.0a1b2c3d-4e5f6071.tmp", DataKind.MEMORY),
        ("people/a/memory/2026-11-22-roof.md", DataKind.MEMORY),
        ("people/a/memory/2026-11-22.md", DataKind.MEMORY),
        ("people/a/memory/.git/objects/ab/cd", DataKind.MEMORY),
        ("people/a/memory/.pending/e1.json", DataKind.MEMORY),
        ("memory/history.jsonl", DataKind.MEMORY),
        ("people/a/memory/.lock", DataKind.STATE),
        ("mirror.id", DataKind.STATE),
        ("journal.db-shm", DataKind.JOURNAL),
        ("uploads/web/token", DataKind.UPLOADS),
        ("quarantine/1.json", DataKind.QUARANTINE),
        ("parlour.yaml", DataKind.OPERATOR),
        ("secrets/llm__api_key", DataKind.OPERATOR),
    ],
)
def test_each_file_has_its_kind(path: str, kind: DataKind) -> None:
    """The layout of docs/memory.md and docs/formats.md, one of each."""
    assert data_kind_of(path) is kind


@pytest.mark.parametrize(
    "path",
    [
        "people/a/memory/feelings.db",
        "people/a/profile.json",
        "people/a/sessions/raw/1.jsonl",
        f"people/a/bytes/thumb-{DIGEST}",
        "telemetry.json",
        "people/a/memory/.secret",
    ],
)
def test_what_nobody_named_is_unknown(tmp_path: Path, path: str) -> None:
    """A new kind of file is one more promise to a person: it is named here, or it is not written."""
    assert data_kind_of(path) is None
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("x")
    assert unknown_files(tmp_path) == [path]
