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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent.auto_recall import bears_on, recalled
from agent.memory.search.query import parse_query
from agent.memory.search.ranking import DEFAULT, RankingWeights, rank
from agent.memory.search.result_selection import rank_candidates
from agent.memory.search.scope_index import ScopeIndex
from agent.memory.search.search_unit import RankedCandidate, SearchUnit, UnitSource, chunk_message, group_by_silence
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
KINDS = ("bot", "bears", "class")
FIGURES = ("R@5", "R@10", "R@2048t", "MRR")
_ROUNDS = 2_000  # of the bootstrap
_TOP, _SEEN = 300, 20  # results that are judged, and that automatic recall looks at
_SCORE_BEFORE = 0.35  # from which automatic recall once showed a hit

ChatFigures = list[dict[str, float]]  # of each question


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
    """Print the figures of every set before and after, with lines and their keys, and each new part left out."""
    has = "with the model" if embed else "no model"
    head = f"| set | questions | {' | '.join(FIGURES)} |\n|{'---|' * (len(FIGURES) + 2)}"
    print(f"\n**Chats with the bot, {has}: before → now [95 % interval of the difference]**\n\n{head}", flush=True)
    riders: list[str] = []
    asked: dict[str, list[ChatFigures]] = {}
    for split in SPLITS:
        for language in LANGUAGES:
            with ExitStack() as stack:
                chats, keyed, *steps = (
                    stack.enter_context(open_set(load(split, language, kinds_of_keys=keys, has_lines=has_lines), embed))
                    for keys, has_lines in ((0, False), (1, False), (0, True), (1, True), (2, True))
                )
                for kind in KINDS:
                    old = _figures(kind, chats, BEFORE, is_grouped=False)
                    print(_row(f"{chats.chats.name} {kind}", old, _figures(kind, chats)), flush=True)
                    found = [_figures(kind, each) for each in (chats, *steps)]
                    for name in (f"{split} {language} {kind}", f"{split} {kind}"):
                        asked[name] = [[*a, *b] for a, b in zip(asked.get(name, [[]] * 4), found, strict=True)]
                old = _figures("class", chats, BEFORE, is_grouped=False)
                print(_row(f"{chats.chats.name} class, with keys", old, _figures("class", keyed)), flush=True)
                riders.append(_riders(chats.chats.name, (chats, BEFORE), (chats, DEFAULT), (steps[-1], DEFAULT)))
    print(f"\n**With lines of MEMORY.md, {has}: none → lines → with keys by class → and by occasion**\n\n{head}")
    print("\n".join(_row(name, *found) for name, found in asked.items()))
    print(f"\n**What automatic recall adds, {has}; of a hundred messages: before → now → with lines and keys**\n")
    print("| set | a remark that bears on it | hits for it | anything, to a chore | hits to a chore |")
    print(f"|{'---|' * 5}", *riders, sep="\n")
    if has_ablations:
        _print_ablations(embed)


def _figures(kind: str, chats: OpenSet, weights: RankingWeights = DEFAULT, *, is_grouped: bool = True) -> ChatFigures:
    """Return the figures of each question of *kind*."""
    asked = [each for each in chats.chats.questions if each.kind == kind]
    return [_judge(chats.ask(each, weights, is_grouped=is_grouped)) for each in asked]


def _row(name: str, *found: ChatFigures) -> str:
    """Return the row of the same questions in several ways, with the interval of the last minus the first."""
    cells = []
    for figure in FIGURES:
        columns = [[each[figure] for each in figures] for figures in found]
        low, high = interval([b - a for a, b in zip(columns[0], columns[-1], strict=True)])
        cells.append(f"{' → '.join(f'{statistics.fmean(each):.1f}' for each in columns)} [{low:+.1f}, {high:+.1f}]")
    return f"| {name} | {len(found[0])} | {' | '.join(cells)} |"


def _riders(name: str, *ways: tuple[OpenSet, RankingWeights]) -> str:
    """Return the row of automatic recall; with the weights of before, every hit above 0.35 rides along."""
    rows = []
    for chats, weights in ways:
        found: dict[str, list[float]] = {"bears": [], "beside": [], "chore": [], "hits": []}
        for asked in chats.chats.questions:
            if asked.kind not in found:
                continue
            is_before = weights is BEFORE
            hits = chats.ask(asked, weights, is_grouped=not is_before)[: 10 if is_before else _SEEN]
            hits = [e for e in hits if (e[0].score >= _SCORE_BEFORE if is_before else bears_on(e[0], asked.text))]
            shown = recalled([hit for hit, _ in hits]).get("recall", "").count("\n> ")
            is_hit = any(is_gold for _, is_gold in hits[:shown]) if asked.kind == "bears" else shown > 0
            found[asked.kind].append(100.0 * is_hit)
            found["beside" if asked.kind == "bears" else "hits"].append(shown)
        rows.append([f"{statistics.fmean(each):.1f}" for each in found.values()])
    return f"| {name} | {' | '.join(' → '.join(cells) for cells in zip(*rows, strict=True))} |"


def _print_ablations(embed: Embed | None) -> None:
    names = [f"{split} {kind}" for split in SPLITS for kind in KINDS]
    print("\n**Each new part left out, both languages: R@10 / R@2048t**\n")
    print(f"| without | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    rows: dict[str, dict[str, list[dict[str, float]]]] = {}
    for split in SPLITS:
        for language in LANGUAGES:
            with open_set(load(split, language), embed) as chats:
                for part in ("(all parts)", "one hit a message", *NEW):
                    weights = replace(DEFAULT, **{part: 0.0}) if part in NEW else DEFAULT
                    for asked in chats.chats.questions:
                        if asked.kind in KINDS:
                            hits = chats.ask(asked, weights, is_grouped=part != "one hit a message")
                            row = rows.setdefault(part, {}).setdefault(f"{split} {asked.kind}", [])
                            row.append(_judge(hits))
    for part, sums in rows.items():
        cells = []
        for name in names:
            means = [statistics.fmean(each[figure] for each in sums[name]) for figure in ("R@10", "R@2048t")]
            cells.append(" / ".join(f"{mean:.1f}" for mean in means))
        print(f"| {part} | {' | '.join(cells)} |", flush=True)
