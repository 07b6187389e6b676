"""Long results of tools: the model sees one page at a time; the scope keeps the whole text for a week."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog

from agent.attachments.file_facts import UNTRUSTED
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from agent.tools.sources import LONGEST_RESULT
from agent.turn_draft import StagedEffects
from gateway.errors import ToolFailed
from gateway.ports import Line

log = structlog.get_logger(__name__)

RESULTS = "results"
MOST_RESULTS = 100  # of a scope; the oldest go first
KEPT_FOR = timedelta(days=7)
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_CUT = "\n[cut: the rest of this result was not kept]"
_NAME_LENGTH = 8  # hex digits of the digest in a result's name

PageReader = Callable[[str, int], Awaitable[str]]  # (name, page)


class ToolResultPages:
    """Stores results that are longer than a page in ``<scope>/results/<sha256>``."""

    def __init__(self, home: Path, disk: Disk | None = None) -> None:
        self._home = home
        self._disk = disk or Disk()

    async def cut(self, scope: str, text: str, page: int, effects: StagedEffects, *, is_cut: bool = False) -> str:
        """Return *text*, or its first page if it is longer than *page* characters; then *effects* name the rest.

        With *is_cut* the text is the beginning of a longer one. A full disk costs the other pages, not the turn.
        """
        if len(text) <= page:
            return text
        try:
            digest, kept = await asyncio.to_thread(self._keep, scope, text)
        except OSError as error:
            log.warning("result.not_stored", error=type(error).__name__, number=error.errno)
            effects.footer = _CUT
            return text[:page]
        effects.paged = {"sha": digest, "page": page}
        if is_cut or len(kept) < len(text):
            effects.paged["cut"] = True
        effects.footer = _footer(effects.paged, 1, kept)
        return kept[:page]

    def _keep(self, scope: str, text: str) -> tuple[str, str]:
        """Store *text* within the limits of size and number; return its digest and what was stored of it."""
        data = text.encode("utf-8", "replace")[:LONGEST_RESULT]
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(scope, digest)
        self._disk.replace(path, data)
        stored = [each for each in path.parent.iterdir() if _DIGEST.match(each.name)]
        if len(stored) > MOST_RESULTS:
            stored.sort(key=lambda each: (each == path, each.stat().st_mtime))
            for each in stored[:-MOST_RESULTS]:
                self._disk.remove(each)
        return digest, data.decode("utf-8", "ignore")

    def bind(self, scope: str, lines: Callable[[], Iterable[Line]], effects: StagedEffects) -> PageReader:
        """Return the reader of the results that *lines* name, for one call; it taints as the result did."""

        async def read(name: str, page: int) -> str:
            line = next((each for each in reversed([*lines()]) if _name(each.get("paged")) == name), None)
            if line is None:
                raise ToolFailed(f"there is no result {name[:64]!r} in this conversation")
            paged = line["paged"]
            if line.get("origin") == UNTRUSTED:
                effects.taint()
            text = await asyncio.to_thread(self._load, scope, str(paged["sha"]))
            if text is None:
                raise ToolFailed("this result is not kept any more; call the tool again")
            chars, total = int(paged["page"]), _count_pages(text, int(paged["page"]))
            if not 1 <= page <= total:
                raise ToolFailed(f"this result has the pages 1 to {total}")
            effects.footer = _footer(paged, page, text) if page < total else _CUT if paged.get("cut") else ""
            return text[(page - 1) * chars : page * chars]

        return read

    async def prune(self) -> int:
        """Remove what was stored more than a week ago, in all scopes; return the number of files."""
        return await asyncio.to_thread(self._prune)

    def _prune(self) -> int:
        removed = 0
        for pattern in ("", "*/", "*/*/"):
            for path in self._home.glob(f"{pattern}{RESULTS}/*"):
                if _DIGEST.match(path.name) and path.stat().st_mtime < time.time() - KEPT_FOR.total_seconds():
                    self._disk.remove(path)
                    removed += 1
        return removed

    def _load(self, scope: str, digest: str) -> str | None:
        if not _DIGEST.match(digest):
            return None
        data = self._disk.load(self._path(scope, digest))
        is_whole = data is not None and hashlib.sha256(data).hexdigest() == digest
        return data.decode("utf-8", "ignore") if data is not None and is_whole else None

    def _path(self, scope: str, digest: str) -> Path:
        return scope_folder(self._home, scope) / RESULTS / digest


def _name(paged: object) -> str:
    """Return the name by which a model asks for a stored result; "" for anything else."""
    return f"r{str(paged.get('sha', ''))[:_NAME_LENGTH]}" if isinstance(paged, Mapping) else ""


def _count_pages(text: str, page: int) -> int:
    return -(-len(text) // page)


def _footer(paged: Mapping[str, Any], page: int, text: str) -> str:
    """Return the line below *page* that names the next one."""
    total = _count_pages(text, int(paged["page"]))
    return f'\n[page {page} of {total}: read_result("{_name(paged)}", {page + 1})]'
