"""What is compared: our engine in its profiles, and a plain baseline that shows whether the harness measures right."""

from __future__ import annotations

import re
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from agent.memory.search.language_data import STOP
from agent.memory.search.query import parse_query
from agent.memory.search.ranking import DEFAULT, RankingWeights, SeedProfile
from agent.memory.search.result_selection import rank_candidates
from agent.memory.search.scope_index import ScopeIndex
from agent.memory.search.search_unit import SearchUnit, UnitSource, chunks
from tests.benchmarks.recall.locomo import DialogueMessage, LocomoChat, RecallQuestion
from tests.benchmarks.recall.measures import RecallItem

Vector = Any
Embed = Callable[[Sequence[str]], Mapping[str, Vector]]
Ask = Callable[[LocomoChat, RecallQuestion], list[RecallItem]]
NOW = datetime.fromisoformat("2024-06-01T00:00:00+00:00")
_SHOWN = 300  # results
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallSystem:
    """A row of the table."""

    name: str
    open: Callable[[Sequence[LocomoChat], Embed | None], AbstractContextManager[Ask]]


@dataclass(slots=True)
class SystemTimes:
    """What a system took: to build, and for each question, in seconds."""

    build: float = 0.0
    asked: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


def said(turn: DialogueMessage) -> str:
    """Return a turn as it is shown."""
    return f"{turn.who}: {turn.text}"


def _result(turns: Sequence[DialogueMessage], prefix: str = "") -> RecallItem:
    return RecallItem(
        holds=frozenset(prefix + turn.id for turn in turns),
        sessions=frozenset(prefix + turn.session for turn in turns),
        tokens=sum(len(said(turn)) for turn in turns) / 4,
    )


# -- ours ------------------------------------------------------------------------------------------------


def ours(
    name: str, weights: RankingWeights = DEFAULT, *, is_one: bool = False, has_vectors: bool = True
) -> RecallSystem:
    """Return our engine with *weights*; *is_one* puts all conversations into one index."""

    @contextmanager
    def opened(chats: Sequence[LocomoChat], embed: Embed | None) -> Iterator[Ask]:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            turns: dict[tuple[str, int], tuple[LocomoChat, DialogueMessage]] = {}
            indexes: dict[str, ScopeIndex] = {}
            for chat in chats:
                place = "all" if is_one else chat.name
                if place not in indexes:
                    indexes[place] = ScopeIndex(Path(folder) / place / "index.db", is_new=True)
                    stack.callback(indexes[place].close)
                fill_index(indexes[place], chat.name, units_of(chat), embed if has_vectors else None)
                turns |= {(chat.name, n): (chat, turn) for n, turn in enumerate(chat.turns, start=1)}

            def ask(chat: LocomoChat, asked: RecallQuestion) -> list[RecallItem]:
                index = indexes["all" if is_one else chat.name]
                question = parse_query(asked.text, now=chat.turns[-1].at + timedelta(days=1))
                vector = embed([asked.text])[asked.text] if embed and has_vectors else None
                ranked = rank_candidates([index.query(question, vector)], question, weights=weights)[:_SHOWN]
                passages = index.passages([each.id for _, each in ranked])
                found = []
                for _, each in ranked:
                    passage = passages[each.id]
                    home, turn = turns[passage.source.name, passage.line]
                    found.append(_result([turn], prefix=f"{home.name}/"))
                return found

            yield ask

    return RecallSystem(name=name, open=opened)


def units_of(chat: LocomoChat) -> list[SearchUnit]:
    """Return the turns of *chat* as units, in order."""
    return [
        SearchUnit(text=turn.text, line=n, at=turn.at, who=turn.who, role="user", group=turn.session)
        for n, turn in enumerate(chat.turns, start=1)
    ]


def fill_index(index: ScopeIndex, name: str, units: Sequence[SearchUnit], embed: Embed | None) -> None:
    """Put *units* into *index* as the source *name*, with their vectors if there is a model."""
    index.use_model("benchmark" if embed else "")
    changes = index.put(UnitSource(name=name), units)
    if embed is not None:
        vectors = embed([unit.embedding_text for unit in units])
        index.embed(
            "benchmark", {id_: vectors[unit.embedding_text] for id_, unit in zip(changes.came, units, strict=True)}
        )


def seeds(name: str, seed: SeedProfile) -> RecallSystem:
    """Return the seed profile: each session a file of lines, in chunks."""

    @contextmanager
    def opened(chats: Sequence[LocomoChat], embed: Embed | None) -> Iterator[Ask]:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            indexes: dict[str, ScopeIndex] = {}
            for chat in chats:
                indexes[chat.name] = index = ScopeIndex(Path(folder) / chat.name, is_new=True, is_flat=True)
                stack.callback(index.close)
                for session, turns in _sessions(chat).items():
                    lines = [said(turn) for turn in turns]
                    cut = chunks(lines, tokens=seed.chunk_tokens, overlap=seed.chunk_overlap, at=turns[0].at)
                    fill_index(index, session, cut, embed)

            def ask(chat: LocomoChat, asked: RecallQuestion) -> list[RecallItem]:
                index, question = indexes[chat.name], parse_query(asked.text)
                vector = embed([asked.text])[asked.text] if embed else None
                ranked = rank_candidates([index.query(question, vector)], question, seed=seed, now=NOW)
                passages = index.passages([each.id for _, each in ranked])
                sessions = _sessions(chat)
                found = []
                for _, each in ranked:
                    passage = passages[each.id]
                    turns = sessions[passage.source.name][passage.line - 1 : passage.end]
                    found.append(_result(turns, prefix=f"{chat.name}/"))
                return found

            yield ask

    return RecallSystem(name=name, open=opened)


def _sessions(chat: LocomoChat) -> dict[str, list[DialogueMessage]]:
    found: dict[str, list[DialogueMessage]] = {}
    for turn in chat.turns:
        found.setdefault(turn.session, []).append(turn)
    return found


# -- what everybody has --------------------------------------------------------------------------------


def plain(name: str, tokenizer: str) -> RecallSystem:
    """Return FTS5 with *tokenizer* over turns: OR of the words that are no stop words."""

    @contextmanager
    def opened(chats: Sequence[LocomoChat], embed: Embed | None) -> Iterator[Ask]:
        with ExitStack() as stack:
            tables = {}
            for chat in chats:
                tables[chat.name] = database = sqlite3.connect(":memory:")
                stack.callback(database.close)
                database.execute(f"CREATE VIRTUAL TABLE turn USING fts5 (text, tokenize = '{tokenizer}')")
                database.executemany("INSERT INTO turn VALUES (?)", [(said(turn),) for turn in chat.turns])

            def ask(chat: LocomoChat, asked: RecallQuestion) -> list[RecallItem]:
                words = _WORD.findall(asked.text.lower())
                kept = [word for word in words if word not in STOP["en"]] or words
                rows = tables[chat.name].execute(
                    "SELECT rowid FROM turn WHERE turn MATCH ? ORDER BY rank LIMIT ?",
                    (" OR ".join(f'"{word}"' for word in kept), _SHOWN),
                )
                return [_result([chat.turns[row[0] - 1]], prefix=f"{chat.name}/") for row in rows]

            yield ask

    return RecallSystem(name=name, open=opened)


def run(
    system: RecallSystem, chats: Sequence[LocomoChat], embed: Embed | None
) -> Iterator[tuple[LocomoChat, RecallQuestion, list[RecallItem], SystemTimes]]:
    """Ask *system* every question; the times are of this system alone, embeddings of passages apart."""
    times = SystemTimes()
    started = time.perf_counter()
    with system.open(chats, embed) as ask:
        times.build = time.perf_counter() - started
        for chat in chats:
            for asked in chat.questions:
                started, cpu = time.perf_counter(), time.process_time()
                found = ask(chat, asked)
                times.asked.append(time.perf_counter() - started)
                times.processor.append(time.process_time() - cpu)
                yield chat, asked, found, times
