"""The scripted model and the choice of a model by its name."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from agent.llm.chat_model import ModelConfig
from agent.llm.litellm_model import LitellmModel
from agent.llm.model_registry import open_model
from agent.llm.scripted_model import ScriptedModel
from agent.tools.offline_model import OfflineModel
from gateway.errors import ModelRateLimited, SettingsError
from tests.fakes.clock import VirtualClock
from tests.fakes.llm_context import request


async def test_a_script_is_said_line_by_line(tmp_path: Path, clock: VirtualClock) -> None:
    """Texts, calls, errors and delays come in order; the last entry repeats."""
    script = tmp_path / "script.json"
    entries = [
        "first",
        {"calls": [{"name": "remember", "arguments": {"fact": "x"}}, {"name": "bad", "arguments": "{"}]},
        {"error": "busy", "delay": 3},
        {"text": "last", "delay": 2, "tokens": [5, 1, 4]},
    ]
    script.write_text(json.dumps(entries))
    model = open_model(ModelConfig(model=f"scripted:{script}"))
    assert (await model.complete(request("a"))).text == "first"
    calls = (await model.complete(request("a"))).tool_calls
    assert [(call.name, call.arguments) for call in calls] == [("remember", '{"fact": "x"}'), ("bad", "{")]
    assert len({call.id for call in calls}) == 2
    with pytest.raises(ModelRateLimited) as raised:
        await model.complete(request("a"))
    assert raised.value.delay is not None
    for _ in range(2):
        assert (await model.complete(request("a"))).tokens.cached == 4
    assert clock.seconds == 4


async def test_without_a_file_it_echoes() -> None:
    """`scripted` alone repeats what was said last."""
    assert (await open_model(ModelConfig(model="scripted")).complete(request("a", "b"))).text == "b"


@pytest.mark.parametrize("content", ["{", "[]", '[{"txt": "x"}]', '[{"error": "nonsense"}]', "[3]"])
def test_a_script_that_cannot_be_read_is_a_settings_mistake(tmp_path: Path, content: str) -> None:
    """A wrong script is found at the start, with its path, not in somebody's chat."""
    script = tmp_path / "script.json"
    script.write_text(content)
    with pytest.raises(SettingsError, match=r"script\.json"):
        open_model(ModelConfig(model=f"scripted:{script}"))


def test_a_script_that_is_not_there_is_a_settings_mistake(tmp_path: Path) -> None:
    """A missing file is named."""
    with pytest.raises(SettingsError, match="nowhere"):
        open_model(ModelConfig(model=f"scripted:{tmp_path / 'nowhere.json'}"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("", OfflineModel),
        (" offline ", OfflineModel),
        ("scripted", ScriptedModel),
        ("openai/test", LitellmModel),
        ("gpt-4o", LitellmModel),
        ("ollama_chat/llama3:8b", LitellmModel),
    ],
)
def test_a_name_finds_its_model(name: str, kind: type) -> None:
    """Nothing configured is offline, our own names are ours, all others are litellm's."""
    model = open_model(ModelConfig(model=name))
    assert type(model) is kind
    assert model.name == (name.strip() or "offline")


@pytest.mark.parametrize("name", ["ofline", "Offline", "scriptd", "gpt 4o"])
def test_a_name_nobody_can_mean_is_a_settings_mistake(name: str) -> None:
    """A slip of the pen is found at the start."""
    with pytest.raises(SettingsError, match=r"llm\.model"):
        open_model(ModelConfig(model=name))


def test_a_package_that_is_missing_is_a_settings_mistake() -> None:
    """An entry point whose package is not there names it."""
    entry = EntryPoint("mine", "no_such_package.models:open_model", "parlour.models")
    with pytest.raises(SettingsError, match="no_such_package"):
        open_model(ModelConfig(model="mine:large"), entries=[entry])


def test_a_configuration_hides_its_key() -> None:
    """Whoever prints a configuration prints no secret."""
    assert "sk-1" not in repr(ModelConfig(model="x", api_key="sk-1"))
