"""The whole matrix: every call of one turn and of fifty, every fault, on the relay and on the three platforms.

python -m tests.faults                      the relay, everything (an hour on two cores)
python -m tests.faults --chats 1            one turn only
python -m tests.faults --platform slack --mode kill_before reply_lost
python -m tests.faults --stage pairing claim cap alert    decisions about people, killed at every call
python -m tests.faults --stage question reminder task    a call that a person allows, a reminder, a task: the same
python -m tests.faults --chats 1 --list           every call of one turn, numbered; nothing is played
python -m tests.faults --mode kill_before --at 57 --no-key    one scenario, its folder kept if it goes wrong
python -m tests.faults --chats 50 --mode kill_before --from 420   go on with a run that was interrupted

A line every 20 seconds says how many points were played, how many of them are wrong, and where to resume.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

from tests.fakes.postgres_server import open_server as open_postgres
from tests.faults.access_plots import PLOTS as ACCESS_PLOTS
from tests.faults.matrix import cases, count, count_sends, kinds, losses, places, play_all, summary
from tests.faults.memory_plots import MEMORY_PLOTS
from tests.faults.platforms import PLATFORMS
from tests.faults.plot_runner import PlotRun, format_outcomes, open_databases, play_images, play_plot, points_of
from tests.faults.process_order import CHANNEL
from tests.faults.process_pool import ForkServer, open_zygote
from tests.faults.progress import show_progress
from tests.faults.scenario import FaultCase
from tests.faults.shim import ShimMode
from tests.faults.tool_plots import TOOL_PLOTS

PLOTS = {**ACCESS_PLOTS, **MEMORY_PLOTS, **TOOL_PLOTS}
LOST = "reply_lost"  # the platform's fault, not ours: done, and never told
_OURS = {mode.name.lower(): mode for mode in ShimMode if mode is not ShimMode.COUNT}


def bases(options: argparse.Namespace) -> list[FaultCase]:
    """Return the places that were asked for."""
    relay = [FaultCase(chats=chats, whole_life=options.whole_life) for chats in options.chats]
    return [
        replace(base, unclean_stops=options.unclean_stops)
        for platform in options.platform
        for base in (relay if platform == CHANNEL else places(platform, is_strict=options.strict))
        if options.place is None or base.place.startswith(f"{platform} {options.place}")
    ]


async def play(zygote: ForkServer, options: argparse.Namespace) -> bool:
    """Play what was asked for, print as it goes; say whether everything held."""
    is_fine = True
    for base in bases(options):
        points = await count(zygote, base)
        print(f"{base.place}: {len(points)} points: {kinds(points)}", flush=True)
        if options.list:
            print("\n".join(f"{n} {point}" for n, point in enumerate(points, 1)))
            continue
        for mode in options.mode:
            if mode == LOST and base.platform == CHANNEL:
                continue  # the relay loses replies in tests of its own
            every = await select_cases(zygote, base, mode, options, len(points))
            name, started = f"{base.place}, {mode}", time.monotonic()
            async with show_progress(name, [case.at or case.lose for case in every]) as progress:
                outcomes = await play_all(zygote, every, at_once=options.at_once, record=progress.record)
            print(f"{name}: {summary(outcomes)} ({time.monotonic() - started:.0f} s)", flush=True)
            is_fine = is_fine and not any(outcome.wrong for outcome in outcomes)
    return is_fine


async def play_stages(zygote: ForkServer, options: argparse.Namespace) -> bool:
    """Play decisions about people, promises of tools and acts of memory; say whether everything held."""
    is_fine = True
    with ExitStack() as stack:
        server = None
        if options.engine == "postgresql":
            server = stack.enter_context(closing(open_postgres()))
        databases = stack.enter_context(open_databases(server, options.at_once))
        for name in options.stage:
            points = await points_of(zygote, PLOTS[name], databases[0])
            print(f"{name} on {options.engine}: {len(points)} points: {kinds(points)}", flush=True)
            if options.list:
                print("\n".join(f"{n} {point}" for n, point in enumerate(points, 1)))
                continue
            numbers, started = select_numbers(options, len(points)), time.monotonic()
            async with show_progress(f"{name}, kill_before", numbers) as progress:
                if options.images:
                    images = await PlotRun(zygote, PLOTS[name]).take_images(numbers)
                    outcomes = await play_images(zygote, PLOTS[name], images, options.at_once, record=progress.record)
                else:
                    outcomes = await play_plot(zygote, PLOTS[name], numbers, databases, record=progress.record)
            seconds = time.monotonic() - started
            print(f"{name} on {options.engine}: {format_outcomes(outcomes)} ({seconds:.0f} s)", flush=True)
            is_fine = is_fine and not any(outcome.wrong for outcome in outcomes)
    return is_fine


def select_numbers(options: argparse.Namespace, total: int) -> Sequence[int]:
    """Return the numbers, of 1 to *total*, of the points to play."""
    return options.at or range(options.first, total + 1, options.every)


async def select_cases(
    zygote: ForkServer, base: FaultCase, mode: str, options: argparse.Namespace, points: int
) -> list[FaultCase]:
    """Return the cases of one mode."""
    total = await count_sends(zygote, base) if mode == LOST else points
    numbers = select_numbers(options, total)
    if mode == LOST:
        return losses(base, numbers)
    every = cases(base, _OURS[mode], numbers)
    return every if options.key is None else [replace(case, send_key=options.key) for case in every]


def main() -> None:
    """Read the command line; exit 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platform", choices=(CHANNEL, *PLATFORMS), nargs="+", default=[CHANNEL])
    parser.add_argument("--stage", choices=tuple(PLOTS), nargs="+", help="decisions and promises instead of turns")
    parser.add_argument("--engine", choices=("sqlite", "postgresql"), default="sqlite", help="of --stage")
    parser.add_argument("--images", action="store_true", help="of --stage on SQLite: go on from copies, half the time")
    parser.add_argument("--place", choices=("direct", "thread", "file"), help="of a platform; all without it")
    parser.add_argument("--strict", action="store_true", help="of a platform, under delivery.once: strict")
    parser.add_argument("--chats", type=int, nargs="+", default=[1, 50], help="of the relay")
    parser.add_argument("--mode", choices=(*_OURS, LOST), nargs="+", default=[*_OURS, LOST], help="these faults only")
    parser.add_argument("--at", type=int, nargs="+", help="these points only")
    parser.add_argument("--every", type=int, default=1, help="every n-th point")
    parser.add_argument("--from", type=int, default=1, dest="first", metavar="FROM", help="this point and later ones")
    parser.add_argument("--key", action=argparse.BooleanOptionalAction, help="the relay recognises a repeated send")
    parser.add_argument("--whole-life", action="store_true", help="from before the start to the end, not only the turn")
    parser.add_argument("--unclean-stops", type=int, default=0, help="kills before the one that is played")
    parser.add_argument("--at-once", type=int, default=4, help="scenarios side by side")
    parser.add_argument("--list", action="store_true", help="print every point and play none")
    options = parser.parse_args()
    # A gateway that is killed hangs up on the fakes in mid-answer; that is the point, not news.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    with open_zygote(keep=bool(options.at)) as zygote:
        playing = play_stages if options.stage else play
        sys.exit(0 if asyncio.run(playing(zygote, options)) else 1)


if __name__ == "__main__":
    main()
