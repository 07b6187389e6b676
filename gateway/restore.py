"""From a backup to a home: unpacked beside it, verified, and only then swapped in."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from gateway.backup import BLOCK, FORMAT, MANIFEST, STAYS
from gateway.errors import NewerData, UserMistake
from gateway.home import SCHEMA, Home, hold_lock, make_private, sync_folder, write_private
from gateway.journal_file import journal_fault
from gateway.settings.sources import FILE_NAMES


def restore(source: Path, path: Path, *, force: bool = False) -> int:
    """Put a backup's files into the home *path*; return how many.

    The home must be empty or *force* given: then what is there moves to backups/replaced-<time>/. Secrets, backups
    and a settings file that is already there stay. Everything is unpacked and verified first; a bad archive
    changes nothing. Raises UserMistake, HomeInUse or NewerData.
    """
    os.umask(0o077)
    home = Home(path)
    make_private(path)
    with hold_lock(home):
        if not force and any(_data_of(home)):
            raise UserMistake(
                f"{path} holds data; --force replaces it (what is there now is moved into {home.backups})"
            )
        for left in path.glob(".restore-*"):  # of a restore that was killed
            shutil.rmtree(left, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=".restore-", dir=path))
        try:
            count = _unpack(source, staging)
            _swap(home, staging)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return count


def _data_of(home: Home) -> Iterator[Path]:
    """Yield what a restore replaces."""
    for entry in home.path.iterdir():
        stays = entry.name in STAYS or entry.name in FILE_NAMES or entry.name.startswith(".restore-")
        if not stays:
            yield entry


def _unpack(source: Path, staging: Path) -> int:
    found: dict[str, tuple[int, str]] = {}
    manifest: dict[str, Any] | None = None
    try:
        with tarfile.open(source, "r:gz") as archive:
            for member in archive:
                if member.name == MANIFEST:
                    manifest = _read_manifest(archive, member)
                    continue
                place = staging / _safe_name(member)
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                found[member.name] = _write_member(archive, member, place)
    except FileNotFoundError:
        raise UserMistake(f"{source} is not there; name a file that `parlour backup` wrote") from None
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, ValueError, KeyError, OSError) as wrong:
        raise UserMistake(
            f"{source} cannot be restored ({_brief(wrong)}); nothing was changed, use another backup"
        ) from None
    _verify(source, manifest, found, staging)
    return len(found)


def _brief(wrong: Exception) -> str:
    return (getattr(wrong, "strerror", None) or str(wrong)).splitlines()[0][:120] or "it is damaged"


def _safe_name(member: tarfile.TarInfo) -> PurePosixPath:
    """Return where a member may stand: a regular file below the home, and nothing that stays there."""
    name = PurePosixPath(member.name)
    is_plain = member.isreg() and not name.is_absolute() and ".." not in name.parts and "\0" not in member.name
    if not is_plain or not name.parts or str(name) != member.name or name.parts[0] in STAYS:
        raise ValueError("it holds names that no backup of ours has")
    return name


def _write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    source = archive.extractfile(member)
    if source is None:
        raise ValueError("it holds names that no backup of ours has")
    # "x": a name that comes twice is refused; nothing in the staging folder can be a link.
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        while block := source.read(BLOCK):
            out.write(block)
            digest.update(block)
            size += len(block)
        out.flush()
        os.fsync(out.fileno())
    return size, digest.hexdigest()


def _read_manifest(archive: tarfile.TarFile, member: tarfile.TarInfo) -> dict[str, Any]:
    source = archive.extractfile(member) if member.isreg() else None
    manifest = json.loads(source.read()) if source is not None else None
    return manifest if isinstance(manifest, dict) else {}


def _verify(source: Path, manifest: dict[str, Any] | None, found: dict[str, tuple[int, str]], staging: Path) -> None:
    again = "nothing was changed, use another backup"
    if manifest is None or manifest.get("format") != FORMAT:
        raise UserMistake(f"{source} is no whole backup of Parlour; {again}")
    schema = manifest.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise NewerData(f"{source} was written by a newer Parlour (schema {schema}, this one knows {SCHEMA}); upgrade")
    listed = {name: (entry["size"], entry["sha256"]) for name, entry in manifest.get("files", {}).items()}
    if listed != found:
        raise UserMistake(f"{source} is damaged: its files are not those of its list; {again}")
    write_private(staging / "schema", f"{schema}\n")
    if journal_fault(staging / "journal.db"):
        raise UserMistake(f"{source} holds a damaged journal; {again}")


def _swap(home: Home, staging: Path) -> None:
    """Replace the home's data. Killed in between, `.restoring` says so and the next start refuses."""
    write_private(home.restoring, f"{staging.name}\n")
    old = [*_data_of(home)]
    if old:
        home.backups.mkdir(mode=0o700, exist_ok=True)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        aside = Path(tempfile.mkdtemp(prefix=f"replaced-{stamp}-", dir=home.backups))
        for entry in old:
            if entry != home.restoring:
                entry.rename(aside / entry.name)
        sync_folder(aside)
    has_settings = any((home.path / name).exists() for name in FILE_NAMES)
    for entry in sorted(staging.iterdir()):
        if not (has_settings and entry.name in FILE_NAMES):
            entry.rename(home.path / entry.name)
    sync_folder(home.path)
    home.migrating.unlink(missing_ok=True)  # its snapshot was of the data that has gone
    home.restoring.unlink()
    sync_folder(home.path)
