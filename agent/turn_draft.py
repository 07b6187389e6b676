"""A turn in the making: its lines with their indices, what the model has seen of them, and its record at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from agent.attachments.file_facts import UNTRUSTED, attachment_of, fact_of
from agent.llm.chat_model import ChatReply, ToolCall
from agent.memory.jobs.memory_jobs import remember_job
from agent.memory.messages.taint import TAINTED, has_tainted_line
from agent.memory.messages.token_estimate import estimate_messages
from agent.memory.prompt.trim_lines import apply_trims, is_trim
from agent.memory.storage import transcript_lines as build
from agent.tools.tool import OUTCOME_UNKNOWN, STOPPED, STOPPED_RUNNING
from gateway.events import Attachment
from gateway.ports import InboxRow, Job, Line, MessageOutcome, TurnLease, TurnRecord, TurnStep

_STAGED = ("remember", "send")  # fields of a tool's line: what the answer takes with it
_IN_DOUBT = (OUTCOME_UNKNOWN, STOPPED_RUNNING)


@dataclass(slots=True)
class StagedEffects:
    """What a tool call leaves to the turn's commit."""

    remember: list[str] = field(default_factory=list)
    send: list[Attachment] = field(default_factory=list)
    is_untrusted: bool = False  # the call read words of others out of memory

    def taint(self) -> None:
        """Note that the call's result holds words of others."""
        self.is_untrusted = True


class TurnDraft:
    """Collects a turn's lines in file order; what an earlier attempt stored is adopted, never asked again."""

    def __init__(self, lease: TurnLease) -> None:
        self._lease = lease
        self._next_index = lease.session.next_index
        self._next_step = 0
        self._opening: TurnStep | None = None
        self._calls: dict[str, ToolCall] = {}
        self._results: set[str] = set()
        self.intents: set[str] = set()
        self.lines: list[Line] = []
        self.messages: list[Mapping[str, Any]] = []
        self.weight = 0  # of the messages, in tokens
        self.blobs: Mapping[str, str] = {}
        self.inbox = [row.seq for row in (*lease.rows, *lease.notes)]
        self._told: set[int] = set()
        self.streamed = ""  # the last text of this turn that was offered to people
        self.stopped: Line | None = None  # the line that ends a turn that was stopped
        self.shown_at: datetime | None = None  # when the first words of its preview stood in the chat
        self.begins_tainted = False  # words of others stand in the conversation before this turn
        for step in lease.steps:
            self._adopt(step)

    @property
    def is_tainted(self) -> bool:
        """Words of others stand before the bot by now."""
        return self.begins_tainted or has_tainted_line(self.lines)

    @property
    def last_words(self) -> str:
        """What the model last said beside its tool calls."""
        said = [str(line["content"]) for line in self.lines if line.get("tool_calls") and line.get("content")]
        return said[-1] if said else ""

    def is_tainted_call(self, call: ToolCall) -> bool:
        """Return True if the model asked for *call* with words of others in its prompt."""
        asked = (line for line in self.lines if any(each["id"] == call.id for each in line.get("tool_calls") or ()))
        return any(line.get(TAINTED) for line in asked)

    @property
    def is_resumed(self) -> bool:
        """An earlier attempt stored this turn's opening."""
        return self._next_step > 0 and self._opening is None

    @property
    def begun_anew(self) -> datetime | None:
        """When /new began this transcript, while nothing stands in it yet; what was before stays there."""
        session = self._lease.session
        return session.created_at if session.scope and not session.next_index else None

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """What the turn's tools want sent with its answer, read off its lines, so that a resumed turn has it too."""
        staged = [fact for line in self.lines for fact in line.get("send", ())]
        return tuple(attachment_of(fact) for fact in staged)

    @property
    def seen_field(self) -> dict[str, str]:
        """The field that says since when people see what takes the preview's place; empty where there is none."""
        return {"seen": build.format_time(self.shown_at)} if self.shown_at else {}

    @property
    def lines_for_model(self) -> list[Line]:
        """The lines as the model is shown them: some may have been cut since."""
        return apply_trims(self.lines)

    @property
    def first_index(self) -> int:
        """The index that the turn began with."""
        return self._lease.session.next_index

    @property
    def next_index(self) -> int:
        """The index that the next message line takes."""
        return self._next_index

    @property
    def open_calls(self) -> list[ToolCall]:
        """Tool calls without a result, in the model's order."""
        return [call for call in self._calls.values() if call.id not in self._results]

    @property
    def finished_calls(self) -> list[ToolCall]:
        """Tool calls with a result, in the model's order."""
        return [call for call in self._calls.values() if call.id in self._results]

    @property
    def doubtful_calls(self) -> list[ToolCall]:
        """Calls with an intent that may have happened although no result says so, in the model's order."""
        results = {line["tool_call_id"]: line["content"] for line in self.lines if line.get("role") == "tool"}
        unsure = {each for each in self.intents if results.get(each, OUTCOME_UNKNOWN) in _IN_DOUBT}
        return [call for call in self._calls.values() if call.id in unsure]

    @property
    def ending(self) -> tuple[str, str]:
        """The text that a stopped turn had shown, and what people read behind it."""
        line = self.stopped or {}
        return str(line.get("content", "")), str(line.get("stopped", ""))

    @property
    def has_staged(self) -> bool:
        """True if a tool left something to the answer."""
        return any(line.get(name) for line in self.lines for name in _STAGED)

    @property
    def unseen_rows(self) -> list[InboxRow]:
        """Rows of the lease that no step has told the model of: a stop came between their stamp and their step."""
        return [row for row in self._lease.rows if row.seq not in self._told]

    def message(self, role: str, content: str, at: datetime, **fields: Any) -> Line:
        """Make a message line with the next index; it is not part of the draft until a step holds it."""
        if role == "assistant" and self.is_tainted:
            fields[TAINTED] = True
        line = build.message(self._next_index, self._lease.turn, role, content, at, **fields)
        self._next_index += 1
        return line

    def open(self, opening: Sequence[Line], blobs: Mapping[str, str], rows: Sequence[InboxRow]) -> None:
        """Begin with snapshot, deltas, notes and the lines of *rows*; stored only with the first tool call."""
        self._opening = TurnStep(n=0, kind="opening", lines=tuple(opening), call=_seqs(rows), blobs=blobs)
        self._adopt(self._opening)

    def take_opening(self) -> TurnStep | None:
        """Return the opening once, for storing; None when it is stored."""
        opening, self._opening = self._opening, None
        return opening

    def model(self, reply: ChatReply, at: datetime | None = None) -> TurnStep:
        """Add the model's message with its tool calls; ids that some models repeat are made unique in the turn."""
        calls: list[Mapping[str, Any]] = []
        used = set(self._calls)
        for n, call in enumerate(reply.tool_calls):
            name = call.id if call.id and call.id not in used else f"call_{self._next_index}_{n}"
            used.add(name)
            calls.append({"id": name, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
        extra = {"thinking": reply.thinking, "model": reply.model} if reply.thinking else {}
        line = self.message("assistant", reply.text, at or self._now(), tool_calls=calls, **extra)
        return self._step("model", (line,))

    def intent(self, call: ToolCall) -> TurnStep:
        """Note that *call* is about to happen; it carries no line, only the fact."""
        return self._step("intent", (), call=call.id)

    def result(
        self, call: ToolCall, text: str, staged: StagedEffects | None = None, *, is_untrusted: bool = False
    ) -> TurnStep:
        """Add the result of *call*, and what it wants remembered and sent once the turn is committed.

        What *is_untrusted* holds words of others: from here on the turn is tainted.
        """
        extra: dict[str, Any] = {"origin": UNTRUSTED} if is_untrusted else {}
        if staged is not None and staged.remember:
            extra["remember"] = list(staged.remember)
        if staged is not None and staged.send:
            extra["send"] = [fact_of(each) | {"blob": each.blob} for each in staged.send]
        line = self.message("tool", text, self._now(), tool_call_id=call.id, name=call.name, **extra)
        return self._step("result", (line,), call=call.id)

    def stop(self, ending: str) -> TurnStep:
        """End the turn as stopped: results for the calls without one, then the text so far with its *ending*.

        *ending* is what people read behind that text; the model is told in its own words (transcript_lines.py).
        """
        lines: list[Line] = []
        for call in self.open_calls:
            text = STOPPED_RUNNING if call.id in self.intents else STOPPED
            lines.append(self.message("tool", text, self._now(), tool_call_id=call.id, name=call.name))
        dropped = self.has_staged or None
        lines.append(
            self.message("assistant", self.streamed, self._now(), stopped=ending, dropped=dropped, **self.seen_field)
        )
        return self._step("stop", tuple(lines))

    def drop_staged(self) -> bool:
        """Take away what tools left to an answer that will not come; return True if there was anything."""
        had_any = self.has_staged
        if had_any:
            self.lines = [{name: value for name, value in line.items() if name not in _STAGED} for line in self.lines]
        return had_any

    def steer(self, rows: Sequence[InboxRow], user_lines: Sequence[Line]) -> TurnStep:
        """Take in what the sender wrote during the turn."""
        return self._step("steer", tuple(user_lines), call=_seqs(rows))

    def shrink(self, lines: Sequence[Line]) -> TurnStep | None:
        """Record what makes the prompt fit; None when the opening, which is not stored yet, takes it along."""
        if self._opening is None:
            return self._step("squeeze", tuple(lines))
        self._opening = replace(self._opening, lines=(*self._opening.lines, *lines))
        self._take(lines)
        return None

    def add(self, line: Line) -> None:
        """Add a line that needs no step: the final answer, or a notice."""
        self.lines.append(line)

    def record(
        self, outcome: MessageOutcome, at: datetime, *, scope: str, failure: str = "", supersedes: str = ""
    ) -> TurnRecord:
        """Return the turn's record: its lines, the `end` line last."""
        end = build.end_line(
            self._lease.turn,
            from_index=self._lease.session.next_index,
            to_index=self._next_index,
            inbox=[str(seq) for seq in self.inbox],
            outcome=str(outcome),
            at=at,
        )
        return TurnRecord(
            turn=self._lease.turn,
            key=self._lease.key,
            transcript=self._lease.session.transcript,
            scope=scope,
            outcome=outcome,
            lines=(*self.lines, end),
            from_index=self._lease.session.next_index,
            to_index=self._next_index,
            inbox=tuple(self.inbox),
            at=at,
            blobs=self.blobs,
            failure=failure,
            supersedes=supersedes,
        )

    def jobs(self, account: str, at: datetime, scope: str) -> tuple[Job, ...]:
        """Return the turn's memory operations in *scope*; a resumed turn has them too, since its lines hold them."""
        found: list[Job] = []
        origin = "user"
        for line in self.lines:
            if line.get("role") == "assistant":  # who asked for what follows, and with what before it
                origin = UNTRUSTED if line.get(TAINTED) else "user"
            for n, fact in enumerate(line.get("remember", ())):
                found.append(
                    remember_job(
                        fact,
                        turn=self._lease.turn,
                        scope=scope,
                        origin=origin,
                        by=account,
                        at=at,
                        place=f"{line['i']}.{n}",
                        session=str(self._lease.key),
                    )
                )
        return tuple(found)

    def _now(self) -> datetime:
        return build.utc_now()

    def _step(self, kind: str, lines: tuple[Line, ...], call: str = "") -> TurnStep:
        step = TurnStep(n=self._next_step, kind=kind, lines=lines, call=call)
        self._adopt(step)
        return step

    def _adopt(self, step: TurnStep) -> None:
        self._next_step = step.n + 1
        self._take(step.lines)
        if step.blobs:
            self.blobs = step.blobs
        if step.kind == "intent":
            self.intents.add(step.call)
        elif step.kind == "result":
            self._results.add(step.call)
        elif step.kind == "stop":
            self._results.update(line["tool_call_id"] for line in step.lines[:-1])
            self.stopped = step.lines[-1]
        else:
            self._adopt_rows(step)
        for line in step.lines:
            self._next_index = max(self._next_index, line.get("i", -1) + 1)
            for call in line.get("tool_calls") or ():
                function = call["function"]
                self._calls[call["id"]] = ToolCall(call["id"], function["name"], function["arguments"])

    def _take(self, lines: Sequence[Line]) -> None:
        self.lines.extend(lines)
        told: Sequence[Line] = lines
        if any(map(is_trim, lines)):  # what stands above is shown otherwise now
            told = self.lines_for_model
            self.messages, self.weight = [], 0
        said = [message for line in told for message in build.to_messages(line)]
        self.messages.extend(said)
        self.weight += estimate_messages(said)

    def _adopt_rows(self, step: TurnStep) -> None:
        if step.kind in ("opening", "steer"):
            told = json.loads(step.call)
            self._told.update(told)
            self.inbox.extend(seq for seq in told if seq not in self.inbox)


def _seqs(rows: Sequence[InboxRow]) -> str:
    return json.dumps([row.seq for row in rows])
