"""Port of an embedding model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:  # numpy: an idle gateway does without
    import numpy as np
    import numpy.typing as npt

Matrix: TypeAlias = "npt.NDArray[np.float32]"
OnTokens: TypeAlias = Callable[
    [str, int, float | None], None
]  # model, tokens, US dollars (None = unknown); once a call


class Embedder(Protocol):
    """Computes embedding vectors of one length; vectors of models with the same name are comparable."""

    @property
    def name(self) -> str:
        """The model's identity; when it changes, the index embeds its units again."""
        ...

    async def embed(self, texts: Sequence[str], *, is_question: bool = False) -> Matrix:
        """Return one row of length 1 for each text. Raises ModelFailed."""
        ...

    async def close(self) -> None:
        """Free the model; the next use loads it again."""
        ...


def no_account(model: str, tokens: int, cost: float | None) -> None:
    """Do not record usage."""


def normalize_rows(rows: Matrix) -> Matrix:
    """Return *rows* scaled to length 1; rows of zeros do not change."""
    import numpy as np

    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(norms, 1e-12), dtype=np.float32)
