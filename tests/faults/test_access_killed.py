"""Crashes and decisions about people, calls that a person allows, and reminders: each once.

The process dies at one of the calls that the decision makes, and the next life takes it up: nobody is told anything
twice or not at all, one row and one line of the audit say what was decided, and no cap is passed. A spread of the
points is played here; all of them: `python -m tests.faults --stage pairing claim cap alert question reminder`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.access_plots import PLOTS as ACCESS_PLOTS
from tests.faults.plot_runner import format_outcomes, kill_once
from tests.faults.process_pool import ForkServer
from tests.faults.tool_plots import TOOL_PLOTS

# The points at which each is killed here: about a commit and a send.
KILLS = {
    "pairing": (7, 19), "claim": (4,), "cap": (9,), "alert": (55,), "question": (28,), "reminder": (25,),
    "task": (103,), "profile": (6, 15),
}  # fmt: skip
PLOTS = {**ACCESS_PLOTS, **TOOL_PLOTS}

Record = Callable[[str, object], None]


@pytest.mark.parametrize("name", list(PLOTS))
async def test_a_decision_is_told_once_whatever_kills_it(
    zygote: ForkServer, name: str, record_property: Record
) -> None:
    """Killed anywhere between the message that asks for it and the last line about it: once, all of it."""
    endings = [each for at in KILLS[name] for each in await kill_once(zygote, PLOTS[name], at)]
    record_property("figure", f"{name}, kill_before, {format_outcomes(endings)}")
    assert not any(ending.wrong for ending in endings), format_outcomes(endings)
    assert any(ending.struck for ending in endings)
