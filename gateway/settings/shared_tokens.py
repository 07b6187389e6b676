"""Two blocks with one token: both would be the same bot, and take each other's messages away."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import SecretStr

from gateway.settings.channel_blocks import ChannelSettings
from gateway.settings.settings_model import Settings


def check_shared_tokens(settings: Settings, places: Mapping[tuple[str, ...], str]) -> list[str]:
    """Return a line for each token that a second enabled block has as well; no line repeats it."""
    found: list[str] = []
    seen: dict[tuple[str, str, str], str] = {}
    for name, block in sorted(settings.channels.items()):
        for field, secret in _tokens(block):
            first = seen.setdefault((block.kind, field, secret), name)
            if first != name:
                place = places.get(("channels", name, field)) or f"channels.{name}.{field}"
                found.append(
                    f"{place}: channels.{first} uses the same token, so each would receive the other's messages;"
                    f" give channels.{name} its own bot, or remove one of the channels"
                )
    return found


def _tokens(block: ChannelSettings) -> list[tuple[str, str]]:
    values = ((field, getattr(block, field, None)) for field in block.one_bot)
    return [
        (field, value.get_secret_value()) for field, value in values if block.enabled and isinstance(value, SecretStr)
    ]
