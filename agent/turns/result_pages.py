"""Long results of tools: the model sees one page at a time; the scope keeps the whole text for a week."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import structlog

from agent.base.file_facts import UNTRUSTED
from agent.tools.tool import LONGEST_RESULT
from agent.turns.turn_draft import StagedEffects
from gateway.errors import ToolFailed
from gateway.ports.journal import Line
from gateway.ports.memory import FileKind

if TYPE_CHECKING:
    from gateway.store.files import SqlFiles


log = structlog.get_logger(__name__)

MOST_RESULTS = 100  # of a scope; the oldest go first
KEPT_FOR = timedelta(days=7)
_CUT = "\n[cut: the rest of this result was not kept]"
_NAME_LENGTH = 8  # hex digits of the digest in a result's name

PageReader = Callable[[str, int], Awaitable[str]]  # (name, page)


class ToolResultPages:
    """Stores results that are longer than a page, by the SHA-256 of their texts."""

    def __init__(self, files: SqlFiles, now: Callable[[], datetime]) -> None:
        self._files = files
        self._now = now

    async def cut(self, scope: str, text: str, page: int, effects: StagedEffects, *, is_cut: bool = False) -> str:
        """Return *text*, or its first page if it is longer than *page* characters; then *effects* name the rest.

        With *is_cut* the text is the beginning of a longer one. A full disk costs the other pages, not the turn.
        """
        if len(text) <= page:
            return text
        data = text.encode("utf-8", "replace")[:LONGEST_RESULT]
        try:
            stored = await self._files.put(scope, FileKind.RESULT, data, at=self._now(), most=MOST_RESULTS)
        except OSError as error:
            log.warning("result.not_stored", error=type(error).__name__, number=error.errno)
            effects.footer = _CUT
            return text[:page]
        kept = data.decode("utf-8", "ignore")
        effects.paged = {"sha": stored.name, "page": page}
        if is_cut or len(kept) < len(text):
            effects.paged["cut"] = True
        effects.footer = _footer(effects.paged, 1, kept)
        return kept[:page]

    def bind(self, scope: str, lines: Callable[[], Iterable[Line]], effects: StagedEffects) -> PageReader:
        """Return the reader of the results that *lines* name, for one call; it taints as the result did."""

        async def read(name: str, page: int) -> str:
            line = next((each for each in reversed([*lines()]) if _name(each.get("paged")) == name), None)
            if line is None:
                raise ToolFailed(f"there is no result {name[:64]!r} in this conversation")
            paged = line["paged"]
            if line.get("origin") == UNTRUSTED:
                effects.taint()
            text = await self._load(scope, str(paged["sha"]))
            if text is None:
                raise ToolFailed("this result is not kept any more; call the tool again")
            chars, total = int(paged["page"]), _count_pages(text, int(paged["page"]))
            if not 1 <= page <= total:
                raise ToolFailed(f"this result has the pages 1 to {total}")
            effects.footer = _footer(paged, page, text) if page < total else _CUT if paged.get("cut") else ""
            return text[(page - 1) * chars : page * chars]

        return read

    async def prune(self) -> int:
        """Remove what was stored more than a week ago, in all scopes; return the number of results."""
        return await self._files.expire(FileKind.RESULT, before=self._now() - KEPT_FOR)

    async def _load(self, scope: str, digest: str) -> str | None:
        file = await self._files.find(scope, FileKind.RESULT, digest)
        data = await self._files.load(scope, file) if file is not None else None
        return data.decode("utf-8", "ignore") if data is not None else None


def _name(paged: object) -> str:
    """Return the name by which a model asks for a stored result; "" for anything else."""
    return f"r{str(paged.get('sha', ''))[:_NAME_LENGTH]}" if isinstance(paged, Mapping) else ""


def _count_pages(text: str, page: int) -> int:
    return -(-len(text) // page)


def _footer(paged: Mapping[str, Any], page: int, text: str) -> str:
    """Return the line below *page* that names the next one."""
    total = _count_pages(text, int(paged["page"]))
    return f'\n[page {page} of {total}: read_result("{_name(paged)}", {page + 1})]'
