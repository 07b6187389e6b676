"""A session's note, written at its end: memory/YYYY-MM-DD-slug.md ([002], Phase 1)."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from agent.memory.messages.greetings import has_only_greetings
from agent.memory.messages.message_range import Message, conversation
from agent.memory.messages.taint import strip_untrusted
from agent.memory.model_calls import LlmProvider, UnusableAnswer, build_prompt, clean, read_call, tool_attempts
from agent.memory.update.memory_flusher import NoteWriter
from agent.one_line import one_line
from gateway.ports.memory import NoteChange

log = structlog.get_logger(__name__)

MIN_USER_MESSAGES = 3  # fewer are a trivial session, not worth a note [002]
_LONGEST_SLUG = 40
_KEY_MESSAGES = 6
QUOTED = 200  # characters of a key message
_SYSTEM = "You are a memory writer. Generate a concise summary of this conversation."
_NAME = "create_session_memory"
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Write the summary of a conversation that has ended.",
        "parameters": {
            "type": "object",
            "properties": {
                "slug": {
                    "type": "string",
                    "description": "Short kebab-case filename slug (max 40 chars, e.g. api-design-review).",
                },
                "summary": {
                    "type": "string",
                    "description": "Markdown summary of key topics, decisions, and facts.",
                },
            },
            "required": ["slug", "summary"],
        },
    },
}
_AS_JSON = 'Answer with JSON and nothing else: {"slug": "<short kebab-case file name>", "summary": "<markdown>"}'


@dataclass(frozen=True, slots=True)
class NoteSummary:
    """A model's summary of a session, and the slug of its note's file name."""

    slug: str
    text: str


class SessionMemoryWriter(NoteWriter):
    """Writes notes into a workspace's `memory/`. Times are of *zone*."""

    def __init__(
        self,
        workspace: Path,
        provider: LlmProvider,
        model: str,
        *,
        min_user_messages: int = MIN_USER_MESSAGES,
        **more: Any,
    ) -> None:
        """Skip sessions of fewer than *min_user_messages*; *more* as `NoteWriter` takes it."""
        super().__init__(workspace, provider, model, **more)
        self._least = min_user_messages

    async def write_session_memory(
        self, session_key: str, messages: Sequence[Message], max_messages: int = 20
    ) -> Path | None:
        """Summarise the newest messages into a note and return its path; None for a session that is not worth one.

        A model that fails leaves a raw excerpt. A second note of that day and slug gets `-2`. Raises OSError.
        """
        recent = self.recent_messages(messages, max_messages)
        if not recent:
            return None
        self._require_unowned()
        return await self.write_note(session_key, recent, await self.summarise(recent))

    def recent_messages(self, messages: Sequence[Message], max_messages: int) -> list[Message]:
        """Return the newest messages that a note is about; none for a session that is not worth one."""
        said = [message for message in strip_untrusted(messages) if message.get("role") in ("user", "assistant")]
        recent = [message for message in said if _text(message)][-max_messages:]
        is_short = sum(message.get("role") == "user" for message in recent) < self._least
        return [] if is_short or has_only_greetings(recent) else recent

    async def summarise(self, recent: Sequence[Message]) -> NoteSummary | UnusableAnswer:
        """Return the model's summary, or the reason why there is none."""
        lines = "\n".join(conversation(recent, zone=self._zone))
        plain_messages = build_prompt(f"{_SYSTEM} {_AS_JSON}", lines)
        reply = await self._ask(tool_attempts(build_prompt(_SYSTEM, lines), _TOOL, plain_messages))
        answer: NoteSummary | UnusableAnswer
        if isinstance(reply, UnusableAnswer):
            answer = reply
        else:
            answer = read_call(reply.content, reply.tool_calls, _NAME, _read_summary)
        if isinstance(answer, UnusableAnswer):
            log.warning("notes.model_failed", reason=answer.reason)
        return answer

    async def write_note(
        self, session_key: str, recent: Sequence[Message], answer: NoteSummary | UnusableAnswer
    ) -> Path:
        """Write the note, with an excerpt of *recent* in place of an unusable answer. Idempotent; raises OSError."""
        slug, summary = ("session", "") if isinstance(answer, UnusableAnswer) else (answer.slug, answer.text)
        at = self._local_now()
        mark = f"<!-- {_name_of(session_key, recent)} -->"
        text = f"{self._note(session_key, at, summary, recent)}\n{mark}\n"
        return self.memory_dir / await self._write(f"{at:%Y-%m-%d}-{slug}", text, mark)

    @staticmethod
    def _note(session_key: str, at: datetime, summary: str, recent: Sequence[Message]) -> str:
        """Return the note in the layout of [002]."""
        key = [f"{message['role']}: {one_line(_text(message), QUOTED)}" for message in recent[:_KEY_MESSAGES]]
        excerpt = [f"{message['role']}: {one_line(_text(message), QUOTED)}" for message in recent]
        return "\n".join(
            [
                f"# Session Memory: {at:%Y-%m-%d %H:%M}",
                "",
                f"- **Session**: {session_key}",
                f"- **Date**: {at:%Y-%m-%d %H:%M:%S}",
                "",
                "## Summary",
                "",
                summary or "(no summary could be made; this is what was said)",
                "",
                "## Key Messages",
                "",
                *(key if summary else excerpt),
            ]
        )

    async def _write(self, stem: str, text: str, mark: str) -> str:
        """Store the note under a free name, unless it is stored; return its name."""
        name, n = f"{stem}.md", 2
        body = text.encode("utf-8", "replace")
        while not await self._history.write(self._scope, notes={name: NoteChange(was=None, body=body)}):
            if mark.encode() in (await self._history.note(self._scope, name) or b""):
                break  # a crash came behind the first writing
            name, n = f"{stem}-{n}.md", n + 1
        return name


def slugify(text: str) -> str:
    """Return *text* as a file name's slug: kebab-case ASCII, at most 40 characters; `session` when nothing is left."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return words[:_LONGEST_SLUG].strip("-") or "session"


def _read_summary(value: Mapping[str, Any]) -> NoteSummary | UnusableAnswer:
    text = value.get("summary")
    if not isinstance(text, str) or not text.strip():
        return UnusableAnswer("summary missing")
    return NoteSummary(slugify(str(value.get("slug", ""))), clean(text))


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _name_of(session_key: str, messages: Sequence[Message]) -> str:
    """Return a name for exactly these messages, so that their note is written once."""
    said = json.dumps([session_key, [[each.get("timestamp"), _text(each)] for each in messages]], default=str)
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:16]
