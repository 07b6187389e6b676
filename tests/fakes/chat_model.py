"""The part of a chat model that is the same in all models of the tests."""

from __future__ import annotations


class FakeChatModel:
    """A model with nothing to load and nothing to close; a subclass answers. Implements the rest of `ChatModel`."""

    name: str

    async def warm(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to close."""
