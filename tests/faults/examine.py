"""What must hold when a scenario has come to rest: read off the disk, the platform, and the model's log."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.i18n import translate
from tests.faults.platforms import PlatformSide, SeenMessage
from tests.faults.process_order import traces
from tests.faults.scripted_peers import LAST_WORD, ModelRequest, ScenarioPeers
from tests.faults.shim import ShimMode

UNKNOWN = "outcome unknown: it may have happened"
_ANSWERED = "answered"
# The model's messages that are stored, each with the number of tool results its request held.
_STORED_REPLIES = """
SELECT DISTINCT i.key, (SELECT count(*) FROM step r WHERE r.turn = s.turn AND r.n < s.n AND r.kind = 'result')
FROM step s JOIN inbox i ON i.turn = s.turn WHERE s.kind = 'model'
"""


@dataclass(frozen=True, slots=True)
class StoredState:
    """What the journal held at one instant, per chat."""

    received: frozenset[str]
    committed: frozenset[str]
    asked: frozenset[tuple[str, int]]  # (chat, tool results in the request) whose reply is a stored step


@dataclass(slots=True)
class BrokenPromises:
    """Every promise that was broken, and two figures worth knowing."""

    wrong: list[str] = field(default_factory=list)
    marked: int = 0
    unknown: int = 0


def stored(root: Path, copy: Path, chat_of: Callable[[str], str]) -> StoredState:
    """Read a dead process's journal, on a copy, since opening it would recover it."""
    copy.mkdir()
    for path in (root / "home").glob("journal.db*"):
        shutil.copy(path, copy)
    nothing = StoredState(frozenset(), frozenset(), frozenset())
    if not (copy / "journal.db").exists():
        return nothing
    with closing(sqlite3.connect(copy / "journal.db")) as journal:
        if not journal.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('record', 'step')").fetchone()[0]:
            return nothing
        received = frozenset(chat_of(key) for (key,) in journal.execute("SELECT key FROM inbox"))
        committed = frozenset(chat_of(key) for (key,) in journal.execute("SELECT key FROM record"))
        replies = frozenset((chat_of(key), results) for key, results in journal.execute(_STORED_REPLIES))
    return StoredState(received, committed, replies)


def asked_again(before: StoredState, requests: Iterable[ModelRequest]) -> list[str]:
    """Say which requests of a later life had a stored reply already."""
    wrong = []
    for request in requests:
        if request.chat in before.committed:
            wrong.append(f"{request.chat} was committed and the model asked again")
        elif (request.chat, request.results) in before.asked:
            wrong.append(f"{request.chat}: the reply after {request.results} result(s) was stored and asked for again")
    return wrong


def examine(root: Path, chats: Sequence[str], peers: ScenarioPeers, mode: ShimMode) -> BrokenPromises:
    """Check everything that a person, an operator or the next start could see."""
    findings, stage = BrokenPromises(), peers.stage
    findings.wrong += _files(root / "home")
    findings.wrong += _journal(root / "home" / "journal.db", chats, stage)
    turns = _turns(root / "home", stage, findings)
    ran = _ran(traces(root), findings)
    for chat in chats:
        turn = turns.get(chat)
        if turn is None:
            findings.wrong.append(f"{chat} has no complete turn in a transcript")
            continue
        _chat_shows(chat, turn, stage, findings)
        _tool_ran_once(chat, turn, ran[chat], findings, is_kill=mode.kills)
    if elsewhere := stage.count_shown() - sum(len(stage.shown(chat)) for chat in chats):
        findings.wrong.append(f"{elsewhere} message(s) stand where nobody asked")
    if not stage.is_settled():
        findings.wrong.append("the platform was not told of everything")
    return findings


def _files(home: Path) -> list[str]:
    """Every file parses, is ours alone, and nothing half-made is left lying about."""
    wrong = []
    for path in sorted(home.rglob("*")):
        name = path.relative_to(home)
        if not path.is_symlink() and path.stat().st_mode & 0o077:
            wrong.append(f"{name} is open to others")
        if ".corrupt" in path.name or path.name.endswith((".part", ".tmp")):
            wrong.append(f"{name} was left")
        if path.suffix == ".jsonl" and path.is_file():
            data = path.read_bytes()
            wrong += [f"{name} has a torn tail"] if data and not data.endswith(b"\n") else []
            wrong += [f"{name}:{n} is no JSON" for n, line in enumerate(data.splitlines(), 1) if not _parses(line)]
        if path.suffix == ".json" and not _parses(path.read_bytes()):
            wrong.append(f"{name} is no JSON")
    return wrong


def _parses(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def _journal(path: Path, chats: Sequence[str], stage: PlatformSide) -> list[str]:
    """The journal is whole: one answered row per message, nothing open, nothing dead."""
    with closing(sqlite3.connect(path)) as journal:
        (integrity,) = journal.execute("PRAGMA integrity_check").fetchone()
        ended = journal.execute("SELECT key, state FROM inbox WHERE ended_at IS NOT NULL").fetchall()
        (alive,) = journal.execute("SELECT count(*) FROM inbox WHERE ended_at IS NULL").fetchone()
        (undelivered,) = journal.execute("SELECT count(*) FROM outbox WHERE open IS NOT NULL").fetchone()
        dead = journal.execute("SELECT id, reason FROM dead").fetchall()
    wrong = [] if integrity == "ok" else [f"journal: {integrity}"]
    rows = Counter((stage.chat_of(key), state) for key, state in ended)
    expected = Counter({(chat, _ANSWERED): 1 for chat in chats})
    wrong += [] if rows == expected else [f"inbox ended as {dict(rows - expected)}, missing {dict(expected - rows)}"]
    wrong += [f"{alive} inbox row(s) have not ended"] if alive else []
    wrong += [f"{undelivered} outbox row(s) are open"] if undelivered else []
    wrong += [f"dead letter {name}: {reason}" for name, reason in dead]
    return wrong


def _turns(home: Path, stage: PlatformSide, findings: BrokenPromises) -> dict[str, list[Mapping[str, Any]]]:
    """Return the lines of each chat's one closed turn."""
    turns: dict[str, list[Mapping[str, Any]]] = {}
    for path in home.rglob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_bytes().splitlines() if _parses(line)]
        if not lines or lines[0].get("kind") != "head":
            continue
        chat = stage.chat_of(lines[0]["key"])
        ends = [line for line in lines if line.get("kind") == "end"]
        if chat in turns or len(ends) != 1:
            findings.wrong.append(f"{chat} has {len(ends)} closed turn(s) in {path.name}")
        indices = [line["i"] for line in lines if "i" in line]
        if indices != list(range(len(indices))):
            findings.wrong.append(f"{chat}: indices {indices}")
        if ends:
            turns[chat] = lines
    return turns


def _chat_shows(chat: str, turn: Sequence[Mapping[str, Any]], stage: PlatformSide, findings: BrokenPromises) -> None:
    """The chat shows what the transcript says, whole and in order, and whatever might be a second time says so."""
    answers = [line["content"] for line in turn if line.get("role") == "assistant" and not line.get("tool_calls")]
    if len(answers) != 1 or not answers[0].endswith(LAST_WORD):
        findings.wrong.append(f"{chat}: the transcript holds the answers {answers}")
        return
    shown = stage.shown(chat)
    doubts = [line["content"] for line in turn if line.get("kind") == "notice"]  # of a tool that may have happened
    parts = _parts("\n\n".join([answers[0], *doubts]), stage)
    places = [max((n for n, message in enumerate(shown) if fits(message)), default=-1) for fits in parts]
    if -1 in places or places != sorted(places):
        findings.wrong.append(
            f"{chat} shows {_brief(shown)}, the transcript says {_brief([SeenMessage(answers[0], False)])}"
        )
    unmarked = [message for message in shown if not message.is_marked]
    findings.marked += len(shown) - len(unmarked)
    if len(unmarked) > len(places) or len(set(unmarked)) < len(unmarked):
        findings.wrong.append(
            f"{chat} shows {len(shown)} messages, {len(shown) - len(unmarked)} of them marked: {_brief(shown)}"
        )
    if len(unmarked) < len(shown) and not stage.may_mark:
        findings.wrong.append(f"{chat}: marked, although the platform can be asked")


def _parts(answer: str, stage: PlatformSide) -> list[Callable[[SeenMessage], bool]]:
    """Return, for each part of an answer in its order, what a message is that shows it."""
    whole = _flat(answer)
    if stage.scene.is_long:
        return [lambda m: _is_beginning(m.text, whole), lambda m: _flat(m.file) == whole]
    parts = [_flat(part) for part in stage.parts(answer)]
    assert len(parts) == 2, "the scripted answer makes two parts"
    return [lambda m, part=part: _flat(m.text) == part and not m.file for part in parts]  # type: ignore[misc]


def _is_beginning(text: str, whole: str) -> bool:
    line = translate("delivery.in_the_file")
    said = _flat(text.removesuffix(line))
    return text.endswith(line) and len(said) > 500 and whole.startswith(said)


def _brief(messages: Iterable[SeenMessage]) -> list[str]:
    words = [_flat(message.words) for message in messages]
    return [text if len(text) < 200 else f"{text[:80]} … {text[-80:]}" for text in words]


def _ran(path: Path, findings: BrokenPromises) -> Counter[str]:
    """Count the tool's traces per chat; the last line may be torn, which is the tool's own affair."""
    ran: Counter[str] = Counter()
    if path.exists():
        for line in path.read_bytes().splitlines():
            if _parses(line):
                ran[json.loads(line)["what"]] += 1
    return ran


def _tool_ran_once(
    chat: str, turn: Sequence[Mapping[str, Any]], ran: int, findings: BrokenPromises, *, is_kill: bool
) -> None:
    """The tool ran once, or nobody knows and the model was told so."""
    results = [line["content"] for line in turn if line.get("role") == "tool"]
    if len(results) != 1:
        findings.wrong.append(f"{chat}: tool results {results}")
        return
    is_unknown = results[0] == UNKNOWN
    findings.unknown += is_unknown
    if ran > 1:
        findings.wrong.append(f"{chat}: the tool ran {ran} times")
    if results[0].startswith("on record") and ran != 1:
        findings.wrong.append(f"{chat}: the model was told it is on record, and there are {ran} traces")
    if is_kill and not is_unknown and not results[0].startswith("on record"):
        findings.wrong.append(f"{chat}: the tool said {results[0]!r}")


def _flat(text: str) -> str:
    return " ".join(text.split())
