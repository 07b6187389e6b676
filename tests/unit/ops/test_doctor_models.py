"""`parlour doctor --model` tries every model that people may choose, and names the one that is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.health.doctor import collect_findings
from gateway.health.home_checks import _KEY_VARIABLES
from gateway.ports.setup import Finding, FindingLevel


async def model_findings(home: Path, *, asks_model: bool) -> list[Finding]:
    """Return what doctor says of the models of a home with three of them, one of which is not there."""
    (home / "parlour.yaml").write_text(
        "llm:\n  model: here\n  models: {here: offline, gone: 'scripted:/nowhere/script.json'}\n"
    )
    environment = {"PARLOUR_HOME": str(home), "PARLOUR_TIMEZONE": "Europe/Berlin"}
    found = [each async for each in collect_findings(environment, is_offline=False, asks_model=asks_model)]
    return [each for each in found if each.id == "model.answers"]


async def test_a_model_without_a_price_under_a_cap_in_money_is_named(tmp_path: Path) -> None:
    """The one whose price is neither in the table nor given; without such a cap, none."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "parlour.yaml").write_text(
        "llm:\n  model: known\n  models:\n    known: anthropic/claude-sonnet-4-5\n    own: openai/house\n"
        "    free: {model: openai/free, usd_per_million_input: 0, usd_per_million_output: 0}\n"
    )
    for cap, named in ({}, []), ({"PARLOUR_CAPS__PERSON_USD_PER_DAY": "0.5"}, ["openai/house"]):
        environment = {"PARLOUR_HOME": str(home), "PARLOUR_TIMEZONE": "Europe/Berlin", **cap}
        found = [each async for each in collect_findings(environment, is_offline=True, asks_model=False)]
        lines = [each.text for each in found if each.id == "caps.prices"]
        assert [line.split()[3] for line in lines] == named


async def test_each_model_to_choose_from_is_tried(tmp_path: Path) -> None:
    """By the name it has at its provider, an alias of `llm.model` included; without being told, the usual one alone."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    every = await model_findings(home, asks_model=True)
    assert [each.level for each in every] == [FindingLevel.OK, FindingLevel.OK, FindingLevel.FAIL]
    assert "offline answered" in every[0].text
    assert "/nowhere/script.json" in every[2].text
    assert len(await model_findings(home, asks_model=False)) == 1


async def test_fallbacks_are_tried_and_unknown_ones_are_named(tmp_path: Path) -> None:
    """Each is tried without being told; offline, one that no provider and no list names is a warning."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "parlour.yaml").write_text(
        "llm:\n  model: offline\n  models: {gone: 'scripted:/nowhere/script.json'}\n"
        "  fallbacks: [offline, gone, gpt-none, gpt-4o, openai/house]\n"
    )
    environment = {
        "PARLOUR_HOME": str(home),
        "PARLOUR_TIMEZONE": "Europe/Berlin",
        "PARLOUR_LLM__API_BASE": "http://127.0.0.1:9/v1",
    }
    found = [each async for each in collect_findings(environment, is_offline=True, asks_model=False)]
    (line,) = [each for each in found if each.id == "model.fallbacks"]
    assert line.level is FindingLevel.WARN
    assert line.text.startswith("PARLOUR_LLM__FALLBACKS: gpt-none is no known model; write it with its provider")
    assert not [each for each in found if each.id == "model.fallback"]
    environment["PARLOUR_LLM__FALLBACKS"] = "gone"
    found = [each async for each in collect_findings(environment, is_offline=False, asks_model=False)]
    (tried,) = [each for each in found if each.id == "model.fallback"]
    assert tried.level is FindingLevel.FAIL
    assert tried.text.startswith("the fallback gone: ")
    assert [each.level for each in found if each.id == "model.answers"] == [FindingLevel.OK]


async def media_findings(home: Path, **settings: str) -> list[str]:
    """Return the warnings about models for sound and pictures."""
    environment = {"PARLOUR_HOME": str(home), "PARLOUR_TIMEZONE": "Europe/Berlin", **settings}
    found = [each async for each in collect_findings(environment, is_offline=True, asks_model=False)]
    return [each.text for each in found if each.id in ("model.key", "model.missing")]


@pytest.mark.parametrize("block", ["PARLOUR_SPEECH", "PARLOUR_TOOLS__DRAW"])
async def test_a_half_set_model_for_sound_or_pictures_is_named(tmp_path: Path, block: str) -> None:
    """A key without a model, and a model without a key; each with what to set. Whole and unset ones have no finding."""
    model, key = {f"{block}__MODEL": "openai/some"}, {f"{block}__API_KEY": "sk-secret"}
    (line,) = await media_findings(tmp_path / "home", **key)
    assert line == f"{block}__API_KEY has no effect without a model: set {block}__MODEL, or remove it"
    (line,) = await media_findings(tmp_path / "home", **model)
    assert line.startswith(f"{block}__MODEL=openai/some has no key: set {block}__API_KEY")
    assert await media_findings(tmp_path / "home", **model, **key) == []
    assert await media_findings(tmp_path / "home") == []


@pytest.mark.parametrize(
    ("model", "variables", "is_named"),
    [
        ("whisper-1", {}, True),
        ("whisper-1", {"OPENAI_API_KEY": "x"}, False),
        ("together_ai/some", {"TOGETHER_AI_API_KEY": "x"}, False),
        ("gemini/some", {"GOOGLE_API_KEY": "x"}, False),
        ("gemini/some", {"OPENAI_API_KEY": "x"}, True),
        ("perplexity/some", {}, False),  # reads PERPLEXITYAI_API_KEY
        ("vertex_ai/some", {}, False),
        ("house", {}, False),
    ],
)
async def test_a_key_is_missed_where_its_variable_is_known(
    tmp_path: Path, model: str, variables: dict[str, str], is_named: bool
) -> None:
    """By the names that litellm reads; of providers with others nothing is said."""
    settings = {"PARLOUR_LLM__TRANSCRIPTION_MODEL": model, **variables}
    assert bool(await media_findings(tmp_path / "home", **settings)) is is_named


def test_the_variables_of_keys_are_those_of_litellm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own check asks for one of them, for each provider of the table."""
    litellm = pytest.importorskip("litellm")
    for name in [each for each in os.environ if each.endswith("_KEY")]:
        monkeypatch.delenv(name)
    for provider, variables in _KEY_VARIABLES.items():
        missing = litellm.validate_environment(f"{provider}/some-model")["missing_keys"]
        assert missing, provider
        assert set(missing) <= set(variables)
