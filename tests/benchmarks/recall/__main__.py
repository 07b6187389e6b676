"""`make bench-recall DATA=…`, or `python -m tests.benchmarks.recall --data PATH|URL --model local:FOLDER`.

Prints Markdown tables: the baselines, our engine with a model and without, the seed profile; by category; each part of
the ranking left out. Writes nothing unless `--vectors` names a file for the embeddings, which take most of the time.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path

import numpy as np

from agent.memory.search.embedding import INSTALLED_MODEL, MODEL_SHA256, TOKENIZER, find_installed_model
from agent.memory.search.embedding.local_embedder import LocalEmbedder
from agent.memory.search.ranking import DEFAULT, SeedProfile
from gateway.logs import configure_logs
from tests.benchmarks.harness import memory_mb, percentile
from tests.benchmarks.recall import bot_chats, scale, times, twins
from tests.benchmarks.recall.locomo import LocomoChat, load
from tests.benchmarks.recall.measures import RunningSums, judge
from tests.benchmarks.recall.shown import print_shown
from tests.benchmarks.recall.systems import Embed, RecallSystem, Vector, ours, plain, run, seeds

COLUMNS = (
    *("R@1", "R@5", "R@10", "R@20", "nDCG@10", "MRR", "sR@5", "R@512t", "R@1024t", "R@2048t", "R@4096t", "tok@10"),
)
_DECAY = timedelta(days=30)
INSTALLED = "installed"  # the name of the extra's model on the command line


def measure(system: RecallSystem, chats: Sequence[LocomoChat], embed: Embed | None) -> dict[str, RunningSums]:
    """Ask everything, print the system's row, and return the sums by category."""
    total, times = RunningSums(), None
    by_category: dict[str, RunningSums] = {}
    for chat, asked, found, times in run(system, chats, embed):  # noqa: B007 - the last of them counts
        sessions = {f"{chat.name}/{turn.id}": f"{chat.name}/{turn.session}" for turn in chat.turns}
        gold = frozenset(f"{chat.name}/{each}" for each in asked.gold)
        figures = judge(found, gold, frozenset(sessions[each] for each in gold))
        total.add(figures)
        by_category.setdefault(asked.category, RunningSums()).add(figures)
    if times is not None:
        means = total.means()
        cells = [f"{means[name]:.0f}" if name == "tok@10" else f"{means[name]:.1f}" for name in COLUMNS]
        cells += [f"{1e3 * percentile(times.asked, share):.1f}" for share in (0.5, 0.99)]
        cells += [f"{1e3 * percentile(times.processor, 0.5):.1f}", f"{times.build:.1f}"]
        print(f"| {system.name} | {' | '.join(cells)} |", flush=True)
    return by_category


def _table(title: str, first: str = "system") -> None:
    names = (first, *COLUMNS, "p50 ms", "p99 ms", "CPU p50 ms", "build s")
    print(f"\n**{title}**\n\n| {' | '.join(names)} |\n|{'---|' * len(names)}", flush=True)


def _categories(found: Mapping[str, Mapping[str, RunningSums]]) -> None:
    print("\n**By category: R@10 / R@1024t / R@2048t**\n")
    names = sorted({name for each in found.values() for name in each})
    print(f"| system | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    for system, sums in found.items():
        cells = []
        for name in names:
            means = sums[name].means()
            cells.append(" / ".join(f"{means[each]:.1f}" for each in ("R@10", "R@1024t", "R@2048t")))
        print(f"| {system} | {' | '.join(cells)} |")


def _locomo(chats: Sequence[LocomoChat], embed: Embed | None, *, has_ablations: bool) -> None:
    asked = [replace(chat, questions=tuple(q for q in chat.questions if q.category != "adversarial")) for chat in chats]
    count = sum(len(chat.questions) for chat in asked)
    _table(f"LoCoMo, {count} questions, one index per conversation")
    measure(plain("FTS5 porter, turn", "porter unicode61"), asked, None)
    found = {}
    if embed is not None:
        measure(seeds("seed profile: .7/.3, chunks 512/64", SeedProfile()), asked, embed)
        aged = SeedProfile(memory_half_life=_DECAY, docs_half_life=_DECAY)
        measure(seeds("seed profile, memory ages by half in 30 days", aged), asked, embed)
        found["default"] = measure(ours("**default, with the model**"), asked, embed)
    found["no model"] = measure(ours("**default, no model**", has_vectors=False), asked, embed)
    if embed is not None:
        measure(ours("default, all conversations in one index", is_one=True), asked, embed)
    measure(ours("no model, all conversations in one index", is_one=True, has_vectors=False), asked, embed)
    _categories(found)
    print_shown(asked, embed)
    _table(f"LoCoMo, {sum(len(chat.questions) for chat in chats)} questions, the adversarial ones too")
    measure(ours("default", has_vectors=embed is not None), chats, embed)
    if has_ablations:
        for is_with in (True, False) if embed is not None else (False,):
            _table(f"One part left out, {'with the model' if is_with else 'no model'}", "without")
            measure(ours("(all parts)", has_vectors=is_with), asked, embed)
            for part in fields(DEFAULT):
                if is_with or part.name not in {"own", "smooth"}:
                    measure(ours(part.name, replace(DEFAULT, **{part.name: 0.0}), has_vectors=is_with), asked, embed)


def _embedder(model: str, kept: Path | None) -> Embed | None:
    """Return a function that embeds what it does not know yet; *kept* is a file for what it knows."""
    if not model:
        return None
    threads = len(os.sched_getaffinity(0))
    if model == INSTALLED:
        folder = find_installed_model()
        if folder is None:
            raise SystemExit("the extra `local` is not installed")
        local = LocalEmbedder(folder, threads=threads, name=INSTALLED_MODEL, tokenizer=TOKENIZER, sha256=MODEL_SHA256)
    else:
        local = LocalEmbedder(Path(model.removeprefix("local:")), threads=threads)
    known: dict[str, Vector] = {}
    if kept is not None and kept.exists():
        with np.load(kept) as stored:
            known = dict(zip(stored["texts"].tolist(), stored["rows"], strict=True))

    def embed(texts: Sequence[str]) -> Mapping[str, Vector]:
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            known.update(zip(missing, local.embed_now(missing), strict=True))
            if kept is not None and len(missing) > 1:
                np.savez(kept, texts=np.array(list(known)), rows=np.stack(list(known.values())))
        return known

    return embed


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.recall", description=__doc__)
    parser.add_argument("--data", default="", help="LoCoMo's JSON file: a path or an address")
    parser.add_argument("--model", default="", help="local:<folder with model.onnx and tokenizer.json>, or `installed`")
    parser.add_argument("--vectors", type=Path, help="a file that keeps the embeddings for the next run")
    parser.add_argument("--ablations", action="store_true", help="each part of the ranking left out")
    parser.add_argument("--scale", type=int, nargs="*", metavar="UNITS", help="latency with so many units")
    parser.add_argument("--only-scale", action="store_true", help="the latency and nothing else")
    chosen = parser.parse_args()
    configure_logs(level="error", form="text", secrets=())
    print(f"python {platform.python_version()}, sqlite {sqlite3.sqlite_version}, load {os.getloadavg()[0]:.1f}")
    chats = load(chosen.data) if chosen.data else ()
    steps: list[Callable[[], None]] = []
    if not chosen.only_scale:
        steps += _quality(chosen, chats)
    steps += [functools.partial(scale.print_table, units, chats) for units in chosen.scale or ()]
    for step in steps:
        step()
    print(f"\npeak memory of the benchmark: {memory_mb():.0f} MB")


def _quality(chosen: argparse.Namespace, chats: Sequence[LocomoChat]) -> list[Callable[[], None]]:
    """Return the tables of what is found."""
    embed = _embedder(chosen.model, chosen.vectors)
    embedders = (embed, None) if embed is not None else (None,)
    steps: list[Callable[[], None]] = [twins.print_table, times.print_table]
    steps += [functools.partial(bot_chats.print_tables, one, has_ablations=chosen.ablations) for one in embedders]
    if chats:
        if embed is not None:  # at once, so that no row pays for another
            embed([text for chat in chats for text in _texts(chat)])
        steps.append(lambda: _locomo(chats, embed, has_ablations=chosen.ablations))
    return steps


def _texts(chat: LocomoChat) -> list[str]:
    return [*(f"{turn.who}: {turn.text}" for turn in chat.turns), *(asked.text for asked in chat.questions)]


if __name__ == "__main__":
    main()
