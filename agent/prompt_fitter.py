"""One turn's prompt: system prompt, history and what the turn has said, kept within what the model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.memory.messages.token_estimate import estimate_message, estimate_messages
from agent.memory.prompt.compaction import PromptLimit
from agent.memory.prompt.conversation import Conversation
from agent.turn_draft import TurnDraft
from gateway.ports import Line


class PromptFitter:
    """The prompt of the turn that *draft* is; *assembled* is its system prompt and history, *overhead* its tools."""

    def __init__(
        self, conversation: Conversation, draft: TurnDraft, assembled: Sequence[Mapping[str, Any]], *, overhead: int
    ) -> None:
        self._conversation = conversation
        self._draft = draft
        self._system = assembled[0]
        self._taken = estimate_message(assembled[0]) + overhead
        self._history = assembled[1:]
        self._past = conversation.weight_with(draft.lines)

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """The prompt: the same bytes as the turn before, as far as nothing was squeezed."""
        return [self._system, *self._history, *self._draft.messages]

    @property
    def weight(self) -> int:
        """What the prompt and the tools are reckoned at; costs nothing that grows with the conversation."""
        return self._taken + self._past + self._draft.weight

    def squeeze(self, room: int) -> Sequence[Line]:
        """Return the lines that make the prompt fit *room*, as far as anything does; empty when it fits."""
        if self.weight <= room:
            return ()
        where = PromptLimit(tokens=room, taken=self._taken)
        return self._conversation.compacted(
            self._draft.lines_for_model, self._draft.first_index, after=self._draft.lines, room=where
        ).lines

    def was_shrunk(self) -> None:
        """Take in what the draft has recorded since."""
        self._history = self._conversation.messages_with(self._draft.lines)
        self._past = estimate_messages(self._history)
