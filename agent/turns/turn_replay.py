"""Replay: run a stored turn again with the recorded answers of its model, without storing, sending or running anything.

The prompt is rebuilt from the transcript by the code of today, and the loop decides again about each recorded call. The
report names every difference, and has a note for everything that can no longer be compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agent.base.transcript_lines import FORGOTTEN, TranscriptBlock, estimate_message, kind_of, parse_time
from agent.llm.chat_model import TokenUsage
from agent.llm.model_client import ModelClient
from agent.memory.prompt.conversation import Conversation
from agent.memory.prompt.prompt_snapshot import ABILITIES, ScopeMemory, prompt_format, system_prompt
from agent.memory.prompt.prompt_window import PromptSnapshot, PromptWindow, digests_of, fold
from agent.memory.storage.messages import SenderNames
from agent.memory.storage.stored_sessions import RecordedTurn, StoredSessions
from agent.tools.tool_questions import ALLOWED
from agent.tools.toolbox import FILES_SEARCH
from agent.turns.agent_loop import AgentLoop
from agent.turns.chat_profiles import ChatProfile, ChatProfiles
from agent.turns.prompt_assembly import message_header
from agent.turns.recorded_turn import (
    CountedModel,
    OtherAnswer,
    RecordedLines,
    RecordedModel,
    RecordedResults,
    ReplayBudget,
    ReplayComparison,
    ReplayDifference,
    ReplayReport,
    replay_client,
)
from agent.turns.turn import Turn
from agent.turns.turn_draft import TurnDraft
from agent.turns.turn_tools import CallReviewer
from gateway.errors import NothingToReplay
from gateway.events import ChatKind, InboundKind, InboundMessage, Role, Sender, SessionKey
from gateway.ports.access import MessageContext
from gateway.ports.journal import InboxRow, Line, SessionRow, TurnLease
from gateway.ports.memory import FileKind

if TYPE_CHECKING:
    from gateway.chat_locales import ChatLocales
    from gateway.store.files import SqlFiles


_NO_MEMORY = frozenset({"SOUL", ABILITIES})  # texts of a snapshot that are no memory


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReplayer:
    """Runs stored turns again. *loop* and *reviewer* are those of turns; the latter without daily caps."""

    loop: AgentLoop
    reviewer: CallReviewer
    sessions: StoredSessions
    memory: ScopeMemory
    files: SqlFiles
    profiles: ChatProfiles
    context_of: Callable[[InboundMessage], MessageContext]
    role_of: Callable[[InboundMessage, MessageContext], Role | None]  # None: is not admitted today
    locales: ChatLocales
    window: int  # messages in a prompt where the chat has no setting of its own
    open_model: Callable[[str], ModelClient]  # by its name in the settings; its calls leave no row

    async def replay(
        self, key: SessionKey, scope: str, turn: str, *, failure: str = "", model: str = ""
    ) -> ReplayReport:
        """Replay *turn*, which ended with *failure* if it got no answer; ask *model* too.

        Raises NothingToReplay if the turn asked no model, is not stored any more, or not completely.
        """
        lines, context = await self._read(key, scope, turn)
        report = ReplayReport(context.snapshot.model, lines.answer, len(lines.replies))
        await self._compare_inputs(report, context)
        _compare_heads(report, lines, context)
        await self._run(report, lines, context, failure)
        if model:
            client = self.open_model(model)
            try:
                report.other = await self._ask(CountedModel(client), lines, context)
            finally:
                await client.close()
        return report

    async def compare(
        self, key: SessionKey, scope: str, turn: str, client: ModelClient, budget: ReplayBudget
    ) -> ReplayComparison:
        """Let *client* answer *turn* within *budget*, beside the recorded answer.

        Raises NothingToReplay as `replay` does, and ReplayStopped at the bound.
        """
        lines, context = await self._read(key, scope, turn)
        other = await self._ask(CountedModel(client, budget), lines, context)
        return ReplayComparison(
            question=lines.question,
            model=context.snapshot.model,
            answer=lines.answer,
            calls=lines.calls,
            other=other,
        )

    async def weigh(self, key: SessionKey, scope: str, turn: str) -> Sequence[TokenUsage]:
        """Return the estimated tokens of each recorded request of *turn*. Raises NothingToReplay as `replay` does."""
        lines, context = await self._read(key, scope, turn)
        weight, found = self._open(lines, context).prompt.weight, list[TokenUsage]()
        for reply, after in zip(lines.replies, lines.after, strict=True):
            answered = estimate_message(reply)
            found.append(TokenUsage(weight, answered, is_estimate=True))
            weight += answered + sum(estimate_message(each) for each in after if each.get("role"))
        return found

    async def prompt(self, key: SessionKey, scope: str, turn: str) -> Sequence[Mapping[str, Any]]:
        """Return the messages of the first request of *turn*, rebuilt from the transcript by the code of today.

        Raises NothingToReplay as `replay` does.
        """
        lines, context = await self._read(key, scope, turn)
        return self._open(lines, context).prompt.messages

    # -- what is run ---------------------------------------------------------------------------------

    async def _read(self, key: SessionKey, scope: str, turn: str) -> tuple[RecordedLines, _ReplayContext]:
        recorded = await self.sessions.find_turn(key, scope, turn)
        if recorded is None:
            raise NothingToReplay(
                f"the messages of turn {turn} are not stored any more: they were removed by age"
                " (memory.retention_days) or erased with their person or conversation"
            )
        lines = RecordedLines.read(recorded)
        return lines, await self._context(key, scope, recorded, lines)

    async def _context(
        self, key: SessionKey, scope: str, recorded: RecordedTurn, lines: RecordedLines
    ) -> _ReplayContext:
        message = _message_of(key, scope, lines.opening)
        context = self.context_of(message)
        profile = self.profiles.apply(key, context.overrides)
        digests = {each for line in _snapshots(recorded) for each in digests_of(line)}
        found = await self.files.load_small(scope, FileKind.TEXT, digests)
        texts = {digest: data.decode("utf-8", "surrogatepass") for digest, data in found.items()}
        conversation = Conversation(
            key,
            scope,
            "",
            next_index=recorded.block.from_index,
            window=self.window if profile.memory_window is None else profile.memory_window,
        )
        await asyncio.to_thread(_restore, conversation, recorded.earlier, texts)  # 10 ms for a hundred turns
        try:
            snapshot = conversation.snapshot_with(lines.opening, texts)
        except ValueError:
            raise NothingToReplay(
                f"the prompt of turn {recorded.block.turn} cannot be rebuilt: the texts of its snapshot"
                " were removed by age (memory.retention_days) or because words in them were erased"
            ) from None
        if snapshot.tools and FILES_SEARCH not in snapshot.tools:  # there were no files then
            profile = profile.remove_tool(FILES_SEARCH)
        role = self.role_of(message, context)
        block = recorded.block
        session = SessionRow(
            key=key, transcript="", next_index=block.from_index, created_at=message.sent_at, scope=context.scope
        )
        row = InboxRow(seq=0, message=message, accepted_at=message.sent_at, role=role or Role.MEMBER)
        return _ReplayContext(
            conversation=conversation,
            snapshot=snapshot,
            texts=texts,
            lease=TurnLease(key=key, turn=block.turn, epoch=0, rows=(row,), session=session),
            facts=context,
            profile=profile,
            is_admitted=role is not None,
        )

    def _open(self, lines: RecordedLines, context: _ReplayContext, client: ModelClient | None = None) -> Turn:
        """Return the turn with its prompt and opening, as it asked its model; *client* asks another one."""
        facts, profile = context.facts, context.profile
        if client is not None:
            profile = replace(profile, active=replace(profile.active, client=client))
        turn = Turn(lease=context.lease)
        turn.identify(facts, role=turn.row.role, is_admitted=True, is_named=True, profile=profile)
        turn.language, turn.zone = self.locales.language(turn.key), self.locales.zone(facts.scope)
        turn.use(context.conversation)
        turn.draft.begins_tainted = context.conversation.is_tainted
        turn.draft.open(lines.opening, context.texts, turn.lease.rows)
        system = {"role": "system", "content": system_prompt(context.snapshot)}
        turn.set_prompt([system, *context.conversation.messages_with(turn.draft.lines)])
        return turn

    async def _run(self, report: ReplayReport, lines: RecordedLines, context: _ReplayContext, failure: str) -> None:
        """Run the loop on the recorded answers, and compare what it makes of them."""
        recording = RecordedResults(lines, self.reviewer, report)
        model = RecordedModel(lines.replies, context.snapshot.model)
        text = await self._think(replay_client(model), lines, context, recording)
        report.differences += _changed_lines(lines, recording.draft)
        if model.unused:
            report.compare("end of the turn", f"{len(lines.replies)} answers of the model", f"{model.asked}")
        if lines.is_answered:
            report.compare("answer", lines.answer, text)
            if model.asked > len(lines.replies):
                report.compare("requests to the model", len(lines.replies), model.asked)
        else:
            report.notes.append(f"the turn ended without an answer ({failure or 'stopped'}); compared up to there")

    async def _ask(self, model: CountedModel, lines: RecordedLines, context: _ReplayContext) -> OtherAnswer:
        """Let *model* answer from the same prompt; it gets the recorded results of the same calls."""
        recording = RecordedResults(lines, None, None)
        text = await self._think(replay_client(model), lines, context, recording)
        return OtherAnswer(model.name, text, recording.calls, model.spent.tokens, model.spent.cost, recording.failure)

    async def _think(
        self, client: ModelClient, lines: RecordedLines, context: _ReplayContext, recording: RecordedResults
    ) -> str:
        turn = self._open(lines, context, client)
        recording.start(turn)
        result = await self.loop.with_recording(recording).think(turn)
        recording.failure = result.failure.name if result.failure is not None else ""
        return result.text

    async def _compare_inputs(self, report: ReplayReport, context: _ReplayContext) -> None:
        """Compare what the system prompt is made from, and the code that writes it."""
        snapshot, profile, scope = context.snapshot, context.profile, context.facts.scope
        toolbox = profile.toolbox
        limit = await profile.model.prompt_limit()
        view = (await self.memory.view(scope)).spoken_as(profile.persona).within(limit)
        report.compare("persona", snapshot.texts.get("SOUL", ""), view.soul)
        report.compare("time zone", snapshot.zone, self.locales.zone(scope))
        if snapshot.model:
            report.compare("model", snapshot.model, profile.model.name)
        if snapshot.tools:
            for name in sorted({*snapshot.tools, *toolbox.digests}):
                then, now = snapshot.tools.get(name), toolbox.digests.get(name)
                if then != now:
                    report.compare(f"tool {name}", _presence(then, "schema"), _presence(now, "another schema", then))
        else:
            report.notes.append("the schemas of the tools then were not recorded; only their descriptions are compared")
        report.compare("descriptions of tools", snapshot.texts.get(ABILITIES, ""), toolbox.abilities)
        if snapshot.format:
            for part, digest in prompt_format().items():
                then = snapshot.format.get(part, "")
                report.compare(f"prompt format, {part}", then, digest)
        else:
            report.notes.append(
                "a release that did not record its prompt format took the snapshot: bytes are not compared"
            )
        changed = [
            name for name, text in view.texts.items() if name not in _NO_MEMORY and text != snapshot.texts.get(name, "")
        ]
        if changed:
            report.notes.append(f"memory has changed since ({', '.join(changed)}); the replay uses the recorded texts")
        if any(FORGOTTEN in str(line.get("content")) for line in context.conversation.lines):
            report.notes.append("messages before the turn were erased since; the model had read them")
        if not context.is_admitted:
            report.differences.append(ReplayDifference("sender", "was admitted", "would not be admitted"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReplayContext:
    conversation: Conversation
    snapshot: PromptSnapshot
    texts: Mapping[str, str]
    lease: TurnLease
    facts: MessageContext
    profile: ChatProfile
    is_admitted: bool

    @property
    def message(self) -> InboundMessage:
        return self.lease.rows[0].message


def _restore(conversation: Conversation, earlier: Sequence[TranscriptBlock], texts: Mapping[str, str]) -> None:
    """Fill *conversation* with the turns before the replayed one."""
    state = PromptWindow()
    for block in earlier:
        fold(state, block.from_index, block.to_index, block.lines)
    conversation.restore(state, texts)


def _presence(digest: str | None, word: str, other: str | None = "") -> str:
    if digest is None:
        return "not offered"
    return f"{word} {digest}" if other is not None else f"offered, schema {digest}"


def _message_of(key: SessionKey, scope: str, opening_lines: Sequence[Line]) -> InboundMessage:
    """Return the turn's first message, as far as its line has it."""
    line = next((each for each in opening_lines if each.get("role") == "user" and each.get("mid")), {})
    mid, by = str(line.get("mid", "")), line.get("by") or {}
    is_job = mid.startswith("job:") and not mid.startswith(ALLOWED)  # what a person allowed, a person began
    return InboundMessage(
        key=key,
        message_id="replay" if mid.startswith(ALLOWED) else mid,
        sender=Sender(id=str(by.get("id", "")), name=str(by.get("name", ""))),
        text=str(line.get("content", "")),
        sent_at=parse_time(line.get("timestamp")) or datetime.now(UTC),
        kind=InboundKind.JOB if is_job else InboundKind.MESSAGE,
        chat_kind=ChatKind.GROUP if scope.startswith("chats/") else ChatKind.DIRECT,
        is_addressed=True,
    )


def _snapshots(recorded: RecordedTurn) -> list[Line]:
    """Return the last snapshot lines: of the turn, and of the turns before it."""
    lines = [line for block in (*recorded.earlier, recorded.block) for line in block.lines]
    return [line for line in lines if kind_of(line) == "snapshot"][-2:]


def _compare_heads(report: ReplayReport, lines: RecordedLines, context: _ReplayContext) -> None:
    """Compare the heads of the person's messages with those that would be written today."""
    names, zone = context.conversation.speaker_names, context.snapshot.zone
    said = [line for each in (lines.opening, *lines.after) for line in each if line.get("head") and line.get("by")]
    for line in said:
        names.note_line(line)
    for n, line in enumerate(said, 1):
        message = replace(
            context.message,
            sender=Sender(id=str(line["by"].get("id", "")), name=str(line["by"].get("name", ""))),
            sent_at=parse_time(line.get("timestamp")) or context.message.sent_at,
        )
        # A name that two share in the background alone had an id then.
        now = {message_header(message, zone, each) for each in (names, SenderNames())}
        if not str(line["head"]).startswith(tuple(now)):
            report.compare(f"head of message {n}", line["head"], message_header(message, zone, names))


def _changed_lines(lines: RecordedLines, draft: TurnDraft) -> list[ReplayDifference]:
    """Return the results of calls that the loop itself makes otherwise today: its limits, repeated calls."""
    then = {line["tool_call_id"]: line for each in lines.after for line in each if line.get("role") == "tool"}
    now = {line["tool_call_id"]: line for line in draft.lines if line.get("role") == "tool"}
    return [
        ReplayDifference(f"result of {line.get('name')}", str(line.get("content")), str(now[name].get("content")))
        for name, line in then.items()
        if name in now and line.get("content") != now[name].get("content")
    ]
