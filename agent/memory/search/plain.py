"""Recall by shared words: the scope's texts and the last part of its conversations, without an index.

What it promises is modest on purpose: exact words, weighted by how rare they are here, nothing about meaning.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from agent.attachments.facts import facts_in
from agent.memory.files.chain import Chain
from agent.memory.files.disk import Disk
from agent.memory.files.lines import FORGOTTEN, kind_of, read_stamp
from agent.memory.files.transcript import read_tail
from agent.memory.scopes import scope_folder
from gateway.ports import MEMORY, Documents, Hit, Line

TRANSCRIPT_BYTES = 256 * 1024  # of a scope's newest conversations that a search reads
_FILES = 32
_SHOWN = 500  # characters of a hit
_DOCUMENT_WEIGHT = 1.5  # what was chosen to be remembered beats what was only said
_SHARED_WEIGHT = 1.4
_ANSWER_WEIGHT = 0.8  # our own answers repeat what people said
_WORD = re.compile(r"\w+")
_STOP_TEXT = """
    a about am an and are as at be been but by can did do does for from had has have he her him his how i if in is it
    its know me my no not of on or our she so tell than that the their them then there they this to us was we were what
    when where which who why will with would you your
"""
_STOP = frozenset(_STOP_TEXT.split())


@dataclass(frozen=True, slots=True)
class _Candidate:
    source: str
    line: int
    text: str
    at: datetime | None
    weight: float


class PlainSearch:
    """Implements `SearchIndex` by reading; each search costs at most 256 KiB of transcripts."""

    def __init__(self, home: Path, documents: Documents, *, disk: Disk | None = None) -> None:
        self._home = home
        self._documents = documents
        self._disk = disk or Disk()

    async def projects(self, scope: str) -> Sequence[str]:  # noqa: ARG002 - the port's signature
        """Return nothing: documents are not read here."""
        return ()

    async def read(self, scope: str, source: str, line: int, *, project: str = MEMORY) -> Sequence[Hit]:  # noqa: ARG002 - the port's signature
        """Return nothing: a hit is all there is."""
        return ()

    async def search(self, scope: str, query: str, *, project: str = MEMORY, limit: int = 10) -> Sequence[Hit]:
        """Return the best hits of *scope* (and of `shared`), best first; of equals the newest.

        In transcripts `line` is the message's index + 1.
        """
        wanted = words(query)
        if not wanted or project != MEMORY:
            return ()
        candidates = [
            *await self._remembered(scope, "MEMORY.md"),
            *await self._remembered(scope, "USER.md"),
            *(await self._remembered("shared", "MEMORY.md") if scope != "shared" else ()),
        ]
        candidates += await asyncio.to_thread(lambda: list(self._said(scope)))
        return rank(candidates, wanted)[:limit]

    async def _remembered(self, scope: str, name: str) -> list[_Candidate]:
        document = await self._documents.read(scope, name)
        source, weight = (name, _DOCUMENT_WEIGHT) if scope != "shared" else (f"shared/{name}", _SHARED_WEIGHT)
        return [
            _Candidate(source, n, line.strip(), None, weight)
            for n, line in enumerate(document.text.splitlines(), start=1)
            if line.strip() and not line.startswith("#")
        ]

    def _said(self, scope: str) -> Iterator[_Candidate]:
        folder = scope_folder(self._home, scope) / "sessions"
        left = TRANSCRIPT_BYTES
        for path in _newest(folder)[:_FILES]:
            if left <= 0:
                return
            chain = Chain(self._disk, path)
            left -= min(chain.end, left)
            blocks = read_tail(chain, TRANSCRIPT_BYTES, at_most=left + 1)
            lines = [line for block in blocks for line in block.lines]
            gone = {line.get("mid") for line in lines if kind_of(line) == "forgotten"}
            yield from (each for line in lines if (each := _candidate(path, line, gone)) is not None)


def _newest(folder: Path) -> list[Path]:
    """Return the transcripts of a folder, the last written first; one that vanishes meanwhile is no error."""
    found: list[tuple[float, Path]] = []
    for path in folder.glob("*.jsonl"):
        try:
            found.append((path.stat().st_mtime, path))
        except FileNotFoundError:  # archived under our hands
            continue
    return [path for _, path in sorted(found, reverse=True)]


def _candidate(path: Path, line: Line, gone: Iterable[object]) -> _Candidate | None:
    text = _words(line)
    if kind_of(line) != "message" or line["role"] not in ("user", "assistant") or not isinstance(text, str):
        return None
    if not text.strip() or text == FORGOTTEN or (line.get("mid") and line.get("mid") in gone):
        return None
    weight = 1.0 if line["role"] == "user" else _ANSWER_WEIGHT
    return _Candidate(f"sessions/{path.name}", line["i"] + 1, text.strip(), read_stamp(line.get("timestamp")), weight)


def _words(line: Line) -> object:
    """Return what was said in a line: typed, and spoken in voice messages; nothing that others said or wrote."""
    content = line.get("content")
    spoken = [str(fact["said"]) for fact in facts_in(line) if fact.get("said") and not fact.get("origin")]
    return "\n".join([content, *spoken]) if spoken and isinstance(content, str) else content


def words(text: str) -> frozenset[str]:
    """Return the words of *text* that carry meaning, folded; all of them where none would be left."""
    found = frozenset(_WORD.findall(text.casefold()))
    return found - _STOP or found


def rank(candidates: Sequence[_Candidate], wanted: frozenset[str]) -> list[Hit]:
    """Return the candidates that share a word with *wanted*, best first; rare words count more."""
    shared = [words(candidate.text) & wanted for candidate in candidates]
    frequency = Counter(word for each in shared for word in each)
    total = len(candidates)
    weight = {word: math.log(1 + total / count) for word, count in frequency.items()}
    best = sum(weight.get(word, math.log(1 + total)) for word in wanted)
    hits: dict[str, Hit] = {}
    for n, (candidate, common) in enumerate(zip(candidates, shared, strict=True)):
        # The question itself, asked before, is no answer.
        if not common or (candidate.weight <= 1 and words(candidate.text) == wanted):
            continue
        score = candidate.weight * sum(weight[word] for word in common) / best + n * 1e-9
        text = candidate.text[:_SHOWN]
        hit = Hit(source=candidate.source, line=candidate.line, text=text, score=round(score, 9), at=candidate.at)
        if text not in hits or hits[text].score < hit.score:
            hits[text] = hit
    return sorted(hits.values(), key=lambda hit: hit.score, reverse=True)
