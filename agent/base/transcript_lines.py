"""Build, encode and decode transcript lines, and convert them to the messages that a model is sent.

Lines of an unknown kind are kept in the file and skipped by every reader.

Tokens are estimated without a tokenizer: four bytes of UTF-8 count as one. The difference to a provider's own counts is
corrected by a factor that is learned from them (agent/llm/model_abilities.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from agent.base.file_facts import ASIDE, facts_for_model, facts_in, pictures_in
from gateway.events import short_id
from gateway.ports.journal import Line
from gateway.text import json_lines

VERSION = 1
encode, decode, decode_lines = json_lines.encode_line, json_lines.decode_line, json_lines.decode_lines
FORGOTTEN, deleted_ids = json_lines.FORGOTTEN, json_lines.deleted_ids
_BREAK = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # the line breaks of `str.splitlines`


@dataclass(frozen=True, slots=True)
class TranscriptBlock:
    """One turn's lines, its `end` line last."""

    turn: str
    lines: tuple[Line, ...]
    from_index: int
    to_index: int  # exclusive; equal to from_index when no message is in it


# -- building --------------------------------------------------------------------------------------


def utc_now() -> datetime:
    """Return the current time, in UTC."""
    return datetime.now(UTC)


def format_time(at: datetime) -> str:
    """Format *at* in UTC, as ``2026-11-21T21:00:00Z``, with microseconds if it has any."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def parse_time(text: object) -> datetime | None:
    """Parse a line's time; without a zone it is UTC. Returns None if it is not a time."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def head_line(transcript: str, key: str, created: datetime) -> Line:
    """Return the first line of a file."""
    line: dict[str, Any] = {"v": VERSION, "kind": "head", "transcript": transcript, "key": key}
    return {**line, "created": format_time(created)}


def message(i: int, turn: str, role: str, content: Any, at: datetime, **fields: Any) -> Line:
    """Return a message line; *fields* (by, mid, head, origin, tool_calls, …) that are None are omitted.

    `files` are file facts (file_facts.py); only the model reads `quoted` and `recall`, before the content;
    `indented` means that the content is sent indented below its head; `seen` is the time of receipt by the gateway's
    clock, if it differs from *at*.
    """
    line: dict[str, Any] = {"i": i, "turn": turn, "role": role, "content": content, "timestamp": format_time(at)}
    return line | {name: value for name, value in fields.items() if value is not None}


def end_line(
    turn: str, *, from_index: int, to_index: int, inbox: Sequence[str], outcome: str, at: datetime, **fields: Any
) -> Line:
    """Return the last line of a turn; readers ignore a turn without it."""
    line = {"kind": "end", "turn": turn, "from": from_index, "to": to_index, "inbox": list(inbox), "outcome": outcome}
    return {**line, "at": format_time(at), **fields}


def pointer(last_consolidated: int, entry: str = "") -> Line:
    """Return a line that marks the messages before *last_consolidated* as summarised."""
    line: dict[str, Any] = {"kind": "pointer", "last_consolidated": last_consolidated}
    return line | ({"entry": entry} if entry else {})


def mark(replay_from: int, last_consolidated: int = 0) -> Line:
    """Return a line with the index that replay starts at."""
    line: dict[str, Any] = {"kind": "mark", "replay_from": replay_from}
    return line | ({"last_consolidated": last_consolidated} if last_consolidated else {})


def trim(before: int, *, start: int = 0, tools: int | None = None, chars: int | None = None) -> Line:
    """Return a line that shortens the messages above it, from *start* up to *before*, in prompts.

    Tool results are cut to *tools* characters, other contents to *chars*; None = no new limit.
    The stored messages do not change.
    """
    line: dict[str, Any] = {"kind": "trim", "before": before} | ({"start": start} if start else {})
    limits = {"tools": tools, "chars": chars}
    return line | {name: limit for name, limit in limits.items() if limit is not None}


def rewind(start: int, end: int) -> Line:
    """Return a line that the messages from index *start* up to *end* were replaced: no prompt and no summary has them.

    They stay in the transcript, as an earlier version. Memory's changes among them are kept.
    """
    return {"kind": "rewind", "from": start, "to": end}


def snapshot(
    n: int, blobs: Mapping[str, str], zone: str, at: int, *, replay_from: int, rev: str, epoch: str = ""
) -> Line:
    """Return a line with the inputs of the system prompt from message *at* on; *blobs* are digests by name."""
    line = {"kind": "snapshot", "n": n, "blobs": dict(blobs), "zone": zone, "at": at, "from": replay_from, "rev": rev}
    return line | ({"epoch": epoch} if epoch else {})


def delta(rev: str, text: str, added: Sequence[tuple[str, str]] = (), removed: Sequence[tuple[str, str]] = ()) -> Line:
    """Return a line with the memory's changes since the snapshot: *text* for the model, and (document, line) pairs."""
    line: dict[str, Any] = {"kind": "delta", "rev": rev, "text": text}
    return line | {"added": [list(pair) for pair in added], "removed": [list(pair) for pair in removed]}


def cut(turn: str, parts: Sequence[int]) -> Line:
    """Return a line with the parts of a stopped turn's answer that the user has seen."""
    return {"kind": "cut", "turn": turn, "shown": list(parts)}


def command(turn: str, text: str, reply: str, at: datetime, **fields: Any) -> Line:
    """Return a line with a command and its reply; it is never replayed. *fields* are those of `message`."""
    line = {"kind": "command", "turn": turn, "content": text, "reply": reply, "timestamp": format_time(at)}
    return line | fields


def notice(turn: str, text: str, at: datetime, **fields: Any) -> Line:
    """Return a line with a notice to the user (a failure, "stopped"); it is never replayed."""
    return {"kind": "notice", "turn": turn, "content": text, "timestamp": format_time(at), **fields}


def forgotten_line(mid: str) -> Line:
    """Return a line that the message with the platform id *mid* was deleted."""
    return {"kind": "forgotten", "mid": mid}


# -- writing and reading ---------------------------------------------------------------------------


def without_arguments(call: Any) -> Any:
    """Return a tool call with no arguments."""
    function = call.get("function") if isinstance(call, Mapping) else None
    return {**call, "function": {**function, "arguments": "{}"}} if isinstance(function, Mapping) else call


def kind_of(line: Line) -> str:
    """Return the line's kind: "message" for a line with a role and an index, "unknown" for an invalid one."""
    kind = line.get("kind")
    if kind is None:
        is_message = isinstance(line.get("role"), str) and isinstance(line.get("i"), int)
        return "message" if is_message else "unknown"
    return kind if isinstance(kind, str) else "unknown"


def entry_id(transcript: str, start: int, end: int) -> str:
    """Return the id of the entry that summarises this range of a transcript (docs/formats.md): the same every time."""
    return f"e{short_id(json.dumps([transcript, start, end]))}"


def consolidated_index(anchor: Line) -> int:
    """Return the number of summarised messages according to a pointer or mark, 0 for any other line."""
    value = anchor.get("last_consolidated")
    return value if isinstance(value, int) and value > 0 else 0


def is_replaced(line: Line, rewinds: Iterable[Line]) -> bool:
    """Return True if *line* is a message that one of the `rewind` lines replaces."""
    if kind_of(line) != "message":
        return False
    return any(
        isinstance(low := each.get("from"), int) and isinstance(high := each.get("to"), int) and low <= line["i"] < high
        for each in rewinds
    )


# -- replay ----------------------------------------------------------------------------------------


def to_messages(line: Line) -> list[dict[str, Any]]:
    """Return the message, if any, that the model is sent for *line*; the same bytes each time.

    A user message has its stored head, with the content indented below it; lines of earlier releases (without
    `indented`) are sent as they were then. A delta has the user role, because some providers move system messages
    to the top. Commands, notices, cuts and unknown lines are never replayed.
    """
    kind = kind_of(line)
    if kind == "delta":
        return [{"role": "user", "content": line.get("text", "")}]
    if kind != "message":
        return []
    make = {"user": _user, "assistant": _assistant, "tool": _tool}.get(line["role"])
    return [make(line)] if make else []


def indent_lines(text: str) -> str:
    """Indent every line except the first, so that a user's text cannot imitate the head of a message."""
    return _BREAK.sub(r"\g<0>  ", text)


def _user(line: Line) -> dict[str, Any]:
    content, head = line.get("content"), line.get("head")
    files = facts_in(line)
    if files and isinstance(content, str):
        content = "\n".join([content, *facts_for_model(files)] if content else facts_for_model(files))
    if head and isinstance(content, list):
        content = [{"type": "text", "text": f"[{head}]"}, *content]
    elif head:
        content = f"[{head}] {indent_lines(str(content)) if line.get('indented') else content}"
    # Text of other senders comes before the head of the message to answer.
    for name in ASIDE:
        if isinstance(content, str) and isinstance(line.get(name), str):
            content = f"{line[name]}\n{content}"
    pictures = pictures_in(files)
    if pictures and isinstance(content, str):
        content = [{"type": "text", "text": content}, *pictures]
    return {"role": "user", "content": content}


def _assistant(line: Line) -> dict[str, Any]:
    content, ending = line.get("content"), _ending(line)
    sent: dict[str, Any] = {"role": "assistant", "content": f"{content}\n{ending}".strip() if ending else content}
    if line.get("tool_calls"):
        sent["tool_calls"] = line["tool_calls"]
    if line.get("thinking"):
        sent["thinking"] = line["thinking"]  # only for the model that wrote it (agent/llm/chat_model.py)
    elif line.get("tool_calls") and line.get("model"):
        sent["thinking"] = {"model": line["model"]}  # some servers refuse what another model called
    return sent


def _ending(line: Line) -> str:
    """Return a note to the model that its answer was not sent completely, "" if it was."""
    how = "stopped by the user" if line.get("stopped") else "it broke off here" if line.get("broken") else ""
    how = how or ("no answer was sent" if line.get("dropped") else "")
    lost = "; nothing of this answer was remembered or sent" if line.get("dropped") else ""
    return f"[{how}{lost}]" if how else ""


def _tool(line: Line) -> dict[str, Any]:
    sent = {"role": "tool", "tool_call_id": line.get("tool_call_id", "")}
    if line.get("name"):
        sent["name"] = line["name"]
    return {**sent, "content": line.get("content")}


def replayable(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return *messages* in order, without orphan tool results and without tool calls that have no result.

    Every provider accepts the result. A message that is left empty is removed. Applying this to each turn alone gives
    the same messages as applying it to all turns together.
    """
    replayed: list[dict[str, Any]] = []
    n = 0
    while n < len(messages):
        sent = dict(messages[n])
        n += 1
        if sent.get("role") == "tool":
            continue
        results: list[Mapping[str, Any]] = []
        while n < len(messages) and messages[n].get("role") == "tool":
            results.append(messages[n])
            n += 1
        replayed.extend(_pair_calls(sent, results))
    return replayed


def _pair_calls(message: dict[str, Any], results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the message with the calls that have a result, and these results, each once."""
    calls = [call for call in message.get("tool_calls") or [] if isinstance(call, Mapping)]
    call_ids = {call.get("id") for call in calls}
    by_id: dict[Any, Mapping[str, Any]] = {}
    for result in results:
        if result.get("tool_call_id") in call_ids:
            by_id.setdefault(result.get("tool_call_id"), result)
    if len(by_id) != len(calls):
        completed = [call for call in calls if call.get("id") in by_id]
        message = {name: value for name, value in message.items() if name != "tool_calls"}
        if completed:
            message["tool_calls"] = completed
    if calls and not by_id and not message.get("content"):
        return []
    return [message, *map(dict, by_id.values())]


def from_user(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return *messages* from the first user message on."""
    for n, each in enumerate(messages):
        if each.get("role") == "user":
            return list(messages[n:])
    return []


BYTES_PER_TOKEN = 4
PICTURE_TOKENS = 1_000  # however many bytes it has
_FRAME = 4  # tokens around every message: its role and its ends


def estimate_text(text: str) -> int:
    """Return the estimated tokens of a text."""
    return -(-(len(text) if text.isascii() else len(text.encode("utf-8", "replace"))) // BYTES_PER_TOKEN)


def estimate_message(message: Mapping[str, Any]) -> int:
    """Return the estimated tokens of a message as sent: text, images, tool calls, thinking."""
    content = message.get("content")
    weight = _FRAME + sum(map(_weigh_part, content)) if isinstance(content, list) else _FRAME + _weigh_other(content)
    for name in ("tool_calls", "thinking"):
        if message.get(name):
            weight += _weigh_other(message[name])
    return weight


def estimate_messages(messages: Iterable[Mapping[str, Any]]) -> int:
    """Return the estimated tokens of messages or tool schemas."""
    return sum(estimate_message(each) if "role" in each else _weigh_other(each) for each in messages)


def _weigh_part(part: Any) -> int:
    if isinstance(part, Mapping) and part.get("type") == "image_url":
        return PICTURE_TOKENS
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return _FRAME + estimate_text(part["text"])
    return _weigh_other(part)


def _weigh_other(value: Any) -> int:
    if value is None:
        return 0
    return estimate_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
