"""Messages of a transcript: ranges, how a model reads them ([000], [001], [004]), taint, and names of senders.

A message is a mapping with `role`, `content` and `timestamp`: one of a `Session` or a line of a transcript. All but
`MessageReader` is pure.

Taint (ADR 15): a line is tainted if it holds a tool result with third-party content, a forwarded message, a quotation
of an unknown sender, a recalled tainted line, or a file with extracted text or a transcription. As long as such a line
is in the prompt, replies are marked `tainted`, and a marked reply taints later ones: a model that was manipulated once
repeats it. The search index stores both marks, so a hit taints as the line itself does. Pictures do not taint.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias
from zoneinfo import ZoneInfo

from cachetools import LRUCache

from agent.base.file_facts import ASIDE, UNTRUSTED, fact_line, facts_in
from agent.base.file_facts import TAINTED as TAINTED
from agent.base.transcript_lines import (
    FORGOTTEN,
    consolidated_index,
    decode_lines,
    deleted_ids,
    entry_id,
    estimate_text,
    indent_lines,
    is_replaced,
    kind_of,
)
from gateway.events import SessionKey
from gateway.ports.journal import Line
from gateway.ports.memory import StoredTurn

if TYPE_CHECKING:
    from gateway.store.transcripts import SqlTranscripts

_WORDS = ("text", "said")  # of a file's fact: extracted text, transcription
_SHORT = 6  # characters of an id
_NAMES = 1_000  # that one conversation keeps
_SEVERAL = 2  # ids stored per name; two suffice to know that it is shared
_KEPT_OF_REPLACED = ("i", "turn", "role", "timestamp", "by")
# The constants of [004].
DISABLED_MEMORY_WINDOW = 0
MIN_KEEP_COUNT = 2
MAX_KEEP_COUNT = 10
MAX_MESSAGES_WITHOUT_CONSOLIDATION = 10

DEFAULT_MEMORY_WINDOW = 100  # [000]
_UNDATED = "?"
_LEAST_SHOWN = 200  # characters of a line that are always shown

Message: TypeAlias = Mapping[str, Any]


class KeepPolicy(StrEnum):
    """How many of the newest messages a consolidation leaves in the prompt."""

    HALF = "half"  # of the window [000]
    RECENT = "recent"  # half of the window, but at most ten [004]


@dataclass(frozen=True, slots=True)
class MessageRange:
    """The messages from index *start* up to *end*, exclusive. Made before a model is called, and never recomputed."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TranscriptRange:
    """The messages from index *start* up to *end*, exclusive, of one transcript."""

    transcript: str
    start: int
    end: int

    @property
    def entry(self) -> str:
        """The id of the history entry about them: always the same."""
        return entry_id(self.transcript, self.start, self.end)


def keep_count(window: int, keep: KeepPolicy = KeepPolicy.HALF, *, archive_all: bool = False) -> int:
    """Return the number of newest messages that a consolidation keeps: at least two, or none if it archives all."""
    if archive_all:
        return 0
    half = max(MIN_KEEP_COUNT, window // 2)
    return min(MAX_KEEP_COUNT, half) if keep is KeepPolicy.RECENT else half


def next_range(
    total: int, last_consolidated: int, window: int, keep: KeepPolicy = KeepPolicy.HALF, *, archive_all: bool = False
) -> MessageRange | None:
    """Return the range that a consolidation of *total* messages summarises now; None if it is empty or switched off."""
    if window <= DISABLED_MEMORY_WINDOW:
        return None
    start = max(last_consolidated, 0)
    end = total - keep_count(window, keep, archive_all=archive_all)
    return MessageRange(start, end) if end > start else None


def is_due(total: int, last_consolidated: int, window: int, keep: KeepPolicy = KeepPolicy.HALF) -> bool:
    """Return True if the messages that are in no summary fill the window and *next_range* is not empty."""
    return total - last_consolidated >= window and next_range(total, last_consolidated, window, keep) is not None


def origin_of(messages: Sequence[Message]) -> str:
    """Return `untrusted` when any of the messages is, or carries a file that is; else `user`."""
    for message in messages:
        if message.get("origin") == UNTRUSTED or any(fact.get("origin") == UNTRUSTED for fact in facts_in(message)):
            return UNTRUSTED
    return "user"


# -- as the model reads them -----------------------------------------------------------------------


def conversation(
    messages: Sequence[Message],
    *,
    zone: str = "UTC",
    names: SenderNames | None = None,
    with_names: bool | None = None,
    with_numbers: bool = False,
) -> list[str]:
    """Return ``[YYYY-MM-DD HH:MM] ROLE [tools: a, b]: content`` for each message with text.

    *with_numbers* puts ``#12`` before the line of the message with the index 12.

    Tool results, untrusted content, tainted replies (`strip_untrusted`) and erased messages are left out; a reply
    names the tools that were called for it. Files are described; images are not included. *with_names* adds the sender
    to a user's line, by default if there are several. Senders of the same name in *names* (by default, of *messages*)
    get the end of their id. Lines within a message are indented, so that none looks like another message.
    """
    if with_names is None:
        with_names = len({_speaker(message)[0] for message in messages} - {""}) > 1
    names = names if names is not None else _names_in(messages)
    lines: list[str] = []
    tools: list[str] = []
    for message in strip_untrusted(messages):
        role = str(message.get("role") or "")
        if role == "user":
            tools = []
        tools += [name for name in _tools(message) if name not in tools]
        said = "" if role in ("", "tool", "function") else _content(message)
        if said:
            who = _who(role, message, tools, names if with_names else None)
            number = f"#{message['i']} " if with_numbers and "i" in message else ""
            lines.append(f"{number}[{moment(message.get('timestamp'), zone)}] {who}: {indent_lines(said)}")
            tools = []
    return lines


def fit_to_tokens(messages: Sequence[Message], *, zone: str = "UTC", tokens: int = 0) -> tuple[int, list[str]]:
    """Return the number of *messages* that fit a prompt of so many tokens, and their numbered lines; 0 = no limit.

    The range ends before a user message and is never empty: a turn that is too long by itself is cut.
    """
    with_names = len({_speaker(message)[0] for message in messages} - {""}) > 1
    names = _names_in(messages)
    messages = strip_untrusted(messages)  # all at once, because earlier messages taint later ones
    if not tokens:
        return len(messages), conversation(messages, zone=zone, names=names, with_names=with_names, with_numbers=True)
    lines: list[str] = []
    count = left = 0
    for start, end in _turns(messages):
        more = conversation(messages[start:end], zone=zone, names=names, with_names=with_names, with_numbers=True)
        weight = sum(estimate_text(line) + 1 for line in more)
        if not lines and weight > tokens:
            more, weight = shorten_lines(more, tokens), tokens
        left = tokens - weight if not lines else left - weight
        if left < 0:
            break
        lines += more
        count = end
    return count, lines


def _turns(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Yield the range of each user message with the replies to it."""
    start = 0
    for n in range(1, len(messages) + 1):
        if n == len(messages) or (messages[n].get("role") == "user" and messages[n - 1].get("role") != "user"):
            yield start, n
            start = n


def shorten_lines(lines: Sequence[str], tokens: int) -> list[str]:
    """Return *lines*, the longest cut until they weigh no more than *tokens* or each is short."""
    limit = max(map(len, lines))
    shown = list(lines)
    while limit > _LEAST_SHOWN and sum(estimate_text(line) + 1 for line in shown) > tokens:
        limit //= 2
        shown = [
            line if len(line) <= limit else f"{line[:limit]} [{len(line)} characters, not all of them shown here]"
            for line in lines
        ]
    return shown


def _names_in(messages: Sequence[Message]) -> SenderNames:
    names = SenderNames()
    for message in messages:
        names.note(*_speaker(message))
    return names


def _who(role: str, message: Message, tools: Sequence[str], names: SenderNames | None) -> str:
    if role == "user":
        name = names.label(*_speaker(message)) if names is not None else ""
        return f"USER ({name})" if name else "USER"
    return role.upper() + (f" [tools: {', '.join(tools)}]" if tools else "")


def moment(stamp: object, zone: str = "UTC") -> str:
    """Return ``YYYY-MM-DD HH:MM`` in *zone*; a time without a zone (the seeds wrote such) stays as it is."""
    if not isinstance(stamp, str):
        return _UNDATED
    try:
        at = datetime.fromisoformat(stamp)
    except ValueError:
        return _UNDATED
    return f"{at.astimezone(ZoneInfo(zone)) if at.tzinfo else at:%Y-%m-%d %H:%M}"


def own_words(messages: Sequence[Message]) -> list[tuple[int, str]]:
    """Return index and text of the messages that people wrote while no untrusted content was in the prompt."""
    tainted = {str(message.get("turn")) for message in messages if is_tainted_line(message)}
    return [
        (int(message.get("i", n)), _content(message))
        for n, message in enumerate(messages)
        if message.get("role") == "user" and str(message.get("turn")) not in tainted
    ]


def _content(message: Message) -> str:
    """Return the text of a message."""
    content = message.get("content")
    if content == FORGOTTEN:
        return ""
    pieces = [content] if isinstance(content, str) else list(_parts(content))
    pieces += [fact_line(fact) for fact in facts_in(message)]
    return "\n".join(piece for piece in (_clean(piece) for piece in pieces) if piece)


def _parts(content: object) -> Iterator[str]:
    """Yield what the parts of a multi-part content say: texts, and for anything else what it is."""
    for part in content if isinstance(content, list | tuple) else ():
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping):
            if isinstance(part.get("text"), str):
                yield part["text"]
            elif isinstance(part.get("type"), str):
                kind = part["type"].removeprefix("input_").removesuffix("_url")
                name = part.get("name") or part.get("filename")
                yield f"({kind} {name})" if isinstance(name, str) else f"({kind})"


def _tools(message: Message) -> list[str]:
    """Return the names of the tools that a message calls, in our format or in that of [000]."""
    names = []
    calls, used = message.get("tool_calls"), message.get("tools_used")
    for call in calls if isinstance(calls, list | tuple) else ():
        function = call.get("function", call) if isinstance(call, Mapping) else None
        names.append(function.get("name") if isinstance(function, Mapping) else None)
    names += used if isinstance(used, list | tuple) else []
    return [" ".join(name.split())[:64] for name in names if isinstance(name, str) and name.strip()]


def _speaker(message: Message) -> tuple[str, str]:
    """Return id and name of who wrote a message; empty where that is not known."""
    by = message.get("by")
    if not isinstance(by, Mapping):
        return "", ""
    name = " ".join(str(by.get("name") or by.get("id") or "").split())
    return str(by.get("id") or name), name.translate(str.maketrans("", "", "[]():"))[:64].strip()


def _clean(text: str) -> str:
    """Return *text* as every provider takes it."""
    valid = text.encode("utf-8", "replace").decode("utf-8").replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return valid.strip()


# -- taint -----------------------------------------------------------------------------------------


def is_tainted_line(line: Mapping[str, Any]) -> bool:
    """Return True if *line* holds untrusted content, or a reply made with it in the prompt."""
    if line.get(TAINTED):
        return True
    if line.get("origin") == UNTRUSTED or any(
        line.get(f"{name}_origin") == UNTRUSTED for name in ASIDE if line.get(name)
    ):
        return True
    return any(fact.get("origin") == UNTRUSTED and any(fact.get(name) for name in _WORDS) for fact in facts_in(line))


def origin_of_words(line: Mapping[str, Any]) -> str:
    """Return the origin of the content of *line*: "untrusted", "tainted", or "" for trusted text.

    Files, quotations and recalled text beside the content are ignored, because search does not show them.
    """
    return TAINTED if line.get(TAINTED) else UNTRUSTED if line.get("origin") == UNTRUSTED else ""


def has_tainted_line(lines: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if any of *lines* is tainted."""
    return any(is_tainted_line(line) for line in lines)


def strip_untrusted(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return *messages*, same number and order, without untrusted content and tainted replies.

    Messages of admitted senders and replies made without untrusted content in the prompt stay. Files keep their facts.
    """
    kept: list[Mapping[str, Any]] = []
    is_tainted = False  # for lines that were written before they were flagged, or elsewhere
    for message in messages:
        is_tainted = is_tainted or is_tainted_line(message)
        is_bots = message.get("role") == "assistant"
        is_left_out = message.get("origin") == UNTRUSTED or (is_bots and is_tainted)
        kept.append(_without_words(message, all_of_it=is_left_out))
    return kept


def _without_words(message: Mapping[str, Any], *, all_of_it: bool) -> Mapping[str, Any]:
    files = [fact if fact.get("origin") != UNTRUSTED else _facts_only(fact) for fact in facts_in(message)]
    if not all_of_it and not files:
        return message
    changed: dict[str, Any] = {name: value for name, value in message.items() if name not in ("origin", "files")}
    if all_of_it:
        return changed | {"content": ""}
    return changed | {"files": files}


def _facts_only(fact: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of a file without its content."""
    return {name: value for name, value in fact.items() if name not in (*_WORDS, "caption", "origin")}


# -- names of senders ------------------------------------------------------------------------------


class SenderNames:
    """The names of one conversation's people, by how they read: case, blanks and signs make no difference."""

    def __init__(self) -> None:
        self._users: LRUCache[str, tuple[str, ...]] = LRUCache(_NAMES)

    def note(self, user: str, name: str) -> None:
        """Take note that the user with this id speaks as *name*."""
        folded = _fold(name)
        known = self._users.get(folded, ())
        self._users[folded] = known if user in known or len(known) == _SEVERAL else (*known, user)

    def note_line(self, line: Mapping[str, Any]) -> None:
        """Record the sender of a transcript line or a message."""
        by = line.get("by")
        if isinstance(by, Mapping) and by.get("id"):
            self.note(str(by["id"]), str(by.get("name") or ""))

    def label(self, user: str, name: str) -> str:
        """Return *name*, with the end of the user's id in brackets if others speak under it too."""
        if len(self._users.get(_fold(name), ())) < _SEVERAL or not user:
            return name
        return f"{name} ({user[-_SHORT:]})".strip()


def _fold(name: str) -> str:
    plain = unicodedata.normalize("NFKC", name).casefold()
    return "".join(sign for sign in plain if sign.isalnum())


# -- reading messages by index ---------------------------------------------------------------------


class MessageReader:
    """Reads messages of stored turns."""

    def __init__(self, transcripts: SqlTranscripts) -> None:
        self._transcripts = transcripts

    async def messages(self, scope: str, key: SessionKey, transcript: str, start: int, end: int) -> list[Line]:
        """Return the message lines from *start* up to *end*, in order; fewer if some are missing.

        Those that were replaced by another version are empty: memory is made of what a conversation went on with.
        Deleted messages have the content FORGOTTEN.
        """
        turns = await self._transcripts.messages(scope, key, transcript, start, end)
        return await asyncio.to_thread(messages_between, turns, start, end, without_replaced=True)

    async def extent(self, scope: str, key: SessionKey, transcript: str) -> tuple[int, int]:
        """Return the index up to which the transcript is summarised, and its number of messages."""
        turns = (await self._transcripts.window(scope, key, transcript)).turns
        lines = [line for each in turns for line in decode_lines(each.body)]
        anchors = [line for line in lines if kind_of(line) in ("pointer", "mark")]
        return max(map(consolidated_index, anchors), default=0), max((each.to_index for each in turns), default=0)


def messages_between(turns: Sequence[StoredTurn], low: int, high: int, *, without_replaced: bool = False) -> list[Line]:
    """Return the message lines with ``low <= i < high`` of *turns*, which has later turns that change them too.

    *without_replaced* empties the messages that were replaced by another version.
    """
    messages: dict[int, Line] = {}
    deleted: set[str] = set()
    rewinds: list[Line] = []
    for each in turns:
        lines = decode_lines(each.body)
        deleted |= deleted_ids(lines)
        rewinds += [line for line in lines if without_replaced and kind_of(line) == "rewind"]
        messages |= {line["i"]: line for line in lines if kind_of(line) == "message" and low <= line["i"] < high}
    for i, line in messages.items():
        if is_replaced(line, rewinds):
            messages[i] = {name: line[name] for name in _KEPT_OF_REPLACED if name in line} | {"content": ""}
    return [
        {**line, "content": FORGOTTEN} if line.get("mid") in deleted else line for _, line in sorted(messages.items())
    ]
