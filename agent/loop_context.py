"""What the loop of one turn works on: the turn's facts, its draft, and its prompt within the limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.answer_links import AnswerLinks
from agent.files.outgoing_files import BoundFileSender, OutgoingFiles
from agent.llm.chat_model import ToolCall
from agent.memory.messages.token_estimate import estimate_message, estimate_messages
from agent.memory.prompt.compaction import PromptLimit
from agent.memory.prompt.conversation import Conversation
from agent.tools.tool import ToolKind
from agent.turn import RunningTurn, Turn
from agent.turn_draft import StagedEffects, TurnDraft
from gateway.ports import Line, LinkFinder, Preview


class PromptFitter:
    """The prompt of a running turn, kept within the prompt limit."""

    def __init__(
        self, conversation: Conversation, draft: TurnDraft, assembled: Sequence[Mapping[str, Any]], *, overhead: int
    ) -> None:
        """*assembled* is the system prompt and the history; *overhead* is the weight of the tools' schemas."""
        self._conversation = conversation
        self._draft = draft
        self._system = assembled[0]
        self._fixed = estimate_message(assembled[0]) + overhead
        self._history = assembled[1:]
        self._history_weight = conversation.weight_with(draft.lines)

    @property
    def may_have_pictures(self) -> bool:
        """False if no message refers to a picture; takes the same time however long the conversation is."""
        own = self._draft.messages
        return self._conversation.auxiliary.pictures > 0 or any(isinstance(each.get("content"), list) for each in own)

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The prompt; until it is shrunk, it begins with the bytes of the turn before."""
        return [self._system, *self._history, *self._draft.messages]

    @property
    def weight(self) -> int:
        """Estimated tokens of the prompt and the tools; takes the same time however long the conversation is."""
        return self._fixed + self._history_weight + self._draft.weight

    def shrinking_lines(self, token_limit: int) -> Sequence[Line]:
        """Return the lines that make the prompt fit *token_limit*, as far as possible; none if it fits already."""
        if self.weight <= token_limit:
            return ()
        return self._conversation.compacted(
            self._draft.lines_for_model,
            self._draft.first_index,
            after=self._draft.lines,
            prompt_limit=PromptLimit(tokens=token_limit, taken=self._fixed),
        ).lines

    def reload(self) -> None:
        """Read the history again after the draft has recorded shrinking lines."""
        self._history = self._conversation.messages_with(self._draft.lines)
        self._history_weight = estimate_messages(self._history)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopContext:
    """The turn that the loop works on, and what it changes while it does."""

    running: RunningTurn
    turn: Turn
    conversation: Conversation
    draft: TurnDraft
    prompt: PromptFitter
    preview: Preview
    is_watched: bool  # the answer is streamed only where a stream would be seen: it costs CPU
    calls: dict[str, tuple[str, str]] = field(default_factory=dict)  # that run now: id to tool and progress
    pictured: set[str] = field(default_factory=set)  # ids of calls whose picture is being stored

    def all_lines(self) -> list[Line]:
        """Return the transcript lines of the conversation and of the turn so far."""
        return [*self.conversation.lines, *self.draft.lines]

    def bind_files(self, outgoing: OutgoingFiles, effects: StagedEffects) -> BoundFileSender:
        """Return the sender of files that go with the turn's answer, for one call with *effects*."""
        turn, sent_count = self.turn, len(self.draft.attachments)
        return outgoing.bind(turn.scope, turn.key, self.all_lines, effects.send, sent_count=sent_count)

    def find_links(self) -> LinkFinder | None:
        """Return the function that finds the allowed links of an answer to the prompt; None = all are allowed."""
        if not self.draft.is_tainted:
            return None
        toolbox, system = self.turn.profile.toolbox, str(self.prompt.messages[0]["content"])

        def is_from_web(line: Line) -> bool:
            return toolbox.kind_of(ToolCall("", str(line.get("name", "")), "")) is ToolKind.WEB

        return AnswerLinks(system, self.all_lines, is_from_web).find

    def show_call(self, call: ToolCall, progress: str = "") -> None:
        """Show *call* and its progress in the status line."""
        self.calls[call.id] = (call.name, progress)
        self._show_status()

    def end_call(self, call: ToolCall) -> None:
        """Show another call that still runs instead of *call*, or none."""
        self.calls.pop(call.id, None)
        self._show_status()

    def _show_status(self) -> None:
        name, progress = next(reversed(self.calls.values()), ("", ""))
        self.running.tool = name
        self.preview.status(f"{name}: {progress}" if progress else name)
