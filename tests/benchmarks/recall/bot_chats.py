"""Chats of one person with the bot, in four languages, written for this: what LoCoMo has no question about.

A set is one file, `chats/<split>_<language>.tsv`, and one index. Each row has a kind, a mark and a text:

    at      2025-02-03T19:10            a session begins
    user    t1      text                a message; questions refer to its mark
    bot     t2      text
    fact    c1      text    keys    occasions   an entry of the history, with the two kinds of keys a model gives it
    line    t1      text    keys    occasions   what a summary adds to MEMORY.md, from the message t1 or another
    ask:bot t1      question            what the person or the bot said (t2~words: the result must hold these words)
    ask:bears, ask:class, ask:chore     what a remark bears on; what only a class word names; what nothing bears on

The weights were tuned on `dev` and LoCoMo, never on `heldout`. Between the sessions of a file are many more about the
same topics, made of ready sentences (`chats/filler_<language>.tsv`), that answer none of its questions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent.memory.search.search_unit import SearchUnit, UnitSource, chunk_message, group_by_silence
from tests.benchmarks.recall.sets import RecallQuestion, RecallSet

SETS = (("dev", "en"), ("dev", "de"), ("heldout", "en"), ("heldout", "de"), ("heldout", "es"), ("heldout", "zh"))
KINDS = ("bot", "bears", "class")
CHAT, HISTORY = UnitSource(name="sessions/chat"), UnitSource(name="memory/history.jsonl")
MEMORY = UnitSource(name="MEMORY.md")
_FOLDER = Path(__file__).parent / "chats"
_SESSIONS, _PARAGRAPHS = 24, 11  # fillers: sessions of a topic, paragraphs of an answer
_STEP = timedelta(minutes=2)  # between the messages of a session


def load(split: str, language: str, *, has_keys: bool = False) -> RecallSet:
    """Return the set of *split* in *language*; with keys, what a summary adds to MEMORY.md and their keys too."""
    rows = [line.split("\t") for line in (_FOLDER / f"{split}_{language}.tsv").read_text("utf-8").splitlines()]
    sessions: list[tuple[datetime, list[list[str]]]] = []
    for row in rows:
        if row[0] == "at":
            sessions.append((datetime.fromisoformat(row[1]).replace(tzinfo=UTC), []))
        elif row[0] in ("user", "bot"):
            sessions[-1][1].append(row)
    sessions += _fillers(language, [row[2] for row in rows if row[0] == "topic"], sessions[0][0])
    sessions.sort(key=lambda each: each[0])
    marks: dict[str, set[tuple[str, int]]] = {}
    said: list[SearchUnit] = []
    line = 0
    for start, messages in sessions:
        for n, (role, mark, text) in enumerate(messages):
            line += 1
            marks[mark] = {(CHAT.name, line)}
            said += chunk_message(
                text.replace("\\n", "\n"),
                line=line,
                at=start + n * _STEP,
                who="Ann" if role == "user" else "",
                role="user" if role == "user" else "assistant",
            )
    now = sessions[-1][0] + timedelta(days=30)
    remembered: dict[UnitSource, list[SearchUnit]] = {HISTORY: [], MEMORY: []}
    for kind, mark, text, *keys in (row for row in rows if row[0] == "fact" or (row[0] == "line" and has_keys)):
        source = HISTORY if kind == "fact" else MEMORY
        n = len(remembered[source]) + 1
        marks.setdefault(mark, set()).add((source.name, n))
        about = ", ".join(keys) if has_keys else ""
        at = now - timedelta(days=n) if kind == "fact" else None
        group = str(n) if kind == "fact" else ""
        remembered[source].append(SearchUnit(text=text, line=n, at=at, about=about, group=group))
    questions = []
    for kind, where, text in (row for row in rows if row[0].startswith("ask:")):
        mark, _, words = where.partition("~")
        gold = dict.fromkeys(marks[mark] if mark else (), "gold")
        questions.append(RecallQuestion(text, gold, kind.removeprefix("ask:"), now, words))
    return RecallSet({CHAT: group_by_silence(said), **remembered}, questions)


def _fillers(language: str, topics: Sequence[str], start: datetime) -> list[tuple[datetime, list[list[str]]]]:
    """Return sessions about the same topics, made of ready sentences, that answer none of the questions."""
    rows = [line.split("\t") for line in (_FOLDER / f"filler_{language}.tsv").read_text("utf-8").splitlines()]
    asks, angles, answers, remarks = (
        [text for kind, text in rows if kind == wanted] for wanted in ("ask", "angle", "answer", "said")
    )
    dice = random.Random(1)  # noqa: S311 - not for secrets
    sessions: list[tuple[datetime, list[list[str]]]] = []
    for topic in topics:
        for _ in range(_SESSIONS):
            ask = dice.choice(asks).format(noun=f"{topic} {dice.choice(angles)}")
            answer = "\\n\\n".join(dice.sample(answers, _PARAGRAPHS)).format(noun=topic)
            pair = [["user", "", ask], ["bot", "", answer]]
            sessions.append((_any_day(dice, start), pair))
    sessions += [(_any_day(dice, start), [["user", "", each]]) for each in remarks]
    return sessions


def _any_day(dice: random.Random, start: datetime) -> datetime:
    return start + timedelta(hours=7 * dice.randrange(300))
