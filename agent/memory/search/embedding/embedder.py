"""What search asks of a model that turns texts into vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Matrix: TypeAlias = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into vectors of one length; equal names give comparable vectors."""

    @property
    def name(self) -> str:
        """The model's identity; the index keeps it and embeds anew when it changes."""
        ...

    async def embed(self, texts: Sequence[str], *, is_question: bool = False) -> Matrix:
        """Return one row of length 1 for each text. Raises ModelFailed."""
        ...

    async def close(self) -> None:
        """Free the model; it is loaded again when used."""
        ...


def normalize_rows(rows: Matrix) -> Matrix:
    """Return *rows* scaled to length 1; a row of zeros stays one."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(norms, 1e-12), dtype=np.float32)
