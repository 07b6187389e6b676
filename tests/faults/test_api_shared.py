"""The API at two real gateways on one PostgreSQL: one key, one conversation, whichever of them runs the turn."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.fakes.gateway import GatewayProcess
from tests.fakes.openai_server import open_server
from tests.fakes.postgres_server import PostgresServer
from tests.faults.process_pool import ForkServer
from tests.faults.test_gateways_shared import team

CHAT = {"X-Parlour-Chat": "work"}


async def ask(gateway: GatewayProcess, key: str, words: str) -> tuple[str, int]:
    """Ask for a stream; return its text and the number of its pieces."""
    async with AsyncOpenAI(
        base_url=f"{gateway.url}v1", api_key=key, default_headers=CHAT, max_retries=0, timeout=50
    ) as client:
        messages: Any = [{"role": "user", "content": words}]
        stream = await client.chat.completions.create(model="parlour", messages=messages, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    return "".join(pieces), len([each for each in pieces if each])


async def test_a_key_and_a_conversation_at_two_gateways(
    tmp_path: Path, postgres: PostgresServer, zygote: ForkServer
) -> None:
    """A key of one is good at both and revoked at both; an answer comes to the gateway that was asked."""
    postgres.empty()
    async with (
        open_server() as model,
        team(tmp_path, postgres, zygote, model, PARLOUR_CHANNELS__API__ENABLED="true") as (first, second),
    ):
        key = str(json.loads(await first.command("web", "key", "--as", "ann", "--json"))["key"])
        texts = []
        for n, gateway in enumerate((first, second, second, first)):
            text, _ = await ask(gateway, key, f"words {n}")
            texts.append(text)
        assert all(texts)
        same = await asyncio.gather(*(ask(gateway, key, "at once") for gateway in (first, second)))
        assert same[0][0] == same[1][0]
        prompts = [text for body in model.requests if "at once" in (text := json.dumps(body["messages"]))]
        assert len(prompts) == 1
        assert all(f"words {n}" in prompts[0] for n in range(4))
        await second.command("web", "revoke", "ann")
        for gateway in (first, second):
            with pytest.raises(openai.AuthenticationError):
                await ask(gateway, key, "revoked")
