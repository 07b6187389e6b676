"""Fakes for search: sources in memory, and a model whose vectors are letters."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence

import numpy as np

from agent.memory.search.embedding.port import Matrix, unit_length
from agent.memory.search.engine import Reading
from agent.memory.search.unit import Source, Unit
from gateway.errors import ModelUnreachable


class Shelf:
    """`Sources` over lists of units; `reads` counts what was asked for, as (name, since)."""

    def __init__(self, **files: Sequence[Unit]) -> None:
        self.files: dict[Source, list[Unit]] = {Source(name=name): list(units) for name, units in files.items()}
        self.reads: list[tuple[str, str]] = []
        self.versions: dict[Source, int] = {}

    def marks(self) -> Mapping[Source, str]:
        """Return how long each list is, and how often it was changed inside."""
        return {source: f"{self.versions.get(source, 0)}:{len(units)}" for source, units in self.files.items()}

    def read(self, source: Source, since: str) -> Reading:
        """Return what is new where the list only grew, all of it otherwise."""
        self.reads.append((source.name, since))
        if source not in self.files:
            raise FileNotFoundError(source.name)
        mark = self.marks()[source]
        version, _, count = since.partition(":")
        if since and version == mark.partition(":")[0]:
            return Reading(units=self.files[source][int(count) :], mark=mark, is_more=True)
        return Reading(units=self.files[source], mark=mark)

    def change(self, name: str, units: Sequence[Unit]) -> None:
        """Replace a list as an editor would."""
        source = Source(name=name)
        self.files[source] = list(units)
        self.versions[source] = self.versions.get(source, 0) + 1


class LetterEmbedder:
    """Vectors that count letters: alike texts have alike letters. While `is_down` it fails; `asked` holds the texts."""

    def __init__(self, name: str = "letters", size: int = 26) -> None:
        self.name = name
        self._letters = string.ascii_lowercase[:size]
        self.is_down = False
        self.asked: list[str] = []

    async def embed(self, texts: Sequence[str], *, is_question: bool = False) -> Matrix:
        """Return the vectors. Raises ModelUnreachable while down."""
        if self.is_down:
            raise ModelUnreachable(f"{self.name}: nobody answers")
        self.asked += texts
        rows = [[text.lower().count(letter) for letter in self._letters] for text in texts]
        return unit_length(np.array(rows, dtype=np.float32).reshape(len(texts), len(self._letters)))

    async def close(self) -> None:
        """Do nothing."""
