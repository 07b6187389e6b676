"""Dated notes by a model ([002]): lasting facts before a compaction, and a note at the end of a session.

The library writes them into a folder, the gateway into the rows of a scope's history. Conversations of greetings alone
are left out; words decide that, without a model.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import structlog

from agent.base.disk import Disk
from agent.base.transcript_lines import estimate_text, utc_now
from agent.llm.model_calls import (
    LlmProvider,
    ProviderReply,
    UnusableAnswer,
    build_prompt,
    call_provider,
    clean,
    read_call,
    tool_attempts,
)
from agent.memory.history.folder_store import FolderHistory, require_unowned
from agent.memory.storage.messages import Message, conversation, strip_untrusted
from gateway.ports.memory import HistoryStore, MarkKind, NoteChange
from gateway.text.message_text import one_line

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
_PHRASES = """
hi hello hey hiya howdy yo greetings morning evening bye goodbye ciao cheers thanks thx ty test testing ping
good morning | good afternoon | good evening | good night | good day | hi there | hello there | hey there
how are you | how are you today | how are you doing | how is it going | hows it going | whats up | what is up
thank you | thanks a lot | see you | see you later | anyone there | are you there | you there
hallo moin servus tach tschüss tschüs danke huhu tschau guten
guten morgen | guten tag | guten abend | gute nacht | grüß gott | grüß dich | grüezi | wie gehts | wie geht es dir
wie gehts dir | wie geht es ihnen | bis bald | bis dann | auf wiedersehen | vielen dank | danke schön | bist du da
bonjour salut coucou bonsoir merci allo
bonne nuit | bonne journée | ça va | comment ça va | comment vas tu | comment allez vous | merci beaucoup | au revoir
à bientôt | tu es là
hola buenas adiós gracias chao
buenos días | buenas tardes | buenas noches | qué tal | cómo estás | cómo está | cómo estás hoy | muchas gracias
hasta luego | hasta pronto | estás ahí
你好 您好 嗨 早安 早上好 下午好 晚上好 晚安 再见 谢谢 你好吗 在吗
"""
_WORD = re.compile(r"[^\W_]+")
_REPEATED = re.compile(r"(.)\1+")
_WAVE = re.compile("[\U0001f44b\U0001f3fb-\U0001f3ff\\s.,;:!?¡¿'’…。，！？-]*")  # a waving hand, and punctuation
_CONTENT_KEYS = ("files", "quoted")
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
        self._history = history or FolderHistory(Path(workspace), disk)
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


# -- session notes ([002], phase 1) ----------------------------------------------------------------


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


# -- conversations of greetings alone --------------------------------------------------------------


def has_only_greetings(messages: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if the user messages are greetings alone, without files, and no tool was called."""
    said = False
    for message in messages:
        if message.get("tool_calls") or message.get("tools_used") or message.get("role") in ("tool", "function"):
            return False
        if message.get("role") != "user":
            continue
        content = message.get("content")
        if (
            not isinstance(content, str)
            or any(message.get(name) for name in _CONTENT_KEYS)
            or not _is_greeting(content)
        ):
            return False
        said = True
    return said


def _is_greeting(text: str) -> bool:
    words = tuple(map(_stem, _WORD.findall(text.lower().replace("'", "").replace("’", ""))))
    if not words:
        return bool(_WAVE.fullmatch(text))
    at = 0
    while at < len(words):
        length = next((n for n in range(_LONGEST, 0, -1) if words[at : at + n] in _GREETINGS), 0)
        if not length:
            return False
        at += length
    return bool(_WAVE.fullmatch(_WORD.sub("", text)))


def _stem(word: str) -> str:
    """Return *word* with repeated letters as one: `heyyy` is `hey`."""
    return _REPEATED.sub(r"\1", word)


def _greetings() -> frozenset[tuple[str, ...]]:
    phrases: set[tuple[str, ...]] = set()
    for line in _PHRASES.strip().splitlines():
        pieces = line.split("|") if "|" in line else line.split()
        phrases |= {tuple(map(_stem, piece.split())) for piece in pieces}
    return frozenset(phrases)


_GREETINGS = _greetings()
_LONGEST = max(map(len, _GREETINGS))
