"""What a model sees of LoCoMo: the share of gold turns in the text of one `memory_search`, and that text's tokens."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC
from pathlib import Path
from statistics import fmean
from zoneinfo import ZoneInfo

from agent.memory.search.query import parse_query
from agent.memory.search.result_selection import RecallAnswer, SearchResult, rank_candidates, select_results
from agent.memory.search.scope_index import IndexedPassage, ScopeIndex
from agent.memory.search.scope_recall import AROUND, to_search_hits
from agent.tools.memory_tools import format_lines
from tests.benchmarks.recall.locomo import LocomoChat
from tests.benchmarks.recall.systems import Embed, fill_index, units_of

HITS = 40
_OLD_HITS, _OLD_AROUND = 10, 2
_BESIDE = 240  # characters of a neighbour that were shown
_SAMPLES = 2_000


def print_shown(chats: Sequence[LocomoChat], embed: Embed | None) -> None:
    """Print gold seen and tokens: ten hits under headers, as shown before, and lines; the gain with its interval."""
    before, after = (list(_measure(chats, embed, render)) for render in (_under_headers, _as_lines))
    print("\n**What the model sees: gold turns in one result, and its tokens**\n")
    print("| format | gold seen | tokens |\n|---|---|---|")
    for name, figures in (("ten hits under headers", before), ("lines, as many hits as fit", after)):
        gold, tokens = (fmean(column) for column in zip(*figures, strict=True))
        print(f"| {name} | {gold:.1f} | {tokens:.0f} |")
    gains = [new[0] - old[0] for old, new in zip(before, after, strict=True)]
    draw = random.Random(7)  # noqa: S311 - a bootstrap
    means = sorted(fmean(draw.choices(gains, k=len(gains))) for _ in range(_SAMPLES))
    low, high = means[round(0.025 * _SAMPLES)], means[round(0.975 * _SAMPLES)]
    print(f"\ngain {fmean(gains):+.1f} points, 95 % paired bootstrap interval {low:+.1f} to {high:+.1f}")


Render = Callable[[ScopeIndex, list[SearchResult]], tuple[str, list[IndexedPassage]]]


def _measure(chats: Sequence[LocomoChat], embed: Embed | None, render: Render) -> Iterator[tuple[float, float]]:
    """Yield the share of gold seen, in percent, and the tokens for each question."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for chat in chats:
            index = ScopeIndex(Path(folder) / chat.name / "index.db", is_new=True)
            stack.callback(index.close)
            fill_index(index, f"sessions/web%3A{chat.name}", units_of(chat), embed)
            for asked in chat.questions:
                question = parse_query(asked.text)
                vector = embed([asked.text])[asked.text] if embed else None
                matches = [index.query(question, vector)]
                ranked = rank_candidates(matches, question)
                limit = _OLD_HITS if render is _under_headers else HITS
                results, _ = select_results(matches, ranked, limit=limit, around=AROUND)
                text, shown = render(index, results)
                seen = {chat.turns[passage.line - 1].id for passage in shown}
                yield 100 * len(asked.gold & seen) / len(asked.gold), len(text) / 4


def _as_lines(_: ScopeIndex, results: list[SearchResult]) -> tuple[str, list[IndexedPassage]]:
    hits = to_search_hits(RecallAnswer(results=tuple(results)), [""], ZoneInfo("UTC"))
    return format_lines(hits), [shown for each in results for shown in (each.passage, *each.before, *each.after)]


def _under_headers(index: ScopeIndex, results: list[SearchResult]) -> tuple[str, list[IndexedPassage]]:
    """Return what was shown before lines: the first hits had neighbours on each side, hits or not."""
    lines, shown = [f"Found {len(results)} memory result(s):\n"], []
    for n, each in enumerate(results, start=1):
        passage = each.passage
        at = passage.at.astimezone(UTC) if passage.at else None
        shown.append(passage)
        lines.append(f"[{n}] {passage.source.name} (lines {passage.line}-{passage.end}, score: {each.score:.2f})")
        lines.append(f"{at:%Y-%m-%d %H:%M}, {passage.who}: {passage.text}")
        for other in index.around(passage.id, 1) if n <= _OLD_AROUND else ():
            if other.id != passage.id:
                shown.append(other)
                lines.append(f"  before: {f'{other.who}: {other.text}'[:_BESIDE]}")
        lines.append("")
    return "\n".join(lines), shown
