"""The two phases of a Dream: it studies, then edits in small steps, within a ceiling of tokens and of steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import structlog

from agent.memory.dream import dream_prompt
from agent.memory.dream.dream_state import DreamPass
from agent.memory.editing.document_edits import read_edits
from agent.memory.editing.edit_review import with_evidence
from agent.memory.editing.edit_simulation import EditOutcome, EditResult, EditSimulation
from agent.memory.messages.token_estimate import estimate_text
from agent.memory.model_calls import CUT_OFF, LlmProvider, ProviderReply, UnusableAnswer, call_provider, clean

log = structlog.get_logger(__name__)

TOKENS_IN = 250_000  # of one sitting; a usual one takes a few thousand
_TOKENS_OUT = 40_000
_LEAST_OUT = 500  # tokens: with fewer left no answer is asked for
_TOLD = 300  # characters of an operation that are quoted back to the model
_DEADLINE = timedelta(seconds=120)

Save = Callable[[DreamPass], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamPhaseRunner:
    """Asks the model. *max_iterations* is phase two's, as the settings have it."""

    provider: LlmProvider
    model: str
    max_iterations: int = 10

    async def run_phases(
        self, dream_pass: DreamPass, base: Mapping[str, str], new: dream_prompt.DreamMaterial, save: Save
    ) -> DreamPass | UnusableAnswer:
        """Return the sitting at its end, or why it cannot go on now; each answer is saved before it counts."""
        while self._has_unstudied_page(dream_pass, base, new):
            studied = await self._study(dream_pass, base, new)
            if isinstance(studied, UnusableAnswer):
                return studied
            dream_pass = studied
            await save(dream_pass)
        simulation, step = EditSimulation(base), _EditRound(dream_pass)
        for answer in dream_pass.answers:
            step = _EditRound(dream_pass, *_feedback_of(await asyncio.to_thread(simulation.do, answer)))
        while not step.dream_pass.is_done:
            edited = await self._edit(step, simulation, new)
            if isinstance(edited, UnusableAnswer):
                return edited
            step = edited
            await save(step.dream_pass)
        return step.dream_pass

    def _has_unstudied_page(
        self, dream_pass: DreamPass, base: Mapping[str, str], new: dream_prompt.DreamMaterial
    ) -> bool:
        """Return True if another page is to be studied; the studies leave half of the tokens for the edits."""
        pages = dream_prompt.page_count(base, new)
        if dream_pass.answers or dream_pass.is_done or dream_pass.studied >= pages:
            return False
        request = dream_prompt.study(base, new, page=dream_pass.studied)
        is_within = (
            dream_pass.tokens_in + _weight(request) <= TOKENS_IN // 2
            and dream_pass.tokens_out + request["max_tokens"] <= _TOKENS_OUT // 2
        )
        if dream_pass.studied and not is_within:
            log.warning("dream.study_ceiling", studied=dream_pass.studied, pages=pages)
        return not dream_pass.studied or is_within

    async def _study(
        self, dream_pass: DreamPass, base: Mapping[str, str], new: dream_prompt.DreamMaterial
    ) -> DreamPass | UnusableAnswer:
        """Ask for the study of the next page."""
        request = dream_prompt.study(base, new, page=dream_pass.studied)
        response = await call_provider(self.provider, self.model, [request], deadline=_DEADLINE)
        if isinstance(response, UnusableAnswer):
            return response
        analysis = clean(response.content)
        if not analysis:
            return UnusableAnswer("an empty study")
        part = analysis[: dream_prompt.SHOWN // dream_prompt.page_count(base, new)]
        return replace(
            _add_usage(dream_pass, request, response),
            analysis=f"{dream_pass.analysis}\n\n{part}".lstrip(),
            studied=dream_pass.studied + 1,
        )

    async def _edit(
        self, last: _EditRound, simulation: EditSimulation, new: dream_prompt.DreamMaterial
    ) -> _EditRound | UnusableAnswer:
        """Ask for one answer with operations and do them on the copies; the sitting ends when nothing more comes."""
        dream_pass = last.dream_pass
        token_limit = min(dream_prompt.EDIT_TOKENS, _TOKENS_OUT - dream_pass.tokens_out)
        attempts = list(
            dream_prompt.edit(simulation.texts, new, dream_pass.analysis, last.feedback, page=len(dream_pass.answers))
        )
        if token_limit < _LEAST_OUT or dream_pass.tokens_in + _weight(attempts[0]) > TOKENS_IN:
            log.warning("dream.ceiling", tokens_in=dream_pass.tokens_in, tokens_out=dream_pass.tokens_out)
            return _EditRound(replace(dream_pass, is_done=True))
        request = [{**attempt, "max_tokens": token_limit} for attempt in attempts]
        response = await call_provider(self.provider, self.model, request, deadline=_DEADLINE)
        if isinstance(response, UnusableAnswer):
            return response
        if response.is_cut:
            return UnusableAnswer(CUT_OFF)
        edits = read_edits(response.content, response.tool_calls)
        if isinstance(edits, UnusableAnswer):
            return edits
        entries = [(entry.cursor, entry.content) for entry in new.entries]
        numbers = [number for number, _ in entries]
        supported = tuple(with_evidence(each, entries, numbers) for each in edits.edits)
        results = await asyncio.to_thread(simulation.do, supported)
        feedback, is_idle = _feedback_of(results)
        has_mistakes = bool(edits.wrong) or any(each.fate is EditOutcome.REFUSED for each in results)
        dream_pass = replace(_add_usage(dream_pass, request[0], response), answers=(*dream_pass.answers, supported))
        is_seen = len(dream_pass.answers) >= dream_prompt.page_count(simulation.texts, new)
        is_settled = (edits.is_done and not has_mistakes) or (is_idle and (last.is_idle or not has_mistakes))
        is_over = len(dream_pass.answers) >= self.max_iterations or (is_seen and is_settled)
        return _EditRound(replace(dream_pass, is_done=is_over), (*edits.wrong, *feedback), is_idle=is_idle)


@dataclass(frozen=True, slots=True)
class _EditRound:
    """State of phase two: feedback to the model on its last answer, and whether that answer changed nothing."""

    dream_pass: DreamPass
    feedback: tuple[str, ...] = ()
    is_idle: bool = False


def _feedback_of(results: Sequence[EditResult]) -> tuple[tuple[str, ...], bool]:
    """Return feedback to the model on its operations, and True if they changed nothing."""
    feedback = tuple(
        f"{str(each.edit.record())[:_TOLD]}: {each.fate}{f' ({each.why})' if each.why else ''}" for each in results
    )
    return feedback, all(each.fate not in (EditOutcome.DONE, EditOutcome.LOSES) for each in results)


def _add_usage(dream_pass: DreamPass, request: Mapping[str, Any], reply: ProviderReply) -> DreamPass:
    """Add what a call took, by the provider's figures or by ours, whichever is more."""
    said = f"{reply.content}{reply.tool_calls or ''}"
    return replace(
        dream_pass,
        tokens_in=dream_pass.tokens_in + max(reply.tokens.input, _weight(request)),
        tokens_out=dream_pass.tokens_out + max(reply.tokens.output, estimate_text(said)),
    )


def _weight(request: Mapping[str, Any]) -> int:
    return sum(estimate_text(str(each)) for each in (*request["messages"], *request.get("tools", ())))
