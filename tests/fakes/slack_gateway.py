"""The whole gateway before a workspace, and models that a test can hold back or look into."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent.tools.tool import Tool
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway
from tests.fakes.slack_server import ANN, APP_TOKEN, BOB, BOT_TOKEN, BOT_USER, SlackServer

CALL = f"<@{BOT_USER}>"
_APP = "PARLOUR_CHANNELS__SLACK__APP_TOKEN"


def variables(server: SlackServer) -> dict[str, str]:
    """Return the environment of a gateway with a Slack block for Ann and Bob."""
    return {
        "PARLOUR_CHANNELS__SLACK__BOT_TOKEN": BOT_TOKEN,
        "PARLOUR_CHANNELS__SLACK__APP_TOKEN": APP_TOKEN,
        "PARLOUR_CHANNELS__SLACK__BASE_URL": f"{server.base}/api/",
        "PARLOUR_CHANNELS__SLACK__ALLOW_FROM": f"{ANN},{BOB}",
    }


@asynccontextmanager
async def open_gateway(
    server: SlackServer,
    *,
    home: Path | None = None,
    model: Any = None,
    environment: Mapping[str, str] | None = None,
    tools: Sequence[Tool] = (),
) -> AsyncIterator[InProcessGateway]:
    """Run the gateway; it is connected, and has read what it missed, when the block begins."""
    before = server.connections
    found = {**variables(server), **(environment or {})}
    if not found[_APP]:
        del found[_APP]
    async with gateway(home=home, model=model or InstantModel(), environment=found, tools=tools) as parlour:
        if _APP in found:
            await server.until(lambda: server.connections > before)
        yield parlour


def transcripts(home: Path) -> str:
    """Return every transcript of *home*, one after the other."""
    return "".join(path.read_text("utf-8") for path in sorted(home.rglob("*.jsonl")))
