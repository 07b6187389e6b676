"""Questions about what was said at a time, written for this in four languages: the share of the first ten hits from it.

`times.tsv` has two sets that were used in development, and two held-out sets, which nothing was tuned on: *composed*
has times in longer times, uncounted ones and numbered conversations. Every language
has a diary of its own: fourteen months of conversations made of the facts and questions of `twins.tsv`, which say
nothing about their time.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from agent.memory.search.query import parse_query
from agent.memory.search.result_selection import rank_candidates
from agent.memory.search.scope_index import ScopeIndex
from agent.memory.search.search_unit import SearchUnit, UnitSource
from tests.benchmarks.recall import twins
from tests.benchmarks.recall.measures import paired_interval

ASKED_AT: Mapping[str, datetime] = {
    "first": datetime(2024, 6, 12, 15, tzinfo=ZoneInfo("Europe/Berlin")),  # a Wednesday
    "second": datetime(2025, 2, 3, 9, 30, tzinfo=ZoneInfo("America/New_York")),  # a Monday
    "heldout": datetime(2025, 10, 15, 18, tzinfo=ZoneInfo("Asia/Tokyo")),  # a Wednesday
    "composed": datetime(2026, 3, 14, 10, tzinfo=ZoneInfo("Europe/Berlin")),  # a Saturday
}
_MATERIAL = {"en": 0, "de": 1, "es": 0, "zh": 3}  # columns of twins.tsv; Spanish questions about an English diary
_FIRST_TEN = 10


@dataclass(frozen=True, slots=True)
class TimeQuestion:
    """A question, and the time whose messages answer it: a span, or conversations by their place."""

    language: str
    text: str
    start: str
    end: str


def questions(name: str) -> list[TimeQuestion]:
    """Return the questions of the set *name*."""
    lines = Path(__file__).with_suffix(".tsv").read_text("utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    return [TimeQuestion(*row[1:]) for row in rows if row[0] == name]


def diary(language: str, until: datetime) -> list[SearchUnit]:
    """Return fourteen months of conversations before *until*, three of four days, morning or evening or both."""
    chance = random.Random(7)  # noqa: S311 - the same diary every time
    pool = [text for row in twins.rows() for text in row[_MATERIAL[language]]]
    units: list[SearchUnit] = []
    day = (until - timedelta(days=425)).replace(hour=0, minute=0)
    while day < until - timedelta(hours=12):
        for hour in chance.choice(([], [9], [20], [9, 20])):
            at = day + timedelta(hours=hour)
            for n in range(chance.randint(6, 14)):
                role = "assistant" if n % 2 else "user"
                units.append(
                    SearchUnit(
                        text=chance.choice(pool), line=len(units) + 1, at=at + timedelta(minutes=n), role=role,
                        who="" if n % 2 else "Ann", group=f"{at:%F %H}",
                    )
                )  # fmt: skip
        day += timedelta(days=1)
    return [unit for unit in units if unit.at and unit.at < until]


def _gold(question: TimeQuestion, units: Sequence[SearchUnit], zone: ZoneInfo) -> frozenset[int]:
    if question.start in {"first", "last"}:
        wanted = units[0].group if question.start == "first" else units[-1].group
        return frozenset(unit.line for unit in units if unit.group == wanted)
    if question.start.startswith("#"):
        groups = list(dict.fromkeys(unit.group for unit in units))
        first, last = (int((text or question.start)[1:]) for text in (question.start, question.end))
        talks = groups[first - 1 : last] if first > 0 else [groups[first]]
        return frozenset(unit.line for unit in units if unit.group in talks)
    start, end = (datetime.fromisoformat(text).replace(tzinfo=zone) for text in (question.start, question.end))
    return frozenset(unit.line for unit in units if unit.at and start <= unit.at < end)


def measure(name: str, *, reads_times: bool = True) -> Iterator[tuple[TimeQuestion, float]]:
    """Yield the questions of a set with the share of right hits among the first ten that could be right."""
    now = ASKED_AT[name]
    zone = now.tzinfo
    assert isinstance(zone, ZoneInfo)
    with tempfile.TemporaryDirectory() as folder:
        for language in _MATERIAL:
            units = diary(language, now)
            index = ScopeIndex(Path(folder) / f"{language}.db", is_new=True)
            index.put(UnitSource(name="diary"), units)
            for question in questions(name):
                if question.language != language:
                    continue
                gold = _gold(question, units, zone)
                if not gold:
                    continue
                parsed = parse_query(question.text, now=now if reads_times else None)
                ranked = rank_candidates([index.query(parsed)], parsed, now=now, zone=zone)
                passages = index.passages([each.id for _, each in ranked[:_FIRST_TEN]])
                right = sum(each.line in gold for each in passages.values())
                yield question, 100 * right / min(_FIRST_TEN, len(gold))
            index.close()


def print_table() -> None:
    """Print the table."""
    print("\n**What was said at a time: the first ten hits that were, in percent; text alone**\n")
    print("| set | questions | times not read | times read | gain, 95 % paired |\n|---|---|---|---|---|")
    for name in ASKED_AT:
        before, after = ([share for _, share in measure(name, reads_times=reads)] for reads in (False, True))
        low, high = paired_interval(before, after)
        means = (sum(each) / len(each) for each in (before, after))
        print(f"| {name} | {len(after)} | {' | '.join(f'{mean:.1f}' for mean in means)} | {low:+.1f} to {high:+.1f} |")


if __name__ == "__main__":
    print_table()
