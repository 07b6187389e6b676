"""`parlour doctor --model` tries every model that people may choose, and names the one that is none."""

from __future__ import annotations

from pathlib import Path

from gateway.health.doctor import collect_findings
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
