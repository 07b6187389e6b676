"""A person edits MEMORY.md, USER.md and SOUL.md in an editor while the gateway talks, writes, restarts and restores."""

from __future__ import annotations

import asyncio
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import Any

from dulwich.repo import Repo

from gateway.restore import restore
from tests.e2e.agent.test_purge import wait_until_purged
from tests.fakes.canaries import ASCII
from tests.fakes.documents import edit_by_hand, stored_changes, stored_text
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.recording_model import RecordingModel
from tests.fakes.staged_changes import erase

SCOPE = "people/pocket%3aann"


def paths(home: Path) -> dict[str, Path]:
    """Return the files of Ann's documents."""
    folder = home / SCOPE
    return {"MEMORY.md": folder / "memory/MEMORY.md", "USER.md": folder / "USER.md", "SOUL.md": folder / "SOUL.md"}


async def remember(parlour: InProcessGateway, fact: str) -> None:
    """Have a fact remembered, and its file written."""
    await parlour.channel.ask("ann", f"/remember {fact}")
    await parlour.idle()
    await parlour.app.memory_files.settle(SCOPE)


def prompt(model: RecordingModel) -> str:
    """Return all that the model was sent last."""
    return str(model.prompts[-1])


async def test_the_next_turn_uses_an_edit_of_each_document() -> None:
    """Saved a moment before, in a file that was there and in files that were not; nothing is read again after that."""
    model = RecordingModel()
    async with gateway(model=model) as parlour:
        await remember(parlour, "likes tea")
        own = paths(parlour.home)
        edit_by_hand(own["MEMORY.md"], own["MEMORY.md"].read_text() + "- has a dog called Rex\n")
        edit_by_hand(own["USER.md"], "- Name: Ann Cooper\n")
        edit_by_hand(own["SOUL.md"], "You speak like a pirate.\n")
        await parlour.channel.ask("ann", "hello")
        for words in ("likes tea", "dog called Rex", "Ann Cooper", "like a pirate"):
            assert words in prompt(model)
        log = await parlour.channel.ask("ann", "/memory log")
        assert log.count("edited by hand") == 3


async def test_an_edit_while_no_gateway_runs_is_taken_over(tmp_path: Path) -> None:
    """Also the deletion of a whole folder, which is no edit: its files are written again."""
    async with gateway(home=tmp_path) as parlour:
        await remember(parlour, "likes tea")
    own = paths(tmp_path)
    edit_by_hand(own["MEMORY.md"], own["MEMORY.md"].read_text() + "- has a dog\n")
    async with gateway(home=tmp_path) as parlour:
        await parlour.channel.ask("ann", "hello")
        assert "- has a dog" in stored_text(tmp_path, SCOPE)
    await asyncio.to_thread(shutil.rmtree, tmp_path / SCOPE / "memory")
    async with gateway(home=tmp_path) as parlour:
        await parlour.channel.ask("ann", "hello again")
        await parlour.app.memory_files.settle(SCOPE)
        assert own["MEMORY.md"].read_text() == stored_text(tmp_path, SCOPE)
        assert "- has a dog" in own["MEMORY.md"].read_text()


async def test_each_change_is_a_commit_that_git_can_read(tmp_path: Path) -> None:
    """With the id that `/memory log` shows; commands take the commit's, too. With `memory.git` off, there is none."""
    async with gateway(home=tmp_path) as parlour:
        await remember(parlour, "likes tea")
        await remember(parlour, "has a dog")
        ids = [each.id for each in stored_changes(tmp_path, SCOPE)]
        with Repo(str(tmp_path / SCOPE / "memory" / ".git")) as repo:
            commits = [entry.commit.id.decode() for entry in repo.get_walker()]
            messages = [entry.commit.message.decode() for entry in repo.get_walker()]
        assert [f"Change: {each}" in message for each, message in zip(ids, messages, strict=True)] == [True] * len(ids)
        assert "has a dog" in await parlour.channel.ask("ann", f"/memory diff {commits[0][:8]}")
        assert (await parlour.channel.ask("ann", f"/memory undo {commits[0]}")).startswith("Undone")
        assert stored_text(tmp_path, SCOPE) == "- likes tea\n"
        assert "Unknown change" in await parlour.channel.ask("ann", "/memory diff 0123456789abcdef")
    async with gateway(environment={"PARLOUR_MEMORY__GIT": "false"}) as parlour:
        await remember(parlour, "likes tea")
        assert paths(parlour.home)["MEMORY.md"].exists()
        assert not (parlour.home / SCOPE / "memory" / ".git").exists()


async def test_a_restored_home_has_its_documents_and_every_change(tmp_path: Path) -> None:
    """Made during an undo: the backup has the rows, and the files and commits are written from them."""
    home, other, archive = tmp_path / "home", tmp_path / "other", tmp_path / "b.tar.gz"
    async with gateway(home=home) as parlour:
        for fact in ("likes tea", "has a dog", "plays chess"):
            await remember(parlour, fact)
        change = stored_changes(home, SCOPE)[0].id
        edit_by_hand(paths(home)["USER.md"], "- Name: Ann\n")
        made: Any = None
        undo = asyncio.create_task(parlour.channel.ask("ann", f"/memory undo {change}"))
        made = await parlour.app.backup(archive)
        await undo
    assert made.files
    await asyncio.to_thread(restore, archive, other)
    with tarfile.open(archive) as packed:
        assert not [name for name in packed.getnames() if "/.git/" in name or name.endswith("/MEMORY.md")]
    async with gateway(home=other) as parlour:
        await parlour.app.memory_files.settle(SCOPE)
        changes = stored_changes(other, SCOPE)
        assert {"likes tea", "has a dog"} <= {
            line.removeprefix("- ") for line in stored_text(other, SCOPE).splitlines()
        }
        assert stored_text(other, SCOPE, "USER.md") == "- Name: Ann\n"
        assert paths(other)["MEMORY.md"].read_text() == stored_text(other, SCOPE)
        with Repo(str(other / SCOPE / "memory" / ".git")) as repo:
            assert len(list(repo.get_walker())) == len(changes)
        for each in changes:
            assert await parlour.app.store.documents.changed_texts(SCOPE, each)


async def test_an_erasure_has_the_edit_that_was_pending(tmp_path: Path) -> None:
    """Saved right before the yes: neither the words nor a file that has them are left, in git and beside it either."""
    async with gateway(home=tmp_path) as parlour:
        await remember(parlour, "likes tea")
        own = paths(tmp_path)
        edit_by_hand(own["MEMORY.md"], own["MEMORY.md"].read_text() + "- keeps a zeppelin\n")

        async def ask(chat: str, text: str) -> str:
            if "approve" in text:
                edit_by_hand(own["USER.md"], "- flies a zeppelin\n")
            return await parlour.channel.ask(chat, text)

        await erase(ask, "ann", "/forget zeppelin --purge")
        await wait_until_purged(parlour)
        await parlour.app.memory_files.settle(SCOPE)
        assert "zeppelin" not in stored_text(tmp_path, SCOPE)
        assert "zeppelin" not in stored_text(tmp_path, SCOPE, "USER.md")
        found = [path for path in (tmp_path / SCOPE).rglob("*") if path.is_file() and b"zeppelin" in path.read_bytes()]
        assert found == []
        with Repo(str(tmp_path / SCOPE / "memory" / ".git")) as repo:
            texts = [repo[sha].as_raw_string() for sha in repo.object_store]
        assert [text for text in texts if b"zeppelin" in text] == []


async def test_a_purge_removes_what_the_mirror_has_set_aside(tmp_path: Path) -> None:
    """No version of the rows has the words; a file in another encoding and a packed repository may."""
    home = tmp_path / "home"
    async with gateway(home=home) as parlour:
        await remember(parlour, "the sea is blue")
        await parlour.channel.ask("ann", f"my {ASCII} leaks")
        memory = home / SCOPE / "memory"
        unknown = memory / ".git.unknown-20261128T000000000000"
        unknown.mkdir()
        (unknown / "packed").write_bytes(zlib.compress(f"the {ASCII}".encode()))
        (memory / "MEMORY.md").write_bytes(f"the {ASCII}".encode("utf-16-le"))
        await parlour.settle_documents()
        assert list(memory.glob("MEMORY.md.unreadable-*"))
        await erase(parlour.channel.ask, "ann", f"/forget {ASCII} --purge")
        await wait_until_purged(parlour, SCOPE)
        assert not unknown.exists()
        assert not list(memory.glob("*.unreadable-*"))
        assert (memory / "MEMORY.md").read_text() == "- the sea is blue\n"
