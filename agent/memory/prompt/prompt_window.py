"""The state of a conversation's window, and the effect of each kind of line on it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from agent.base.file_facts import ASIDE, facts_for_replay, facts_in
from agent.base.transcript_lines import (
    FORGOTTEN,
    consolidated_index,
    deleted_ids,
    estimate_messages,
    estimate_text,
    from_user,
    is_replaced,
    kind_of,
    parse_time,
)
from agent.memory.prompt.turn_messages import turn_messages
from agent.memory.storage.messages import is_tainted_line
from gateway.ports.journal import Line
from gateway.ports.memory import anchor_index

_TAIL = 4  # a quarter of what is shown is the text's end
_NOTE = 120  # characters: a text that is not longer than its limit by this much is left alone
_SMALL = 4_000  # characters: data of calls that is never cut; signatures are of no use in part
_WHOLE = "whole"  # length of a text before its first cut; not stored


def is_trim(line: Line) -> bool:
    """Return True if *line* shortens other lines."""
    return kind_of(line) == "trim"


def apply_trims(lines: Sequence[Line]) -> list[Line]:
    """Return the lines after applying the `trim` lines among them; each applies to the lines above it."""
    shown: list[Line] = []
    for line in lines:
        shown.append(line)
        if is_trim(line):
            shown = [apply_trim(line, each) for each in shown]
    return shown


def apply_trim(trim: Line, line: Line) -> Line:
    """Return *line* as *trim* leaves it: the same object where it does nothing."""
    if kind_of(line) != "message" or not _number(trim, "start", 0) <= line["i"] < _number(trim, "before", 0):
        return line
    if line["role"] == "tool":
        limit = _number(trim, "tools", None)
        return line if limit is None else _cut_content(facts_for_replay(line), limit)
    limit = _number(trim, "chars", None)
    return line if limit is None else _cut_message(facts_for_replay(line), limit)


def _cut_message(line: Line, limit: int) -> Line:
    changes: dict[str, Any] = {}
    files = facts_in(line)
    if any(len(str(fact.get("text", ""))) > limit + _NOTE for fact in files):
        changes["files"] = [_cut_fact(fact, limit) for fact in files]
    calls = [_cut_call(call, limit) for call in line.get("tool_calls") or ()]
    if calls and calls != list(line["tool_calls"]):
        changes["tool_calls"] = calls
    if line.get("thinking") and len(json.dumps(line["thinking"], default=str)) > limit:
        changes["thinking"] = _cut_thinking(line["thinking"], limit)
    cut = _cut_content(line, limit)
    return {**cut, **changes} if changes else cut


def _cut_content(line: Line, limit: int) -> Line:
    content = line.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    if not isinstance(content, str) or len(content) <= limit + _NOTE or content == FORGOTTEN:
        return line
    whole = _number(line, _WHOLE, len(content))
    return {
        **line,
        "content": _cut(content, limit, f"[{whole} characters, not all of them shown here any more]"),
        _WHOLE: whole,
    }


def _cut_fact(fact: Mapping[str, Any], limit: int) -> Mapping[str, Any]:
    text = fact.get("text")
    return {**fact, "text": text[:limit], "is_cut": True} if isinstance(text, str) and len(text) > limit else fact


def _cut_call(call: Any, limit: int) -> Any:
    """Return a call with arguments of that size: an object with their length, because cut JSON is invalid."""
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(arguments, str) or len(arguments) <= limit + _NOTE:
        return call
    left = json.dumps({"not_shown": f"{len(arguments)} characters"})
    return {**call, "function": {**call["function"], "arguments": left}}


def _cut_thinking(data: Any, limit: int) -> Any:
    """Return the provider data of a message without its text, and without calls' data above *limit*; None = nothing.

    Providers miss a key more than its words: DeepSeek refuses a call without `reasoning_content`.
    """
    if not isinstance(data, Mapping):
        return None
    message, calls = data.get("message"), data.get("calls")
    kept: dict[str, Any] = {"model": data.get("model")}
    if isinstance(message, Mapping) and (
        texts := {name: "" for name, each in message.items() if isinstance(each, str)}
    ):
        kept["message"] = texts
    if calls and len(json.dumps(calls, default=str)) <= max(limit, _SMALL):
        kept["calls"] = calls
    return kept if len(kept) > 1 else None


def _cut(text: str, limit: int, note: str) -> str:
    """Return beginning and end of *text* with *note* in between; the note alone where nothing is to be shown."""
    if limit <= 0:
        return note
    tail = limit // _TAIL
    return f"{text[: limit - tail]}\n{note}\n{text[-tail:] if tail else ''}"


def _number(line: Mapping[str, Any], name: str, default: Any) -> Any:
    value = line.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


KEPT_WITHOUT_WINDOW = 10  # messages that are sent with `memory_window: 0` (docs/adr/seeds.md, 004)

_FRAME = 400  # tokens of the system prompt that stand in no snapshot

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSnapshot:
    """The inputs of the system prompt when the snapshot was taken. `texts` by name; a missing one is empty."""

    n: int
    zone: str
    at: int  # index of the first message under it
    replay_from: int
    rev: str  # of the memory it shows
    epoch: str  # changes when something of the scope is forgotten
    model: str = ""  # the model it was taken for; "" = unknown
    voice: str = ""  # that the operator decided instead of SOUL.md; "" = none
    tools: Mapping[str, str] = field(default_factory=dict)  # digests of their schemas by name; empty = unknown
    format: Mapping[str, str] = field(default_factory=dict)  # `prompt_format` of the code that took it; empty = unknown
    texts: Mapping[str, str]

    @property
    def weight(self) -> int:
        """Estimated tokens of the system prompt."""
        return _FRAME + sum(map(estimate_text, self.texts.values()))


def snapshot_of(line: Line, texts: Mapping[str, str]) -> PromptSnapshot | None:
    """Return the snapshot a line names, with *texts* by digest; None when one of them is lost."""
    names = line.get("blobs")
    if not isinstance(names, Mapping) or any(digest not in texts for digest in names.values()):
        return None
    return PromptSnapshot(
        n=int(line.get("n", 0)),
        zone=str(line.get("zone", "")),
        at=int(line.get("at", 0)),
        replay_from=int(line.get("from", 0)),
        rev=str(line.get("rev", "")),
        epoch=str(line.get("epoch", "")),
        model=str(line.get("model", "")),
        voice=str(line.get("voice", "")),
        tools=_strings(line.get("tools")),
        format=_strings(line.get("format")),
        texts={name: texts[digest] for name, digest in names.items()},
    )


def _strings(value: object) -> dict[str, str]:
    return {str(name): str(each) for name, each in value.items()} if isinstance(value, Mapping) else {}


def digests_of(line: Line) -> list[str]:
    """Return the digests of the texts that a snapshot line names."""
    names = line.get("blobs")
    return [str(digest) for digest in names.values()] if isinstance(names, Mapping) else []


@dataclass(slots=True)
class WindowTurn:
    """The lines of one turn that replay or memory need."""

    low: int
    high: int
    lines: list[Line]
    weight: int = 0  # tokens of its messages as they are replayed; known once `render` was asked for them


@dataclass(slots=True)
class PromptWindow:
    """A window's content; a pure function of the transcript from its replay start on."""

    turns: list[WindowTurn] = field(default_factory=list)
    replay_from: int = 0
    anchor_at: int = 0
    consolidated: int = 0  # messages before it are in a summary
    snapshot: Line | None = None  # the last one, even before the replay start
    taken: dict[str, None] = field(default_factory=dict)  # its turns, so that a record counts once


_KEPT = frozenset({"message", "delta", "snapshot", "forgotten"})


def fold(state: PromptWindow, low: int, high: int, lines: Sequence[Line]) -> None:
    """Add one turn's lines to *state*; the only place that implements the effect of each kind of line."""
    kept = kept_lines(apply_trims(lines))
    for line in filter(is_trim, lines):
        for turn in state.turns:
            turn.lines = [apply_trim(line, each) for each in turn.lines]
    if any(kind_of(line) == "snapshot" for line in kept):
        for turn in state.turns:
            turn.lines = [facts_for_replay(line) for line in turn.lines if kind_of(line) != "delta"]
        n = max(n for n, line in enumerate(kept) if kind_of(line) == "snapshot")
        state.snapshot = kept[n]
        kept = [line for m, line in enumerate(kept) if kind_of(line) != "delta" or m > n]
    _remove_replaced(state, lines)
    deleted = deleted_ids(lines)
    if deleted:
        for turn in state.turns:
            turn.lines = [_remove_message(line, deleted) for line in turn.lines]
    if kept:
        state.turns.append(WindowTurn(low, high, kept))
    for line in lines:
        if kind_of(line) in ("pointer", "mark"):
            move_start(state, anchor_index(line))
            state.anchor_at = high
            state.consolidated = max(state.consolidated, consolidated_index(line))


def _remove_replaced(state: PromptWindow, lines: Sequence[Line]) -> None:
    """Remove the messages that *lines* replace from the earlier turns; deltas and snapshots stay."""
    rewinds = [line for line in lines if kind_of(line) == "rewind"]
    if rewinds:
        for turn in state.turns:
            turn.lines = [line for line in turn.lines if not is_replaced(line, rewinds)]


def move_start(state: PromptWindow, index: int) -> None:
    """Start the replay at the turn that contains *index*; earlier turns leave the window."""
    index = max(index, state.replay_from)
    holder = next((turn.low for turn in state.turns if turn.low <= index < turn.high), index)
    state.replay_from = holder
    state.turns = [turn for turn in state.turns if turn.high > holder]


def kept_lines(lines: Sequence[Line]) -> list[Line]:
    """Return the lines that a window keeps."""
    return [line for line in lines if kind_of(line) in _KEPT]


def says(turn: WindowTurn, deleted: frozenset[str]) -> bool:
    """Return True if one of these messages belongs to *turn*."""
    return bool(deleted) and any(line.get("mid") in deleted for line in turn.lines if kind_of(line) == "message")


def _remove_message(line: Line, deleted: frozenset[str]) -> Line:
    if kind_of(line) != "message" or line.get("mid") not in deleted:
        return line
    kept = {name: value for name, value in line.items() if name not in ("files", *ASIDE)}
    return {**kept, "content": FORGOTTEN}


@dataclass(frozen=True, slots=True)
class AuxiliaryContent:
    """Content in the prompt beside the messages' text."""

    pictures: int = 0
    background: int = 0  # characters, until the next snapshot
    words_of_others: int = 0  # lines that bring some

    def __add__(self, other: AuxiliaryContent) -> AuxiliaryContent:
        return AuxiliaryContent(
            self.pictures + other.pictures,
            self.background + other.background,
            self.words_of_others + other.words_of_others,
        )


def auxiliary_content(turns: Sequence[WindowTurn]) -> AuxiliaryContent:
    """Return the auxiliary content of *turns*."""
    lines = [line for turn in turns for line in turn.lines]
    return AuxiliaryContent(
        pictures=sum(1 for line in lines if "files" in line for fact in facts_in(line) if "seen" in fact),
        background=sum(len(str(line.get(name, ""))) for line in lines for name in ASIDE),
        words_of_others=sum(map(is_tainted_line, lines)),
    )


def last_user_message_at(turns: Sequence[WindowTurn]) -> datetime | None:
    """Return when the newest message of a person was sent, by the platform's clock."""
    for turn in reversed(turns):
        said = [parse_time(line.get("timestamp")) for line in turn.lines if line.get("role") == "user"]
        if times := [at for at in said if at is not None]:
            return max(times)
    return None


def render(turns: Sequence[WindowTurn]) -> list[Message]:
    """Return the model's messages. Each turn is an exchange of its own, so that appending is enough."""
    messages: list[Message] = []
    for turn in turns:
        said = turn_messages(turn.lines)
        turn.weight = estimate_messages(said)
        messages += said
    return messages


def last_messages(messages: Sequence[Message], state: PromptWindow) -> list[Message]:
    """Return the last ten messages from a user's on; a last turn that is longer is sent whole."""
    return from_user(messages[-KEPT_WITHOUT_WINDOW:]) or render(state.turns[-1:])


def last_turns(state: PromptWindow) -> list[WindowTurn]:
    """Return the turns that `last_messages` are of."""
    count = 0
    for n in range(len(state.turns) - 1, -1, -1):
        count += len(state.turns[n].lines)
        if count >= KEPT_WITHOUT_WINDOW:
            return state.turns[n:]
    return state.turns
