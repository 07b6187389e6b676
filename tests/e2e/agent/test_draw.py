"""Pictures on request, through the whole gateway: within caps, asked about with prompt and price, erased with words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.agent.test_purge import wait_until_purged
from tests.fakes.file_gateway import KEY, SCOPE, FileGateway, open_gateway
from tests.fakes.media_server import MediaFault
from tests.fakes.openai_server import ScriptedAnswer, ScriptedToolCall
from tests.fakes.staged_changes import erase

pytestmark = pytest.mark.xdist_group("litellm")
DRAW: dict[str, Any] = {"PARLOUR_TOOLS__DRAW__MODEL": "openai/gpt-image-1"}
PROMPT = "a red fox in the snow"


def drawing(prompt: str = PROMPT, number: int = 1) -> ScriptedAnswer:
    """Return an answer that asks for a picture."""
    return ScriptedAnswer(
        calls=(ScriptedToolCall(name="draw", arguments=json.dumps({"prompt": prompt}), id=f"call_{number}"),)
    )


def results(at: FileGateway) -> list[str]:
    """Return the results of tools in the last request."""
    return [each["content"] for each in at.server.requests[-1]["messages"] if each["role"] == "tool"]


async def test_a_picture_comes_with_the_answer() -> None:
    """Its prompt is its description; its bytes are a file of the scope; the call is a usage row with its cost."""
    async with open_gateway([drawing(), "Here it is."], **DRAW) as at:
        at.server.media.usage = (12, 4_160)
        assert await at.channel.ask("c", "draw a fox") == "Here it is."
        await at.parlour.idle()
        (file,) = at.channel.arrived
        assert file.data == at.server.media.picture
        assert file.name.startswith("picture-")
        (line,) = [each for each in at.lines() if each.get("role") == "assistant" and each.get("files")]
        (fact,) = line["files"]
        assert (fact["kind"], fact["caption"]) == ("image", PROMPT)
        assert fact["blob"].rpartition("/")[2] in at.kept()
        shown = await at.parlour.app.memory.sessions.displayed_messages(KEY, limit=5)
        story = await at.parlour.app.store.journal.trace(shown[-1].turn)
        assert story is not None
        (row,) = [each for each in story.usage if each.purpose == "picture"]
        assert (row.person, row.tokens_in, row.tokens_out) == ("pocket%3aann", 12, 4_160)
        assert row.cost


async def test_without_a_model_there_is_no_tool() -> None:
    """Off by default."""
    async with open_gateway() as at:
        await at.channel.ask("c", "hello")
        assert "draw" not in json.dumps(at.server.requests[-1].get("tools"))


@pytest.mark.parametrize(
    ("environment", "costs"),
    [({"PARLOUR_TOOLS__DRAW__USD_PER_PICTURE": "0.04"}, "about 0.04 US dollars"), ({}, "about 0.")],
    ids=["set", "table"],
)
async def test_a_question_shows_the_whole_prompt_and_the_price(environment: dict[str, Any], costs: str) -> None:
    """Where the rights want a yes: nothing is drawn before, and the stored call is drawn after."""
    rights: dict[str, Any] = {"PARLOUR_TOOLS__RIGHTS": json.dumps({"draw": {"ask": "always"}})}
    async with open_gateway([drawing(), "I asked.", "Done."], **DRAW, **rights, **environment) as at:
        answer = await at.channel.ask("c", "draw a fox")
        assert PROMPT in answer
        assert costs in answer
        assert at.server.media.drawn == []
        name = answer.rpartition("/tools allow ")[2].split("`")[0].split()[0]
        await at.channel.ask("c", f"/tools allow {name}")
        await at.channel.until(lambda: bool(at.channel.arrived))
        assert [each["prompt"] for each in at.server.media.drawn] == [PROMPT]


async def test_a_cap_in_money_and_the_cap_a_day_hold_before_the_call() -> None:
    """Neither draws: what a picture costs is reserved, and pictures are counted by day and person."""
    models = '{"own": {"model": "openai/test", "usd_per_million_input": 0, "usd_per_million_output": 0}}'
    money: dict[str, Any] = {
        "PARLOUR_LLM__MODEL": "own",
        "PARLOUR_LLM__MODELS": models,
        "PARLOUR_CAPS__PERSON_USD_PER_DAY": "0.01",
    }
    price: dict[str, Any] = {"PARLOUR_TOOLS__DRAW__USD_PER_PICTURE": "0.02"}
    async with open_gateway([drawing(), "No."], **DRAW, **money, **price) as at:
        await at.channel.ask("c", "draw a fox")
        assert results(at) == ["error: not drawn: what this person may spend today is used up"]
        assert at.server.media.drawn == []
    script: list[ScriptedAnswer | str] = [drawing(), "one", drawing(number=2), "two"]
    async with open_gateway(script, **DRAW, PARLOUR_CAPS__TOOLS__DRAW="1") as at:
        assert await at.channel.ask("c", "draw a fox") == "one"
        answer = await at.channel.ask("c", "draw a fox")
        assert results(at)[-1] == "not run: the limit of 1 draw calls a day is reached for this person"
        assert "You've used your 1 picture for today" in answer
        assert len(at.server.media.drawn) == 1


@pytest.mark.parametrize(
    ("fault", "result"),
    [
        (MediaFault.POLICY, "error: not drawn: the provider refuses to draw this"),
        (MediaFault.UNAUTHORISED, "error: not drawn: the picture model cannot be used now"),
        (MediaFault.BUSY, "error: not drawn: the picture model is busy; try again later"),
        (MediaFault.ERROR, "no picture came; it may have been charged all the same"),
        (MediaFault.PAGE, "no picture came; it may have been charged all the same"),
        (MediaFault.CUT, "no picture came; it may have been charged all the same"),
    ],
    ids=lambda each: each.name.lower() if isinstance(each, MediaFault) else "",
)
async def test_the_model_reads_what_became_of_it(fault: MediaFault, result: str) -> None:
    """A failed picture is a line for the model; the answer comes all the same."""
    async with open_gateway([drawing(), "Sorry."], **DRAW) as at:
        at.server.media.faults = [fault]
        assert await at.channel.ask("c", "draw a fox") == "Sorry."
        assert results(at) == [result]
        assert at.channel.arrived == []


async def test_a_picture_of_forgotten_words_goes_with_them() -> None:
    """The prompt stands in the picture's fact, so an erasure takes the bytes too."""
    async with open_gateway([drawing("the code swordfish on a wall"), "Here."], **DRAW) as at:
        await at.channel.ask("c", "draw it")
        await at.parlour.idle()
        before: Any = at.kept()
        await erase(at.channel.ask, "c", "/forget swordfish --purge")
        await wait_until_purged(at.parlour, SCOPE)
        assert len(before) == 1
        assert at.kept() == set()
        assert "swordfish" not in str(at.lines())
