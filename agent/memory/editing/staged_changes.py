"""What waits for a yes: removals that were too many, and what came of strangers' words. Lapsing changes nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from base64 import b32encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from agent.attachments.file_facts import UNTRUSTED
from agent.memory.documents.file_documents import VersionedDocuments
from agent.memory.documents.persona import SOUL, effective_persona
from agent.memory.documents.version_store import APPROVED, TRACKED
from agent.memory.editing.merge import BUDGET, StagedRemoval, merge
from agent.memory.editing.text_operations import (
    AddLines,
    Operation,
    RemoveLines,
    ReplaceLines,
    apply,
    as_record,
    read_record,
)
from agent.memory.history.plain_files import is_plain_file, remove_lines
from agent.memory.scopes import quote, scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import format_time, parse_time

PENDING = ".pending"  # in a scope's memory folder: work that a restart resumes
STAGED = ".staged"  # in a scope's memory folder: changes that wait for approval
LAPSES = timedelta(days=14)  # PEOPLE.md, Manners
MEMORY = "MEMORY.md"
_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedChange:
    """One thing that waits. `name` is the entry it arose with."""

    name: str
    why: str
    at: datetime
    document: str = MEMORY
    removals: tuple[tuple[str, str], ...] = ()  # (entry, heading it stands under or "")
    additions: tuple[str, ...] = ()
    proposed: str = ""  # a whole new text, as a model gave it
    operations: tuple[Operation, ...] = ()
    session: str = ""  # where it arose, as a key's text; "" when it is nobody's in particular
    person: str = ""  # who is to be asked there
    cause: str = ""  # what its version is called beside the yes
    asked: str = ""  # the turn that asks there, noted before it does

    @property
    def would_remove(self) -> tuple[str, ...]:
        """The lines that a yes takes out."""
        gone = (each.old for each in self.operations if isinstance(each, RemoveLines))
        return (*(raw for raw, _ in self.removals), *gone)

    @property
    def would_reword(self) -> tuple[tuple[str, str], ...]:
        """The lines that a yes replaces, and by what."""
        return tuple((each.old, each.new) for each in self.operations if isinstance(each, ReplaceLines))

    @property
    def would_add(self) -> tuple[str, ...]:
        """What a yes adds."""
        added = (each.text for each in self.operations if isinstance(each, AddLines))
        return (*self.additions, *([self.proposed] if self.proposed else []), *added)


class StagedChangeStore:
    """The staged changes of every scope."""

    def __init__(
        self,
        home: Path,
        documents: VersionedDocuments,
        *,
        now: Callable[[], datetime],
        disk: Disk | None = None,
        writing: asyncio.Lock | None = None,
    ) -> None:
        """Decide under *writing*, as whoever changes memory beside the turns: so two presses are one yes."""
        self._home = home
        self._documents = documents
        self._now = now
        self._disk = disk or Disk()
        self._writing = writing or asyncio.Lock()

    async def pending_changes(self, scope: str) -> list[StagedChange]:
        """Return what waits in *scope*, the oldest first; what lapsed is taken away."""
        return await asyncio.to_thread(self._read, scope)

    async def hold(self, scope: str, cause: str, line: str, *, session: str, person: str) -> None:
        """Have *line* wait, of which *cause* is the name; once, however often it is asked for. Raises OSError.

        For who holds `writing` already.
        """
        name = "r" + b32encode(sha256(cause.encode()).digest()[:10]).decode("ascii").lower()
        added = [AddLines(line)]
        await asyncio.to_thread(
            lambda: stage_for_approval(
                scope_folder(self._home, scope) / "memory",
                self._disk,
                name,
                UNTRUSTED,
                self._now(),
                operations=added,
                session=session,
                person=person,
                cause=cause,
            )
        )

    async def note_asked(self, scope: str, names: Collection[str], turn: str) -> None:
        """Note that *turn* asks about what waits under *names*; durable on return. Raises OSError."""
        async with self._writing:
            for each in await self.pending_changes(scope):
                if each.name in names and not each.asked:
                    await asyncio.to_thread(self._note_asked, self._path(scope, each.name), turn)

    def _note_asked(self, path: Path, turn: str) -> None:
        stored = json.loads(self._disk.load(path) or b"{}") | {"asked": turn}
        self._disk.replace(path, json.dumps(stored, ensure_ascii=False, indent=1).encode("utf-8", "replace") + b"\n")

    async def approve(self, scope: str, name: str, *, by: str) -> StagedChange | None:
        """Do what waits under a name that begins so; None when there is no single one. Raises OSError."""
        async with self._writing:
            return await self._approve(scope, name, by)

    async def _approve(self, scope: str, name: str, by: str) -> StagedChange | None:
        found = await self._find(scope, name)
        if found is None:
            return None
        if is_plain_file(found.document):
            folder = scope_folder(self._home, scope) / "memory"
            await asyncio.to_thread(remove_lines, folder, self._disk, found.document, found.would_remove)
            await asyncio.to_thread(self._disk.remove, self._path(scope, found.name))
            return found
        for _ in range(_TRIES):
            document = await self._documents.read(scope, found.document)
            before = await effective_persona(self._documents, scope) if found.document == SOUL else document.text
            text = _done(before, found)
            if text == before or await self._documents.write(
                scope, found.document, text, was=document.rev, why=f"{APPROVED}{found.name} {found.cause}", by=by
            ):
                await asyncio.to_thread(self._disk.remove, self._path(scope, found.name))
                return found
        raise OSError(f"{found.document} is being written to all the time")

    async def reject(self, scope: str, name: str) -> StagedChange | None:
        """Take away what waits under a name that begins so; None when there is no single one."""
        async with self._writing:
            found = await self._find(scope, name)
            if found is not None:
                await asyncio.to_thread(self._disk.remove, self._path(scope, found.name))
        return found

    async def _find(self, scope: str, name: str) -> StagedChange | None:
        found = [each for each in await self.pending_changes(scope) if name and each.name.startswith(name)]
        return found[0] if len(found) == 1 else None

    def _read(self, scope: str) -> list[StagedChange]:
        found: list[StagedChange] = []
        for path in sorted(self._folder(scope).glob("*.json")):
            waiting = _waiting(self._disk.load(path) or b"")
            if waiting is not None and self._now() - waiting.at > LAPSES:
                self._disk.remove(path)
            elif waiting is not None:
                found.append(waiting)
        return sorted(found, key=lambda each: each.at)

    def _path(self, scope: str, name: str) -> Path:
        return self._folder(scope) / f"{quote(name)}.json"

    def _folder(self, scope: str) -> Path:
        return scope_folder(self._home, scope) / "memory" / STAGED


def _waiting(data: bytes) -> StagedChange | None:
    try:
        stored = json.loads(data)
    except ValueError:
        return None
    at = parse_time(stored.get("at")) if isinstance(stored, dict) else None
    if at is None or not isinstance(stored.get("entry"), str):
        return None
    document = str(stored.get("document", MEMORY))
    if document not in TRACKED and not is_plain_file(document):
        return None
    removals = [each for each in stored.get("removals") or [] if isinstance(each, Mapping)]
    operations = (read_record(each) for each in stored.get("operations") or [])
    return StagedChange(
        name=stored["entry"],
        why=str(stored.get("why", "")),
        at=at,
        document=document,
        removals=tuple((str(each.get("raw", "")), _heading(each.get("context"))) for each in removals),
        additions=tuple(str(each) for each in stored.get("additions") or []),
        proposed=str(stored.get("proposed", "")),
        operations=tuple(each for each in operations if each is not None),
        session=str(stored.get("session", "")),
        cause=str(stored.get("cause", "")),
        person=str(stored.get("person", "")),
        asked=str(stored.get("asked", "")),
    )


def _heading(context: Any) -> str:
    return str(context[-1]) if isinstance(context, list | tuple) and context else ""


def _done(text: str, waiting: StagedChange) -> str:
    """Return *text* with what waits: additions and rewordings merged in, the rest where its lines still stand."""
    proposed = "\n".join([waiting.proposed, *waiting.additions]).strip()
    if proposed:
        text = merge(text, proposed, budget=BUDGET).text
    for raw, heading in waiting.removals:
        for under in (heading, ""):
            applied = apply([RemoveLines(raw, under)], text)
            if not applied.refused:
                text = applied.text
                break
    return apply(waiting.operations, text).text


def stage_for_approval(
    folder: Path,
    disk: Disk,
    entry: str,
    why: str,
    at: datetime,
    staged: StagedRemoval | None = None,
    proposed: str = "",
    *,
    document: str = "",
    operations: Sequence[Operation] = (),
    session: str = "",
    person: str = "",
    cause: str = "",
) -> None:
    """Put aside what waits for a yes, under the name *entry*; once, however often it is asked for. Raises OSError.

    It is about *document* (MEMORY.md by default): what a merge left undone, a whole text, or line operations.
    *session* is where it arose and *person* whom it came from, as far as somebody is to be asked there. *cause* is
    what the version would have been called: with a yes it still says where a line came from.
    """
    waiting: dict[str, Any] = {"v": 1, "entry": entry, "why": why, "at": format_time(at)}
    known = {"document": document, "session": session, "person": person, "cause": cause}
    waiting |= {name: text for name, text in known.items() if text}
    if operations:
        waiting["operations"] = [as_record(operation) for operation in operations]
    if staged is not None:
        waiting["removals"] = [dataclasses.asdict(left) for left in staged.removals]
        waiting["additions"] = list(staged.additions)
    if proposed:
        waiting["proposed"] = proposed
    path = folder / STAGED / f"{quote(entry)}.json"
    if disk.size(path) is None:
        disk.replace(path, json.dumps(waiting, ensure_ascii=False, indent=1).encode("utf-8", "replace") + b"\n")
