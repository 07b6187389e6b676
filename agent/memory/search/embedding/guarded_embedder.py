"""A model that may be slow or down, made safe to ask: batches, a deadline, a memory for questions, and a pause."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
import structlog

from agent.memory.search.embedding.embedder import Embedder, Matrix
from gateway.backoff import exponential_delay
from gateway.errors import ModelFailed, ModelTimeout, UserError

log = structlog.get_logger(__name__)

_QUESTIONS = 256  # kept vectors of questions
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0  # seconds after a failure in which nobody is asked


class GuardedEmbedder:
    """An `Embedder` that answers within *deadline* or raises; after a failure it raises at once for a while.

    `trouble` is a line for an operator, "" while all is well.
    """

    def __init__(
        self,
        inner: Embedder,
        *,
        batch: int = 64,
        deadline: float = 30.0,
        question_deadline: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*deadline* is for a batch of passages, *question_deadline* for a question somebody waits for; seconds."""
        self.trouble = ""
        self._inner = inner
        self._batch = batch
        self._deadlines = {False: deadline, True: question_deadline}
        self._clock = clock
        self._asked: OrderedDict[str, Matrix] = OrderedDict()
        self._asking: dict[str, asyncio.Task[Matrix]] = {}
        self._failures = 0
        self._until = 0.0

    @property
    def name(self) -> str:
        """The inner model's name."""
        return self._inner.name

    @property
    def pause(self) -> float:
        """Seconds until the model is asked again."""
        return max(0.0, self._until - self._clock())

    async def embed(self, texts: Sequence[str], *, is_question: bool = False) -> Matrix:
        """Return the vectors, in batches. Raises ModelFailed."""
        if is_question and len(texts) == 1 and (known := self._asked.get(texts[0])) is not None:
            self._asked.move_to_end(texts[0])
            return known
        if self.pause:
            raise ModelFailed(self.trouble)
        if is_question and len(texts) == 1:
            return await self._question(texts[0])
        parts = [
            await self._one(texts[start : start + self._batch], is_question=is_question)
            for start in range(0, len(texts), self._batch)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)

    async def _question(self, text: str) -> Matrix:
        """Return a question's vector. Who asks may lose patience; the call goes on, so that a slow model is noticed."""
        asking = self._asking.get(text)
        if asking is None:
            asking = self._asking[text] = asyncio.create_task(self._ask(text), name="embed a question")
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # told in the log already
        return await asyncio.shield(asking)

    async def _ask(self, text: str) -> Matrix:
        try:
            rows = self._asked[text] = await self._one([text], is_question=True)
        finally:
            del self._asking[text]
        if len(self._asked) > _QUESTIONS:
            self._asked.popitem(last=False)
        return rows

    async def _one(self, texts: Sequence[str], *, is_question: bool) -> Matrix:
        try:
            async with asyncio.timeout(self._deadlines[is_question]):
                rows = await self._inner.embed(texts, is_question=is_question)
        except TimeoutError as error:
            failed = ModelTimeout(f"{self.name}: no vectors within {self._deadlines[is_question]:g} s")
            self._note(failed)
            raise failed from error
        except UserError as error:
            self._note(error)
            raise ModelFailed(str(error)) from error
        except ModelFailed as error:
            self._note(error)
            raise
        if self.trouble:
            log.info("recall.embedding_back", model=self.name)
        self.trouble, self._failures, self._until = "", 0, 0.0
        return rows

    def _note(self, error: Exception) -> None:
        # Several calls may fail together: that is one failure.
        if not self.pause:
            self._until = self._clock() + exponential_delay(self._failures + 1, _FIRST_PAUSE, _LONGEST_PAUSE)
            self._failures += 1
        self.trouble = str(error)
        log.warning("recall.embedding_failed", model=self.name, error=type(error).__name__, pause=self.pause)

    async def close(self) -> None:
        """Close the model; nobody waits for what is asked of it now."""
        asking = [*self._asking.values()]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await self._inner.close()
