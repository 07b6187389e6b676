"""A start compares the journal with its stamp and with the transcripts, on real files and with real processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from gateway.journal_file import STAMP, read_stamp
from tests.fakes.gateway import GatewayProcess, free_port
from tests.faults.process_pool import ForkServer

KEY = "web:owner"


async def talk(gateway: GatewayProcess, text: str) -> None:
    """Say something in the page's session and return when the answer is in the transcript's file."""
    before = count_turns(gateway.home)
    await gateway.command("send", KEY, text)
    for _ in range(600):
        if count_turns(gateway.home) > before:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("\n".join(gateway.log[-20:]))


def lines_of(home: Path) -> list[tuple[str, dict[str, object]]]:
    """Return every transcript line of the home with the transcript that it belongs to."""
    found = []
    for path in sorted(home.glob("people/*/sessions/*.jsonl")):
        with suppress(FileNotFoundError):  # renamed meanwhile
            whole = path.read_text().rpartition("\n")[0]  # the last line may be on its way
            lines = [json.loads(line) for line in whole.splitlines()]
            found += [(lines[0]["transcript"], line) for line in lines]
    return found


def count_turns(home: Path) -> int:
    """Return how many turns the transcripts hold."""
    return sum(line.get("kind") == "end" for _, line in lines_of(home))


def doubled(home: Path) -> list[object]:
    """Return the indices that two lines of one transcript have."""
    counted = Counter((transcript, line["i"]) for transcript, line in lines_of(home) if "i" in line)
    return [index for index, count in counted.items() if count > 1]


def remove(home: Path) -> None:
    """Remove the journal and its log."""
    for path in home.glob("journal.db*"):
        path.unlink()


def empty(home: Path) -> None:
    """Empty the journal, its log with it."""
    remove(home)
    (home / "journal.db").touch(0o600)


def delete_file(home: Path) -> None:
    """Delete the journal alone: its log stays."""
    (home / "journal.db").unlink()


def empty_file(home: Path) -> None:
    """Empty the journal alone."""
    os.truncate(home / "journal.db", 0)


def with_stamp(lose: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return *lose*, which loses the stamp too."""

    def lose_both(home: Path) -> None:
        lose(home)
        (home / STAMP).unlink()

    return lose_both


def put_older(home: Path) -> None:
    """Put an older copy in the journal's place."""
    remove(home)
    shutil.copy(home.parent / "older.db", home / "journal.db")


def delete_log(home: Path) -> None:
    """Delete the write-ahead log alone."""
    (home / "journal.db-wal").unlink()


def empty_log(home: Path) -> None:
    """Empty the write-ahead log."""
    os.truncate(home / "journal.db-wal", 0)


def put_a_strangers(home: Path) -> None:
    """Put another home's journal in its place, which is of the same schema and has come further."""
    with closing(sqlite3.connect(home / "journal.db")) as database, database:
        database.execute("UPDATE meta SET value = 'of another home' WHERE name = 'store'")
        database.execute("UPDATE meta SET value = '1000' WHERE name = 'stamps'")


LOSSES: dict[str, tuple[Callable[[Path], None], str]] = {
    "removed": (remove, "is missing or empty"),
    "emptied": (empty, "is missing or empty"),
    "log-left": (delete_file, "is missing or empty, and its -wal file is left"),
    "log-left-of-emptied": (empty_file, "is missing or empty, and its -wal file is left"),
    "log-left-without-stamp": (with_stamp(delete_file), "is missing or empty, and its -wal file is left"),
    "removed-with-stamp": (with_stamp(remove), "contains conversations"),
    "emptied-with-stamp": (with_stamp(empty), "contains conversations"),
    "older": (put_older, "is older than at the last start"),
    "no-wal": (delete_log, "is older than at the last start, or its -wal file is missing"),
    "empty-wal": (empty_log, "is older than at the last start, or its -wal file is missing"),
    "another-home": (put_a_strangers, "belongs to another home"),
}


async def stop_and_kill(gateway: GatewayProcess) -> None:
    """Stop a new gateway once and kill it once, each after a turn; keep the journal of the stop beside its home."""
    await gateway.start()
    await talk(gateway, "The first.")
    await gateway.stop()
    shutil.copy(gateway.home / "journal.db", gateway.home.parent / "older.db")
    await gateway.start()
    await talk(gateway, "The second.")
    await gateway.kill()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, zygote: ForkServer) -> Path:
    """Return a folder with the home of a gateway that was stopped once and killed once; tests work on copies."""
    folder = tmp_path_factory.mktemp("killed")
    asyncio.run(stop_and_kill(GatewayProcess(folder / "home", free_port(), zygote, XDG_RUNTIME_DIR=str(folder))))
    return folder


def killed_home(killed: Path, tmp_path: Path, zygote: ForkServer) -> GatewayProcess:
    """Return a gateway on a copy of the killed one's home."""
    shutil.copytree(killed / "home", tmp_path / "home", ignore=shutil.ignore_patterns("*.sock"))
    shutil.copy(killed / "older.db", tmp_path)
    return GatewayProcess(tmp_path / "home", free_port(), zygote, XDG_RUNTIME_DIR=str(tmp_path))


@pytest.mark.parametrize("name", LOSSES)
async def test_a_lost_journal_is_refused_until_the_loss_is_accepted(
    killed: Path, tmp_path: Path, zygote: ForkServer, name: str
) -> None:
    """The start ends with one line that names the choices, doctor says the same; accepted, no index comes twice."""
    lose, what = LOSSES[name]
    gateway = killed_home(killed, tmp_path, zygote)
    lose(gateway.home)
    before = {path: path.read_bytes() for path in gateway.home.rglob("*.jsonl")}

    code, said = await gateway.run_to_its_end("run")
    assert code == 2, said
    (line,) = said.splitlines()
    assert what in line
    assert "parlour restore FILE --force`" in line
    assert "parlour accept-loss`" in line
    _, doctor = await gateway.run_to_its_end("doctor", "--offline")
    assert f"FAIL  journal: {line.removeprefix('parlour: ')}" in doctor.splitlines()
    assert "is intact" not in doctor
    assert {path: path.read_bytes() for path in gateway.home.rglob("*.jsonl")} == before

    code, said = await gateway.run_to_its_end("accept-loss", "--yes")
    assert code == 0, said
    try:
        await gateway.start()
        await talk(gateway, "The third.")
    finally:
        await gateway.stop()
    assert doubled(gateway.home) == []
    assert count_turns(gateway.home) == 3
    texts = [line.get("content") for _, line in lines_of(gateway.home) if line.get("role") == "user"]
    assert sorted(map(str, texts)) == ["The first.", "The second.", "The third."]


async def test_transcripts_alone_tell_of_a_lost_log(killed: Path, tmp_path: Path, zygote: ForkServer) -> None:
    """A home without a stamp, as an older version leaves it: turns that the journal does not know are proof enough."""
    gateway = killed_home(killed, tmp_path, zygote)
    delete_log(gateway.home)
    (gateway.home / STAMP).unlink()
    code, said = await gateway.run_to_its_end("run")
    assert (code, "lacks turns that are in the transcript of web:owner" in said) == (2, True), said
    _, doctor = await gateway.run_to_its_end("doctor", "--offline")
    assert said.removeprefix("parlour: ").strip() in doctor
    code, said = await gateway.run_to_its_end("accept-loss", "--yes")
    assert code == 0, said
    try:
        await gateway.start()
        await talk(gateway, "The third.")
    finally:
        await gateway.stop()
    assert doubled(gateway.home) == []


async def test_no_crash_and_no_copy_is_taken_for_a_loss(killed: Path, tmp_path: Path, zygote: ForkServer) -> None:
    """New homes, kills, stops, looks by other programs, torn or missing stamps, copies and backups all start."""
    gateway = killed_home(killed, tmp_path, zygote)  # a new home, a stop and a kill were two starts already
    with closing(sqlite3.connect(gateway.home / "journal.db")) as look:  # its close moves the log into the file
        look.execute("SELECT count(*) FROM inbox").fetchone()
    assert not (gateway.home / "journal.db-wal").exists()
    await gateway.start()
    await gateway.kill()
    (gateway.home / STAMP).write_text('{"store": "to')  # as a power cut may leave it on a bad disk
    await gateway.start()
    await gateway.kill()
    stamped = read_stamp(gateway.home / "journal.db")
    assert stamped is not None
    (gateway.home / STAMP).unlink()
    await gateway.start()
    await gateway.stop()
    await gateway.command("backup", str(tmp_path / "b.tar.gz"))
    await gateway.start()
    await talk(gateway, "The third.")
    await gateway.kill()
    code, said = await gateway.run_to_its_end("restore", str(tmp_path / "b.tar.gz"), "--force", "--yes")
    assert code == 0, said
    await gateway.start()
    await talk(gateway, "The fourth.")
    assert await gateway.stop() == 0
    assert doubled(gateway.home) == []


async def test_nothing_lost_is_nothing_to_accept(killed: Path, tmp_path: Path, zygote: ForkServer) -> None:
    """`parlour accept-loss` changes nothing in a home that has lost nothing, and asks where something is."""
    gateway = killed_home(killed, tmp_path, zygote)
    code, said = await gateway.run_to_its_end("accept-loss", "--yes")
    assert (code, "nothing is lost" in said) == (0, True), said
    remove(gateway.home)
    code, said = await gateway.run_to_its_end("accept-loss")
    assert code == 1, said  # nobody answers
    assert read_stamp(gateway.home / "journal.db") is not None


async def test_the_check_of_the_store_reads_the_journal(killed: Path, tmp_path: Path, zygote: ForkServer) -> None:
    """`parlour store check` says that it is whole, beside a gateway and without one; a damaged one is no success."""
    gateway = killed_home(killed, tmp_path, zygote)
    assert "the store is whole: 2 turns," in await gateway.command("store", "check")
    await gateway.start()
    assert "the store is whole: 2 turns," in await gateway.command("store", "check")
    await gateway.stop()
    journal = gateway.home / "journal.db"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:4_000] + b"\xff" * (len(whole) - 4_000))
    code, said = await gateway.run_to_its_end("store", "check")
    assert (code, "journal.db is damaged" in said) == (1, True), said
