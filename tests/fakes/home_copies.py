"""Copies of a running gateway's home as kills leave it: behind every transaction and around every send.

The platform recognizes a repeated send by its key, as Slack and the page do; what it shows outlives the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.channel import ChannelContext
from gateway.events import DeliveryReceipt, MessagePart
from gateway.ports.channel import ChannelCapabilities
from gateway.store.writer import BatchWriter
from tests.fakes.inprocess_gateway import InProcessChannel, InProcessGateway, InProcessPlugin

KEYED = ChannelCapabilities(text_limit=4_000, send_key=True)


@dataclass(frozen=True, slots=True)
class HomeCopy:
    """What a kill leaves: the home, what the platform shows by part, and what else the test has to know."""

    home: Path
    parts: dict[str, str]
    state: Any


@dataclass
class HomeCopies:
    """Copies homes to *folder*; *state* returns what else each copy holds."""

    folder: Path
    state: Callable[[], Any]
    copies: list[HomeCopy] = field(default_factory=list)
    _inside: InProcessGateway | None = None
    _parts: dict[str, str] = field(default_factory=dict)

    def plugin(self, parts: dict[str, str]) -> KeyedPlugin:
        """Return a platform that shows *parts*."""
        return KeyedPlugin(parts, self.take)

    @contextmanager
    def recorded(
        self, inside: InProcessGateway, parts: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[None]:
        """Copy the home of *inside*, for the block."""
        self._inside, self._parts, counted, submit = inside, parts, 0, BatchWriter.submit

        def copy(_: object) -> None:
            nonlocal counted
            if self._inside is inside and counted != (commits := _commits(inside)):
                counted = commits
                self.take()

        def submit_and_copy(writer: Any, *arguments: Any, **options: Any) -> Any:
            future = submit(writer, *arguments, **options)
            future.add_done_callback(copy)
            return future

        with monkeypatch.context() as patch:
            patch.setattr(BatchWriter, "submit", submit_and_copy)
            try:
                yield
            finally:
                self._inside = None

    def take(self) -> None:
        """Copy the home now; outside of `recorded` this does nothing."""
        if self._inside is not None:
            home = self._inside.kill(self.folder / f"copy-{len(self.copies)}")
            self.copies.append(HomeCopy(home, dict(self._parts), self.state()))


def spread(copies: Sequence[HomeCopy], count: int, shift: int = 0) -> list[tuple[int, HomeCopy]]:
    """Return about *count* of the copies with their numbers, evenly spread; *shift* chooses others."""
    every = max(1, len(copies) // count)
    return list(enumerate(copies))[shift % every :: every]


class KeyedChannel(InProcessChannel):
    """Shows a part once, by its id; *parts* outlives the process, and *call* is called before and after each send."""

    def __init__(self, context: ChannelContext, parts: dict[str, str], call: Callable[[], None]) -> None:
        super().__init__(context, KEYED)
        self._parts = parts
        self._call = call

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Post the part unless it was posted before."""
        self._call()
        self._parts.setdefault(part.id, part.plain)
        self._call()
        return await super().send(part, may_be_duplicate=may_be_duplicate)


class KeyedPlugin(InProcessPlugin):
    """Opens the channel over what the platform shows."""

    def __init__(self, parts: dict[str, str], call: Callable[[], None]) -> None:
        super().__init__(KEYED)
        self._parts = parts
        self._call = call

    def open(self, context: ChannelContext) -> Any:
        """Build the channel."""
        self.channel = KeyedChannel(context, self._parts, self._call)
        return self.channel


def _commits(inside: InProcessGateway) -> int:
    """Return how many transactions were durable so far."""
    return int(inside.app.store.journal._engine.writer.commits)
