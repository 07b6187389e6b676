"""`make bench-pages DATA=<folder>`: the reading of pages against what a reader of them wants.

The folder holds a folder for each page, at any depth, with `source.html` and `expected.html`, as the test pages of
Mozilla's Readability are kept. The pages are read as `web_fetch` reads them, in the reader process.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.attachments.document_reader import SandboxedReader
from agent.base.transcript_lines import estimate_text
from gateway.errors import FileUnavailable
from gateway.logs import configure_logs
from tests.benchmarks.harness import row
from tests.fakes.web_pages import text_of_html, word_f1

ADDRESS = "https://page.example/test/page.html"
CHARS = 1_000_000
POOR = 0.8  # pages below are named


@dataclass(frozen=True, slots=True)
class PageScore:
    """What was read of one page."""

    name: str
    f1: float
    tokens: int
    cpu: float  # seconds, of the reader process
    is_main: bool


@dataclass(frozen=True, slots=True)
class MeasuredPage:
    """A page, and the HTML of its main part."""

    name: str
    source: bytes
    expected: str


def load_pages(folder: Path) -> Sequence[MeasuredPage]:
    """Return the pages below *folder*; equal sources are one page."""
    found: dict[bytes, MeasuredPage] = {}
    for path in sorted(folder.rglob("source.html")):
        expected = path.with_name("expected.html")
        if expected.is_file():
            page = MeasuredPage(path.parent.name, path.read_bytes(), expected.read_text("utf-8"))
            found.setdefault(page.source, page)
    return list(found.values())


async def measure(pages: Sequence[MeasuredPage]) -> Sequence[PageScore]:
    """Read every page once."""
    reader = SandboxedReader()
    scores: list[PageScore] = []
    for page in pages:
        before = _children_cpu()
        try:
            found = await reader.page(page.source, charset="", address=ADDRESS, is_whole=False, chars=CHARS)
        except FileUnavailable:
            text, is_main = "", False
        else:
            text, is_main = found.text, found.is_main
        cpu = _children_cpu() - before
        f1 = word_f1(text, text_of_html(page.expected))
        scores.append(PageScore(page.name, f1, estimate_text(text), cpu, is_main))
    return scores


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(folder: Path) -> None:
    """Print the figures of all pages, and each page that is read poorly."""
    configure_logs(level="error", form="text", secrets=())
    scores = asyncio.run(measure(load_pages(folder)))
    if not scores:
        raise SystemExit(f"{folder} holds no folder with source.html and expected.html")
    row(
        "pages, main part",
        pages=len(scores),
        f1_mean=statistics.mean(each.f1 for each in scores),
        f1_median=statistics.median(each.f1 for each in scores),
        tokens_mean=statistics.mean(each.tokens for each in scores),
        cpu_ms_median=1e3 * statistics.median(each.cpu for each in scores),
        cpu_ms_worst=1e3 * max(each.cpu for each in scores),
        read_whole=sum(not each.is_main for each in scores),
    )
    for each in sorted(scores, key=lambda score: score.f1):
        if each.f1 < POOR:
            row(f"  below {POOR}: {each.name}", f1=each.f1, tokens=each.tokens)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
