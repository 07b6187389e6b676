"""The workspace of a scope: files written, replaced, appended to, deleted and restored within its limits."""

from __future__ import annotations

import os
import shutil
import unicodedata
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.files import file_workspace as module
from agent.files.file_workspace import FileChange, FileWorkspace, WorkspaceFull
from agent.files.workspace_disk import FileTooLarge
from agent.files.workspace_names import InvalidFileName
from agent.files.workspaces import ScopeWorkspaces
from agent.memory.account_links.scope_transfer import merge_scope_files
from agent.memory.storage.disk import Disk
from gateway.events import quote_file_name
from gateway.ports import ScopeMove

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


class SteppedClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> SteppedClock:
    """Noon."""
    return SteppedClock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder that does not exist yet."""
    return tmp_path / "files"


@pytest.fixture
def workspace(root: Path, clock: SteppedClock) -> FileWorkspace:
    """A workspace for 1,000 bytes."""
    return FileWorkspace(root, most_bytes=1_000, now=clock)


def write(workspace: FileWorkspace, name: str, text: str, *, key: str = "k", is_untrusted: bool = False) -> FileChange:
    """Replace or create a file."""
    return workspace.replace(name, text.encode(), key=key, is_untrusted=is_untrusted)


def text_of(workspace: FileWorkspace, name: str) -> str | None:
    """Return a file's text."""
    content = workspace.read(name)
    return None if content is None else content.data.decode()


def open_below(root: Path) -> int:
    """Return the number of descriptors of this process that stand in *root*; other threads open files elsewhere."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists them
            count += str(descriptor.readlink()).startswith(str(root))
    return count


def names(workspace: FileWorkspace) -> list[str]:
    """Return the names of all files."""
    return sorted(each.name for each in workspace.list_files())


def on_disk(root: Path) -> set[str]:
    """Return the paths of all files but the lock."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_missing_workspace_is_empty(workspace: FileWorkspace, root: Path) -> None:
    """Nothing is created by looking."""
    assert (workspace.list_files(), workspace.deleted_files(), workspace.read("a.txt")) == ([], [], None)
    assert not root.exists()


def test_a_new_file_is_private_and_quoted_on_disk(workspace: FileWorkspace, root: Path) -> None:
    """Files are 0600 in folders of 0700; upper case and spaces are quoted, so no file system confuses two names."""
    old = os.umask(0)
    try:
        assert workspace.create("Trips/Rome 2027.csv", b"a,b\n", is_untrusted=False) == FileChange(4)
    finally:
        os.umask(old)
    path = root / "%54rips" / "%52ome%202027.csv"
    assert path.read_bytes() == b"a,b\n"
    assert [each.stat().st_mode & 0o777 for each in (path, path.parent, root)] == [0o600, 0o700, 0o700]
    assert names(workspace) == ["Trips/Rome 2027.csv"]
    assert text_of(workspace, "trips/rome 2027.csv") is None


def test_create_replaces_nothing(workspace: FileWorkspace) -> None:
    """Another file of that name is kept; the same bytes again have no effect."""
    assert workspace.create("a.txt", b"one", is_untrusted=False)
    assert workspace.create("a.txt", b"two", is_untrusted=False) is None
    assert workspace.create("a.txt", b"one", is_untrusted=False) == FileChange(3)
    assert text_of(workspace, "a.txt") == "one"


def test_what_is_replaced_can_be_restored(workspace: FileWorkspace, clock: SteppedClock) -> None:
    """The id brings the old file back; what was there then is in the trash in its turn."""
    assert write(workspace, "a.txt", "one", key="1").trash_id == ""
    change = write(workspace, "a.txt", "two", key="2")
    assert [(each.id, each.name, each.size, each.at) for each in workspace.deleted_files()] == [
        (change.trash_id, "a.txt", 3, NOON)
    ]
    clock.now += timedelta(hours=1)
    assert workspace.restore(change.trash_id) == "a.txt"
    assert text_of(workspace, "a.txt") == "one"
    assert workspace.restore(change.trash_id) == "a.txt"  # again: no effect
    (two,) = workspace.deleted_files()
    assert workspace.restore(two.id) == "a.txt"
    assert text_of(workspace, "a.txt") == "two"
    assert workspace.restore("faaaaaaaa") is None


def test_a_call_that_runs_again_changes_nothing(workspace: FileWorkspace, root: Path) -> None:
    """Replacing, appending and deleting with the same key: the same result, and the first version stays restorable."""
    write(workspace, "a.txt", "one", key="1")
    first = write(workspace, "a.txt", "two", key="2")
    assert write(workspace, "a.txt", "two", key="2") == first
    assert workspace.append("a.txt", b"!", key="3", is_untrusted=False) == FileChange(4)
    assert workspace.append("a.txt", b"!", key="3", is_untrusted=False) == FileChange(4)
    assert workspace.append("a.txt", b"!", key="4", is_untrusted=False) == FileChange(5)
    assert workspace.append("a.txt", b"!", key="3", is_untrusted=False) == FileChange(5)
    assert text_of(workspace, "a.txt") == "two!!"
    deleted = workspace.delete("a.txt", key="5")
    assert deleted is not None
    assert workspace.delete("a.txt", key="5") == deleted
    assert workspace.delete("a.txt", key="6") is None
    assert workspace.restore(deleted.trash_id) == "a.txt"
    assert text_of(workspace, "a.txt") == "two!!"
    assert workspace.restore(first.trash_id) == "a.txt"
    assert text_of(workspace, "a.txt") == "one"
    assert not [name for name in on_disk(root) if ".new-" in name]


def test_files_of_tainted_calls_are_marked(workspace: FileWorkspace, root: Path) -> None:
    """The mark is in the name on disk, so copies keep it; an append keeps it, and a clean replacement ends it."""
    write(workspace, "a.txt", "theirs", is_untrusted=True, key="1")
    assert on_disk(root) == {"%ua.txt"}
    assert [(each.name, each.is_untrusted) for each in workspace.list_files()] == [("a.txt", True)]
    workspace.append("a.txt", b" and ours", key="2", is_untrusted=False)
    content = workspace.read("a.txt")
    assert content is not None
    assert (content.data, content.is_untrusted) == (b"theirs and ours", True)
    change = write(workspace, "a.txt", "ours", key="3")
    assert {name for name in on_disk(root) if not name.startswith(".")} == {"a.txt"}
    assert workspace.restore(change.trash_id) == "a.txt"
    assert [(each.name, each.is_untrusted) for each in workspace.list_files()] == [("a.txt", True)]
    workspace.append("b.txt", b"clean", key="4", is_untrusted=False)
    workspace.append("b.txt", b"theirs", key="5", is_untrusted=True)
    assert {each.name for each in workspace.list_files() if each.is_untrusted} == {"a.txt", "b.txt"}


def test_an_operators_file_keeps_its_own_name(workspace: FileWorkspace, root: Path) -> None:
    """A file that was put there by hand is read, replaced and deleted by the name that it has; hidden ones are ours."""
    (root / "My Docs").mkdir(parents=True)
    (root / "My Docs" / "Plan.TXT").write_text("plan")
    (root / ".DS_Store").write_text("x")
    (root / "a\nb.txt").write_text("x")
    accents = unicodedata.normalize("NFD", "Menü.txt")
    (root / accents).write_text("soup")
    assert text_of(workspace, unicodedata.normalize("NFC", accents)) == "soup"
    (root / accents).unlink()
    assert names(workspace) == ["My Docs/Plan.TXT"]
    assert text_of(workspace, "My Docs/Plan.TXT") == "plan"
    workspace.create("My Docs/New.txt", b"new", is_untrusted=False)
    assert (root / "My Docs" / quote_file_name("New.txt")).exists()
    change = write(workspace, "My Docs/Plan.TXT", "other")
    assert names(workspace) == ["My Docs/New.txt", "My Docs/Plan.TXT"]
    assert text_of(workspace, "My Docs/Plan.TXT") == "other"
    assert workspace.restore(change.trash_id) == "My Docs/Plan.TXT"
    assert text_of(workspace, "My Docs/Plan.TXT") == "plan"


def test_the_space_is_reserved_before_writing(workspace: FileWorkspace, root: Path, clock: SteppedClock) -> None:
    """A file that does not fit is not begun; the line names the largest. Deleted files count until they are removed."""
    write(workspace, "large.bin", "x" * 600, key="1")
    write(workspace, "small.bin", "x" * 100, key="2")
    before = on_disk(root)
    with pytest.raises(WorkspaceFull, match=r"the workspace is full \(1 KB\); the largest: large.bin, 600 bytes"):
        workspace.create("more.bin", b"x" * 301, is_untrusted=False)
    with pytest.raises(WorkspaceFull):
        workspace.append("small.bin", b"x" * 301, key="3", is_untrusted=False)
    assert on_disk(root) == before
    workspace.append("small.bin", b"x" * 300, key="4", is_untrusted=False)
    workspace.delete("large.bin", key="5")
    with pytest.raises(WorkspaceFull) as full:
        workspace.create("more.bin", b"x" * 500, is_untrusted=False)
    assert full.value.trash == 600
    assert workspace.expire_trash() == 0
    clock.now += timedelta(days=7)
    assert workspace.expire_trash() == 1
    assert workspace.create("more.bin", b"x" * 500, is_untrusted=False)
    assert not any(name.startswith(".") for name in on_disk(root))


def test_restored_files_count_once(workspace: FileWorkspace) -> None:
    """A restored file and its copy in the trash are one file on disk."""
    write(workspace, "a.bin", "x" * 600)
    change = workspace.delete("a.bin", key="1")
    assert change is not None
    workspace.restore(change.trash_id)
    assert workspace.deleted_files() == []
    assert workspace.create("b.bin", b"x" * 400, is_untrusted=False)


async def test_deleted_files_of_all_scopes_expire(tmp_path: Path, clock: SteppedClock) -> None:
    """A week later the periodic clean-up removes them; a scope that fails stops no other."""
    workspaces = ScopeWorkspaces(tmp_path, most_mb=1, now=clock)
    for scope in ("people/ann", "chats/pocket%3ag", "shared", ""):
        workspaces.of(scope).create("old.txt", b"old", is_untrusted=False)
        workspaces.of(scope).delete("old.txt", key="k")
    assert await workspaces.expire_trash() == 0
    clock.now += timedelta(days=7)
    shutil.rmtree(tmp_path / "shared" / "files")
    (tmp_path / "shared" / "files").symlink_to(tmp_path / "people")
    assert await workspaces.expire_trash() == 3


def test_the_trash_is_emptied_at_once(workspace: FileWorkspace) -> None:
    """What a person removes for good cannot be restored, and its bytes are gone."""
    write(workspace, "a.txt", "secret", key="1")
    change = workspace.delete("a.txt", key="2")
    assert change is not None
    assert workspace.expire_trash(age=timedelta(0)) == 1
    assert workspace.restore(change.trash_id) is None


@pytest.mark.parametrize("most", [3])
def test_the_number_of_files_is_limited(
    workspace: FileWorkspace, monkeypatch: pytest.MonkeyPatch, most: int, clock: SteppedClock
) -> None:
    """So many files, and so many deleted ones; what is there can still be deleted."""
    monkeypatch.setattr(module, "MOST_FILES", most)
    for n in range(most):
        write(workspace, f"{n}.txt", "x", key=f"{n}")
    with pytest.raises(WorkspaceFull, match="3 files"):
        write(workspace, "more.txt", "x")
    for n in range(most):
        assert workspace.delete(f"{n}.txt", key=f"delete {n}")
    with pytest.raises(WorkspaceFull, match="3 deleted files"):
        write(workspace, "more.txt", "x")


def test_a_large_file_is_neither_written_nor_read(
    workspace: FileWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused by its size."""
    monkeypatch.setattr(module, "FILE_BYTES", 10)
    with pytest.raises(FileTooLarge):
        workspace.create("a.txt", b"x" * 11, is_untrusted=False)
    root.mkdir(exist_ok=True)
    (root / "b.txt").write_bytes(b"x" * 11)
    with pytest.raises(match=r"b.txt is larger than 10 bytes"):
        workspace.read("b.txt", most=10)


def test_empty_folders_go(workspace: FileWorkspace, root: Path) -> None:
    """A folder is there as long as it has files."""
    write(workspace, "a/b/c.txt", "x", key="1")
    write(workspace, "a/d.txt", "x", key="2")
    workspace.delete("a/b/c.txt", key="3")
    assert [path.name for path in (root / "a").iterdir()] == ["d.txt"]


def test_received_files_cannot_be_changed(workspace: FileWorkspace) -> None:
    """`received/` names what people sent."""
    with pytest.raises(InvalidFileName, match="cannot be changed"):
        write(workspace, "received/a.txt", "x")
    with pytest.raises(InvalidFileName, match="cannot be changed"):
        workspace.create("received/a.txt", b"x", is_untrusted=False)
    with pytest.raises(InvalidFileName, match="cannot be changed"):
        workspace.append("received/a.txt", b"x", key="k", is_untrusted=False)
    with pytest.raises(InvalidFileName, match="cannot be changed"):
        workspace.delete("received/a.txt", key="k")


def test_without_hard_links_files_move(workspace: FileWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without them keeps the same promises, except that a replaced file is missing for a moment."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    write(workspace, "a.txt", "one", key="1")
    change = write(workspace, "a.txt", "two", key="2")
    assert text_of(workspace, "a.txt") == "two"
    assert workspace.restore(change.trash_id) == "a.txt"
    assert text_of(workspace, "a.txt") == "one"
    deleted = workspace.delete("a.txt", key="3")
    assert deleted is not None
    assert workspace.restore(deleted.trash_id) == "a.txt"


def test_linking_accounts_joins_their_workspaces(tmp_path: Path, clock: SteppedClock) -> None:
    """Every file is kept, marks too, under a number where both had one of that name; deleted files stay restorable."""
    workspaces = ScopeWorkspaces(tmp_path, most_mb=1, now=clock)
    ann, bob = workspaces.of("people/ann"), workspaces.of("people/bob")
    ann.create("list.csv", b"of Ann", is_untrusted=False)
    ann.create("same.txt", b"same", is_untrusted=False)
    bob.create("list.csv", b"of Bob", is_untrusted=True)
    bob.create("same.txt", b"same", is_untrusted=False)
    bob.create("old.txt", b"old", is_untrusted=False)
    change = bob.delete("old.txt", key="k")
    assert change is not None
    move = ScopeMove(id="link:1", kind="link", source="people/bob", target="people/ann", at=NOON)
    merge_scope_files(tmp_path, Disk(), move)
    found = {each.name: (ann.read(each.name), each.is_untrusted) for each in ann.list_files()}
    assert {name: (content and content.data, mark) for name, (content, mark) in found.items()} == {
        "list.csv": (b"of Ann", False),
        "list.csv.2": (b"of Bob", True),
        "same.txt": (b"same", False),
    }
    assert ann.restore(change.trash_id) == "old.txt"
    assert not (tmp_path / "people" / "bob").exists()


def test_erasing_reaches_files_and_deleted_copies(workspace: FileWorkspace, root: Path, tmp_path: Path) -> None:
    """Each file is passed once with its name; a deleted file that would change goes, and a preview changes nothing."""
    write(workspace, "a.txt", "keep\nsecret\n", key="1")
    write(workspace, "a.txt", "keep\nsecret two\n", key="2", is_untrusted=True)
    write(workspace, "b.txt", "keep", key="3")

    def clear(name: str, data: bytes) -> bytes | None:
        assert name in ("a.txt", "b.txt")
        return b"".join(line for line in data.splitlines(keepends=True) if b"secret" not in line)

    before = on_disk(root)
    assert workspace.erase(clear, is_preview=True) == ["a.txt"]
    assert on_disk(root) == before
    assert workspace.erase(clear) == ["a.txt"]
    assert text_of(workspace, "a.txt") == "keep\n"
    assert [each.name for each in workspace.list_files() if each.is_untrusted] == ["a.txt"]
    assert workspace.deleted_files() == []
    assert workspace.erase(lambda *_: None) == ["a.txt", "b.txt"]
    assert workspace.list_files() == []
    (tmp_path / "linked").symlink_to(root)
    assert FileWorkspace(tmp_path / "linked", most_bytes=1, now=SteppedClock()).erase(clear) == []


@pytest.mark.parametrize("mark", [False, True])
def test_a_name_is_a_file_or_a_folder(workspace: FileWorkspace, mark: bool) -> None:
    """Whatever the marks: no file in a file, and no file where a folder is."""
    workspace.create("a/b", b"x", is_untrusted=mark)
    with pytest.raises(NotADirectoryError):
        workspace.create("a/b/c", b"x", is_untrusted=False)
    with pytest.raises(IsADirectoryError):
        workspace.replace("a", b"x", key="k", is_untrusted=not mark)
    assert names(workspace) == ["a/b"]


def test_no_descriptor_stays_open(workspace: FileWorkspace, root: Path) -> None:
    """After every kind of change, refused ones too."""
    write(workspace, "a/b.txt", "one", key="0")
    before = open_below(root)
    for n in range(3):
        write(workspace, "a/b.txt", f"two {n}", key=f"r{n}")
        workspace.append("a/b.txt", b"x", key=f"a{n}", is_untrusted=bool(n % 2))
        workspace.create(f"c{n}.txt", b"x", is_untrusted=False)
        change = workspace.delete(f"c{n}.txt", key=f"d{n}")
        assert change is not None
        workspace.restore(change.trash_id)
        workspace.read("missing.txt")
        with pytest.raises(WorkspaceFull):
            workspace.create("large.bin", b"x" * 1_001, is_untrusted=False)
        with pytest.raises(NotADirectoryError):
            workspace.create("a/b.txt/c.txt", b"x", is_untrusted=False)
    workspace.expire_trash(age=timedelta(0))
    assert open_below(root) == before
