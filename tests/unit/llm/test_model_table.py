"""litellm's table read as a file says what litellm says."""

from __future__ import annotations

import importlib.machinery
import json
from pathlib import Path

import pytest

from agent.llm import openai_model
from agent.llm.chat_model import TokenUsage
from agent.llm.litellm_model import load_litellm
from agent.llm.openai_model import ModelFacts, read_model_facts

pytestmark = pytest.mark.xdist_group("litellm")
PRICED = [(1_000, 500, 0), (1_000, 500, 300), (0, 7, 0), (272_000, 10, 5_000), (300_000, 1_000, 100_000)]


def test_every_chat_model_of_openai_is_as_litellm_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Context window, vision and prices, below and above each threshold, with and without cached tokens."""
    litellm = load_litellm()
    path = Path(litellm.__file__).with_name("model_prices_and_context_window_backup.json")
    table = path.read_bytes()
    monkeypatch.setattr(Path, "read_bytes", lambda _path: table)  # read once for a hundred models
    names = [name for name, entry in json.loads(table).items() if _is_chat(entry)]
    assert len(names) > 50
    for name in names:
        facts = read_model_facts("openai", name)
        own = litellm.get_model_info(model=f"openai/{name}")
        assert facts.window == own.get("max_input_tokens"), name
        assert facts.sees == litellm.supports_vision(model=f"openai/{name}"), name
        for sent, answered, cached in PRICED:
            usage = litellm.Usage(
                prompt_tokens=sent,
                completion_tokens=answered,
                total_tokens=sent + answered,
                prompt_tokens_details={"cached_tokens": cached},
            )
            cost = sum(
                litellm.cost_per_token(
                    model=f"openai/{name}",
                    prompt_tokens=sent,
                    completion_tokens=answered,
                    cache_read_input_tokens=cached,
                    usage_object=usage,
                )
            )
            assert facts.cost(TokenUsage(sent, answered, cached)) == pytest.approx(cost), (name, sent, cached)


async def test_litellm_prices_no_chat_of_its_own_and_every_embedding() -> None:
    """Its own cost of an answer is read by nobody and is a tenth of a turn's CPU; that of an embedding is read."""
    litellm, key = load_litellm(), {"api_key": "test"}
    messages = [{"role": "user", "content": "hi"}]
    reply = await litellm.acompletion(model="openai/gpt-4o", messages=messages, mock_response="hello", **key)
    assert "response_cost" not in reply._hidden_params
    assert reply.choices[0].message.content == "hello"
    model = "openai/text-embedding-3-small"
    found = await litellm.aembedding(model=model, input=["hi"], mock_response=[[0.5]], **key)
    assert found._hidden_params["response_cost"] > 0


def test_a_fine_tuned_model_is_that_of_its_base() -> None:
    """`ft:<base>:<organisation>:<name>:<id>` has the entry `ft:<base>`, whose price differs from the base's."""
    facts = read_model_facts("openai", "ft:gpt-4o-mini-2024-07-18:me::id")
    assert facts == read_model_facts("openai", "ft:gpt-4o-mini-2024-07-18") != ModelFacts()


def _is_chat(entry: dict[str, object]) -> bool:
    return entry.get("litellm_provider") == "openai" and entry.get("mode") == "chat" and "input_cost_per_token" in entry


@pytest.mark.parametrize(("provider", "model"), [("openai", "test"), ("lm_studio", "gpt-4o"), ("openai", 'a"b\\')])
def test_an_unknown_model_has_no_facts(provider: str, model: str) -> None:
    """A name of another provider's model is not that model; its price is unknown, not zero."""
    facts = read_model_facts(provider, model)
    assert (facts, facts.window, facts.sees) == (ModelFacts(), None, False)
    assert facts.cost(TokenUsage(10, 10)) is None


@pytest.mark.parametrize("text", ["", "[]", '{"gpt-4o": {"litellm_provider": ', '{"gpt-4o": {"litellm_provider": 7}}'])
def test_another_table_than_expected_is_no_table(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release of litellm with a damaged file, another one or none costs prices, not answers."""
    spec = importlib.machinery.ModuleSpec("litellm", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(openai_model, "find_spec", lambda _name: spec)
    assert read_model_facts("openai", "gpt-4o") == ModelFacts()
    (tmp_path / "model_prices_and_context_window_backup.json").write_text(text)
    assert read_model_facts("openai", "gpt-4o") == ModelFacts()
    monkeypatch.setattr(openai_model, "find_spec", lambda _name: None)
    assert read_model_facts("openai", "gpt-4o") == ModelFacts()
