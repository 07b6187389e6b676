"""The window of a transcript: the messages that the model is sent, only appended to between snapshots."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import structlog

from agent.base.transcript_lines import decode_lines, deleted_ids, estimate_messages, kind_of
from agent.memory.prompt.compaction import CompactionPlan, PromptLimit, compact, fits, mark_due, overdue, weigh_lines
from agent.memory.prompt.prompt_window import (
    AuxiliaryContent,
    Message,
    PromptSnapshot,
    PromptWindow,
    WindowTurn,
    auxiliary_content,
    fold,
    kept_lines,
    last_messages,
    last_turns,
    last_user_message_at,
    move_start,
    render,
    says,
    snapshot_of,
)
from agent.memory.storage.messages import KeepPolicy, MessageRange, SenderNames, is_due, next_range
from gateway.events import SessionKey
from gateway.ports.journal import Line, MessageOutcome, SessionRow, TurnRecord
from gateway.ports.memory import StoredTurn, StoredWindow

if TYPE_CHECKING:
    from gateway.store.transcripts import SqlTranscripts
log = structlog.get_logger(__name__)

_CHANGES = frozenset({"snapshot", "pointer", "mark", "trim", "rewind"})  # kinds that change lines above them
_OF_OTHERS = frozenset(
    {"snapshot", "forgotten", "mark", "trim", "rewind"}
)  # kinds of an opening that are about what was before
_REMEMBERED = 256  # turns without a message whose repetition is noticed; the others' indices tell


class Conversation:
    """The window of one transcript. Only `adopt` changes it; the holder of the key's lock owns it."""

    def __init__(
        self,
        key: SessionKey,
        scope: str,
        transcript: str,
        *,
        next_index: int,
        window: int,
        consolidates: bool = False,
        keep: KeepPolicy = KeepPolicy.HALF,
        flush: int | None = None,
    ) -> None:
        """Begin empty; *flush* is how many tokens below its budget the window is flushed at, None = never."""
        self.key = key
        self.scope = scope
        self.transcript = transcript
        self.next_index = next_index
        self.head = 0  # number of the session's last turn that is taken in
        self.changes = 0  # of stored turns when it was read
        self.window = window
        self.consolidates = consolidates and window > 0
        self._keep = keep
        self.speaker_names = SenderNames()
        self.seen_rev = ""  # a state of memory that was compared and brought nothing new
        self._state = PromptWindow()
        self.snapshot: PromptSnapshot | None = None  # in force; None before the first turn or if its texts are lost
        self._messages: list[Message] = []
        self.deltas: list[Line] = []  # since the snapshot, oldest first
        self.auxiliary = AuxiliaryContent()
        self._weight = self._prompt_limit = self._overhead = self._snapshot_weight = 0
        self._flush = flush
        # Both are of a record with these lines: the store returns it with its number.
        self._peeked: tuple[Sequence[Line], PromptWindow, int] | None = None
        self._rendered: tuple[Sequence[Line], WindowTurn, list[Message]] | None = None
        self._changed: tuple[list[Line], list[Message]] | None = None  # `messages_with` of lines, until the next record
        self.system_prompt: tuple[PromptSnapshot, str] | None = None  # as `PromptAssembler` last built it
        self._flushed = -1  # the cycle that a flush was asked for in

    def set_limit(self, prompt_limit: int, overhead: int) -> None:
        """Set the token limit of a prompt, and the tokens that its tools take; 0 = no limit."""
        self._prompt_limit, self._overhead = prompt_limit, overhead

    @property
    def prompt_limit(self) -> PromptLimit:
        """The token limit of a prompt, and the tokens of the system prompt and the tools."""
        return PromptLimit(tokens=self._prompt_limit, taken=self._overhead + self._snapshot_weight)

    @property
    def weight(self) -> int:
        """Estimated tokens of `messages`, in constant time."""
        return self._weight if self.window else estimate_messages(self.messages)

    @property
    def messages(self) -> Sequence[Message]:
        """The messages before this turn, from the replay start on: replayable, the same bytes each time."""
        if self.window:
            return self._messages
        return last_messages(self._messages, self._state)

    @property
    def zone(self) -> str:
        """The time zone of the effective snapshot."""
        return self.snapshot.zone if self.snapshot else ""

    @property
    def replay_from(self) -> int:
        """The index of the first message that is replayed."""
        return self._state.replay_from

    @property
    def consolidated(self) -> int:
        """The index before which every message is in a summary."""
        return self._state.consolidated

    @property
    def is_tainted(self) -> bool:
        """True if the window contains a tainted line (see taint.py)."""
        return self.auxiliary.words_of_others > 0

    @property
    def last_heard(self) -> datetime | None:
        """The time of the newest user message in the window, or None."""
        return last_user_message_at(self._state.turns)

    @property
    def lines(self) -> Sequence[Line]:
        """The lines of the window, oldest first."""
        return [line for turn in self._state.turns for line in turn.lines]

    def snapshot_with(self, lines: Sequence[Line], blobs: Mapping[str, str]) -> PromptSnapshot:
        """Return the effective snapshot once *lines* (a turn's opening) are part of the conversation."""
        for line in reversed(lines):
            if kind_of(line) == "snapshot":
                taken = snapshot_of(line, blobs)
                if taken is not None:
                    return taken
        if self.snapshot is None:
            raise ValueError("a turn without a snapshot: the opening was not asked for")
        return self.snapshot

    def messages_with(self, lines: Sequence[Line]) -> Sequence[Message]:
        """Return the messages before a turn that begins with *lines*; usually `messages`.

        A snapshot among the lines replaces the deltas, and messages that the lines erase disappear.
        """
        if not self._is_changed_by(lines):
            return self.messages
        if self._changed is None or self._changed[0] != [*lines]:
            state = self._after(lines)
            rendered = render(state.turns)
            self._changed = ([*lines], rendered if self.window else last_messages(rendered, state))
        return self._changed[1]

    def weight_with(self, lines: Sequence[Line]) -> int:
        """Return the estimated tokens of `messages_with`; usually `weight`."""
        return estimate_messages(self.messages_with(lines)) if self._is_changed_by(lines) else self.weight

    def compacted(
        self,
        new_lines: Sequence[Line],
        start: int,
        *,
        after: Sequence[Line] = (),
        prompt_limit: PromptLimit | None = None,
    ) -> CompactionPlan:
        """Return the lines to record so that the next prompt fits; usually none.

        *new_lines* are the current turn's lines, from index *start* on; *after* are lines that are decided already.
        """
        state, prompt_limit = self._state, prompt_limit or self.prompt_limit
        if self._is_changed_by(after):
            state = self._after(after)
            render(state.turns)
        elif (
            not prompt_limit.tokens or prompt_limit.taken + self.weight + weigh_lines(new_lines) <= prompt_limit.tokens
        ):
            return CompactionPlan(state.replay_from)  # the usual: nothing that grows is looked at
        turns = state.turns if self.window else last_turns(state)
        where = {"start": start, "replay_from": state.replay_from, "consolidated": state.consolidated}
        return compact(turns, new_lines, prompt_limit, **where)

    def with_mark(self, record: TurnRecord) -> TurnRecord:
        """Return *record* with the mark that is due with it, before its `end` line; usually unchanged."""
        line = mark_due(
            self._state, record.from_index, record.to_index, window=self.window, consolidates=self.consolidates
        )
        if line is None:
            return record
        at = len(record.lines) - 1 if record.lines and kind_of(record.lines[-1]) == "end" else len(record.lines)
        return replace(record, lines=(*record.lines[:at], line, *record.lines[at:]))

    def due(self, to_index: int, record: TurnRecord | None = None) -> MessageRange | None:
        """Return the range to consolidate once there are *to_index* messages; usually None.

        By the number of messages and by the window's tokens with *record*, its newest turn; the longer range wins.
        """
        if not self.consolidates:
            return None
        taken: list[MessageRange | None] = [None]
        if is_due(to_index, self.consolidated, self.window, self._keep):
            taken.append(next_range(to_index, self.consolidated, self.window, self._keep))
        if record is not None and self._prompt_limit:
            after, weight = self._next(record)
            if after.replay_from > after.consolidated or not fits(weight, self.prompt_limit):
                where = {"replay_from": after.replay_from, "consolidated": after.consolidated}
                taken.append(overdue(after.turns, self.prompt_limit, **where))
        return max(filter(None, taken), key=lambda each: each.end, default=None)

    def flush_due(self, record: TurnRecord) -> MessageRange | None:
        """Return the range to flush before a compaction by tokens, once in each cycle, or None."""
        if not self.consolidates or self._flush is None or not self._prompt_limit or self._flushed == self.consolidated:
            return None
        after, weight = self._next(record)
        has_left = after.replay_from > after.consolidated  # something is out of the window already
        is_near = has_left or not fits(weight, self.prompt_limit, threshold=self._flush)
        if not is_near or record.to_index <= self.consolidated:
            return None
        self._flushed = self.consolidated
        return MessageRange(self.consolidated, record.to_index)

    def adopt(self, record: TurnRecord) -> None:
        """Take in a committed record of this transcript; the same one twice is once. Costs what is new."""
        if record.seq and record.previous == self.head:
            self.head = record.seq
        if self._is_known(record) or record.transcript != self.transcript:
            return
        if not record.lines and record.to_index > record.from_index:
            return  # its body left the journal: `next_index` stays behind, and opening reads the file
        self._peeked = self._changed = None
        lines = record.lines
        self._state.taken[record.turn] = None
        if len(self._state.taken) > _REMEMBERED:
            del self._state.taken[next(iter(self._state.taken))]
        if self._is_changed_by(lines):
            before = self._state.snapshot
            self._state = self._after(lines, record)
            if self._state.snapshot is not before:
                self._load_snapshot(record.blobs)
            self._show()
        else:
            turn, messages = self._render(record)
            if turn.lines:
                self._state.turns.append(turn)
                self._messages.extend(messages)
                self._weight += turn.weight
                self.auxiliary += auxiliary_content([turn])
                self.deltas.extend(line for line in turn.lines if kind_of(line) == "delta")
        self._rendered = None
        self.next_index = max(self.next_index, record.to_index)

    # -- inside ------------------------------------------------------------------------------------

    def _is_known(self, record: TurnRecord) -> bool:
        if record.to_index > record.from_index:
            return record.to_index <= self.next_index
        return record.turn in self._state.taken

    def restore(self, state: PromptWindow, texts: Mapping[str, str]) -> None:
        """Begin with what a cold read found: a window, and the texts of its snapshot by digest."""
        self._state = state
        self._load_snapshot(texts)
        for line in self.lines:
            self.speaker_names.note_line(line)
        self._show()

    def _show(self) -> None:
        self._messages = render(self._state.turns)
        self._weight = sum(turn.weight for turn in self._state.turns)
        self.auxiliary = auxiliary_content(self._state.turns)
        self.deltas = [line for turn in self._state.turns for line in turn.lines if kind_of(line) == "delta"]

    def _load_snapshot(self, texts: Mapping[str, str]) -> None:
        line = self._state.snapshot
        self.snapshot = snapshot_of(line, texts) if line is not None else None
        self._snapshot_weight = self.snapshot.weight if self.snapshot is not None else 0

    def _is_changed_by(self, lines: Sequence[Line]) -> bool:
        """Return True if *lines* change lines above them, rather than being appended only."""
        kinds = {kind_of(line) for line in lines}
        if not kinds.isdisjoint(_CHANGES):
            return True
        gone = deleted_ids(lines)
        return bool(gone) and any(says(turn, gone) for turn in self._state.turns)

    def _render(self, record: TurnRecord) -> tuple[WindowTurn, list[Message]]:
        """Return the turn that *record* appends, and its messages; made once for due jobs and for the window."""
        if self._rendered is None or self._rendered[0] is not record.lines:
            turn = WindowTurn(record.from_index, record.to_index, kept_lines(record.lines))
            self._rendered = (record.lines, turn, render([turn]))
        return self._rendered[1], self._rendered[2]

    def _next(self, record: TurnRecord) -> tuple[PromptWindow, int]:
        """Return the state with *record*, and its weight; turns that are present already are not changed."""
        if self._peeked is None or self._peeked[0] is not record.lines:
            if self._is_changed_by(record.lines):
                state = self._after(record.lines, record)
                render(state.turns)
                weight = sum(turn.weight for turn in state.turns)
            else:
                turn, now = self._render(record)[0], self._state
                turns = [*now.turns, turn]
                state = replace(now, turns=turns)
                weight = self._weight + turn.weight
            self._peeked = (record.lines, state, weight)
        return self._peeked[1], self._peeked[2]

    def _after(self, lines: Sequence[Line], record: TurnRecord | None = None) -> PromptWindow:
        """Return the state with *lines* of a new turn; the old one stays as it is."""
        state = replace(self._state, turns=[replace(turn, lines=list(turn.lines)) for turn in self._state.turns])
        if record is not None:
            fold(state, record.from_index, record.to_index, lines)
        else:
            fold(state, self.next_index, self.next_index, [line for line in lines if kind_of(line) in _OF_OTHERS])
        return state


class ConversationCache:
    """Every open conversation, the least recently used ones given up beyond *capacity*."""

    def __init__(
        self,
        transcripts: SqlTranscripts,
        *,
        capacity: int = 500,
        window: int = 100,
        consolidates: bool = False,
        keep: KeepPolicy = KeepPolicy.HALF,
        flush: int | None = None,
    ) -> None:
        """Keep *capacity* conversations open; *consolidates* means that pointers, not marks, move the window.

        *flush* is the distance below the limit, in tokens, at which a window is flushed; None = never.
        """
        self._transcripts = transcripts
        self._capacity = capacity
        self._window = window
        self._consolidates = consolidates
        self._keep = keep
        self._flush = flush
        self._open: OrderedDict[SessionKey, Conversation] = OrderedDict()

    async def open(self, session: SessionRow, scope: str, *, window: int | None = None) -> Conversation:
        """Return the conversation of *session*: a hot one from the cache, a cold one by reading its window.

        *window* is the chat's own maximum number of messages, if it has one.
        """
        window = self._window if window is None else window
        hot = self._open.get(session.key)
        if hot is not None and hot.window == window and await self._is_current(hot, session, scope):
            self._open.move_to_end(session.key)
            return hot
        cold = await self._read(session, scope, window)
        self._open[session.key] = cold
        self._open.move_to_end(session.key)
        while len(self._open) > self._capacity:
            self._open.popitem(last=False)
        return cold

    def is_open(self, key: SessionKey) -> bool:
        """Return True if the conversation of *key* is in memory; changes by others may still have to be read."""
        return key in self._open

    def forget(self, key: SessionKey) -> None:
        """Let go of a conversation; the next opening reads it again."""
        self._open.pop(key, None)

    def forget_scope(self, scope: str) -> None:
        """Close every conversation of *scope*; the next access reads the store, without erased messages."""
        for key in [key for key, each in self._open.items() if each.scope == scope]:
            del self._open[key]

    async def _is_current(self, hot: Conversation, session: SessionRow, scope: str) -> bool:
        """Take in what jobs and other gateways have committed since; return False if *hot* must be read again."""
        if (hot.scope, hot.transcript, hot.changes) != (scope, session.transcript, session.changes):
            return False
        while hot.head < session.head:
            page = await self._transcripts.since(scope, hot.key, hot.transcript, hot.head)
            records = await asyncio.to_thread(lambda found: [_record_of(turn, scope) for turn in found], page)
            if any(kind_of(line) == "snapshot" for record in records for line in record.lines):
                return False  # its texts come with the window
            for record in records:
                hot.adopt(record)
            hot.head = page[-1].seq if page else session.head
        return hot.next_index == session.next_index

    async def _read(self, session: SessionRow, scope: str, window: int) -> Conversation:
        conversation = Conversation(
            session.key,
            scope,
            session.transcript,
            next_index=session.next_index,
            window=window,
            consolidates=self._consolidates,
            keep=self._keep,
            flush=self._flush,
        )
        conversation.head, conversation.changes = session.head, session.changes
        if not session.next_index:
            return conversation
        window_rows = await self._transcripts.window(scope, session.key, session.transcript)
        state = await asyncio.to_thread(window_state, window_rows)
        # Many conversations have the same texts.
        conversation.restore(state, {digest: sys.intern(text) for digest, text in window_rows.texts.items()})
        return conversation


def window_state(window_rows: StoredWindow) -> PromptWindow:
    """Return the state of a window from its stored turns."""
    earlier = [line for line in decode_lines(window_rows.snapshot) if kind_of(line) == "snapshot"]
    state = PromptWindow(snapshot=earlier[-1] if earlier else None)
    for turn in window_rows.turns:
        state.taken[turn.turn] = None
        fold(state, turn.from_index, turn.to_index, decode_lines(turn.body))
    move_start(state, window_rows.replay_from)
    return state


def _record_of(turn: StoredTurn, scope: str) -> TurnRecord:
    return TurnRecord(
        turn=turn.turn,
        key=turn.key,
        transcript=turn.transcript,
        outcome=MessageOutcome(turn.outcome),
        lines=tuple(decode_lines(turn.body)),
        from_index=turn.from_index,
        to_index=turn.to_index,
        inbox=turn.inbox,
        at=turn.at,
        new_transcript=turn.new_transcript,
        scope=scope,
    )
