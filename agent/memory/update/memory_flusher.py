"""Saving lasting facts to memory/YYYY-MM-DD.md before a compaction ([002], Phase 2); the base of all notes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import structlog

from agent.memory.history.folder_history import open_folder
from agent.memory.messages.message_range import Message, conversation
from agent.memory.messages.token_estimate import estimate_text
from agent.memory.model_calls import LlmProvider, ProviderReply, UnusableAnswer, build_prompt, call_provider
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import utc_now
from agent.memory.storage.unowned_folder import require_unowned
from gateway.ports.memory import HistoryStore, MarkKind, NoteChange

log = structlog.get_logger(__name__)

THRESHOLD_TOKENS = 4_000
SILENT = "[silent]"
_SHOWN = 8_000  # characters of the day's file that the model is shown, the newest
_EXCERPT = 20  # lines kept as they are when the model fails


DEADLINE = timedelta(seconds=60)


class NoteWriter:
    """Writes into `memory/` by asking a model. Times are of *zone*; *deadline* is that of a call."""

    def __init__(
        self,
        workspace: Path,
        provider: LlmProvider,
        model: str,
        *,
        zone: str = "UTC",
        deadline: timedelta = DEADLINE,
        disk: Disk | None = None,
        now: Callable[[], datetime] = utc_now,
        history: HistoryStore | None = None,
        scope: str = "",
    ) -> None:
        """*history* has the notes of *scope*; without it, the files of the workspace have them."""
        self.memory_dir = Path(workspace) / "memory"
        self._own_folder = Path(workspace) if history is None else None
        self._history = history or open_folder(Path(workspace), disk)
        self._scope = scope
        self.provider = provider
        self.model = model
        self._zone = zone
        self._deadline = deadline
        self._now = now

    def _require_unowned(self) -> None:
        if self._own_folder is not None:
            require_unowned(self._own_folder)

    def _local_now(self) -> datetime:
        return self._now().astimezone(ZoneInfo(self._zone))

    async def _ask(self, attempts: Iterable[dict[str, Any]]) -> ProviderReply | UnusableAnswer:
        """Return the reply to the first attempt that the provider accepts (`call_provider`)."""
        return await call_provider(self.provider, self.model, attempts, deadline=self._deadline)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushSection:
    """A section of a day's file; without bullets nothing is written."""

    day: str  # "YYYY-MM-DD", in the scope's own zone
    at: str  # "HH:MM"
    bullets: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file's."""
        return f"{self.day}.md"


class MemoryFlusher(NoteWriter):
    """Extracts facts worth keeping, once per compaction cycle of a session. Times are in *zone*."""

    async def maybe_flush(
        self,
        session_key: str,
        messages: Sequence[Message],
        estimated_tokens: int,
        context_window: int,
        threshold_tokens: int = THRESHOLD_TOKENS,
    ) -> bool:
        """Flush if the prompt is within *threshold_tokens* of the budget; return True if this call did.

        A cycle is identified by the first of *messages*: a consolidation or /new starts another one. It is durably
        marked as flushed when the model has answered. If it fails, the newest lines are kept unchanged. Raises OSError.
        """
        if estimated_tokens <= context_window - threshold_tokens or not messages:
            return False
        self._require_unowned()
        cycle = _cycle(messages)
        if await self.was_flushed(session_key, cycle):
            return False
        section = await self.extract(messages)
        if isinstance(section, UnusableAnswer):
            section = self.excerpt(messages)
        await self.write(session_key, cycle, section)
        return True

    async def extract(self, messages: Sequence[Message], *, tokens: int = 0) -> FlushSection | UnusableAnswer:
        """Return the facts that a model finds worth keeping in the newest *messages* that fit *tokens*; 0 = in all."""
        section = self._section()
        existing = (await self._history.note(self._scope, section.name) or b"").decode("utf-8", "replace")
        lines = newest(conversation(messages, zone=self._zone), tokens)
        bullets = await self._extract(lines, section.name, existing) if lines else []
        if isinstance(bullets, UnusableAnswer):
            return bullets
        fresh = [line for line in bullets if line.strip() not in {each.strip() for each in existing.splitlines()}]
        return replace(section, bullets=tuple(fresh))

    def excerpt(self, messages: Sequence[Message]) -> FlushSection:
        """Return the newest lines unchanged, in place of a model's facts."""
        lines = conversation(messages, zone=self._zone)
        return replace(self._section(), bullets=tuple(f"- {line}" for line in lines[-_EXCERPT:]))

    def _section(self) -> FlushSection:
        at = self._local_now()
        return FlushSection(day=f"{at:%Y-%m-%d}", at=f"{at:%H:%M}")

    async def _extract(self, lines: Sequence[str], name: str, existing: str) -> list[str] | UnusableAnswer:
        system = (
            "You are a memory extraction agent. Review the conversation below and extract\n"
            "important facts, decisions, preferences, and action items worth remembering.\n\n"
            "Write them as bullet points. If there's nothing important to remember, respond\n"
            f'with exactly "{SILENT}".\n\n'
            f"Target file: memory/{name} (append only, never overwrite existing content)"
        )
        shown = f"## Already in the file\n{existing[-_SHOWN:]}\n\n" if existing.strip() else ""
        asked = f"{shown}## Conversation\n" + "\n".join(lines)
        reply = await self._ask([{"messages": build_prompt(system, asked)}])
        if isinstance(reply, UnusableAnswer):
            log.warning("flush.model_failed", reason=reply.reason)
            return reply
        if reply.content.strip().strip('"').lower() == SILENT:
            return []
        return [
            _bullet(line) for line in reply.content.splitlines() if line.strip() and not line.lstrip().startswith("```")
        ]

    async def was_flushed(self, session_key: str, cycle: str) -> bool:
        """Return True if the session's cycle was flushed."""
        return (await self._history.marks(self._scope, MarkKind.FLUSHED)).get(session_key) == cycle

    async def write(self, session_key: str, cycle: str, section: FlushSection) -> None:
        """Append the section to its day's note and mark the cycle as flushed. Idempotent; raises OSError."""
        heading = f"## Flush at {section.at} (session: {session_key})"
        body = "\n".join(section.bullets).encode("utf-8", "replace")
        is_written = False
        while not is_written:
            was = await self._history.note(self._scope, section.name)
            notes: dict[str, NoteChange] = {}
            if section.bullets and body not in (was or b""):  # else a crash came between the bullets and the mark
                gap = b"" if not was else b"\n" if was.endswith(b"\n") else b"\n\n"
                text = (was or b"") + gap + heading.encode("utf-8", "replace") + b"\n\n" + body + b"\n"
                notes[section.name] = NoteChange(was=was, body=text)
            is_written = await self._history.write(
                self._scope, notes=notes, marks={MarkKind.FLUSHED: {session_key: cycle}}
            )


def newest(lines: Sequence[str], tokens: int) -> Sequence[str]:
    """Return the newest lines that fit *tokens*; 0 = all."""
    left = tokens
    for n in range(len(lines) - 1, -1, -1) if tokens else ():
        left -= estimate_text(lines[n]) + 1
        if left < 0:
            return lines[n + 1 :]
    return lines


def _cycle(messages: Sequence[Message]) -> str:
    """Return the id of the compaction cycle that begins with the first of *messages*."""
    first = messages[0]
    said = json.dumps([first.get("role"), first.get("content"), first.get("timestamp")], default=str)
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _bullet(line: str) -> str:
    """Return a line as a bullet; headings are flattened because they would end the section."""
    flat = line.strip().lstrip("#").strip()
    return flat if flat.startswith(("- ", "* ")) or line.startswith("  ") else f"- {flat}"
