"""`memory.new_waits`: while /new waits nobody else does, /stop ends it, and a kill leaves a whole session."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.agent.test_consolidation import SCOPE, SummaryModel
from tests.fakes.histories import stored_entries
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

WAITS = {"PARLOUR_MEMORY__NEW_WAITS": "true"}


async def start_held_summary(parlour: InProcessGateway, model: SummaryModel) -> None:
    """Have Ann say something and /new; return when the summary of it is being made, and held back."""
    await parlour.channel.ask("ann", "the first thing")
    model.go_on.clear()
    model.thinking.clear()
    await parlour.channel.say("ann", "/new", number="00000000000000000007")
    await model.thinking.wait()


def entries(home: Path) -> int:
    """Return how many summaries there are of Ann's conversations."""
    return len(stored_entries(home, SCOPE))


async def test_others_are_answered_and_stop_ends_the_waiting() -> None:
    """Another chat does not notice; /stop takes effect, the session goes on as it was, and a later /new works."""
    model = SummaryModel()
    async with gateway(model=model, environment=WAITS) as parlour:
        await start_held_summary(parlour, model)
        assert (await parlour.channel.ask("ben", "hello", sender="ben")).endswith("hello")
        await parlour.channel.say("ann", "/stop")
        await parlour.idle()
        model.go_on.set()
        await parlour.channel.ask("ann", "the second thing")
        assert "the first thing" in str(model.prompts[-1])
        assert await parlour.channel.ask("ann", "/new") == "New session started."
        assert entries(parlour.home) == 1
        await parlour.channel.ask("ann", "the third thing")
        assert "the first thing" not in str(model.prompts[-1][1:])
