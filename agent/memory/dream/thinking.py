"""The two phases of a Dream: it studies, then edits in small steps, within a ceiling of tokens and of steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import structlog

from agent.memory.consolidation.answer import Unusable, clean
from agent.memory.consolidation.asking import Provider, put
from agent.memory.dream import prompt
from agent.memory.dream.edits import read_edits
from agent.memory.dream.playing import Fate, Play, Played
from agent.memory.dream.state import Sitting
from agent.memory.prompt.tokens import weigh_text

log = structlog.get_logger(__name__)

TOKENS_IN = 250_000  # of one sitting; a usual one takes a few thousand
TOKENS_OUT = 40_000
_LEAST_OUT = 500  # tokens: with fewer left no answer is asked for
_TOLD = 300  # characters of an operation that the model is told about
DEADLINE = timedelta(seconds=120)

Save = Callable[[Sitting], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinker:
    """Asks the model. *max_iterations* is phase two's, as the settings have it."""

    provider: Provider
    model: str
    max_iterations: int = 10
    deadline: timedelta = DEADLINE
    tokens_in: int = TOKENS_IN
    tokens_out: int = TOKENS_OUT

    async def think(
        self, sitting: Sitting, base: Mapping[str, str], new: prompt.Material, save: Save
    ) -> Sitting | Unusable:
        """Return the sitting at its end, or why it cannot go on now; each answer is saved before it counts."""
        if not sitting.analysis:
            studied = await self._study(sitting, base, new)
            if isinstance(studied, Unusable):
                return studied
            sitting = studied
            await save(sitting)
        play, step = Play(base), _Step(sitting)
        for answer in sitting.answers:
            step = _Step(sitting, *_seen(await asyncio.to_thread(play.do, answer)))
        while not step.sitting.is_done:
            edited = await self._edit(step, play, new)
            if isinstance(edited, Unusable):
                return edited
            step = edited
            await save(step.sitting)
        return step.sitting

    async def _study(self, sitting: Sitting, base: Mapping[str, str], new: prompt.Material) -> Sitting | Unusable:
        asked = {"messages": prompt.study(base, new), "max_tokens": prompt.STUDY_TOKENS}
        response = await put(self.provider, self.model, [asked], deadline=self.deadline)
        if isinstance(response, Unusable):
            return response
        analysis = clean(str(getattr(response, "content", None) or ""))
        if not analysis:
            return Unusable("an empty study")
        return replace(_spent(sitting, asked, response), analysis=analysis[: prompt.SHOWN])

    async def _edit(self, last: _Step, play: Play, new: prompt.Material) -> _Step | Unusable:
        """Ask for one answer with operations and do them on the copies; the sitting ends when nothing more comes."""
        sitting = last.sitting
        room = min(prompt.EDIT_TOKENS, self.tokens_out - sitting.tokens_out)
        attempts = list(prompt.edit(play.texts, new, sitting.analysis, last.told))
        if room < _LEAST_OUT or sitting.tokens_in + _weight(attempts[0]) > self.tokens_in:
            log.warning("dream.ceiling", tokens_in=sitting.tokens_in, tokens_out=sitting.tokens_out)
            return _Step(replace(sitting, is_done=True))
        asked = [{**attempt, "max_tokens": room} for attempt in attempts]
        response = await put(self.provider, self.model, asked, deadline=self.deadline)
        if isinstance(response, Unusable):
            return response
        edits = read_edits(getattr(response, "content", None), getattr(response, "tool_calls", None))
        if isinstance(edits, Unusable):
            return edits
        results = await asyncio.to_thread(play.do, edits.edits)
        told, is_idle = _seen(results)
        has_mistakes = bool(edits.wrong) or any(each.fate is Fate.REFUSED for each in results)
        sitting = replace(_spent(sitting, asked[0], response), answers=(*sitting.answers, edits.edits))
        is_over = (
            len(sitting.answers) >= self.max_iterations
            or (edits.is_done and not has_mistakes)
            or (is_idle and (last.is_idle or not has_mistakes))
        )
        return _Step(replace(sitting, is_done=is_over), (*edits.wrong, *told), is_idle=is_idle)


@dataclass(frozen=True, slots=True)
class _Step:
    """Where phase two stands: what the model is told of its last answer, and whether that changed nothing."""

    sitting: Sitting
    told: tuple[str, ...] = ()
    is_idle: bool = False


def _seen(results: Sequence[Played]) -> tuple[tuple[str, ...], bool]:
    """Return what the model is told of its operations, and whether they changed nothing."""
    told = tuple(
        f"{str(each.edit.record())[:_TOLD]}: {each.fate}{f' ({each.why})' if each.why else ''}" for each in results
    )
    return told, all(each.fate not in (Fate.DONE, Fate.LOSES) for each in results)


def _spent(sitting: Sitting, asked: Mapping[str, Any], response: Any) -> Sitting:
    """Add what a call took, by the provider's figures or by ours, whichever is more."""
    tokens = getattr(response, "tokens", None)
    said = f"{getattr(response, 'content', '') or ''}{getattr(response, 'tool_calls', '') or ''}"
    return replace(
        sitting,
        tokens_in=sitting.tokens_in + max(getattr(tokens, "input", 0), _weight(asked)),
        tokens_out=sitting.tokens_out + max(getattr(tokens, "output", 0), weigh_text(said)),
    )


def _weight(asked: Mapping[str, Any]) -> int:
    return sum(weigh_text(str(each)) for each in (*asked["messages"], *asked.get("tools", ())))
