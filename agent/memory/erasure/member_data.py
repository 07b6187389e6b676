"""Erase one member's messages and remembered facts from the files and versions of a group's scope."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from agent.base.file_facts import facts_in
from agent.base.transcript_lines import decode, encode, kind_of
from agent.memory.documents.scope_documents import rewrite_history
from agent.memory.erasure.scope_files import (
    ErasureStorage,
    ReferencedAttachments,
    clear_raw,
)
from agent.memory.erasure.word_match import ALL, without_entries, without_words
from gateway.ports.journal import Line
from gateway.ports.memory import FileKind

_ALL = 2**62  # changes
_TEXT_KINDS = frozenset({"message", "command", "notice"})


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a shared scope, by their user ids on its platform and by their accounts."""

    storage: ErasureStorage
    scope: str
    ids: frozenset[str]
    accounts: frozenset[str]

    async def clear_transcripts(self, redact: Callable[[str, Callable[[bytes], bytes]], Awaitable[int]]) -> bool:
        """Blank the member's turns and remove their files; return False if none exist."""
        attachments = ReferencedAttachments(ALL, self._turn_filter(), drops_quoted=True)
        await redact(self.scope, attachments.look)
        if not attachments.has_matches:
            return False
        await self.storage.files.remove(self.scope, FileKind.ATTACHMENT, names=attachments.unreferenced)
        is_own_turn = self._turn_filter()
        return bool(await redact(self.scope, lambda raw: self._blank_line(raw, is_own_turn)))

    async def clear_documents(self) -> bool:
        """Erase what the member added from the documents and every version; return False if they never changed any."""
        documents = self.storage.documents

        def redact(text: str, authors: Mapping[str, str]) -> str:
            return without_entries(text, ALL, lambda line: authors.get(line, "") in self.accounts)[0]

        is_author = any(each.by in self.accounts for each in await documents.changes.log(self.scope, limit=_ALL))
        if is_author:
            await rewrite_history(documents.changes, self.scope, redact, anonymous=self.accounts)
            await self.storage.files.remove(self.scope, FileKind.TEXT)
        return is_author

    async def clear_raw(self) -> bool:
        """Blank the member's messages that have no summary; return False if none exist."""
        return bool(await clear_raw(self.storage.history, self.scope, ALL, self._is_sender))

    async def clear_results(self) -> None:
        """Remove the results of tools: whose call it was is not recorded there."""
        await self.storage.files.remove(self.scope, FileKind.RESULT)

    def _is_sender(self, line: Line) -> bool:
        by = line.get("by")
        return isinstance(by, Mapping) and by.get("id") in self.ids

    def _turn_filter(self) -> Callable[[Line], bool]:
        """Return a predicate for the lines of the member's turns; it must see a file's lines in order."""
        turns: set[str] = set()

        def is_own_turn(line: Line) -> bool:
            if self._is_sender(line):
                turns.add(str(line.get("turn")))
            return kind_of(line) in _TEXT_KINDS and line.get("turn") in turns

        return is_own_turn

    def _blank_line(self, raw: bytes, is_own_turn: Callable[[Line], bool]) -> bytes:
        line = decode(raw)
        if line is None:
            return raw
        if not is_own_turn(line):
            # Quoted messages have only display names, so all of them are removed; they are not replayed.
            others = {name: value for name, value in line.items() if name != "quoted"}
            if any(fact.get("quoted") for fact in facts_in(line)):
                others["files"] = [fact for fact in facts_in(line) if not fact.get("quoted")]
            return encode(others) if others != line else raw
        cleared = decode(without_words(raw, ALL, lambda _: True, whole=True)) or {}
        return encode({name: value for name, value in cleared.items() if name != "by"})
