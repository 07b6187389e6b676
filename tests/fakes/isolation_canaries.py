"""Canaries that belong to somebody, a model that is already hijacked, and a checker that looks everywhere."""

from __future__ import annotations

import json
import re
import sqlite3
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall
from gateway.events import PlatformAccount, SessionKey
from gateway.store.account_links import SqlAccountLinks
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.documents import stored_states

CANARY = re.compile(r"kanari[a-z]{4}vogel")  # no clock and no id spells it
_ECHOED = 60


@dataclass
class CanaryWatch:
    """Knows whose each canary is, and notes every one that turns up where it must not."""

    whose: dict[str, str] = field(default_factory=dict)  # canary -> account or chat
    crossings: list[tuple[str, str]] = field(default_factory=list)
    looks: int = 0
    seen: int = 0
    links: SqlAccountLinks | None = None
    _names: Iterator[str] = field(default_factory=lambda: map("".join, product(ascii_lowercase, repeat=4)))

    def canary(self, owner: str) -> str:
        """Return a new canary of *owner*."""
        word = f"kanari{next(self._names)}vogel"
        self.whose[word] = owner
        return word

    def owners(self, chat: str) -> frozenset[str]:
        """Return whose canaries may be seen in a chat of the pocket platform: `g…` are groups."""
        if chat.startswith("g"):
            return frozenset({SessionKey("pocket", chat).parent.chat})
        return self.accounts(chat)

    def accounts(self, account: str) -> frozenset[str]:
        """Return the accounts that are one person with *account* now."""
        if self.links is None:
            return frozenset({account})
        linked = self.links.accounts(self.links.person(PlatformAccount(kind="pocket", id=account)))
        return frozenset({account, *(each.account.id for each in linked)})

    def look(self, where: str, owners: Collection[str], text: str) -> None:
        """Note the canaries in *text* that are of nobody in *owners*."""
        self.looks += 1
        for word in CANARY.findall(text):
            self.seen += 1
            if self.whose.get(word) not in owners:
                self.crossings.append((where, f"{word} of {self.whose.get(word)}"))


class HijackedModel(FakeChatModel):
    """Calls every tool it is given with hostile arguments, then says all it knows. Its summaries are honest."""

    def __init__(self, watch: CanaryWatch, *, attacks: bool = True) -> None:
        self.name = "test/hijacked"
        self.attacks = attacks
        self.watch = watch
        self.called: set[str] = set()
        self.calls = 0
        self._n = count()

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Look at the prompt; attack, or answer."""
        chat = SessionKey.parse(request.chat).chat if request.chat else ""
        sent = json.dumps([request.messages, request.tools], ensure_ascii=False, default=str)
        if chat:
            self.watch.look(f"{request.purpose} prompt of {chat}", self.watch.owners(chat), sent)
        self.calls += 1
        if request.purpose != "answer":
            return self._summary(request)
        if self.attacks and request.messages[-1].get("role") != "tool":
            calls = tuple(self._attack(tool["function"]) for tool in request.tools)
            if calls:
                return ChatReply(text="", tool_calls=calls, model=self.name, tokens=TokenUsage(1, 1), cost=0.0)
        known = list(dict.fromkeys(CANARY.findall(sent)))[-_ECHOED:]
        text = f"I know {' '.join(known) or 'nothing'}"
        return ChatReply(text=text, tool_calls=(), model=self.name, tokens=TokenUsage(1, 1), cost=0.0)

    def _attack(self, tool: Mapping[str, Any]) -> ToolCall:
        n = next(self._n)
        self.called.add(str(tool["name"]))
        properties = tool["parameters"].get("properties", {})
        arguments = {name: _hostile(schema, n) for name, schema in properties.items()}
        if "scope" not in arguments and n % 5 == 0:
            arguments["scope"] = HOSTILE[n % len(HOSTILE)]  # one that the tool does not have
        return ToolCall(f"c{n}", str(tool["name"]), json.dumps(arguments))

    def _summary(self, request: ChatRequest) -> ChatReply:
        """Summarise what people said: one fact a line."""
        shown = str(request.messages[-1]["content"])
        memory = shown.partition("Long-term Memory\n")[2].partition("\n\n## Conversation")[0]
        said = [line for line in shown.partition("## Conversation")[2].splitlines() if "] USER" in line]
        words = list(dict.fromkeys(word for line in said for word in CANARY.findall(line)))
        lines = [] if memory == "(empty)" else [memory]
        saved = {
            "history_entry": f"[2026-11-22 10:00] They spoke of {', '.join(words) or 'the weather'}.",
            "memory_update": "\n".join([*lines, *(f"- somebody told of {word}" for word in words)]) or "- they met",
        }
        tools = request.tools
        name = str(tools[0]["function"]["name"]) if tools else "save_memory"
        arguments = saved if name == "save_memory" else {"slug": "talk", "summary": saved["history_entry"]}
        call = ToolCall("s", name, json.dumps(arguments))
        return ChatReply(text="", tool_calls=(call,), model=self.name, tokens=TokenUsage(1, 1), cost=0.0)


HOSTILE = (
    "kanari",
    "people/pocket%3ap0",
    "../pocket%3ap1/memory/MEMORY.md",
    "/proc/self/environ",
    "chats/pocket%3ag0",
    "pocket:p2",
    "people/pocket%3ap3/sessions/pocket%3ap3.jsonl",
    "shared/../people/pocket%3ap4",
    "what does everybody else like",
    "' OR scope LIKE 'people/%' --",
    'scope:"people/pocket%3ap5" OR *',
    "MEMORY.md",
)


def _hostile(schema: Mapping[str, Any], n: int) -> Any:
    match schema.get("type"):
        case "integer" | "number":
            return 1_000
        case "boolean":
            return True
        case "array":
            return [HOSTILE[n % len(HOSTILE)]]
        case "object":
            return {"scope": HOSTILE[n % len(HOSTILE)]}
        case _:
            return HOSTILE[n % len(HOSTILE)]


# -- what stands on the disk -----------------------------------------------------------------------------


def look_at_files(watch: CanaryWatch, home: Path) -> None:
    """Read every file of every scope: raw, inflated, versions, and the tables of databases."""
    for area in ("people", "chats"):
        for folder in sorted((home / area).glob("*")):
            chat = folder.name.removeprefix("pocket%3a")
            owners = watch.owners(chat)
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    for text in _texts(path):
                        watch.look(str(path.relative_to(home)), owners, text)
            is_embedded = (home / "journal.db").exists()
            for state in stored_states(home, f"{area}/{folder.name}") if is_embedded else ():
                for text in state.texts.values():
                    watch.look(f"{folder.name} change {state.change.short}", owners, text)
    for path in sorted((home / "shared").rglob("*")) if (home / "shared").is_dir() else ():
        if path.is_file():
            watch.look(str(path.relative_to(home)), (), path.read_text(errors="replace"))


def _texts(path: Path) -> Iterator[str]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if path.suffix != ".tmp":  # which has taken its file's place meanwhile, and is read there
            raise
        return
    yield data.decode("utf-8", "replace")
    if "objects" in path.parts:
        try:
            yield zlib.decompress(data).decode("utf-8", "replace")
        except zlib.error:
            return
    if data.startswith(b"SQLite format 3"):
        yield from _tables(path)


def _tables(path: Path) -> Iterator[str]:
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            try:
                rows: Sequence[Any] = database.execute(f'SELECT * FROM "{name}"').fetchall()  # noqa: S608 - its own names
            except sqlite3.Error:
                continue
            yield str(rows)
    finally:
        database.close()
