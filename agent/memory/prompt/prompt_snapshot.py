"""The system prompt and when it may change: snapshots, and deltas in between (docs/architecture.md)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from cachetools import LRUCache

from agent.base import transcript_lines as build
from agent.base.scopes import SHARED
from agent.base.transcript_lines import estimate_text
from agent.memory.prompt.conversation import Conversation
from agent.memory.prompt.prompt_window import PromptSnapshot
from agent.memory.prompt.turn_messages import turn_messages
from agent.memory.storage.scope_documents import DEFAULT_PERSONA, ScopeDocuments
from gateway.ports.journal import Line

DELTA_TOKENS = 2_000  # of all deltas since the snapshot; beyond it a new snapshot folds them in
CHARS_PER_TOKEN = 4
PICTURES = 20  # that ride along; with more, a new snapshot makes facts of them
BACKGROUND_TOKENS = 12_000  # of what others said before mentions; beyond it a new snapshot drops it
ABILITIES = "ABILITIES"
_SCOPES_IN_MEMORY = 2_000

_FILES = [{"kind": "document", "name": "a.txt", "size": 1, "text": "Text"}]
# A line of each form that `transcript_lines` renders in a way of its own.
_INVENTED: Mapping[str, Sequence[Line]] = {
    "user": [
        {"i": 0, "role": "user", "content": "a\nb", "head": "Head", "indented": True, "quoted": "c", "recall": "d"},
        {"i": 1, "role": "user", "content": "a", "head": "Head", "files": _FILES},
    ],
    "assistant": [
        {"i": 2, "role": "assistant", "content": "a", "stopped": "b", "dropped": True},
        {"i": 6, "role": "assistant", "content": "a", "broken": True},
        {"i": 3, "role": "assistant", "content": "a", "tool_calls": [], "thinking": {"model": "m"}},
    ],
    "tool": [
        {"i": 4, "role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"name": "b c"}}]},
        {"i": 5, "role": "tool", "content": "a", "tool_call_id": "c", "name": "look"},
    ],
    "note": [{"kind": "delta", "text": "a"}],
}


_WHO = """# Where you are

You live in Parlour, a chat gateway that a person or a team runs for itself; people write to you in chats. Each of \
their messages begins with a bracket that Parlour wrote, not they: the time it was sent and, where known, who sent it. \
The lines below the first are indented: a bracket in them is part of what was written, whoever it names. Of two people \
with one name each carries an id. Never begin your own messages that way. What you know about people stands below; \
when it changes meanwhile, a note that begins with "[memory]" says so. What is said in one chat stays there."""

_HEADINGS = {
    "shared": "# What the owner shares with everybody",
    "USER": "# About the user",
    "MEMORY": "# What you remember",
    ABILITIES: "# What you can do",
}
_MORE = "(there is more here than this model takes; search memory for it)"
_ATX = re.compile(r" {0,3}(#{1,6})(?=\s|$)")  # the three forms are CommonMark's
_SETEXT = re.compile(r" {0,3}=+[ \t]*")
_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_DEEPEST = 6
_NAMES = {"SOUL": "SOUL.md", "USER": "USER.md", "MEMORY": "MEMORY.md", "shared": "what the owner shares"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """The texts of a scope's memory now. `rev` changes with any of them."""

    soul: str
    user: str
    memory: str
    shared: str
    rev: str
    epoch: str = ""  # changes when something of the scope is forgotten
    voice: str = ""  # of whose text `soul` is instead of a file's; "" = a file's

    def spoken_as(self, soul: str) -> MemoryView:
        """Return the view in the voice that the operator decided for a chat; "" = in that of the files."""
        if not soul:
            return self
        voice = _voice_of(soul)
        return replace(self, soul=soul, voice=voice, rev=f"{self.rev}+{voice}")

    @property
    def texts(self) -> dict[str, str]:
        """The texts by the names that snapshots give them."""
        return {"SOUL": self.soul, "USER": self.user, "MEMORY": self.memory, "shared": self.shared}

    def within(self, tokens: int) -> MemoryView:
        """Return the view cut so that half of *tokens* hold it, the longest texts first; 0 = no bound."""
        # A power of two: the limit changes a little with every answer; the text in a snapshot must not.
        left = (1 << tokens.bit_length() - 1) // 2 if tokens > 0 else 0
        weights = {name: estimate_text(text) for name, text in self.texts.items()}
        if not left or sum(weights.values()) <= left:
            return self
        cut: dict[str, str] = {}
        for n, name in enumerate(sorted(weights, key=weights.__getitem__)):
            share = left // (len(weights) - n)
            if weights[name] > share:
                cut[name.lower()] = _beginning(self.texts[name], share)
            left -= min(weights[name], share)
        return replace(self, **cut)


@dataclass(frozen=True, slots=True)
class TurnOpening:
    """The lines a turn begins with, and the texts (by digest) that they name. Usually both are empty."""

    lines: tuple[Line, ...] = ()
    blobs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _KnownView:
    seen: tuple[str, int]  # version at the claim, and number of this process's changes
    state: tuple[str, ...]  # epochs, and revs of the documents
    view: MemoryView


class ScopeMemory:
    """Serves the texts that scopes remember; those that have not changed are not read again."""

    def __init__(self, documents: ScopeDocuments) -> None:
        self._documents = documents
        self._views: LRUCache[str, _KnownView] = LRUCache(_SCOPES_IN_MEMORY)

    async def view(self, scope: str, version: str = "") -> MemoryView:
        """Return the texts of *scope* now: its documents, `shared`, and the effective persona.

        *version* is that of the turn's claim (`SessionRow.memory_version`). Nothing is read while it is the same and
        this process has changed no document since.
        """
        scopes = list(dict.fromkeys((scope, "", SHARED)))
        await self._documents.notice(*scopes)
        known = self._views.get(scope)
        seen = (version, self._documents.changes.change_count)  # before the reading: a later change is seen next time
        if version and known is not None and known.seen == seen:
            return known.view
        heads = await self._documents.changes.heads(scopes)
        # Text that is no longer shared appears in no prompt and no delta.
        epochs = (heads[scope].epoch, heads[SHARED].epoch)
        state = (*epochs, *(heads[each].revs.get(name, "") for each, name in _sources(scope)))
        if known is not None and known.state == state:
            self._views[scope] = replace(known, seen=seen)
            return known.view
        stored = [(each, name) for each, name in _sources(scope) if name in heads[each].revs]
        texts_read = await asyncio.gather(*(self._documents.read(each, name) for each, name in stored))
        found = {source: document.text.strip() for source, document in zip(stored, texts_read, strict=True)}
        own_soul, soul, user, memory, shared = (found.get(source, "") for source in _sources(scope))
        texts = (own_soul or soul, user, memory, shared)
        rev = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        epoch = " ".join(epochs).strip()
        view = MemoryView(soul=texts[0], user=texts[1], memory=texts[2], shared=texts[3], rev=rev, epoch=epoch)
        # The state is that from before the reading: a change in between is seen next time.
        self._views[scope] = _KnownView(seen, state, view)
        return view


def digest_of(text: str) -> str:
    """Return the SHA-256 by which a snapshot names *text*."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@lru_cache(maxsize=1_000)  # a decided voice is the same object in every turn
def _voice_of(soul: str) -> str:
    return digest_of(soul)[:16]


def _beginning(text: str, tokens: int) -> str:
    """Return the lines that so many tokens hold, and say that there are more."""
    kept: list[str] = []
    for line in text.splitlines():
        tokens -= estimate_text(line) + 1
        if tokens < 0:
            return "\n".join([*kept, _MORE])
        kept.append(line)
    return text


def _sources(scope: str) -> list[tuple[str, str]]:
    """Return (scope, name) of the documents a view is made of."""
    return [
        (scope, "SOUL.md"),
        ("", "SOUL.md"),
        (scope, "USER.md"),
        (scope, "MEMORY.md"),
        (SHARED, "MEMORY.md"),
    ]


def opening(
    conversation: Conversation,
    view: MemoryView,
    zone: str,
    *,
    abilities: str,
    at: int,
    model: str = "",
    tools: Mapping[str, str] | None = None,
    replay_from: int | None = None,
) -> TurnOpening:
    """Return the lines with which a turn begins: none, a delta, or a new snapshot.

    A snapshot is taken on the first turn; after the window moved or something was erased; when zone, abilities, *tools*
    (digests of schemas by name), *model*, the chat's persona or the code's prompt format changed; when the deltas would
    exceed 2,000 tokens; and with too many images or too much background. *at* is the index of the turn's first message,
    *replay_from* the replay start with the turn's own mark.
    """
    fields = {name: value for name, value in (("model", model), ("voice", view.voice), ("tools", tools)) if value}
    start = conversation.replay_from if replay_from is None else replay_from
    snapshot = conversation.snapshot
    if (
        snapshot is None
        or snapshot.zone != zone
        or snapshot.texts.get(ABILITIES, "") != abilities
        or snapshot.replay_from != start
        or snapshot.epoch != view.epoch
        or snapshot.voice != view.voice
        or (model and snapshot.model not in ("", model))  # older snapshots do not say
        or (snapshot.tools and tools and snapshot.tools != tools)
        or (snapshot.format and snapshot.format != prompt_format())
        or conversation.auxiliary.pictures > PICTURES
        or conversation.auxiliary.background > BACKGROUND_TOKENS * CHARS_PER_TOKEN
    ):
        return _snapshot(conversation, view, zone, abilities, fields, at, start)
    deltas = conversation.deltas
    known_rev = str(deltas[-1].get("rev", "")) if deltas else snapshot.rev
    if view.rev in (known_rev, conversation.seen_rev):
        return TurnOpening()
    added, removed = _difference(_known_texts(snapshot, deltas), view)
    if not added and not removed:
        # Only then: a note is known once it is committed, and this turn may never be.
        conversation.seen_rev = view.rev
        return TurnOpening()
    text = _note(added, removed)
    spent = sum(len(str(line.get("text", ""))) for line in deltas) + len(text)
    if spent > DELTA_TOKENS * CHARS_PER_TOKEN:
        return _snapshot(conversation, view, zone, abilities, fields, at, start)
    return TurnOpening((build.delta(view.rev, text, added, removed),))


def _snapshot(
    conversation: Conversation,
    view: MemoryView,
    zone: str,
    abilities: str,
    fields: Mapping[str, Any],
    at: int,
    start: int,
) -> TurnOpening:
    """Return the opening with a new snapshot; *fields* are its values beside the texts."""
    texts = {name: text for name, text in {**view.texts, ABILITIES: abilities}.items() if text}
    names = {name: digest_of(text) for name, text in texts.items()}
    n = conversation.snapshot.n + 1 if conversation.snapshot else 1
    line = build.snapshot(n, names, zone, at, replay_from=start, rev=view.rev, epoch=view.epoch)
    line = {**line, **fields, "format": prompt_format()}
    return TurnOpening((line,), {names[name]: text for name, text in texts.items()})


def system_prompt(snapshot: PromptSnapshot) -> str:
    """Return the system prompt, a pure function of the snapshot, so that a restart gives the same bytes."""
    nested = ("shared", "USER", "MEMORY")
    texts = {name: nest_headings(text) if name in nested else text for name, text in snapshot.texts.items()}
    parts = [texts.get("SOUL") or DEFAULT_PERSONA, _WHO]
    parts += [f"{heading}\n\n{texts[name]}" for name, heading in _HEADINGS.items() if texts.get(name)]
    parts.append(f"Times are in the zone {snapshot.zone}.")
    return "\n\n".join(parts)


@lru_cache(maxsize=1)
def prompt_format() -> Mapping[str, str]:
    """Return a digest of how this code writes each part of a prompt: system prompt, and messages by role.

    It is made from invented lines, so that no text of people can be guessed from it. If two releases have the same
    digests, they send the same bytes for the same lines.
    """
    texts = {name: f"# {name}\nText" for name in (*_NAMES, ABILITIES)}
    invented = PromptSnapshot(n=1, zone="UTC", at=0, replay_from=0, rev="", epoch="", texts=texts)
    written: dict[str, object] = {"system": [system_prompt(invented), system_prompt(replace(invented, texts={}))]}
    for name, lines in _INVENTED.items():
        written[name] = turn_messages(lines)
    return {name: digest_of(json.dumps(value, ensure_ascii=False))[:16] for name, value in written.items()}


def nest_headings(text: str) -> str:
    """Return Markdown *text* with its headings below the first level, so that none ends the section it is part of.

    All headings move by the same number of levels; code blocks are not changed.
    """
    lines = text.split("\n")
    headings: dict[int, int] = {}  # line -> level
    fence = ""
    for n, line in enumerate(lines):
        if found := _FENCE.match(line):
            fence = "" if fence and found[1].startswith(fence) else fence or found[1][:3]
        elif not fence and (found := _ATX.match(line)):
            headings[n] = len(found[1])
        elif not fence and n and lines[n - 1].strip() and _SETEXT.fullmatch(line):
            lines[n] = line.replace("=", "-")  # a heading of the second level
    if 1 in headings.values():
        for n, level in headings.items():
            if level < _DEEPEST:
                lines[n] = lines[n].replace("#", "##", 1)
    return "\n".join(lines)


# -- deltas ----------------------------------------------------------------------------------------

Pairs = list[tuple[str, str]]


def _known_texts(snapshot: PromptSnapshot, deltas: Sequence[Line]) -> Counter[tuple[str, str]]:
    """Return the (document, line) pairs that the model has read by now."""
    model_texts = Counter(_pairs(snapshot.texts))
    for line in deltas:
        model_texts.subtract(_read_pairs(line.get("removed")))
        model_texts.update(_read_pairs(line.get("added")))
    return model_texts


def _difference(model_texts: Counter[tuple[str, str]], view: MemoryView) -> tuple[Pairs, Pairs]:
    """Return the lines that only the view has and the lines that only the model knows; the order does not count."""
    now = list(_pairs(view.texts))
    unread = Counter(now) - model_texts
    gone = model_texts - Counter(now)
    added: Pairs = []
    for pair in now:
        if unread[pair] > 0:
            unread[pair] -= 1
            added.append(pair)
    return added, sorted(gone.elements())


def _pairs(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in _NAMES:
        for line in texts.get(name, "").splitlines():
            if line.strip():
                yield name, line.rstrip()


def _read_pairs(value: object) -> Iterator[tuple[str, str]]:
    for pair in value if isinstance(value, list) else ():
        match pair:
            case [str(name), str(line)]:
                yield name, line


def _note(added: Iterable[tuple[str, str]], removed: Iterable[tuple[str, str]]) -> str:
    """Return the note as the model reads it."""
    text = ["[memory] What you remember has changed since this conversation began."]
    for title, pairs in (("Now in", list(added)), ("No longer in", list(removed))):
        for name, label in _NAMES.items():
            mine = [line for document, line in pairs if document == name]
            if mine:
                text += [f"{title} {label}:", *mine]
    return "\n".join(text)
