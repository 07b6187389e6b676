"""Transcript lines: how they are built, written, read, and what the model is sent for them (FORMATS.md, Transcript).

Kinds that this version does not know are kept in the file and skipped by every reader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from agent.attachments.file_facts import ASIDE, facts_for_model, facts_in, pictures_in
from gateway.ports import Line

VERSION = 1
FORGOTTEN = "[forgotten]"  # stands in place of a content that was taken back, so that indices stand


_BREAK = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # what `str.splitlines` cuts at


# -- building --------------------------------------------------------------------------------------


def utc_now() -> datetime:
    """Return the present moment, aware UTC."""
    return datetime.now(UTC)


def format_time(at: datetime) -> str:
    """Return *at* as lines carry it: UTC, ``2026-11-21T21:00:00Z``, with microseconds where it has some."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def parse_time(text: object) -> datetime | None:
    """Return the moment a line names, aware; a time without a zone (the seeds wrote such) counts as UTC."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def head_line(transcript: str, key: str, created: datetime, *, segment: int = 0, base: int = 0) -> Line:
    """Begin a file. A later segment says how many bytes of the transcript stand before it."""
    line: dict[str, Any] = {"v": VERSION, "kind": "head", "transcript": transcript, "key": key}
    line["created"] = format_time(created)
    return {**line, "segment": segment, "base": base} if segment else line


def message(i: int, turn: str, role: str, content: Any, at: datetime, **fields: Any) -> Line:
    """Say something: *fields* are those of FORMATS.md (by, mid, head, origin, tool_calls, …); None is left out.

    `files` are facts (file_facts.py); `quoted` and `recall` are what the model reads before the words,
    and nobody else; `indented` says that the words are sent indented below their head. `seen` is when it stood in the
    chat, by our own clock, where that is not *at*.
    """
    line: dict[str, Any] = {"i": i, "turn": turn, "role": role, "content": content, "timestamp": format_time(at)}
    return line | {name: value for name, value in fields.items() if value is not None}


def end_line(
    turn: str, *, from_index: int, to_index: int, inbox: Sequence[str], outcome: str, at: datetime, **fields: Any
) -> Line:
    """Close a turn; without this line it is not there."""
    line = {"kind": "end", "turn": turn, "from": from_index, "to": to_index, "inbox": list(inbox), "outcome": outcome}
    return {**line, "at": format_time(at), **fields}


def pointer(last_consolidated: int, entry: str = "") -> Line:
    """Say that everything before *last_consolidated* is in a summary; the projector adds the offsets."""
    line: dict[str, Any] = {"kind": "pointer", "last_consolidated": last_consolidated}
    return line | ({"entry": entry} if entry else {})


def mark(replay_from: int, last_consolidated: int = 0) -> Line:
    """Say where replay starts between pointers, and what the last pointer said; the projector adds the offsets."""
    line: dict[str, Any] = {"kind": "mark", "replay_from": replay_from}
    return line | ({"last_consolidated": last_consolidated} if last_consolidated else {})


def trim(before: int, *, start: int = 0, tools: int | None = None, chars: int | None = None) -> Line:
    """Say that prompts show less of the messages from *start* up to *before* that stand above this line.

    At most *tools* characters of what a tool returned, and *chars* of anything else; None = as much as before.
    The messages themselves stay whole.
    """
    line: dict[str, Any] = {"kind": "trim", "before": before} | ({"start": start} if start else {})
    limits = {"tools": tools, "chars": chars}
    return line | {name: limit for name, limit in limits.items() if limit is not None}


def snapshot(
    n: int, blobs: Mapping[str, str], zone: str, at: int, *, replay_from: int, rev: str, epoch: str = ""
) -> Line:
    """Say what the system prompt is made of from message *at* on; *blobs* are digests by name."""
    line = {"kind": "snapshot", "n": n, "blobs": dict(blobs), "zone": zone, "at": at, "from": replay_from, "rev": rev}
    return line | ({"epoch": epoch} if epoch else {})


def delta(rev: str, text: str, added: Sequence[tuple[str, str]] = (), removed: Sequence[tuple[str, str]] = ()) -> Line:
    """Say what memory learnt since the snapshot: the note as the model reads it, and (document, line) pairs."""
    line: dict[str, Any] = {"kind": "delta", "rev": rev, "text": text}
    return line | {"added": [list(pair) for pair in added], "removed": [list(pair) for pair in removed]}


def cut(turn: str, shown: Sequence[int]) -> Line:
    """Say which parts of a stopped turn's answer were shown."""
    return {"kind": "cut", "turn": turn, "shown": list(shown)}


def command(turn: str, typed: str, reply: str, at: datetime, **fields: Any) -> Line:
    """A command and what it answered: shown, never replayed. *fields* as in `message` (by, mid; `seen` is its own)."""
    line = {"kind": "command", "turn": turn, "content": typed, "reply": reply, "timestamp": format_time(at)}
    return line | fields


def notice(turn: str, text: str, at: datetime, **fields: Any) -> Line:
    """A line of ours (a failure, "stopped"): shown, never replayed."""
    return {"kind": "notice", "turn": turn, "content": text, "timestamp": format_time(at), **fields}


def forgotten_line(mid: str) -> Line:
    """Say that the message with the platform's id *mid* was taken back."""
    return {"kind": "forgotten", "mid": mid}


# -- writing and reading ---------------------------------------------------------------------------


def encode(line: Line) -> bytes:
    """Return the line as its bytes, newline included."""
    text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can carry
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes) -> Line | None:
    """Return the line, or None when these bytes are none."""
    try:
        line = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def kind_of(line: Line) -> str:
    """Return the line's kind; what has a role and no kind is a message, and anything odd is unknown."""
    kind = line.get("kind")
    if kind is None:
        is_message = isinstance(line.get("role"), str) and isinstance(line.get("i"), int)
        return "message" if is_message else "unknown"
    return kind if isinstance(kind, str) else "unknown"


# -- replay ----------------------------------------------------------------------------------------


def to_messages(line: Line) -> list[dict[str, Any]]:
    """Return what the model is sent for *line*: at most one message, the same bytes each time.

    A user line carries its stored head, and what was said is indented below it; lines of releases that did not
    (without `indented`) stay as they were sent. A delta is a user-role note, since some providers hoist
    system messages. Commands, notices, cuts and everything unknown are never replayed.
    """
    kind = kind_of(line)
    if kind == "delta":
        return [{"role": "user", "content": line.get("text", "")}]
    if kind != "message":
        return []
    make = {"user": _user, "assistant": _assistant, "tool": _tool}.get(line["role"])
    return [make(line)] if make else []


def indent_lines(text: str) -> str:
    """Return *text* with every line but its first indented, so that none can pass for a line of ours."""
    return _BREAK.sub(r"\g<0>  ", text)


def _user(line: Line) -> dict[str, Any]:
    content, when = line.get("content"), line.get("head")
    files = facts_in(line)
    if files and isinstance(content, str):
        content = "\n".join([content, *facts_for_model(files)] if content else facts_for_model(files))
    if when and isinstance(content, list):
        content = [{"type": "text", "text": f"[{when}]"}, *content]
    elif when:
        content = f"[{when}] {indent_lines(str(content)) if line.get('indented') else content}"
    # What others said before comes first, and ends before the bracket of whom we answer.
    for name in ASIDE:
        if isinstance(content, str) and isinstance(line.get(name), str):
            content = f"{line[name]}\n{content}"
    pictures = pictures_in(files)
    if pictures and isinstance(content, str):
        content = [{"type": "text", "text": content}, *pictures]
    return {"role": "user", "content": content}


def _assistant(line: Line) -> dict[str, Any]:
    content, ending = line.get("content"), _ending(line)
    said: dict[str, Any] = {"role": "assistant", "content": f"{content}\n{ending}".strip() if ending else content}
    if line.get("tool_calls"):
        said["tool_calls"] = line["tool_calls"]
    if line.get("thinking"):
        said["thinking"] = line["thinking"]  # goes to the model it came from only (agent/llm/chat_model.py)
    return said


def _ending(line: Line) -> str:
    """Return what tells the model that its answer was not sent whole; "" for a whole one."""
    how = "stopped by the user" if line.get("stopped") else "no answer was sent" if line.get("dropped") else ""
    lost = "; nothing of this answer was remembered or sent" if line.get("dropped") else ""
    return f"[{how}{lost}]" if how else ""


def _tool(line: Line) -> dict[str, Any]:
    said = {"role": "tool", "tool_call_id": line.get("tool_call_id", "")}
    if line.get("name"):
        said["name"] = line["name"]
    return {**said, "content": line.get("content")}


def replayable(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return *messages* so that every provider takes them: no orphan tool result, no call without its result.

    A call that was never answered is left out of its message; a message left with nothing goes.
    Everything stays in order, and calling it on each turn alone gives the same as on all of them.
    """
    kept: list[dict[str, Any]] = []
    n = 0
    while n < len(messages):
        said = dict(messages[n])
        n += 1
        if said.get("role") == "tool":
            continue
        results: list[Mapping[str, Any]] = []
        while n < len(messages) and messages[n].get("role") == "tool":
            results.append(messages[n])
            n += 1
        kept.extend(_answered(said, results))
    return kept


def _answered(said: dict[str, Any], results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return *said* with the calls that have a result, and these results, each once."""
    calls = [call for call in said.get("tool_calls") or [] if isinstance(call, Mapping)]
    asked = {call.get("id") for call in calls}
    found: dict[Any, Mapping[str, Any]] = {}
    for result in results:
        if result.get("tool_call_id") in asked:
            found.setdefault(result.get("tool_call_id"), result)
    if len(found) != len(calls):
        answered = [call for call in calls if call.get("id") in found]
        said = {name: value for name, value in said.items() if name != "tool_calls"}
        if answered:
            said["tool_calls"] = answered
    if calls and not found and not said.get("content"):
        return []
    return [said, *map(dict, found.values())]


def from_user(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return *messages* from the first user message on."""
    for n, said in enumerate(messages):
        if said.get("role") == "user":
            return list(messages[n:])
    return []
