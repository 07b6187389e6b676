"""litellm's table of models, read as a file: prices, context windows and vision without importing litellm.

The file has 3 MB; only the entry that is asked for is decoded, and nothing else is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent.llm.chat_model import TokenUsage

_FILE = "model_prices_and_context_window_backup.json"
_LONGEST_ENTRY = 65_536  # bytes; the longest have 5,000
_INPUT, _OUTPUT, _CACHED = "input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost"
_ABOVE = re.compile(rf"(?:{_INPUT}|{_OUTPUT}|{_CACHED})_above_(\d+)(k?)_tokens\Z")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The table's entry of one model; without an entry, nothing is known."""

    entry: Mapping[str, Any] = field(default_factory=dict)

    @property
    def window(self) -> int | None:
        """The tokens that a prompt may have."""
        found = self.entry.get("max_input_tokens")
        return found if isinstance(found, int) and found > 0 else None

    @property
    def sees(self) -> bool:
        """The model accepts pictures."""
        return self.entry.get("supports_vision") is True

    def cost(self, tokens: TokenUsage) -> float | None:
        """Return US dollars; None if the model has no price.

        A prompt above a threshold costs the rate of that threshold, all of it.
        """
        if self._rate(_INPUT) is None and self._rate(_OUTPUT) is None:
            return None
        above = ""
        for size, suffix in sorted({_threshold(match) for key in self.entry if (match := _ABOVE.match(key))}):
            if tokens.input > size:
                above = suffix
        sent = self._rate(_INPUT, above) or 0.0
        cached = self._rate(_CACHED, above)
        answered = self._rate(_OUTPUT, above) or 0.0
        return (
            (tokens.input - tokens.cached) * sent
            + tokens.cached * (sent if cached is None else cached)
            + tokens.output * answered
        )

    def _rate(self, name: str, above: str = "") -> float | None:
        for key in (name + above, name):
            found = self.entry.get(key)
            if isinstance(found, int | float):
                return float(found)
        return None


def read_model_facts(provider: str, model: str) -> ModelFacts:
    """Return the facts about *provider*'s *model* in litellm's table. Blocks for some milliseconds."""
    table = _read_table()
    if model.startswith("ft:"):  # ft:gpt-4o-2024-08-06:company::id
        model = ":".join(model.split(":")[:2])
    for name in (f"{provider}/{model}", model):
        entry = _find_entry(table, name)
        if entry.get("litellm_provider") == provider:
            return ModelFacts(entry)
    return ModelFacts()


def is_priced(model: str) -> bool:
    """Return True if the table has a price for *model* as litellm names it. Blocks for some milliseconds."""
    provider, has_provider, name = model.partition("/")
    table = _read_table()
    for key in (model, name) if has_provider else (model,):
        entry = _find_entry(table, key)
        # A provider's name may go on: vertex_ai-language-models, bedrock_converse.
        is_provider = str(entry.get("litellm_provider", "")).startswith(provider if has_provider else "")
        if is_provider and ModelFacts(entry).cost(TokenUsage(1, 1)) is not None:
            return True
    return False


def _read_table() -> bytes:
    spec = find_spec("litellm")  # finds it without running it
    if spec is None or spec.origin is None:
        return b""
    try:
        return Path(spec.origin).with_name(_FILE).read_bytes()
    except OSError:
        return b""  # as for a model that is not in it: the price is unknown, the context window is learned


def _find_entry(table: bytes, name: str) -> Mapping[str, Any]:
    found = re.search(re.escape(json.dumps(name).encode()) + rb"\s*:\s*(?=\{)", table)
    if found is None:
        return {}
    start = found.end()
    try:
        entry, _ = json.JSONDecoder().raw_decode(table[start : start + _LONGEST_ENTRY].decode(errors="replace"))
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _threshold(match: re.Match[str]) -> tuple[int, str]:
    size, thousand = match.groups()
    return int(size) * (1_000 if thousand else 1), f"_above_{size}{thousand}_tokens"
