"""Compaction: keeping a prompt within its limit by trimming lines and moving the window.

Pure functions over a window. Their decisions are recorded as lines (`trim`, `mark`), so that a restart gives the same
bytes. The messages stay whole in the transcript, and messages that leave the window unsummarised become due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agent.base import transcript_lines as build
from agent.base.transcript_lines import BYTES_PER_TOKEN, estimate_messages, kind_of
from agent.memory.prompt.prompt_window import KEPT_WITHOUT_WINDOW, PromptWindow, WindowTurn, apply_trim, render
from agent.memory.prompt.turn_messages import turn_messages
from agent.memory.storage.messages import MessageRange
from gateway.ports.journal import Line

MARK_EVERY = 100  # messages between marks, when the window itself does not move
GROWTH = 8  # the next turn is expected to take this fraction of the limit
_PATIENCE = 2  # windows that a prompt may grow to while a consolidation is awaited
_LEAST_SHOWN = 200  # characters: a shorter piece of a message is useless


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The lines to record so that the prompt fits, usually none, and the replay start with them."""

    replay_from: int
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLimit:
    """The token limit of a prompt; *taken* tokens of it are used by the system prompt and the tools."""

    tokens: int  # 0 = unknown, no limit
    taken: int


def compact(
    turns: Sequence[WindowTurn],
    new_lines: Sequence[Line],
    prompt_limit: PromptLimit,
    *,
    start: int,
    replay_from: int,
    consolidated: int,
) -> CompactionPlan:
    """Return the plan that makes history and *new_lines* (the turn's lines, from index *start* on) fit *prompt_limit*.

    In this order, until it fits: trim old tool results; move the window, by whole turns, until half of the limit is
    free; trim the turn's own older tool results; cut the longest messages.
    """
    weight = prompt_limit.taken + sum(turn.weight for turn in turns) + weigh_lines(new_lines)
    if not prompt_limit.tokens or weight <= prompt_limit.tokens:
        return CompactionPlan(replay_from)
    plan = _ConversationCompactor(
        [replace(each) for each in turns],
        list(new_lines),
        prompt_limit.taken,
        start,
    )
    plan.drop_bodies()
    moved = plan.move(prompt_limit.tokens) if plan.weight > prompt_limit.tokens * 3 // 4 else 0
    if plan.weight > prompt_limit.tokens:
        plan.drop_own_bodies()
    if plan.weight > prompt_limit.tokens:
        plan.cut(prompt_limit.tokens)
    mark = (build.mark(moved, consolidated),) if moved > replay_from else ()
    return CompactionPlan(max(moved, replay_from), (*plan.lines, *mark))


def overdue(
    turns: Sequence[WindowTurn], prompt_limit: PromptLimit, *, replay_from: int, consolidated: int
) -> MessageRange | None:
    """Return the range to summarise because of the token limit, or None; it ends at a turn and frees half of it.

    It is due when the next prompt is expected not to fit, or when messages left the window unsummarised. The newest
    turn always stays.
    """
    end = replay_from
    weight = sum(turn.weight for turn in turns)
    if not fits(weight, prompt_limit):
        left = prompt_limit.taken + weight
        for turn in turns[:-1]:
            if left <= prompt_limit.tokens // 2:
                break
            left -= turn.weight
            end = max(end, turn.high)
    return MessageRange(consolidated, end) if end > consolidated else None


def mark_due(state: PromptWindow, from_index: int, to_index: int, *, window: int, consolidates: bool) -> Line | None:
    """Return the mark that is due by the number of messages after a turn with these indices, or None.

    Without consolidation the replay start of a full window moves by half of it, to the beginning of a turn, and the
    next turn takes a new snapshot. Otherwise the pointer moves it, and a mark every 100 messages keeps cold reads
    short. While a consolidation is missing the window grows to twice its size at most; messages that leave it are
    summarised from the file or kept raw when the job runs.
    """
    if to_index <= from_index:
        return None
    limit = window or MARK_EVERY
    if to_index - state.replay_from >= (limit * _PATIENCE if consolidates else limit):
        aim = max(state.replay_from + limit // 2, to_index - limit) if window else to_index - KEPT_WITHOUT_WINDOW
        start = _turn_start(state, aim, from_index)
        if start > state.replay_from:
            return build.mark(start, state.consolidated)
    if to_index - state.anchor_at >= MARK_EVERY:
        return build.mark(state.replay_from, state.consolidated)
    return None


def _turn_start(state: PromptWindow, aim: int, upcoming: int) -> int:
    """Return where the turn that holds index *aim* begins, or the next one where that moves nothing."""
    starts = [turn.low for turn in state.turns if turn.high > turn.low] + [upcoming]
    before = [start for start in starts if start <= aim]
    if before and before[-1] > state.replay_from:
        return before[-1]
    return next((start for start in starts if start > state.replay_from), state.replay_from)


def fits(weight: int, prompt_limit: PromptLimit, *, threshold: int = 0) -> bool:
    """Return True if the prompt after a history of *weight* is expected to be *threshold* tokens below the limit."""
    expected = prompt_limit.taken + weight + prompt_limit.tokens // GROWTH
    return not prompt_limit.tokens or expected <= prompt_limit.tokens - min(threshold, prompt_limit.tokens // 2)


def weigh_lines(lines: Sequence[Line]) -> int:
    """Return the estimated tokens of lines of a running turn as they are sent."""
    return estimate_messages(turn_messages(lines, is_over=False))


@dataclass(slots=True)
class _ConversationCompactor:
    """A prompt that is made lighter, step by step; each step that helps leaves its line."""

    turns: list[WindowTurn]
    new_lines: list[Line]
    taken: int
    start: int
    lines: list[Line] = field(default_factory=list)

    @property
    def weight(self) -> int:
        """Estimated tokens of the whole prompt."""
        return self.taken + sum(turn.weight for turn in self.turns) + self._own_weight

    @property
    def _own_weight(self) -> int:
        return weigh_lines(self.new_lines)

    @property
    def _end(self) -> int:
        own: list[int] = [line["i"] + 1 for line in self.new_lines if kind_of(line) == "message"]
        return max([self.start, *own])

    def drop_bodies(self) -> None:
        """Let go of what tools returned before the last turn."""
        if self.turns:
            self._try(build.trim(self.turns[-1].low, tools=0))

    def move(self, prompt_limit: int) -> int:
        """Remove the oldest turns until half of the limit, or of the rest of it, is free; return the new start."""
        others, window_tokens = self.taken + self._own_weight, sum(turn.weight for turn in self.turns)
        goal = max(prompt_limit // 2, others + max(prompt_limit - others, 0) // 4)
        while self.turns and others + window_tokens > (goal if len(self.turns) > 1 else prompt_limit):
            window_tokens -= self.turns.pop(0).weight
        return self.turns[0].low if self.turns else self.start

    def drop_own_bodies(self) -> None:
        """Let go of what tools returned in this turn, the newest results excepted."""
        calls = [line["i"] for line in self.new_lines if line.get("tool_calls")]
        if calls:
            self._try(build.trim(calls[-1], start=self.start, tools=0))

    def cut(self, prompt_limit: int) -> None:
        """Show less and less of every message that is left."""
        first = min([self.start, *(turn.low for turn in self.turns)])
        limit = prompt_limit * BYTES_PER_TOKEN // 4
        while limit > _LEAST_SHOWN and self._with(self._shorter(first, limit)).weight > prompt_limit:
            limit //= 2
        self._try(self._shorter(first, limit))

    def _shorter(self, first: int, limit: int) -> Line:
        return build.trim(self._end, start=first, tools=limit, chars=limit)

    def _try(self, trim: Line) -> None:
        tried = self._with(trim)
        if tried.weight < self.weight:
            self.turns, self.new_lines = tried.turns, tried.new_lines
            self.lines.append(trim)

    def _with(self, trim: Line) -> _ConversationCompactor:
        turns = [replace(turn, lines=[apply_trim(trim, line) for line in turn.lines]) for turn in self.turns]
        render(turns)
        return _ConversationCompactor(
            turns, [apply_trim(trim, line) for line in self.new_lines], self.taken, self.start
        )
