"""The chat page in Chromium with a long conversation: how fast it opens, whether it jumps, and the time of a key."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.async_api import Page

from gateway.events import SessionKey
from tests.benchmarks.harness import median, percentile, row
from tests.benchmarks.long_conversations import open_past, stored_turn
from tests.e2e.browser import open_browser, open_chat
from tests.fakes.gateway import gateway
from tests.fakes.memory import exchange

MESSAGES = 5_000
OPENINGS = 15
KEYS = 300
STEPS = 200
_LINES = "document.querySelectorAll('.line').length"
_ANSWER = """It depends on **where** the water comes from:

1. Look at the *outer* wall after rain.
2. Measure the humidity for a week.

{more}Everything else can wait until spring, when the walls have dried: `answer {n}`."""
_MORE = (
    "",
    "```python\ndef is_dry(reading: float) -> bool:\n    return reading < 0.6  # of a possible 1.0\n```\n\n",
    "| wall | humidity | cost |\n|---|---|---|\n| north | 71 % | 1,900 |\n| east | 48 % | 0 |\n\n",
)
# From the beginning of the navigation to the frame in which the newest message is drawn.
NOTE_OPENING = """
new MutationObserver((_, observer) => {
  if (!document.querySelector(".line")) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.opened = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""
# Scroll to the top as a reader does, and follow the line at the top of the window until older ones are above it.
_READ_UPWARDS = """
async () => {
  const scroller = document.getElementById("scroller");
  const list = document.getElementById("lines");
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const count = () => list.querySelectorAll(".line").length;
  const before = count();
  const arrived = new Promise((done) => {
    const observer = new MutationObserver(() => {
      if (count() > before) { observer.disconnect(); done(); }
    });
    observer.observe(list, { childList: true });
  });
  scroller.scrollTop = Math.min(scroller.scrollTop, 79);
  const anchor = list.querySelector(".line");
  const at = anchor.getBoundingClientRect().top;
  await arrived;
  await frame();
  await frame();
  return anchor.getBoundingClientRect().top - at;
}
"""
# Scroll by less than a window, and return how much further or less far than that the line in the middle has moved.
_TURN_WHEEL = """
async () => {
  const scroller = document.getElementById("scroller");
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const line = [...document.querySelectorAll(".line")].find((each) => each.getBoundingClientRect().bottom > 300);
  const at = line.getBoundingClientRect().top;
  scroller.scrollBy(0, -200);
  await frame();
  await frame();
  return line.getBoundingClientRect().top - at - 200;
}
"""
# Entries of the browser's own event timing, which end with the frame that shows the letter.
_NOTE_KEYS = """
() => {
  window.shown = [];
  window.handled = [];
  window.longTasks = 0;
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) {
      if (each.name !== "keydown") continue;
      window.handled.push(each.processingEnd - each.startTime);
      window.shown.push(each.duration);
    }
  }).observe({ type: "event", durationThreshold: 0 });
  new PerformanceObserver((list) => { window.longTasks += list.getEntries().length; }).observe({ type: "longtask" });
  document.getElementById("text").focus();
}
"""
_NEXT_FRAME = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"


async def measure() -> None:
    """Print the figures of a conversation of 5,000 messages."""
    with tempfile.TemporaryDirectory(prefix="parlour-page-") as folder:
        home = Path(folder) / "home"
        await write_conversation(home, MESSAGES // 2, lambda n: _ANSWER.format(n=n, more=_MORE[n % len(_MORE)]))
        async with gateway(home) as process, open_browser() as browser:
            page = await open_chat(browser, process.url)
            await page.add_init_script(NOTE_OPENING)
            spent = [await opening_time(page) for _ in range(OPENINGS)]
            row("opening", median_ms=median(spent), worst_ms=max(spent), load=os.getloadavg()[0])
            await _type(page, "typing, newest messages shown")
            moved = []
            while int(await page.evaluate(_LINES)) < MESSAGES:
                moved.append(abs(float(await page.evaluate(_READ_UPWARDS))))
            row("reading upwards", pages=len(moved), worst_px=max(moved), jumps=sum(each > 1 for each in moved))
            await _type(page, f"typing, all {MESSAGES} shown")
            await page.evaluate("document.getElementById('scroller').scrollTop = 1e9")
            moved = [abs(float(await page.evaluate(_TURN_WHEEL))) for _ in range(STEPS)]
            row(
                "scrolling upwards, by 200 px",
                steps=STEPS,
                worst_px=max(moved),
                jumps=sum(each > 1 for each in moved),
            )


async def _type(page: Page, name: str) -> None:
    """Type, one key after the frame of the one before, and print what the page's main thread did for each."""
    await page.evaluate(_NOTE_KEYS)
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")

    async def busy() -> float:
        figures = (await session.send("Performance.getMetrics"))["metrics"]
        return next(float(each["value"]) for each in figures if each["name"] == "TaskDuration") * 1_000

    spent = []
    for letter in "the cellar is dry " * (KEYS // 18):
        before = await busy()
        await page.keyboard.press("Space" if letter == " " else letter)
        await page.evaluate(_NEXT_FRAME)
        spent.append(await busy() - before)
    handled, shown, long = await page.evaluate("() => [handled, shown, longTasks]")
    figures = {"busy": spent, "handled": handled, "shown": shown}
    row(
        name,
        keys=len(spent),
        **{
            f"{what}_p{share}_ms": percentile(values, share / 100)
            for what, values in figures.items()
            for share in (50, 99)
        },
        long_tasks=long,
        load=os.getloadavg()[0],
    )
    await page.locator("#text").fill("")


async def opening_time(page: Page) -> int:
    """Load the page again; return the milliseconds until the conversation is drawn."""
    await page.reload()
    return round(float(await (await page.wait_for_function("() => window.opened")).json_value()))


async def write_conversation(home: Path, turns: int, answer: Callable[[int], str]) -> None:
    """Store a conversation of the owner on the page in a new home, as a gateway does."""
    key, scope = SessionKey("web", "owner"), "people/web%3aowner"
    records = (exchange(n, 2 * n, answered=answer(n), key=key, scope=scope) for n in range(turns))
    async with open_past(home) as store:
        await store.transcripts.adopt(scope, key, list(map(stored_turn, records)), in_files=True)
