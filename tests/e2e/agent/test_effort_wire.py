"""/effort and its settings through the whole gateway, over HTTP: what is sent, for whom, and what is kept of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from gateway.admission import AdmissionGrant, AdmissionPolicy, AllowEntry, GroupPolicy
from gateway.i18n import translate
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.openai_server import FakeOpenAI, ScriptedAnswer, open_server

EFFORTS = ("none", "low", "medium", "high")


def environment(server: FakeOpenAI, **more: str) -> dict[str, str]:
    """Return the settings of a gateway with two models at *server*."""
    models = {
        "quick": {"model": "openai/quick", "api_base": server.base},
        "deep": {"model": "openai/deep", "api_base": server.base, "effort": "high"},
    }
    return {"PARLOUR_LLM__MODELS": json.dumps(models), "PARLOUR_LLM__MODEL": "quick", **more}


def efforts(server: FakeOpenAI) -> list[str]:
    """Return the effort of each request."""
    return [
        "none" if "chat_template_kwargs" in body else str(body.get("reasoning_effort", "")) for body in server.requests
    ]


async def test_the_nearest_setting_decides(tmp_path: Path) -> None:
    """The choice in the chat, the chat's setting, the model's, that of all; a restart keeps the choice."""
    async with open_server() as server:
        settings = environment(server, PARLOUR_LLM__EFFORT="low")
        settings["PARLOUR_CHATS"] = json.dumps({"pocket:d": {"effort": "medium"}})
        async with gateway(environment=settings, home=tmp_path / "home") as parlour:
            ask = parlour.channel.ask
            await ask("c", "one")
            await ask("d", "two")
            await ask("c", "/model deep")
            await ask("c", "three")
            assert "`none`" in await ask("c", "/effort none")
            await ask("c", "four")
        async with gateway(environment=settings, home=tmp_path / "home") as parlour:
            ask = parlour.channel.ask
            await ask("c", "five")
            assert "- `effort`: none" in await ask("c", "/settings")
            assert "`high`" in await ask("c", "/effort default")
            await ask("c", "six")
            await parlour.idle()
        answers = [each for each, body in zip(efforts(server), server.requests, strict=True) if body.get("tools")]
        assert answers == ["low", "medium", "high", "none", "none", "high"]


async def test_without_a_setting_nothing_is_sent() -> None:
    """The provider's default is the absence of the field; the command says so, and offers what there is."""
    async with open_server() as server, gateway(environment=environment(server)) as parlour:
        await parlour.channel.ask("c", "hello")
        shown = await parlour.channel.ask("c", "/effort")
        assert translate("effort.now", effort=translate("effort.unset")) in shown
        assert "`none`, `low`, `medium`, `high`" in await parlour.channel.ask("c", "/effort xhigh `x`")
        assert efforts(server) == [""]


async def test_an_admin_chooses_for_a_group() -> None:
    """As with /model: a member sees it, and does not set it."""
    entries = frozenset({AllowEntry(AdmissionGrant.CHAT, "team")})
    policy = AdmissionPolicy(channel="pocket", entries=entries, group_policy=GroupPolicy.OPEN)
    async with open_server() as server, gateway(environment=environment(server), policy=policy) as parlour:
        shown = translate("effort.now", effort=translate("effort.unset"))
        assert shown in await parlour.channel.ask("team", "/effort", group=True, sender="eve")
        refused = await parlour.channel.ask("team", "/effort high", group=True, sender="eve")
        assert refused.startswith("Only an admin of this chat")
        assert "`high`" in await parlour.channel.ask("team", "/effort high", group=True, sender="bob", is_admin=True)
        await parlour.channel.ask("team", "hello", group=True, sender="eve")
        assert efforts(server) == ["high"]


async def test_a_model_that_refuses_answers_without() -> None:
    """The person gets the answer; the command says that the model does not take the setting."""

    def answer(body: Mapping[str, Any], _: int) -> ScriptedAnswer:
        if "reasoning_effort" in body:
            error = {"message": "Unsupported parameter: 'reasoning_effort' is not supported with this model."}
            return ScriptedAnswer(refusal=(400, json.dumps({"error": error})))
        return ScriptedAnswer(text="fine")

    async with open_server(answer) as server:
        async with gateway(environment=environment(server, PARLOUR_LLM__EFFORT="high")) as parlour:
            assert await parlour.channel.ask("c", "one") == "fine"
            assert await parlour.channel.ask("c", "two") == "fine"
            assert translate("effort.refused", model="openai/quick") in await parlour.channel.ask("c", "/effort")
        assert efforts(server) == ["high", "", ""]


async def test_reasoning_is_kept_out_of_history_and_memory(tmp_path: Path) -> None:
    """What a model thought is in no file of memory and in no shown message."""
    thought = "canary of a thought"
    script = [ScriptedAnswer(text="It is blue.", reasoning=thought)]
    async with open_server(script) as server:
        settings = environment(server, PARLOUR_LLM__EFFORT="high")
        async with gateway(environment=settings, home=tmp_path / "home") as parlour:
            assert await parlour.channel.ask("c", "which colour?") == "It is blue."
            await parlour.idle()
        files = [each for each in (tmp_path / "home").rglob("*") if each.suffix in (".md", ".jsonl")]
        assert not [each for each in files if thought in each.read_text("utf-8")]


async def test_the_prefix_does_not_depend_on_the_effort() -> None:
    """With another effort at every turn, each request begins with the messages of the one before."""
    async with open_server() as server, gateway(environment=environment(server)) as parlour:
        for n, effort in enumerate((*EFFORTS, "default") * 2):
            await parlour.channel.ask("c", f"/effort {effort}")
            await parlour.channel.ask("c", f"question {n}")
        await parlour.idle()
        bodies = [body for body, sent in zip(server.bodies, server.requests, strict=True) if sent.get("tools")]
        assert len(bodies) == 10
        cut = [body[: body.index(b'],"model":')] for body in bodies]
        assert all(later.startswith(before) for before, later in pairwise(cut))
