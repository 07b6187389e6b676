"""What the owner sees of usage, with the gateway running and without it, and what a sender sees of their own."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage
from gateway.admission import AdmissionGrant, AdmissionPolicy, AllowEntry, GroupPolicy
from gateway.errors import ModelRateLimited, UserError
from gateway.operations.gateway import status_rows
from gateway.operations.machine import usage_table
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.gateway import COMMAND
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

OPEN = AdmissionPolicy(
    channel="pocket", entries=frozenset({AllowEntry(AdmissionGrant.CHAT, "hall")}), group_policy=GroupPolicy.OPEN
)
PLAIN = {"PARLOUR_TIMEZONE": "UTC", "PARLOUR_CAPS__PERSON_TOKENS_PER_DAY": "100000"}


class PricedModel(FakeChatModel):
    """Costs a cent a call; the first call of each turn is refused for being too many, the third call has no price."""

    def __init__(self) -> None:
        self.name = "priced"
        self.calls = 0

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer, at a price."""
        self.calls += 1
        if self.calls == 1:
            raise ModelRateLimited("too many")
        cost = None if self.calls == 3 else 0.01
        return ChatReply(text="answer", tool_calls=(), model=self.name, tokens=TokenUsage(1_000, 10, 800), cost=cost)


async def report_usage(parlour: InProcessGateway, **arguments: str) -> list[dict[str, Any]]:
    """Return what the operation says."""
    return [dict(line) async for line in parlour.app.operations["usage"](arguments)]


async def test_each_request_is_a_row_and_an_unknown_price_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever is asked; a request that was refused took nothing and cost nothing, one without a price is said."""
    home, model = tmp_path / "home", PricedModel()
    monkeypatch.setenv("PARLOUR_HOME", str(home))
    monkeypatch.setenv("PARLOUR_LOG__LEVEL", "error")
    for name, value in PLAIN.items():
        monkeypatch.setenv(name, value)
    async with gateway(model=model, home=home, policy=OPEN, environment=PLAIN) as parlour:
        await parlour.channel.ask("hall", "one", sender="bob", group=True)
        assert "cost $0.0100" in await parlour.channel.ask("hall", "/usage", sender="bob", group=True)
        assert "98,990 of 100,000 tokens" in await parlour.channel.ask("hall", "/usage", sender="bob", group=True)
        await parlour.channel.ask("hall", "two", sender="ann", group=True)
        assert "cost unknown" in await parlour.channel.ask("hall", "/usage", sender="ann", group=True)
        await parlour.channel.ask("hall", "three", sender="ann", group=True)
        mine = await parlour.channel.ask("hall", "/usage", sender="ann", group=True)
        assert "2 model calls, 2,020 tokens, cost $0.0100 plus 1 call of unknown" in mine
        here = await parlour.channel.ask("hall", "/status", sender="ann", group=True)
        assert "3,030 tokens, cost $0.0200 plus 1 call of unknown cost, 80% of the input" in here
        people = {line["person"]: line for line in await report_usage(parlour, by="person")}
        assert {name: (line["calls"], line["cost"]) for name, line in people.items()} == {
            "pocket:ann": (2, None),
            "pocket:bob": (2, pytest.approx(0.01)),
        }
        assert [line["calls"] for line in await report_usage(parlour, by="purpose")] == [model.calls]
        with pytest.raises(UserError, match="is not a date"):
            await report_usage(parlour, since="yesterday")
        with pytest.raises(UserError, match="grouped by 'colour'"):
            await report_usage(parlour, by="colour")
        shown = usage_table("person", await report_usage(parlour, by="person", since="7d"))
        assert [line.split()[0] for line in shown] == ["person", "pocket:ann", "pocket:bob", "together"]
        assert "$0.0100 plus 1 call of unknown cost" in shown[1]
        assert "$0.0200 plus 1 call of unknown cost" in shown[3]
        status = [line async for line in parlour.app.operations["status"]({})]
        shown = [row for row in status_rows(status, {}) if row.startswith("today")]
        assert shown == [
            f"{'today':16} 4 model calls, 3,030 tokens, 80% of input tokens cached,"
            " cost $0.0200 plus 1 call of unknown cost"
        ]
    said = await asyncio.to_thread(subprocess.run, [COMMAND, "usage", "--json"], capture_output=True, check=True)
    assert json.loads(said.stdout)["calls"] == model.calls == 4
