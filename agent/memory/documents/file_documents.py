"""Documents of a memory scope as files: changed by compare-and-set, atomically, and readable after any editor."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path

import structlog

from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk, read_text
from gateway.ports.memory import DocumentStore, ScopeDocument, document_file

log = structlog.get_logger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_SAVING = 0.02  # seconds that an editor may take between emptying a file and writing it
_PAUSE = 0.01
_LOOKS = 10
_TRIES = 3  # of a compare-and-set
_OURS = 256
SOUL = "SOUL.md"
DEFAULT_PERSONA = """You are a helpful assistant. You are friendly, precise and brief, and you answer in the language \
you are spoken to. You say so when you do not know something, and you never claim to have done what you have not \
done."""


def document_path(home: Path, scope: str, name: str) -> Path:
    """Return the path of a scope's document; raise ValueError for an invalid name."""
    if not _NAME.match(name):
        raise ValueError(f"not a document: {name!r}")
    return scope_folder(home, scope) / document_file(name)


async def effective_persona(documents: DocumentStore, scope: str) -> str:
    """Return the text that a change of the scope's SOUL.md starts from: its own, else the installation's, or ours."""
    for place in dict.fromkeys((scope, "")):
        text = (await documents.read(place, SOUL)).text
        if text.strip():
            return text
    return f"{DEFAULT_PERSONA}\n"


class DocumentBusy(OSError):
    """Other writers changed a document before each of our tries."""


async def change_document(
    documents: DocumentStore,
    scope: str,
    name: str,
    make: Callable[[str], str],
    *,
    why: str,
    by: str = "",
    inherits: bool = False,
) -> tuple[str, str]:
    """Replace a document's text by what *make* returns for it; return both texts. Raises OSError, also DocumentBusy.

    *why* is the cause of the version, *by* the person who wanted it. *make* runs in a thread. With *inherits* it gets
    the effective persona as the text of SOUL.md.
    """
    for _ in range(_TRIES):
        document = await documents.read(scope, name)
        before = await effective_persona(documents, scope) if inherits and name == SOUL else document.text
        text = await asyncio.to_thread(make, before)
        if text == before or await documents.write(scope, name, text, was=document.rev, why=why, by=by):
            return before, text
    raise DocumentBusy(f"{name} is being written to all the time")


class FileDocumentStore:
    """Implements `DocumentStore` over the files of a home. A rev is the sha256 of the bytes."""

    def __init__(
        self,
        home: Path,
        *,
        disk: Disk | None = None,
        fit: Callable[[str, str, str], Awaitable[str]] | None = None,
    ) -> None:
        """Serve the documents of *home*. *fit* returns a new MEMORY.md (scope, old text, new text) in its ceiling."""
        self._fit = fit
        self._home = home
        self._disk = disk or Disk()
        self._ours: OrderedDict[str, None] = OrderedDict()  # revs that we wrote; these files are complete

    async def read(self, scope: str, name: str) -> ScopeDocument:
        """Return the current text."""
        return await asyncio.to_thread(self.read_now, scope, name)

    async def write(
        self, scope: str, name: str, text: str, *, was: str, why: str, by: str = ""
    ) -> ScopeDocument | None:
        """Replace the text if its rev is still *was*; return None if another writer was faster. Durable on return."""
        is_fitted = self._fit is not None and name == "MEMORY.md"
        before = (await self.read(scope, name)).text if is_fitted else ""
        written = await asyncio.to_thread(self.write_now, scope, name, text, was=was)
        if written is None:
            return None
        log.info("document.written", scope=scope, name=name, why=why, by=by)
        if self._fit is not None and is_fitted and (fitted := await self._fit(scope, before, text)) != text:
            done = await asyncio.to_thread(self.write_now, scope, name, fitted, was=written.rev)
            return done or written  # a later change brings it within its ceiling
        return written

    async def epoch(self, scope: str) -> str:  # noqa: ARG002 - the port's
        """Return "": nothing erases in a folder without a gateway."""
        return ""

    def read_now(self, scope: str, name: str) -> ScopeDocument:
        """Do what `read` does; blocks."""
        data = self._read_settled(document_path(self._home, scope, name))
        if data is None:
            return ScopeDocument(name=name, text="", rev="")
        return ScopeDocument(name=name, text=read_text(data), rev=_rev(data))

    def _read_settled(self, path: Path) -> bytes | None:
        """Return the file's bytes once no editor is saving it: some editors empty a file before they write."""
        data = self._disk.load(path)
        for _ in range(_LOOKS):
            if data is None or _rev(data) in self._ours or not _is_fresh(path):
                break
            time.sleep(_PAUSE)
            data = self._disk.load(path)
        while len(self._ours) > _OURS:
            self._ours.popitem(last=False)
        return data

    def _scope_lock(self, scope: str) -> AbstractContextManager[None]:
        return self._disk.lock(scope_folder(self._home, scope) / "memory" / ".lock")

    def write_now(self, scope: str, name: str, text: str, *, was: str) -> ScopeDocument | None:
        """Do what `write` does; blocks."""
        path = document_path(self._home, scope, name)
        data = text.encode("utf-8", "replace")
        # The lock keeps our own writers apart, in every process; an editor's save shows in the rev.
        with self._scope_lock(scope):
            now = self._read_settled(path)
            if ("" if now is None else _rev(now)) != was:
                return None
            if not self._replace(path, data, now):
                return None
        return ScopeDocument(name=name, text=read_text(data), rev=_rev(data))

    def _replace(self, path: Path, data: bytes, was: bytes | None) -> bool:
        """Replace the file's bytes *was*; return False if an editor was faster."""
        if was == data:
            return True
        self._ours[_rev(data)] = None
        return self._disk.swap(path, data, was=was)


def _is_fresh(path: Path) -> bool:
    try:
        return 0 <= time.time() - path.stat().st_mtime < _SAVING
    except OSError:
        return False


def _rev(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
