"""What a model takes: configured, looked up, learned from a refusal, and corrected by the provider's own figures."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from agent.base.transcript_lines import format_time
from agent.llm.chat_model import ModelConfig
from agent.llm.litellm_model import LitellmModel
from agent.llm.model_abilities import (
    DEFAULT_WINDOW,
    SMALLEST_WINDOW,
    ContextWindows,
    LearnedModels,
    prompt_share,
    take_over_windows,
)
from agent.llm.model_client import ModelClient
from agent.llm.refusal_text import parse_refusal, token_limit
from agent.llm.scripted_model import ScriptedModel, ScriptEntry
from gateway.errors import ContextOverflow
from gateway.ports.memory import FACTS_EXPIRE
from tests.fakes.llm_context import NOW, FakeUsageRecorder, SummingMeter, request
from tests.fakes.turns import WallClock


def windows(facts: LearnedModels | None = None) -> ContextWindows:
    """Return windows on a clock that stands still."""
    return ContextWindows(facts or LearnedModels(now=lambda: NOW))


@pytest.mark.parametrize(("window", "tokens"), [(8_192, 5_735), (65_536, 54_068), (200_000, 181_808)])
def test_the_budget_leaves_room_for_the_answer_and_for_what_we_are_off(window: int, tokens: int) -> None:
    """Window − completion reserve (8,192, a quarter of a small window) − safety (a twentieth)."""
    reserve = min(8_192, window // 4)
    assert prompt_share(window) == tokens == window - reserve - window // 20


def test_a_window_is_as_configured_else_as_looked_up_else_stated() -> None:
    """What nobody knows is DEFAULT_WINDOW."""
    known = windows()
    assert known.window("a") == DEFAULT_WINDOW
    known.set_window("a", 8_192)
    known.set_window("b", None)
    assert (known.window("a"), known.window("b")) == (8_192, DEFAULT_WINDOW)


async def test_what_was_learned_is_learned_once() -> None:
    """The limit a model named is a fact about this model at this address alone, and is tried again after a month."""
    wall = WallClock()
    facts = LearnedModels(now=wall.now)
    first = windows(facts)
    first.set_window("a", 128_000, kept_as="openai/a ab12")
    await first.note_refusal("a", 20_000, limit=16_384)
    again = windows(facts)
    again.set_window("a", 128_000, kept_as="openai/a ab12")
    again.set_window("b", 128_000)
    assert (again.window("a"), again.window("b")) == (16_384, 128_000)
    again.set_window("a", 128_000, kept_as="openai/a cd34")  # at another address
    assert again.window("a") == 128_000
    again.set_window("a", 128_000, kept_as="openai/a ab12")
    wall.advance(days=(FACTS_EXPIRE + timedelta(days=1)).days)
    assert again.window("a") == 128_000


@pytest.mark.parametrize("told", [0, 8_192, 16_000])
@pytest.mark.parametrize("weight", [3_000, 9_000, 40_000])
async def test_after_a_refusal_the_room_is_smaller_than_what_was_refused(told: int, weight: int) -> None:
    """Whatever the model says of its limit, the next prompt is smaller; again and again, as long as that can help."""
    known = windows()
    for _ in range(4):
        await known.note_refusal("a", weight, told)
        if weight * 4 < told:
            break  # more than four tokens in four bytes: not our prompt is what is too long
        assert known.budget("a") < weight or known.window("a") == SMALLEST_WINDOW
        weight = known.budget("a")


async def test_a_refusal_that_cannot_be_true_teaches_nothing() -> None:
    """A small prompt that is "too long" for a large window is somebody's mistake, and spoils no month."""
    known = windows()
    before = known.budget("a")
    await known.note_refusal("a", 300)
    assert known.budget("a") == before
    await known.note_refusal("a", 300, limit=50_000)
    assert known.factor("a") == 1.0


async def test_a_file_of_an_earlier_version_is_taken_over(tmp_path: Path) -> None:
    """Each window keeps its time, becomes a fact of the configured model, and the file goes."""
    path = tmp_path / "windows.json"
    line = {"window": 16_384, "factor": 1.25, "at": format_time(NOW - timedelta(days=29))}
    path.write_text(json.dumps({"small": line, "gone": line, "known": line}))
    wall = WallClock()
    facts = LearnedModels(now=wall.now)
    await facts.learn("openai/known", {"window": "8192 1.000"})
    await take_over_windows(path, facts, {"small": "openai/a ab12", "known": "openai/known"})
    assert not path.exists()
    known = ContextWindows(facts)
    for name, kept_as in (("small", "openai/a ab12"), ("known", "openai/known"), ("gone", "gone")):
        known.set_window(name, None, kept_as=kept_as)
    assert [known.window(name) for name in ("small", "known", "gone")] == [16_384, 8_192, DEFAULT_WINDOW]
    assert known.factor("small") == 1.25
    wall.advance(days=2)
    assert known.window("small") == DEFAULT_WINDOW


async def test_a_damaged_file_is_an_empty_one(tmp_path: Path) -> None:
    """It costs one refused request, not a start."""
    path, facts = tmp_path / "windows.json", LearnedModels(now=lambda: NOW)
    await take_over_windows(path, facts, {"a": "a"})  # there is none
    for text in ('{"a": 3}', "[", "[]", '{"a": {"window": "x", "factor": 1, "at": ""}}'):
        path.write_text(text)
        await take_over_windows(path, facts, {"a": "a"})
        assert facts.facts() == []
        assert not path.exists()


def test_the_providers_figures_correct_ours() -> None:
    """Quickly upwards, slowly downwards; figures that no prompt can have are passed over."""
    known = windows()
    for _ in range(20):
        known.calibrate("a", 10_000, 15_000)
    assert known.factor("a") == pytest.approx(1.5, rel=0.01)
    assert known.budget("a") == pytest.approx(prompt_share(DEFAULT_WINDOW) / 1.5, rel=0.01)
    for tokens in (1, 100, 90_000):
        known.calibrate("a", 10_000, tokens)
    known.calibrate("a", 10, 40)
    assert known.factor("a") == pytest.approx(1.5, rel=0.01)


async def test_a_client_tells_its_windows_what_it_sees() -> None:
    """A fallback's refusal is the fallback's, and usage rows are those of the calls that were answered."""
    usages = FakeUsageRecorder()
    models = [
        ScriptedModel([ScriptEntry(error="refused")], name="m0"),
        ScriptedModel([ScriptEntry(error="overflow")], name="m1"),
    ]
    client = ModelClient(models, recorder=usages, meter=SummingMeter(), now=lambda: NOW)
    before = await client.prompt_limit()
    with pytest.raises(ContextOverflow):
        await client.complete(request("x" * 100_000))
    assert client.windows.window("m1") < DEFAULT_WINDOW
    assert await client.prompt_limit() == before
    assert usages.replies == []


@pytest.mark.parametrize(
    ("said", "limit"),
    [
        ("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.", 8_192),
        ("prompt is too long: 208310 tokens > 200000 maximum", 200_000),
        ("input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000, decrease input", 200_000),
        ("the request exceeds the available context size (4096 tokens)", 4_096),
        ("This model's maximum prompt length is 131072 but the request contains 140000 tokens.", 131_072),
        ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1_048_576),
        ("too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000", 4_081),
        ("Input is too long for requested model.", 0),
    ],
)
def test_the_limit_is_read_off_what_providers_say(said: str, limit: int) -> None:
    """Each provider has words of its own; where there is no number, none is made up."""
    assert token_limit(parse_refusal(said)) == limit


async def test_two_of_one_name_are_told_apart_by_what_the_settings_call_them() -> None:
    """Two servers of the operator's may both say `openai/local`: one's window is not the other's."""
    shared = windows()
    rooms = []
    for label, window in (("wide", 128_000), ("narrow", 8_192)):
        model = LitellmModel(ModelConfig(model="openai/local", label=label, context_window=window))
        rooms.append(
            await ModelClient(
                [model], recorder=FakeUsageRecorder(), meter=SummingMeter(), windows=shared
            ).prompt_limit()
        )
    assert rooms == [prompt_share(128_000), prompt_share(8_192)]


def test_figures_of_new_tokens_alone_do_not_raise_the_budget() -> None:
    """A server that counts only what was not cached reports a fraction; the prompt stays within the window."""
    known = windows()
    known.set_window("a", 8_192)
    for tokens in (10_000, 2_500, 2_500, 6_000, 4_900, *[5_100] * 50):
        known.calibrate("a", 10_000, tokens)
    assert known.factor("a") == 1.0
    assert known.budget("a") == prompt_share(8_192)


def test_a_figure_of_new_tokens_does_not_undo_a_correction() -> None:
    """Where a token of ours is one and a half of the provider's, a figure of less than half of that is not believed."""
    known = windows()
    for _ in range(20):
        known.calibrate("a", 10_000, 15_000)
    before = known.factor("a")
    for _ in range(50):
        known.calibrate("a", 10_000, 6_000)
    assert known.factor("a") == before
