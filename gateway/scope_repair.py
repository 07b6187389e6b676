"""Find files of memory scopes that the database or the object store has lost, and restore them from copies."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from gateway.archive_reader import open_archive
from gateway.errors import ObjectDamaged, StoreUnavailable, UserError
from gateway.ports.scope_files import ScopeChange, ScopeFileStore, StoredFile, StoredFileChange

_TRIES = 5  # of changing a scope that others change


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file whose stored content is missing or not what was stored."""

    scope: str
    file: StoredFile
    reason: str  # for an operator


class ScopeRepair:
    """Checks and repairs the files of one database, also while gateways use it: a repair is a change like any other."""

    def __init__(self, store: ScopeFileStore) -> None:
        self._store = store

    async def check(self) -> AsyncIterator[tuple[str, StoredFile, DamagedFile | None]]:
        """Read every stored file; yield it with its scope, and what is wrong with it. Raises StoreUnavailable."""
        for scope in sorted(await self._store.versions()):
            for file in (await self._store.files(scope))[1]:
                reason = await self._find_fault(scope, file)
                # Not a file that was replaced or removed while it was read.
                is_damaged = bool(reason) and file in (await self._store.files(scope))[1]
                yield scope, file, DamagedFile(scope, file, reason) if is_damaged else None

    async def restore(self, damaged: Sequence[DamagedFile], source: Path) -> Sequence[DamagedFile]:
        """Store the files of *damaged* again whose content *source* has; return those.

        *source* is a home, a copy of the objects' folder or bucket, or an archive of `parlour backup`. Only files of
        the object store have a digest to compare with. Raises UserError if it cannot be read, StoreUnavailable.
        """
        restored = []
        copies = _copies([each for each in damaged if each.file.object], source)
        try:
            while (found := await asyncio.to_thread(next, copies, None)) is not None:
                each, data = found
                await self._change(each, data)
                restored.append(each)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"{source} cannot be read: {reason}; name a folder, or an archive of `parlour backup`"
            ) from None
        return restored

    async def remove(self, damaged: DamagedFile) -> None:
        """Remove a damaged file from its scope, so that the rest can be used again; every home removes it too."""
        await self._change(damaged, None)

    async def _find_fault(self, scope: str, file: StoredFile) -> str:
        size = 0
        try:
            async for data in self._store.read(scope, file):
                size += len(data)
        except ObjectDamaged as error:
            return str(error)
        return "" if size >= file.size else f"the database has {size:,} bytes of it; a dump of the database has all"

    async def _change(self, damaged: DamagedFile, data: bytes | None) -> None:
        """Store a file's content, or remove the file without one, unless it has been replaced."""
        file, version = damaged.file, secrets.token_hex(8)
        whole = StoredFileChange(file=replace(file, replaced=version, object=""), data=data, is_standalone=True)
        for _ in range(_TRIES):
            was, files = await self._store.files(damaged.scope)
            if file not in files:
                return
            change = ScopeChange(
                scope=damaged.scope,
                was=was,
                version=version,
                changes=[] if data is None else [whole],
                removed=[file.path] if data is None else [],
            )
            if await self._store.save([change]) is None:
                return
        raise StoreUnavailable(f"other gateways keep changing the memory of {damaged.scope or 'the home'}: try again")


def _copies(damaged: Sequence[DamagedFile], source: Path) -> Iterator[tuple[DamagedFile, bytes]]:
    """Yield the contents of damaged files that *source* has. Blocks; raises OSError, ValueError."""
    if not source.is_dir():
        yield from _copies_in_archive({_path_in_home(each).as_posix(): each for each in damaged}, source)
        return
    for each in damaged:
        for path in (source / each.file.object, source / _path_in_home(each)):
            if path.is_file() and path.stat().st_size == each.file.size:
                data = path.read_bytes()
                if _is_content(each.file, data):
                    yield each, data
                    break


def _copies_in_archive(damaged: dict[str, DamagedFile], source: Path) -> Iterator[tuple[DamagedFile, bytes]]:
    with open_archive(source) as members:
        for member in members:
            each = damaged.get(member.name)
            if each is not None and member.size == each.file.size:
                data = b"".join(iter(partial(member.read, member.size), b""))
                if _is_content(each.file, data):
                    yield each, data


def _path_in_home(damaged: DamagedFile) -> PurePosixPath:
    return PurePosixPath(damaged.scope, damaged.file.path)


def _is_content(file: StoredFile, data: bytes) -> bool:
    return hashlib.sha256(data).hexdigest() == file.object.partition("-")[0]
