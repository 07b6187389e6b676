"""Every open conversation: hot ones in memory, cold ones read from the store, from the replay start on."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING

from agent.base.transcript_lines import decode_lines, kind_of
from agent.memory.prompt.conversation import Conversation
from agent.memory.prompt.prompt_window import PromptWindow, fold, move_start
from agent.memory.storage.messages import KeepPolicy
from gateway.events import SessionKey
from gateway.ports.journal import MessageOutcome, SessionRow, TurnRecord
from gateway.ports.memory import StoredTurn, StoredWindow

if TYPE_CHECKING:
    from gateway.store.transcripts import SqlTranscripts


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
