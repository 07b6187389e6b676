"""The draft of a turn: its transcript lines, the messages of the prompt made from them, and its record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from agent.base import transcript_lines as build
from agent.base.file_facts import UNTRUSTED, attachment_of, fact_of
from agent.base.transcript_lines import estimate_messages
from agent.llm.chat_model import ChatReply, ToolCall
from agent.memory.erasure.word_eraser import ASK_ERASURE
from agent.memory.jobs.chat_edits import remember_job
from agent.memory.prompt.due_jobs import EDIT
from agent.memory.prompt.prompt_window import apply_trims
from agent.memory.prompt.turn_messages import turn_messages
from agent.memory.storage.messages import TAINTED, has_tainted_line
from agent.tools.tool import OUTCOME_UNKNOWN, STOPPED, STOPPED_RUNNING
from agent.tools.tool_questions import ToolQuestion, question_job
from gateway.events import Attachment, PlatformAccount
from gateway.ports.journal import (
    STOP_WANTED,
    InboxRow,
    Job,
    JobLimit,
    Line,
    LinkFinder,
    MessageOutcome,
    TurnLease,
    TurnRecord,
    TurnStep,
)

_LEAST_SECONDS = 0.1  # of a call that is stored with its time
_STAGED = (
    "remember",
    "send",
    "edit",
    "forget",
    "jobs",
    "ends",
    "ask",
)  # fields of a tool's line: what the answer takes with it
_IN_DOUBT = (OUTCOME_UNKNOWN, STOPPED_RUNNING)


@dataclass(slots=True)
class StagedEffects:
    """Effects of a tool call that happen with the turn's commit, and changes that the answer has to name."""

    remember: list[str | Mapping[str, str]] = field(default_factory=list)  # facts, those with keys as records
    send: list[Attachment] = field(default_factory=list)
    edits: list[Mapping[str, Any]] = field(default_factory=list)  # of memory, that wait for approval
    erasures: list[Mapping[str, Any]] = field(default_factory=list)  # words, whose erasure the person is asked about
    changes: list[Mapping[str, Any]] = field(default_factory=list)  # of memory, made already; the answer names them
    jobs: list[Job] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)  # prefixes of the ids of jobs to remove, before `jobs` are queued
    is_untrusted: bool = False  # the call read untrusted text from memory
    paged: dict[str, Any] | None = None  # the stored result of which the model sees the first page
    ask: Mapping[str, Any] | None = None  # the question about the call, which did not run
    sources: Sequence[Mapping[str, str]] = ()  # pages that the result was made from
    pictures: list[Mapping[str, Any]] = field(default_factory=list)  # facts of those that the model is shown
    footer: str = ""  # the program's line below the result

    def keep(self, fact: str, keys: str = "") -> None:
        """Stage *fact*, which is found by *keys* too."""
        self.remember.append({"fact": fact, "keys": keys} if keys else fact)

    def taint(self) -> None:
        """Note that the call's result is untrusted."""
        self.is_untrusted = True


class TurnDraft:
    """Collects a turn's lines in file order, starting with the steps that an earlier attempt stored."""

    def __init__(self, lease: TurnLease) -> None:
        self._lease = lease
        self.next_index = lease.session.next_index  # of the next message line
        self._next_step = 0
        self._opening: TurnStep | None = None
        self._calls: dict[str, ToolCall] = {}
        self._results: set[str] = set()
        self.intents: set[str] = set()
        self.lines: list[Line] = []
        self._messages: Sequence[Mapping[str, Any]] | None = None  # None = lines were added since
        self._weight: int | None = None  # of the messages
        self.blobs: Mapping[str, str] = {}
        self.inbox = [row.seq for row in (*lease.rows, *lease.notes)]
        self._seen_rows: set[int] = set()
        self.streamed = ""  # the last text offered to the preview
        self.stopped: Line | None = None  # the line that ends a turn that was stopped
        self.shown_at: datetime | None = None  # when the first words of the preview were in the chat
        self.begins_tainted = False  # the conversation before this turn is tainted
        self.find_links: LinkFinder | None = None  # of what is streamed; None = nothing untrusted is in its prompt
        for step in lease.steps:
            if step.kind != STOP_WANTED.kind:  # it holds nothing
                self._adopt(step)

    @property
    def is_tainted(self) -> bool:
        """True if the prompt contains untrusted text."""
        return self.begins_tainted or has_tainted_line(self.lines)

    @property
    def last_words(self) -> str:
        """The last text that the model wrote beside tool calls."""
        texts = [str(line["content"]) for line in self.lines if line.get("tool_calls") and line.get("content")]
        return texts[-1] if texts else ""

    def is_tainted_call(self, call: ToolCall) -> bool:
        """Return True if the model requested *call* from a tainted prompt."""
        requests = (line for line in self.lines if any(each["id"] == call.id for each in line.get("tool_calls") or ()))
        return any(line.get(TAINTED) for line in requests)

    @property
    def is_resumed(self) -> bool:
        """True if an earlier attempt stored the opening."""
        return self._next_step > 0 and self._opening is None

    @property
    def transcript_started_at(self) -> datetime | None:
        """The time of the /new that started this transcript, while it is empty; earlier messages are not read."""
        session = self._lease.session
        return session.created_at if session.scope and not session.next_index else None

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """Files that tools staged for the answer; a resumed turn has them too, since its lines hold them."""
        return tuple(
            replace(attachment_of(fact), question=line["ask"]["id"] if line.get("ask") else "")
            for line in self.lines
            for fact in line.get("send", ())
        )

    @property
    def seen_field(self) -> dict[str, str]:
        """The field with the time since when the preview is seen; empty without a preview."""
        return {"seen": build.format_time(self.shown_at)} if self.shown_at else {}

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The messages of the lines; made once for each request, since what a tool brings changes those above it."""
        if self._messages is None:
            self._messages = turn_messages(apply_trims(self.lines), is_over=False)
        return self._messages

    @property
    def weight(self) -> int:
        """The estimated tokens of `messages`."""
        if self._weight is None:
            self._weight = estimate_messages(self.messages)
        return self._weight

    @property
    def first_index(self) -> int:
        """The index of the turn's first message line."""
        return self._lease.session.next_index

    @property
    def has_calls(self) -> bool:
        """True if the model has called a tool."""
        return bool(self._calls)

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
        """Calls with an intent and no definite result, in the model's order: they may have happened."""
        results = {line["tool_call_id"]: line["content"] for line in self.lines if line.get("role") == "tool"}
        unsure = {each for each in self.intents if results.get(each, OUTCOME_UNKNOWN) in _IN_DOUBT}
        return [call for call in self._calls.values() if call.id in unsure]

    @property
    def pictured_calls(self) -> set[str]:
        """The ids of calls with a picture for the model in their result."""
        return {line["tool_call_id"] for line in self.lines if line.get("role") == "tool" and line.get("files")}

    @property
    def ending(self) -> tuple[str, str]:
        """The text that a stopped turn had shown, and the notice after it."""
        line = self.stopped or {}
        return str(line.get("content", "")), str(line.get("stopped", ""))

    @property
    def ending_links(self) -> tuple[str, ...] | None:
        """The only addresses that may be links in the text that a stopped turn had shown; None = all."""
        line = self.stopped or {}
        return tuple(line.get("links", ())) if line.get(TAINTED) else None

    @property
    def questions(self) -> list[ToolQuestion]:
        """The questions about calls of the turn, which ends with them."""
        return [ToolQuestion(**line["ask"]) for line in self.lines if line.get("ask")]

    @property
    def has_staged(self) -> bool:
        """True if a tool staged an effect."""
        return any(line.get(name) for line in self.lines for name in _STAGED)

    @property
    def unseen_rows(self) -> list[InboxRow]:
        """Leased rows that no step contains: the process stopped between their claim and their step."""
        return [row for row in self._lease.rows if row.seq not in self._seen_rows]

    def message(self, role: str, content: str, at: datetime, **fields: Any) -> Line:
        """Return a message line with the next index; it is not part of the draft until a step holds it."""
        if role == "assistant" and self.is_tainted:
            fields[TAINTED] = True
        line = build.message(self.next_index, self._lease.turn, role, content, at, **fields)
        self.next_index += 1
        return line

    def open(self, opening: Sequence[Line], blobs: Mapping[str, str], rows: Sequence[InboxRow]) -> None:
        """Start with snapshot, deltas, notes and the lines of *rows*; stored only with the first tool call."""
        self._opening = TurnStep(
            n=0, kind="opening", lines=tuple(opening), call=json.dumps([row.seq for row in rows]), blobs=blobs
        )
        self._adopt(self._opening)

    def take_opening(self) -> tuple[TurnStep, ...]:
        """Return the opening to store with the first step; () afterwards."""
        opening, self._opening = self._opening, None
        return () if opening is None else (opening,)

    def model(self, reply: ChatReply, at: datetime | None = None) -> TurnStep:
        """Add the model's message with its tool calls; repeated call ids are made unique in the turn."""
        calls: list[Mapping[str, Any]] = []
        used = set(self._calls)
        for n, call in enumerate(reply.tool_calls):
            name = call.id if call.id and call.id not in used else f"call_{self.next_index}_{n}"
            used.add(name)
            calls.append({"id": name, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
        extra: dict[str, Any] = {"model": reply.model} if reply.model and (calls or reply.thinking) else {}
        extra |= {"thinking": reply.thinking} if reply.thinking else {}
        line = self.message("assistant", reply.text, at or self._now(), tool_calls=calls, **extra)
        return self._step("model", (line,))

    def intent(self, call: ToolCall) -> TurnStep:
        """Return the step that announces *call* before it runs; it has no line."""
        return self._step("intent", (), call=call.id)

    def result(
        self,
        call: ToolCall,
        text: str,
        effects: StagedEffects | None = None,
        *,
        is_untrusted: bool = False,
        is_error: bool = False,
        rule: str = "",
        seconds: float = 0.0,
    ) -> TurnStep:
        """Add the result of *call* and the effects it staged. An untrusted result taints the turn.

        *rule* is the rule that refused the call; one that ran took *seconds*.
        """
        extra: dict[str, Any] = {"origin": UNTRUSTED} if is_untrusted else {}
        extra |= {"seconds": round(seconds, 1)} if seconds >= _LEAST_SECONDS else {}
        extra |= {"error": True} if is_error else {}
        extra |= {"refused": str(rule)} if rule else {}
        if effects is not None and effects.remember:
            extra["remember"] = list(effects.remember)
        if effects is not None:
            staged = {"edit": effects.edits, "forget": effects.erasures, "edited": effects.changes}
            extra |= {name: list(records) for name, records in staged.items() if records}
            if effects.ends:
                extra["ends"] = list(effects.ends)
            if effects.jobs:
                extra["jobs"] = [_job_record(each) for each in effects.jobs]
        if effects is not None and effects.pictures:
            extra["files"] = list(effects.pictures)
        if effects is not None and effects.send:
            extra["send"] = [fact_of(each) | {"blob": each.blob} for each in effects.send]
        if effects is not None:
            extra |= {name: value for name in ("ask", "paged", "sources") if (value := getattr(effects, name))}
        line = self.message("tool", text, self._now(), tool_call_id=call.id, name=call.name, **extra)
        return self._step("result", (line,), call=call.id)

    def stop(self, ending: str) -> TurnStep:
        """End the turn as stopped: results for the calls without one, then the text so far with its *ending*.

        *ending* is the notice that people read after that text; the model gets a sentence of transcript_lines.py.
        """
        lines: list[Line] = []
        for call in self.open_calls:
            text = STOPPED_RUNNING if call.id in self.intents else STOPPED
            lines.append(self.message("tool", text, self._now(), tool_call_id=call.id, name=call.name))
        dropped = self.has_staged or None
        links = [] if self.find_links is None else list(self.find_links(self.streamed))
        shown = {"stopped": ending, "dropped": dropped, "links": links or None, **self.seen_field}
        lines.append(self.message("assistant", self.streamed, self._now(), **shown))
        return self._step("stop", tuple(lines))

    def drop_staged(self) -> bool:
        """Discard the staged effects of a turn without an answer; return True if there were any."""
        had_any = self.has_staged
        if had_any:
            self.lines = [{name: value for name, value in line.items() if name not in _STAGED} for line in self.lines]
        return had_any

    def steer(self, rows: Sequence[InboxRow], user_lines: Sequence[Line]) -> TurnStep:
        """Add messages that the sender wrote during the turn."""
        return self._step("steer", tuple(user_lines), call=json.dumps([row.seq for row in rows]))

    def shrink(self, lines: Sequence[Line]) -> TurnStep | None:
        """Add the lines that make the prompt fit; return None if they are stored with the opening."""
        if self._opening is None:
            return self._step("squeeze", tuple(lines))
        self._opening = replace(self._opening, lines=(*self._opening.lines, *lines))
        self._take(lines)
        return None

    def add(self, line: Line) -> None:
        """Add a line without a step: the final answer or a notice."""
        self.lines.append(line)

    def record(
        self,
        outcome: MessageOutcome,
        at: datetime,
        *,
        scope: str,
        failure: str = "",
        supersedes: str = "",
        new_transcript: str = "",
    ) -> TurnRecord:
        """Return the turn's record: its lines, the `end` line last."""
        end = build.end_line(
            self._lease.turn,
            from_index=self._lease.session.next_index,
            to_index=self.next_index,
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
            to_index=self.next_index,
            inbox=tuple(self.inbox),
            at=at,
            blobs=self.blobs,
            failure=failure,
            supersedes=supersedes,
            new_transcript=new_transcript,
        )

    def jobs(self, account: str, at: datetime, scope: str) -> tuple[Job, ...]:
        """Return the jobs that tools staged in *scope*; a resumed turn has them too, since its lines hold them."""
        if not self._calls:
            return ()
        jobs: list[Job] = []
        origin = "user"
        known = {"turn": self._lease.turn, "by": account, "session": str(self._lease.key)}
        for line in self.lines:
            if line.get("role") == "assistant":  # requested the results that follow
                origin = UNTRUSTED if line.get(TAINTED) else "user"
            place = f"{line.get('i')}"
            for n, kept in enumerate(line.get("remember", ())):
                fact = {"fact": kept} if isinstance(kept, str) else kept
                jobs.append(remember_job(**fact, scope=scope, origin=origin, at=at, place=f"{place}.{n}", **known))
            staged = [*((EDIT, each) for each in line.get("edit", ()))]
            staged += [
                (ASK_ERASURE, {**each, "sender": PlatformAccount.from_name(account).id})
                for each in line.get("forget", ())
            ]
            if question := line.get("ask"):
                jobs.append(question_job(question, scope=scope, at=at))
            for n, (kind, record) in enumerate(staged):
                name = f"{kind}:{self._lease.turn}.{place}.{n}"
                jobs.append(Job(id=name, kind=kind, scope=scope, payload={**record, **known}, due_at=at))
            # A later call of the turn ends what an earlier one staged.
            jobs = [each for each in jobs if not each.id.startswith(tuple(line.get("ends", ())))]
            jobs += [_job_of(record, scope) for record in line.get("jobs", ())]
        return tuple(jobs)

    @property
    def ended_jobs(self) -> tuple[str, ...]:
        """Prefixes of the ids of jobs that end with the turn's commit: those of tools, and denials it has read."""
        ends = [prefix for line in self.lines for prefix in (*line.get("ends", ()), *line.get("denials", ()))]
        return tuple(dict.fromkeys(ends))

    def call_key(self, call: ToolCall) -> str:
        """Return the turn and the number of *call* in it, from 1; the same after a restart."""
        return f"{self._lease.turn}.{list(self._calls).index(call.id) + 1}"

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
        elif step.kind in ("opening", "steer"):
            seqs = json.loads(step.call)
            self._seen_rows.update(seqs)
            self.inbox.extend(seq for seq in seqs if seq not in self.inbox)
        for line in step.lines:
            self.next_index = max(self.next_index, line.get("i", -1) + 1)
            for call in line.get("tool_calls") or ():
                function = call["function"]
                self._calls[call["id"]] = ToolCall(call["id"], function["name"], function["arguments"])

    def _take(self, lines: Sequence[Line]) -> None:
        self.lines.extend(lines)
        if lines:
            self._messages = self._weight = None


def _job_record(job: Job) -> dict[str, Any]:
    record = {"id": job.id, "kind": job.kind, "payload": dict(job.payload), "due_at": job.due_at.isoformat()}
    return record if job.limit is None else {**record, "limit": [list(job.limit.people), job.limit.most]}


def _job_of(record: Mapping[str, Any], scope: str) -> Job:
    due_at = datetime.fromisoformat(record["due_at"])
    people, most = record.get("limit", ((), 0))
    limit = JobLimit(tuple(people), most) if people else None
    return Job(id=record["id"], kind=record["kind"], scope=scope, payload=record["payload"], due_at=due_at, limit=limit)
