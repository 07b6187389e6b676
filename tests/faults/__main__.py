"""The whole matrix: every call of one turn and of fifty, every fault, both kinds of platform.

python -m tests.faults                      everything (an hour on two cores)
python -m tests.faults --chats 1            one turn only
python -m tests.faults --mode kill_before --at 57 --no-key    one scenario, its folder kept if it goes wrong
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from dataclasses import replace

from tests.faults.matrix import cases, count, kinds, play_all, summary, verdict
from tests.faults.nursery import Zygote, open_zygote
from tests.faults.scenario import Case
from tests.faults.shim import Mode

FAULTS = [mode for mode in Mode if mode is not Mode.COUNT]


async def play(zygote: Zygote, options: argparse.Namespace) -> bool:
    """Play what was asked for, print as it goes; say whether everything held."""
    is_fine = True
    for chats in options.chats:
        base = Case(chats=chats, whole_life=options.whole_life)
        points = await count(zygote, base)
        print(f"{chats} chat(s): {len(points)} points: {kinds(points)}", flush=True)
        if options.list:
            print("\n".join(f"{n} {point}" for n, point in enumerate(points, 1)))
        for mode in options.mode or FAULTS:
            numbers = options.at or range(1, len(points) + 1, options.every)
            every = cases(base, mode, numbers)
            if options.key is not None:
                every = [replace(case, send_key=options.key) for case in every]
            started = time.monotonic()
            outcomes = await play_all(zygote, every, at_once=options.at_once)
            seconds = time.monotonic() - started
            print(f"{chats} chat(s), {mode.name.lower()}: {summary(outcomes)} ({seconds:.0f} s)", flush=True)
            if wrong := verdict(outcomes):
                is_fine = False
                print(wrong, flush=True)
    return is_fine


def main() -> None:
    """Read the command line; exit 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=int, nargs="+", default=[1, 50])
    parser.add_argument("--mode", type=lambda name: Mode[name.upper()], nargs="+", help="these faults only")
    parser.add_argument("--at", type=int, nargs="+", help="these points only")
    parser.add_argument("--every", type=int, default=1, help="every n-th point")
    parser.add_argument("--key", action=argparse.BooleanOptionalAction, help="the platform recognises a repeated send")
    parser.add_argument("--whole-life", action="store_true", help="from before the start to the end, not only the turn")
    parser.add_argument("--at-once", type=int, default=4, help="scenarios side by side")
    parser.add_argument("--list", action="store_true", help="print every point")
    options = parser.parse_args()
    # A gateway that is killed hangs up on the fakes in mid-answer; that is the point, not news.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    with open_zygote(keep=bool(options.at)) as zygote:
        sys.exit(0 if asyncio.run(play(zygote, options)) else 1)


if __name__ == "__main__":
    main()
