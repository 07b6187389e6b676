"""The home directory: paths, private permissions, the lock of its owner, and its schema number."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from gateway.durable_files import sync_folder
from gateway.errors import HomeInUse, UserError
from gateway.installation import ownership_hint
from gateway.ports.memory import Meant
from gateway.quarantine import Quarantine

log = structlog.get_logger(__name__)

SCHEMA = 13
STAGING = ".restore-"  # begins the name of the folder that a restore unpacks into
SNAPSHOT = "before-schema-"  # backups/before-schema-<new>-<time>.tar.gz holds data of the schema before
_HOME_SIGNS = frozenset({"schema", "parlour.yaml", "secrets", "journal.db"})
_KEPT = ("schema", "journal.db", "people", "chats", "sessions", "memory")
_LONGEST_SOCKET_PATH = 100  # bytes; AF_UNIX ends at 107


class Home:
    """Paths of one installation."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / "journal.db"
        self.socket = path / "control.sock"  # of the operator API
        self.lock = path / "lock"  # held with flock by the process that owns the home; its text is that process's id
        self.schema = path / "schema"  # one whole number: the shape of everything here
        self.secrets = path / "secrets"  # in no backup
        self.quarantine = path / "quarantine"  # platform events that could not be read, or that killed us
        self.downloads = path / "downloads"  # files that the terminal chat received
        self.backups = path / "backups"  # snapshots before migrations, and what a restore replaced
        self.restoring = path / ".restoring"  # while a restore swaps files; found later, the home is a mix of both


def is_home(folder: Path) -> bool:
    """Return True if *folder* has anything that a gateway keeps there; settings and secrets alone are not."""
    return any((folder / name).exists() for name in _KEPT)


def make_private(folder: Path) -> None:
    """Create *folder* and its missing parents with 0700, or make it private. Raises UserError."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        # Missing parents are created too, and are private as well.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in made:
            with suppress(PermissionError):  # a parent that we may enter and not read cannot be synced
                sync_folder(each.parent)
    except (FileExistsError, NotADirectoryError):
        raise UserError(
            f"{folder} is not a directory; move that file away, or set PARLOUR_HOME to a directory"
        ) from None
    except OSError as error:
        raise UserError(_unwritable(folder, error)) from None
    wrong_home = unwritable(folder)
    if wrong_home:
        raise UserError(wrong_home)
    _close_to_others(folder)


def _close_to_others(folder: Path) -> None:
    """Remove the rights of other users from our own *folder* if it is empty or a home, which `/tmp` is not."""
    found = folder.stat()
    is_open = bool(stat.S_IMODE(found.st_mode) & 0o077)
    if not is_open or found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
        return
    names = {path.name for path in folder.iterdir()}
    if names and names.isdisjoint(_HOME_SIGNS):
        return
    try:
        folder.chmod(0o700)
    except OSError as error:  # some file systems have no permissions
        log.warning("home.open_to_others", path=str(folder), reason=str(error))
    else:
        log.warning("home.made_private", path=str(folder), was=oct(stat.S_IMODE(found.st_mode)))


def unwritable(folder: Path) -> str:
    """Return the error line of a *folder* that cannot be the home; otherwise "". Leaves no file behind."""
    if not folder.is_dir():
        return f"{folder} is not a directory; move that file away, or set PARLOUR_HOME to a directory"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return _unwritable(folder, error)


def foreign_file_message(home: Path, path: Path) -> str:
    """Return the error line for a *path* in *home* of another user that we cannot use, with the fix; otherwise ""."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ""
    except OSError:  # its folder cannot be read, which the check of that folder reports
        return ""
    need = os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)
    if found.st_uid == os.geteuid() or os.access(path, need, effective_ids=os.access in os.supports_effective_ids):
        return ""
    back = ownership_hint(home, os.geteuid(), os.getegid(), os.environ)
    return f"{path} belongs to user id {found.st_uid}, but Parlour runs as {os.geteuid()}; change its owner: {back}"


def _unwritable(folder: Path, error: OSError) -> str:
    if mistake := foreign_file_message(folder, folder):
        return mistake
    if is_full_disk(error):
        return full_disk(error, folder)
    return (
        f"{folder} is not writable ({error.strerror or error}); make the user who runs Parlour its owner,"
        " or set PARLOUR_HOME to another directory"
    )


def is_full_disk(error: OSError) -> bool:
    """Return True if *error* says that a disk, or its owner's share of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def full_disk(error: OSError, path: Path | None = None) -> str:
    """Return the line for a disk that is full, that of *path* if it is known."""
    where = path or error.filename
    return f"the disk{f' of {where}' if where else ''} is full ({error.strerror}); free some space, then try again"


def remove_staging(path: Path) -> None:
    """Remove what a restore into the home *path* unpacked before it was killed; the lock must be held."""
    for left in path.glob(f"{STAGING}*"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def hold_lock(home: Home) -> Iterator[None]:
    """Hold the home's lock, which the kernel releases when the process ends. Raises HomeInUse when another holds it."""
    descriptor = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HomeInUse(in_use(home)) from None
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
        with suppress(OSError):  # the id is a courtesy; the lock itself falls with the descriptor
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def in_use(home: Home) -> str:
    """Return the error line for a home that another process holds."""
    owner = holder(home)
    who = f"process {owner}" if owner else "another process"
    return f"{home.path} is in use by {who}; stop that process first, or set PARLOUR_HOME to another directory"


def is_held(home: Home) -> bool:
    """Return True if a process holds the lock. Changes nothing."""
    try:
        descriptor = os.open(home.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder(home: Home) -> int | None:
    """Return the process id written in the lock; None without one."""
    try:
        return int(home.lock.read_text("ascii"))
    except (OSError, ValueError):
        return None


def schema_of(home: Home) -> int | None:
    """Return the home's schema number; None for a new home. Raises UserError when the file holds no number."""
    try:
        text = home.schema.read_text("ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        text = ""
    if not text.isdigit():
        raise UserError(
            f"{home.schema} contains no schema number; if this Parlour wrote the home, write {SCHEMA} into it"
        )
    return int(text)


def refuse_half_restored(home: Home) -> None:
    """Raise UserError when a restore was interrupted while it swapped files."""
    if home.restoring.exists():
        raise UserError(f"the last restore into {home.path} was interrupted; run `parlour restore FILE --force` again")


def schema_too_new_message(home: Home, home_schema: int, schema: int) -> str:
    """Return the line for data of a newer Parlour, with the command that goes back to ours."""
    snapshots = sorted(home.backups.glob(f"{SNAPSHOT}{schema + 1}-*.tar.gz"))
    back = f"`parlour restore {snapshots[-1]} --force`" if snapshots else "`parlour restore FILE --force` with a backup"
    return (
        f"{home.path} was written by a newer Parlour (schema {home_schema}, this version supports {schema});"
        f" upgrade again, or restore older data: {back}"
    )


@contextmanager
def short_socket_path(socket: Path) -> Iterator[str]:
    """Give an address for *socket* that AF_UNIX can take: through a link in a private folder when it is too long."""
    if len(os.fsencode(socket)) <= _LONGEST_SOCKET_PATH:
        yield str(socket)
        return
    folder = Path(tempfile.mkdtemp(prefix="parlour-", dir="/tmp"))
    try:
        link = folder / "home"
        link.symlink_to(socket.parent)
        yield str(link / socket.name)
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


class HomeUnscopedData:
    """Data of a home outside scopes: its quarantine, and ``uploads/<block>/<token>``."""

    def __init__(self, uploads: Path, quarantine: Quarantine) -> None:
        self._uploads = uploads
        self._quarantine = quarantine

    async def forget(self, is_meant: Meant, *, tokens: Collection[str] = ()) -> int:
        """Blank matching events and remove matching files, those named in *tokens* included; return their number."""
        blanked = await self._quarantine.blank(is_meant)
        return blanked + await asyncio.to_thread(self._remove, is_meant, frozenset(tokens))

    def _remove(self, is_meant: Meant, tokens: frozenset[str]) -> int:
        removed = 0
        for block in sorted(self._uploads.glob("*/")):
            before = removed
            for file in sorted(block.iterdir()):
                if file.name in tokens or (file.is_file() and is_meant(block.name, _read(file))):
                    file.unlink(missing_ok=True)
                    removed += 1
            if removed > before:
                sync_folder(block)
        return removed


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # removed by retention since the listing
        return b""
