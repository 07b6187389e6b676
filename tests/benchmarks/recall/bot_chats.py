"""Chats of one person with the bot, in English and German, written for this: what LoCoMo has no question about.

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
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent.auto_recall import bears_on, recalled
from agent.memory.search.chunking import chunk_message, group_by_silence
from agent.memory.search.query import parse_query
from agent.memory.search.ranking import DEFAULT, RankedCandidate, RankingWeights, rank
from agent.memory.search.result_selection import rank_candidates
from agent.memory.search.scope_index import ScopeIndex
from agent.memory.search.search_unit import SearchUnit, UnitSource
from gateway.ports import SearchHit
from tests.benchmarks.recall.measures import RecallItem, judge
from tests.benchmarks.recall.systems import Embed

SPLITS, LANGUAGES = ("dev", "heldout"), ("en", "de")
CHAT, HISTORY = UnitSource(name="sessions/chat"), UnitSource(name="memory/history.jsonl")
MEMORY = UnitSource(name="MEMORY.md")
_FOLDER = Path(__file__).parent / "chats"
_SESSIONS, _PARAGRAPHS = 24, 11  # fillers: sessions of a topic, paragraphs of an answer
_STEP = timedelta(minutes=2)  # between the messages of a session


# The ranking before there were these sets: it did not tell pieces, persons and statements apart. Its similarities are
# today's: cosines without the mean of the index.
BEFORE = replace(
    DEFAULT, own=0.6, smooth=0.7, reliance=0.0, fact=0.0, person=0.0, statement=0.0, date=0.4, question=-0.15
)
NEW = ("reliance", "fact", "person", "statement", "question")
FIGURES = ("R@5", "R@10", "R@2048t", "MRR")
_ROUNDS = 2_000  # of the bootstrap
_TOP, _SEEN = 300, 20  # results that are judged, and that automatic recall looks at


@dataclass(frozen=True, slots=True)
class ChatQuestion:
    """A question, the message, fact or line that answers it, and words that the result must contain."""

    kind: str
    text: str
    gold: frozenset[tuple[str, int]]  # sources and lines; one of them is enough
    words: str = ""


@dataclass(frozen=True, slots=True)
class ChatSet:
    """One file."""

    name: str
    units: Mapping[UnitSource, Sequence[SearchUnit]]
    questions: tuple[ChatQuestion, ...]
    now: datetime


def load(split: str, language: str, *, kinds_of_keys: int = 0, has_lines: bool = False) -> ChatSet:
    """Return the set of *split* in *language*, with the lines of its MEMORY.md if *has_lines*.

    Facts and lines are searched by the first *kinds_of_keys* kinds of their keys too: by class, and by occasion.
    """
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
    for kind, mark, text, *keys in (row for row in rows if row[0] == "fact" or (row[0] == "line" and has_lines)):
        source = HISTORY if kind == "fact" else MEMORY
        n = len(remembered[source]) + 1
        marks.setdefault(mark, set()).add((source.name, n))
        about = ", ".join(keys[:kinds_of_keys])
        at = now - timedelta(days=n) if kind == "fact" else None
        group = str(n) if kind == "fact" else ""
        remembered[source].append(SearchUnit(text=text, line=n, at=at, about=about, group=group))
    questions = []
    for kind, where, text in (row for row in rows if row[0].startswith("ask:")):
        mark, _, words = where.partition("~")
        gold = frozenset(marks[mark] if mark else ())
        questions.append(ChatQuestion(kind.removeprefix("ask:"), text, gold, words))
    return ChatSet(f"{split} {language}", {CHAT: group_by_silence(said), **remembered}, tuple(questions), now)


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


# -- asking ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenSet:
    """A set with its index."""

    chats: ChatSet
    index: ScopeIndex
    embed: Embed | None

    def ask(
        self, question: ChatQuestion, weights: RankingWeights = DEFAULT, *, is_grouped: bool = True
    ) -> list[tuple[SearchHit, bool]]:
        """Return the hits for *question*, and whether each is what answers it."""
        parsed = parse_query(question.text, now=self.chats.now)
        vector = self.embed([question.text])[question.text] if self.embed else None
        matches = self.index.query(parsed, vector)
        ranked: Sequence[RankedCandidate]
        if is_grouped:
            ranked = [each for _, each in rank_candidates([matches], parsed, weights=weights)][:_TOP]
        else:
            ranked = rank(matches.candidates, parsed, weights, names=matches.names)[:_TOP]
        passages = self.index.passages([each.id for each in ranked])
        found: list[tuple[SearchHit, bool]] = []
        for each in ranked:
            passage = passages[each.id]
            hit = SearchHit(
                source=passage.source.name,
                line=passage.line,
                text=passage.text,
                score=each.score,
                role=passage.role,
                who=passage.who,
                coverage=matches.coverage(passage) if len(found) < _SEEN else 0.0,
                similarity=each.own,
            )
            found.append((hit, (hit.source, hit.line) in question.gold and question.words in hit.text))
        return found


@contextmanager
def open_set(chats: ChatSet, embed: Embed | None) -> Iterator[OpenSet]:
    """Index *chats* for the time of the context."""
    with tempfile.TemporaryDirectory() as folder:
        index = ScopeIndex(Path(folder) / "index.db", is_new=True)
        index.use_model("benchmark" if embed else "")
        for source, units in chats.units.items():
            changes = index.put(source, units)
            if embed is not None:
                vectors = embed([unit.embedding_text for unit in units])
                rows = zip(changes.came, units, strict=True)
                index.embed("benchmark", {id_: vectors[unit.embedding_text] for id_, unit in rows})
        try:
            yield OpenSet(chats, index, embed)
        finally:
            index.close()


def _judge(hits: Sequence[tuple[SearchHit, bool]]) -> dict[str, float]:
    gold = frozenset({"gold"})
    items = [
        RecallItem(gold if is_gold else frozenset(), frozenset(), len(f"{hit.who}: {hit.text}") / 4)
        for hit, is_gold in hits
    ]
    return judge(items, gold, frozenset({"session"}))


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of paired *differences*, by bootstrap."""
    dice = random.Random(1)  # noqa: S311 - not for secrets
    means = sorted(statistics.fmean(dice.choices(differences, k=len(differences))) for _ in range(_ROUNDS))
    return means[int(0.025 * _ROUNDS)], means[int(0.975 * _ROUNDS)]


def print_tables(embed: Embed | None, *, has_ablations: bool) -> None:
    """Print the figures of every set before and after, and each new part left out."""
    has = "with the model" if embed else "no model"
    print(f"\n**Chats with the bot, {has}: before → now [95 % interval of the difference]**\n")
    print(f"| set | questions | {' | '.join(FIGURES)} |\n|{'---|' * (len(FIGURES) + 2)}", flush=True)
    riders: list[str] = []
    for split in SPLITS:
        for language in LANGUAGES:
            keyed = load(split, language, has_keys=True)
            with open_set(load(split, language), embed) as chats, open_set(keyed, embed) as keyed_chats:
                for kind in ("bot", "bears", "class"):
                    _print_row(kind, chats, chats)
                _print_row("class", chats, keyed_chats)
                riders.append(_riders(chats))
    print(f"\n**What automatic recall adds, {has}; of a hundred messages: before → now**\n")
    print("| set | a remark that bears on it | anything, to a chore | hits to a chore |\n|---|---|---|---|")
    print("\n".join(riders))
    if has_ablations:
        _print_ablations(embed)


def _print_row(kind: str, old: OpenSet, new: OpenSet) -> None:
    """Print the figures of the questions of *kind*: of the ranking before in *old*, of the ranking now in *new*."""
    asked = [each for each in old.chats.questions if each.kind == kind]
    before = [_judge(old.ask(each, BEFORE, is_grouped=False)) for each in asked]
    now = [_judge(new.ask(each)) for each in asked]
    cells = []
    for name in FIGURES:
        one, other = [each[name] for each in before], [each[name] for each in now]
        low, high = interval([b - a for a, b in zip(one, other, strict=True)])
        cells.append(f"{statistics.fmean(one):.1f} → {statistics.fmean(other):.1f} [{low:+.1f}, {high:+.1f}]")
    name = f"{old.chats.name} {kind}{'' if new is old else ', with keys'}"
    print(f"| {name} | {len(asked)} | {' | '.join(cells)} |", flush=True)


def _riders(chats: OpenSet) -> str:
    """Return the row of automatic recall: what it did when every hit above 0.35 rode along, and what it does."""
    found: dict[str, tuple[list[float], list[float]]] = {"bears": ([], []), "chore": ([], []), "hits": ([], [])}
    for asked in chats.chats.questions:
        if asked.kind not in found:
            continue
        old = [each for each in chats.ask(asked, BEFORE, is_grouped=False)[:10] if each[0].score >= 0.35]
        new = [each for each in chats.ask(asked)[:_SEEN] if bears_on(each[0], asked.text)]
        for n, hits in enumerate((old, new)):
            shown = recalled([hit for hit, _ in hits]).get("recall", "").count("\n> ")
            is_hit = any(is_gold for _, is_gold in hits[:shown]) if asked.kind == "bears" else shown > 0
            found[asked.kind][n].append(100.0 * is_hit)
            if asked.kind == "chore":
                found["hits"][n].append(shown)
    cells = [f"{statistics.fmean(one):.1f} → {statistics.fmean(other):.1f}" for one, other in found.values()]
    return f"| {chats.chats.name} | {' | '.join(cells)} |"


def _print_ablations(embed: Embed | None) -> None:
    kinds = ("bot", "bears", "class")
    names = [f"{split} {kind}" for split in SPLITS for kind in kinds]
    print("\n**Each new part left out, both languages: R@10 / R@2048t**\n")
    print(f"| without | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    rows: dict[str, dict[str, list[dict[str, float]]]] = {}
    for split in SPLITS:
        for language in LANGUAGES:
            with open_set(load(split, language), embed) as chats:
                for part in ("(all parts)", "one hit a message", *NEW):
                    weights = replace(DEFAULT, **{part: 0.0}) if part in NEW else DEFAULT
                    for asked in chats.chats.questions:
                        if asked.kind in kinds:
                            hits = chats.ask(asked, weights, is_grouped=part != "one hit a message")
                            row = rows.setdefault(part, {}).setdefault(f"{split} {asked.kind}", [])
                            row.append(_judge(hits))
    for part, sums in rows.items():
        cells = []
        for name in names:
            means = [statistics.fmean(each[figure] for each in sums[name]) for figure in ("R@10", "R@2048t")]
            cells.append(" / ".join(f"{mean:.1f}" for mean in means))
        print(f"| {part} | {' | '.join(cells)} |", flush=True)
