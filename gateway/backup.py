"""One archive of a home, of one instant and without secrets.

While a gateway runs, files are linked into a staging folder and the journal is copied while nothing
writes files (`still`): that takes milliseconds, and commits to the journal go on. Packing follows at leisure.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING

from gateway.durable_files import sync_folder
from gateway.errors import SettingsError, UserError
from gateway.home import SCHEMA, Home, schema_of
from gateway.installation import package_version
from gateway.journal_file import MOVED, STAMP
from gateway.ports.memory import CACHE, MIRROR, is_mirrored
from gateway.settings.setting_names import known_paths, normalize_names
from gateway.settings.setting_types import LEFT_OUT
from gateway.settings.sources import FILE_NAMES, SettingLeaf, read_file, read_text
from gateway.store.inspection import count_people, count_turns
from gateway.store.sqlite.schema import read_journal

if TYPE_CHECKING:
    import tarfile

MANIFEST = "parlour-backup.json"
FORMAT = 1
_STAGING = ".staging-"
# Never in an archive, and never touched by a restore.
STAYS = frozenset(
    {"secrets", "backups", "downloads", "lock", "control.sock", ".restoring", ".migrating", ".init-answers.json"}
)
# The search indexes are made again.
_DERIVED = tuple(f"{name}{end}" for name in ("index.db", "files.db") for end in ("", "-wal", "-shm"))
_OF_THE_FILE = (STAMP, f".{STAMP}.part", MOVED, f".{MOVED}.part", MIRROR)  # true of the files here, not of copies
_MIRROR_LEFT = "the files of documents and their repositories (they are in the journal, and written again)"
BLOCK = 1024 * 1024
_SMALL = 64 * 1024


@dataclass(frozen=True, slots=True)
class BackupResult:
    """The written archive."""

    target: Path
    files: int
    size: int  # bytes of the archive
    turns: int  # of its journal
    people: int  # with a memory of their own
    left_out: tuple[str, ...]


@dataclass(slots=True)
class BackupProgress:
    """Files of an archive that are written so far; zeros until they are counted."""

    done: int = 0  # files, the one that is being packed included
    total: int = 0


async def backup(
    home: Home,
    copy_journal: Callable[[Path], Awaitable[None]] | None,
    target: Path,
    *,
    copy_objects: Callable[[Path], Awaitable[Sequence[str]]] | None = None,
    still: AbstractAsyncContextManager[object] | None = None,
    progress: BackupProgress | None = None,
) -> BackupResult:
    """Write an archive of the home to *target*, 0600, replacing nothing. Raises UserError when it cannot be written.

    *copy_journal* copies the journal of an open store; None = no store is open, and its file is copied as it is.
    *copy_objects* writes what is in an object store into the folders of a home, and returns the names of what is lost.
    *still* is held while the journal is copied and the files are linked: inside it no job writes a file and no bytes of
    files are removed, so that the archive has all that its journal names. Journal commits continue. *progress* is
    updated after each file.
    """
    await asyncio.to_thread(_refuse_target, target)
    staging = Path(await asyncio.to_thread(_make_staging, home))
    try:
        lost: Sequence[str] = ()
        async with still or nullcontext():
            if copy_journal is not None:
                await copy_journal(staging / home.journal.name)
            lengths = await asyncio.to_thread(_link_tree, home.path, staging, with_journal=copy_journal is None)
            if copy_objects is not None:
                lost = await copy_objects(staging)
        schema = schema_of(home) or SCHEMA
        missing = [*lost, *([_MIRROR_LEFT] if copy_journal is not None else [])]
        return await asyncio.to_thread(
            write_archive, staging, target, schema=schema, lengths=lengths, missing=missing, progress=progress
        )
    finally:
        await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)


def _refuse_target(target: Path) -> None:
    if target.exists():
        raise UserError(f"{target} already exists; name another file")
    if not target.parent.is_dir():
        raise UserError(f"{target.parent} is not a directory; create it, or name another file")


def _make_staging(home: Home) -> str:
    home.backups.mkdir(mode=0o700, exist_ok=True)
    for left in home.backups.glob(f"{_STAGING}*"):  # of a backup that was killed
        shutil.rmtree(left, ignore_errors=True)
    return tempfile.mkdtemp(prefix=_STAGING, dir=home.backups)


def _link_tree(source: Path, staging: Path, *, with_journal: bool) -> dict[str, int]:
    """Copy small files and hard-link large ones; return the current lengths of the linked ones.

    Without the journal, which is copied from the open store, documents are left out: their rows are in it.
    Our files are replaced by a rename or only grow, so a link and a length preserve their content.
    """
    lengths: dict[str, int] = {}
    for file in _files(source):
        name = file.relative_to(source)
        if not with_journal and (_is_journal(name) or _is_mirrored(name)):
            continue
        place = staging / name
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # a temporary file that has had its rename
            size = file.stat().st_size
            if size > _SMALL and _link(file, place):
                lengths[name.as_posix()] = size
            else:
                _copy(file, place)
    return lengths


def _link(file: Path, place: Path) -> bool:
    try:
        os.link(file, place, follow_symlinks=False)
    except OSError:  # another file system
        return False
    return True


def _copy(file: Path, place: Path) -> None:
    with file.open("rb") as source, place.open("xb") as out:
        left = os.fstat(source.fileno()).st_size
        while left > 0 and (block := source.read(min(BLOCK, left))):
            out.write(block)
            left -= len(block)


def _files(source: Path, *, without_transcripts: bool = False) -> Iterator[Path]:
    """Yield the regular files that belong into an archive, in order.

    *without_transcripts*: the conversations are in the journal, and the restored home writes their files again.
    """
    for folder, folders, names in os.walk(source, followlinks=False):
        here = Path(folder)
        is_top = here == source
        folders[:] = sorted(name for name in folders if not (is_top and _is_left(name)))
        for name in sorted(names):
            file = here / name
            inside = file.relative_to(source)
            if without_transcripts and is_transcript(inside):
                continue
            if is_archived(inside) and file.is_file() and not file.is_symlink():
                yield file


def is_archived(name: PurePath) -> bool:
    """Return True if a file of this name, relative to its home, belongs into an archive."""
    return not _is_left(name.parts[0]) and (name.name not in _DERIVED or _is_in_workspace(name))


def is_transcript(name: PurePath) -> bool:
    """Return True for the file of a conversation, and not for lines that were set aside beside it."""
    return name.parent.name == "sessions" and name.suffix == ".jsonl" and not _is_in_workspace(name)


def _is_journal(name: PurePath) -> bool:
    return name.name.startswith("journal.db") and len(name.parts) == 1


def _is_mirrored(name: PurePath) -> bool:
    """Return True for a file of documents: the restored home writes it from the rows."""
    inside = name.parts[{"people": 2, "chats": 2, "shared": 1}.get(name.parts[0], 0) :]
    return is_mirrored("/".join(inside))


def _is_in_workspace(name: PurePath) -> bool:
    """Return True for a file in a `files/` folder: its name is a person's choice and says nothing about its content."""
    return "files" in name.parts[:3]


def _is_left(top: str) -> bool:
    return top in STAYS or top in _OF_THE_FILE or top.startswith((".env", ".restore", CACHE))


def write_archive(
    source: Path,
    target: Path,
    *,
    schema: int,
    lengths: Mapping[str, int] | None = None,
    missing: Iterable[str] = (),
    progress: BackupProgress | None = None,
) -> BackupResult:
    """Pack *source* (a home, or its staging) into *target*; the manifest is the last member.

    *lengths* cuts files that went on growing behind a link. *missing* begins the list of what is left out.
    """
    import tarfile  # a gateway that makes no backup does without it

    progress = progress or BackupProgress()
    turns = read_journal(Home(source).journal, count_turns)
    left_out = [*missing, "secrets/", "the search index (it is rebuilt)"]
    if turns is not None:
        left_out.append("the files of conversations (they are in the journal, and written again)")
    listed: dict[str, dict[str, object]] = {}
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            with (
                gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                files = list(_files(source, without_transcripts=turns is not None))
                progress.total = len(files)
                for progress.done, file in enumerate(files, 1):
                    name = file.relative_to(source).as_posix()
                    data = _contents(file, name, (lengths or {}).get(name), left_out)
                    if data is not None:
                        listed[name] = _add(archive, name, data)
                # The files of an earlier release have what its journal lacks.
                people = read_journal(Home(source).journal, count_people) if turns is not None else None
                if people is None:
                    people = len({name.split("/")[1] for name in listed if name.startswith("people/")})
                _add(archive, MANIFEST, _manifest(listed, left_out, schema, turns or 0, people))
            out.flush()
            os.fsync(out.fileno())
        os.link(temporary, target)  # unlike a rename, it never replaces a file created in the meantime
    except FileExistsError:
        raise UserError(f"{target} already exists; name another file") from None
    except OSError as error:
        raise UserError(
            f"{target} cannot be written ({error.strerror}); name another file, or free some space"
        ) from None
    finally:
        Path(temporary).unlink(missing_ok=True)
    sync_folder(target.parent)
    return BackupResult(target, len(listed), target.stat().st_size, turns or 0, people, tuple(left_out))


def _contents(file: Path, name: str, length: int | None, left_out: list[str]) -> _HashedFile | None:
    if name in FILE_NAMES:
        text, removed = redact_settings(file)
        left_out += [f"{name}: {setting}" for setting in removed]
        if text is None:
            left_out.append(f"{name} (its secrets could not be removed)")
            return None
        data = text.encode()
        return _HashedFile(io.BytesIO(data), len(data))
    source = file.open("rb")
    size = os.fstat(source.fileno()).st_size
    size = size if length is None else min(size, length)
    is_ours = name.endswith(".jsonl") and not _is_in_workspace(PurePath(name))
    # A line without its end was being written when the process died; it is not there.
    return _HashedFile(source, _whole_lines(source, size) if is_ours else size)


def _whole_lines(source: IO[bytes], size: int) -> int:
    """Return the number of bytes, up to *size*, that are whole lines."""
    end = size
    while end > 0:
        start = max(0, end - BLOCK)
        source.seek(start)
        found = source.read(end - start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    source.seek(0)
    return end


def _add(archive: tarfile.TarFile, name: str, data: bytes | _HashedFile) -> dict[str, object]:
    source = _HashedFile(io.BytesIO(data), len(data)) if isinstance(data, bytes) else data
    entry = archive.tarinfo(name)
    entry.mode, entry.size = 0o600, source.size
    with source:
        archive.addfile(entry, source)
    return {"size": source.size, "sha256": source.digest.hexdigest()}


class _HashedFile:
    """The first *size* bytes of a file, hashed as they are read."""

    def __init__(self, source: IO[bytes], size: int) -> None:
        self.size = size
        self.digest = hashlib.sha256()
        self._source = source
        self._left = size

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes; tarfile's side of it."""
        block = self._source.read(self._left if count < 0 else min(count, self._left))
        self._left -= len(block)
        self.digest.update(block)
        return block


def _manifest(
    files: Mapping[str, Mapping[str, object]], left_out: Iterable[str], schema: int, turns: int, people: int
) -> bytes:
    created = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    document = {
        "format": FORMAT,
        "parlour": package_version(),
        "schema": schema,
        "created": created,
        "turns": turns,
        "people": people,
        "left_out": list(left_out),
        "files": files,
    }
    return json.dumps(document, indent=1).encode()


def redact_settings(file: Path) -> tuple[str | None, list[str]]:
    """Return the text with each secret replaced, and the names replaced; None if a secret cannot be located."""
    try:
        secrets = [leaf for leaf in read_file(file) if _holds_secret(normalize_names(leaf)) and leaf.value]
        text = file.read_text("utf-8")
        for leaf in sorted(secrets, key=lambda leaf: len(str(leaf.value)), reverse=True):
            text = text.replace(str(leaf.value), LEFT_OUT)
    except (SettingsError, OSError, ValueError):
        return None, []
    # Written with escapes or over several lines, a secret is not found as text: then nothing of the file goes out.
    if any(str(leaf.value) not in (LEFT_OUT, "") for leaf in _again(text, file, {leaf.path for leaf in secrets})):
        return None, []
    return text, [".".join(leaf.path) for leaf in secrets]


def _holds_secret(leaf: SettingLeaf) -> bool:
    """Return True if the leaf's path is a secret's. Unknown names count if they contain a word like "token"."""
    sounds_secret = any(word in leaf.path[-1] for word in ("token", "secret", "password", "api_key", "webhook"))
    known = set(known_paths({}))
    path = ".".join(leaf.path)
    if path in known:
        return path in set(_secret_paths())
    if leaf.path[-1].endswith("_file"):
        return False  # names a file; the secret is elsewhere
    return sounds_secret


def _secret_paths() -> Iterator[str]:
    """Yield the dotted names of the tree's own secrets."""
    for path in known_paths({}):
        if path.endswith("_file"):
            yield path.removesuffix("_file")


def _again(text: str, file: Path, paths: set[tuple[str, ...]]) -> list[SettingLeaf]:
    try:
        return [leaf for leaf in read_text(file, text) if leaf.path in paths]
    except SettingsError:
        return [SettingLeaf((), "unreadable", "")]
