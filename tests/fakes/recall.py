"""Fakes for search: sources in memory, and a model whose vectors are letters."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence

import numpy as np

from agent.memory.search.embedding import Matrix, normalize_rows
from agent.memory.search.search_unit import SearchUnit, SourceReading, UnitSource
from gateway.errors import ModelUnreachable


class ListSources:
    """`Sources` over lists of units; `reads` counts what was asked for, as (name, since)."""

    def __init__(self, **files: Sequence[SearchUnit]) -> None:
        self.files: dict[UnitSource, list[SearchUnit]] = {
            UnitSource(name=name): list(units) for name, units in files.items()
        }
        self.reads: list[tuple[str, str]] = []
        self.versions: dict[UnitSource, int] = {}

    async def marks(self) -> Mapping[UnitSource, str]:
        """Return how long each list is, and how often it was changed inside."""
        return {source: f"{self.versions.get(source, 0)}:{len(units)}" for source, units in self.files.items()}

    async def read(self, source: UnitSource, since: str) -> SourceReading:
        """Return what is new where the list only grew, all of it otherwise."""
        self.reads.append((source.name, since))
        if source not in self.files:
            raise FileNotFoundError(source.name)
        mark = (await self.marks())[source]
        version, _, count = since.partition(":")
        if since and version == mark.partition(":")[0]:
            return SourceReading(units=self.files[source][int(count) :], mark=mark, is_more=True)
        return SourceReading(units=self.files[source], mark=mark)

    def change(self, name: str, units: Sequence[SearchUnit]) -> None:
        """Replace a list as an editor would."""
        source = UnitSource(name=name)
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
        return normalize_rows(np.array(rows, dtype=np.float32).reshape(len(texts), len(self._letters)))

    async def close(self) -> None:
        """Do nothing."""
