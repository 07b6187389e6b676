"""`make bench-recall DATA=…`, or `python -m tests.benchmarks.recall --data PATH|URL --model installed|local:FOLDER`.

Prints Markdown tables: what is found with the model and by words, in LoCoMo and in our own sets, with the paired
interval of their difference. No language model judges. Writes nothing unless `--vectors` names a file for the
embeddings, which take most of the time.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from agent.memory.search.embedding import INSTALLED_MODEL, MODEL_SHA256, TOKENIZER, find_installed_model
from agent.memory.search.embedding_models import LocalEmbedder
from gateway.logs import configure_logs
from tests.benchmarks.harness import memory_mb
from tests.benchmarks.recall import bot_chats, locomo, scale, times, twins
from tests.benchmarks.recall.measures import RecallFigures, paired_interval
from tests.benchmarks.recall.sets import Embed, RecallSet, Vector, measure

INSTALLED = "installed"  # the name of the extra's model on the command line
_COLUMNS = ("R@10", "R@2048t", "R@100", "shown")


def _rows(data: str) -> Iterator[tuple[str, Sequence[RecallSet]]]:
    """Yield the rows of the table: a name, and sets that are measured each with its index."""
    if data:
        chats = locomo.load(data)
        real = [kind for kind in locomo.CATEGORIES.values() if kind != "adversarial"]
        for kind in real:
            yield f"LoCoMo, {kind}", [chat.of(kind) for chat in chats]
        yield "**LoCoMo**", [chat.without("adversarial") for chat in chats]
        yield "LoCoMo, questions that mislead too", chats
        yield "LoCoMo, in one index", [chat.without("adversarial") for chat in locomo.load(data, is_one=True)]
    for split, language in bot_chats.SETS:
        chat = bot_chats.load(split, language)
        for kind in bot_chats.KINDS:
            yield f"{split} {language}, {kind}", [chat.of(kind)]
    for split in ("dev", "heldout"):
        keyed = [bot_chats.load(of, language, has_keys=True) for of, language in bot_chats.SETS[:4] if of == split]
        for kind in bot_chats.KINDS:
            yield f"{split} en and de, {kind}, with lines and keys", [chat.of(kind) for chat in keyed]


def _print_table(data: str, embed: Embed | None) -> None:
    both = ("with the model", "by words") if embed else ("by words",)
    heads = [f"{way}: {' / '.join(_COLUMNS)}" for way in both]
    if embed:
        heads += [f"model minus words, {name} [95 %]" for name in ("R@10", "R@2048t")]
    print(f"\n| set | questions | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 2)}", flush=True)
    for name, sets in _rows(data):
        words = [each for one in sets for each in measure(one, None)]
        found = [[each for one in sets for each in measure(one, embed)], words] if embed else [words]
        cells = [_means(each) for each in found]
        if embed:
            cells += [
                _difference(words, found[0], "ten"),
                _difference(words, found[0], "budget"),
            ]
        print(f"| {name} | {len(words)} | {' | '.join(cells)} |", flush=True)


def _means(figures: Sequence[RecallFigures]) -> str:
    columns = ("ten", "budget", "hundred", "shown")
    return " / ".join(f"{fmean(getattr(each, column) for each in figures):.1f}" for column in columns)


def _difference(before: Sequence[RecallFigures], after: Sequence[RecallFigures], column: str) -> str:
    old, new = ([getattr(each, column) for each in figures] for figures in (before, after))
    low, high = paired_interval(old, new)
    return f"{fmean(new) - fmean(old):+.1f} [{low:+.1f}, {high:+.1f}]"


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
    parser.add_argument("--scale", type=int, nargs="*", metavar="UNITS", help="latency with so many units")
    parser.add_argument("--only-scale", action="store_true", help="the latency and nothing else")
    chosen = parser.parse_args()
    configure_logs(level="error", form="text", secrets=())
    print(f"python {platform.python_version()}, sqlite {sqlite3.sqlite_version}, load {os.getloadavg()[0]:.1f}")
    if not chosen.only_scale:
        embed = _embedder(chosen.model, chosen.vectors)
        _print_table(chosen.data, embed)
        twins.print_table(embed)
        times.print_table()
    for units in chosen.scale or ():
        scale.print_table(units, locomo.load(chosen.data) if chosen.data else ())
    print(f"\npeak memory of the benchmark: {memory_mb():.0f} MB")


if __name__ == "__main__":
    main()
