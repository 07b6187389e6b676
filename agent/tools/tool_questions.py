"""Questions about tool calls and standing decisions, both jobs.

A question has one stored call, shown in full, that runs byte for byte once a person allows it.

It is a job of its session, committed with the turn that asks. It ends with a decision, with /new, and
after a day. Allowing it queues the message ``job:allowed/<id>``, a turn of the same person that begins with the call.

A standing decision is a yes or a no to the calls of one tool about one subject, in a person's direct chat. It is a job
of the person's scope, due when it ends. It replaces a question: a yes only in turns that a message of the person
started, and without untrusted text in the prompt; a no wherever the call would ask.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache

from agent.llm.chat_model import ToolCall
from agent.memory.jobs.job_runner import JobErasure, JobKind, JobPace, send_job_report
from gateway.events import (
    ChatKind,
    InboundKind,
    InboundMessage,
    MessageButton,
    MessagePart,
    Role,
    Sender,
    SessionKey,
    short_id,
    turn_id,
)
from gateway.i18n import translate
from gateway.i18n.formats import format_moment
from gateway.ports.journal import AcceptOutcome, Job, PartState
from gateway.ports.metrics import MetricsRecorder
from gateway.text.message_text import code_block, show_json

if TYPE_CHECKING:
    from gateway.chat_locales import ChatLocales
    from gateway.store.jobs import SqlJobs
    from gateway.store.journal import SqlJournal
    from gateway.store.records import SqlTurnRecords


TOOL_QUESTION = "tool_question"
TOOL_DENIAL = "tool_denial"
QUESTION_JOBS = JobKind(name=TOOL_QUESTION, pace=JobPace.QUICK, aliases=(TOOL_DENIAL,), erasure=JobErasure.ADMIN)
ALLOWED = "job:allowed/"  # of a question's id; the text is the question
LONGEST_SHOWN = 1_500  # characters of arguments in the question: what cannot be shown in full is not asked
LONGEST_ATTACHED = 20_000  # in a file with the question
LIFETIME = timedelta(hours=24)
RUN_LIFETIME = timedelta(hours=1)  # of a question about a program
MOST_QUESTIONS = 5  # of one turn, in one message: Discord takes five rows of buttons
LASTING_YES, LASTING_NO = "here", "never"  # words after the id in /tools allow and /tools deny
_LONGEST_SUBJECT = 200  # characters
_MOST_DECIDED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolQuestion:
    """A tool call that waits for approval."""

    id: str
    key: str  # the session
    turn: str  # that requested the call
    sender: str  # of that turn: id, and the name and workspace that the platform gave
    sender_name: str
    team: str
    chat_kind: str
    is_private: bool
    guild: str
    is_untyped: bool  # a job started the turn that requested the call
    tool: str
    arguments: str  # the model's JSON, unchanged
    schema: str  # digest of the tool's schema
    why: str  # catalogue key of the reason
    at: str  # when it was asked, ISO 8601
    by: str = ""  # who allowed it
    subject: str = ""  # what the call is about, as the tool names it
    can_last: bool = False  # a yes may hold for 30 days
    is_for_owner: bool = False  # asked in an owner's direct chat, and decided by owners
    is_personal: bool = False  # decided by the sender alone, whose login elsewhere it uses
    costs: str = ""  # US dollars of the call; "?" = an unknown price, "" = none of its own
    seconds: int = int(LIFETIME.total_seconds())  # until it lapses

    @property
    def call(self) -> ToolCall:
        """The stored call."""
        return ToolCall(self.id, self.tool, self.arguments)

    @property
    def asked_at(self) -> datetime:
        """The time of the question."""
        return datetime.fromisoformat(self.at)

    @property
    def attached(self) -> str:
        """The content of the file that shows the arguments; "" if the question itself shows them."""
        shown = show_json(self.arguments)
        return shown if len(shown) > LONGEST_SHOWN else ""

    @property
    def file_name(self) -> str:
        """The name of that file."""
        return f"{self.id}.json"

    @property
    def offers_yes(self) -> bool:
        """True if the person may allow further calls about the subject."""
        return self.can_last and self.offers_no

    @property
    def offers_no(self) -> bool:
        """True if the person may refuse further calls about the subject, which must be readable."""
        is_readable = self.subject.isprintable() and "`" not in self.subject and len(self.subject) <= _LONGEST_SUBJECT
        return self.chat_kind == ChatKind.DIRECT and is_readable

    def text(self, language: str) -> str:
        """Return the question: the tool, all of its arguments as code, the reason, and what a button decides beyond."""
        reason = translate(self.why, language)
        lines = [
            translate("tools.allow", language, tool=self.tool, why=reason),
            code_block(show_json(self.arguments), "json"),
        ]
        if self.attached:
            lines[1] = translate("tools.attached", language, name=self.file_name)
        if self.costs:
            is_known = self.costs != "?"
            lines.append(translate("tools.costs" if is_known else "tools.costs_unknown", language, usd=self.costs))
        what = format_subject(self.tool, self.subject)
        if self.offers_yes:
            lines.append(translate("tools.about_yes", language, button=translate("tools.days", language), what=what))
        if self.offers_no:
            lines.append(translate("tools.about_no", language, button=translate("tools.never", language), what=what))
        return "\n".join(lines)

    def buttons(self, language: str) -> tuple[MessageButton, ...]:
        """Return a yes and a no, and what lasts where it is offered: in one row, as a press settles a row."""
        offered = (
            ("approvals.yes", f"/tools allow {self.id}", True),
            ("tools.days", f"/tools allow {self.id} {LASTING_YES}", self.offers_yes),
            ("approvals.no", f"/tools deny {self.id}", True),
            ("tools.never", f"/tools deny {self.id} {LASTING_NO}", self.offers_no),
        )
        return tuple(MessageButton(translate(label, language), command) for label, command, is_on in offered if is_on)


def format_subject(tool: str, subject: str) -> str:
    """Return the tool and what its calls are about, in Markdown; *subject* is readable."""
    return f"`{tool}` (`{subject}`)" if subject else f"`{tool}`"


def question_id(turn: str, call: str) -> str:
    """Return the id of the question about a call of a turn: the same after a restart."""
    return "q" + short_id(f"{turn} {call}", 10)


def digest_schema(schema: Mapping[str, Any]) -> str:
    """Return the digest by which a changed tool is recognized."""
    return hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()[:16]


def allowed_question(message: InboundMessage) -> ToolQuestion | None:
    """Return the question whose call *message* runs; None for any other message."""
    if message.kind is not InboundKind.JOB or not message.message_id.startswith(ALLOWED):
        return None
    return ToolQuestion(**json.loads(message.text))


def jobs_prefix(key: SessionKey) -> str:
    """Return the beginning of the ids of the jobs that are the questions of *key*."""
    return f"ask:{key}:"


def question_job(record: Mapping[str, Any], *, scope: str, at: datetime) -> Job:
    """Return the job of a question, as the tool line of its call holds it; it is due when the question lapses."""
    name = f"{jobs_prefix(SessionKey.parse(record['key']))}{record['id']}"
    lifetime = timedelta(seconds=ToolQuestion(**record).seconds)
    return Job(id=name, kind=TOOL_QUESTION, scope=scope, payload=record, due_at=at + lifetime)


def denial_prefix(key: SessionKey) -> str:
    """Return the beginning of the ids of the jobs that hold the denials which the model of *key* has not read."""
    return f"denied:{key}:"


def format_questions(questions: Sequence[ToolQuestion], language: str) -> tuple[str, tuple[MessageButton, ...]]:
    """Return one text about all of *questions*, and their buttons, numbered if there are several."""
    is_one = len(questions) == 1
    texts = [each.text(language) if is_one else f"({n}) {each.text(language)}" for n, each in enumerate(questions, 1)]
    buttons = tuple(
        button if is_one else MessageButton(f"{button.label} ({row + 1})", button.command, row)
        for row, each in enumerate(questions)
        for button in each.buttons(language)
    )
    return "\n\n".join(texts), buttons


def allowed_message(question: ToolQuestion, now: datetime) -> InboundMessage:
    """Return the message that runs the call of *question*; its id is the same each time."""
    return InboundMessage(
        key=SessionKey.parse(question.key),
        message_id=f"{ALLOWED}{question.id}",
        sender=Sender(id=question.sender, name=question.sender_name, team=question.team),
        text=json.dumps(asdict(question)),
        sent_at=now,
        kind=InboundKind.JOB,
        chat_kind=ChatKind(question.chat_kind),
        is_private=question.is_private,
        guild=question.guild,
    )


class ToolApprovals:
    """The questions that wait, and the decisions about them. One object serves a gateway: it notes the denials."""

    def __init__(self, jobs: SqlJobs, journal: SqlJournal, meter: MetricsRecorder) -> None:
        self._jobs = jobs
        self._journal = journal
        self._meter = meter
        # The turn of the command that decides, by question; its commit ends the question.
        self._deciding: LRUCache[str, str] = LRUCache(maxsize=_MOST_DECIDED)
        # Sessions with a denial that their model may not have read; None until those of earlier runs are read.
        # None is ever taken out: a turn may look for a denial before the command that stores it is committed.
        self._denied: set[SessionKey] | None = None

    async def pending(self, key: SessionKey, *, is_owners: bool = False) -> Sequence[tuple[ToolQuestion, Job]]:
        """Return the questions of *key* with their jobs, the oldest first.

        In an owner's direct chat (*is_owners*) also those of other chats that are for owners.
        """
        prefix = jobs_prefix(key)
        found = [(ToolQuestion(**job.payload), job) for job in await self._jobs.pending_of(TOOL_QUESTION)]
        return [each for each in found if each[1].id.startswith(prefix) or (is_owners and each[0].is_for_owner)]

    async def find(self, key: SessionKey, name: str, *, is_owners: bool = False) -> tuple[ToolQuestion, Job] | None:
        """Return the question *name* of those that `pending` returns; None if it was decided or has lapsed."""
        return next((each for each in await self.pending(key, is_owners=is_owners) if each[0].id == name), None)

    def claim(self, question: ToolQuestion, turn: str) -> bool:
        """Return True if the command of *turn* decides *question*; False if another one already does.

        Presses run beside each other, and the question is stored until the first decision is committed.
        """
        return self._deciding.setdefault(question.id, turn) == turn

    def release(self, question: ToolQuestion) -> None:
        """Let another command decide *question*."""
        self._deciding.pop(question.id, None)

    async def allow(self, question: ToolQuestion, by: str, now: datetime) -> bool:
        """Queue the call as a turn of the person who requested it, once; return False if the queue is full.

        *by* is the name of the person who allowed it, as it is shown to the model.
        """
        message = allowed_message(replace(question, by=by), now)
        accepted = await self._journal.accept(message, role=Role.MEMBER, is_control=False)
        return accepted.outcome is not AcceptOutcome.FULL

    async def deny(self, question: ToolQuestion, by: str, scope: str, now: datetime) -> Job:
        """Return the job that tells the model, at its next turn in the chat, that *by* denied the call."""
        key = SessionKey.parse(question.key)
        (await self._denied_sessions()).add(key)
        payload = {"key": question.key, "tool": question.tool, "sender": question.sender, "at": question.at, "name": by}
        name = f"{denial_prefix(key)}{question.id}"
        return Job(id=name, kind=TOOL_DENIAL, scope=scope, payload=payload, due_at=now + LIFETIME)

    async def denials(self, scope: str, key: SessionKey) -> Sequence[Job]:
        """Return the denials that the model of *key* has not read; without any, the store is not asked."""
        if key not in await self._denied_sessions():
            return ()
        prefix, found = denial_prefix(key), await self._jobs.pending_in(scope)
        return [each for each in found if each.kind == TOOL_DENIAL and each.id.startswith(prefix)]

    async def _denied_sessions(self) -> set[SessionKey]:
        if self._denied is None:
            stored = await self._jobs.pending_of(TOOL_DENIAL)
            # Another turn may have come first.
            self._denied = (self._denied or set()) | {SessionKey.parse(job.payload["key"]) for job in stored}
        return self._denied

    async def is_allowed(self, question: ToolQuestion) -> bool:
        """Return True if the call was queued by a decision that is not committed yet: a kill came between the two."""
        message = allowed_message(question, question.asked_at)
        queued = await self._journal.waiting_rows(message.key)
        if any(row.message.message_id == message.message_id for row in queued):
            return True
        return await self._journal.trace(turn_id(message)) is not None

    async def is_delivered(self, question: ToolQuestion) -> bool:
        """Return True if the message that asks has arrived with its file; old ones count as delivered."""
        found = await self._journal.trace(question.turn)
        parts = [] if found is None else [each for each in found.parts if each["id"].startswith(f"{question.turn}.1.")]
        return all(each["state"] == PartState.SENT for each in parts)

    async def end(self, job: Job) -> None:
        """End a question without a decision."""
        await self._jobs.finish(job)

    def count(self, state: str) -> None:
        """Count a question that became *state*."""
        self._meter.count("tool_questions", state=state)


# -- standing decisions ----------------------------------------------------------------------------

STANDING_DECISION = "tool_decision"
DECISION_JOBS = JobKind(
    name=STANDING_DECISION, pace=JobPace.QUICK, erasure=JobErasure.ADMIN, export="tool_decisions.jsonl"
)
DURATION = timedelta(days=30)  # of a yes
_UNTIL_REVOKED = timedelta(days=36_500)  # of a no


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingDecision:
    """A yes or a no that holds for further calls."""

    id: str
    key: str  # the chat; its threads are included
    by: str  # account name of the person
    tool: str
    subject: str  # what the calls are about; "" = all calls of a tool without subjects
    schema: str  # digest of the tool's schema: the decision ends when the tool changes
    is_allowed: bool
    at: str  # ISO 8601
    until: str

    @property
    def what(self) -> str:
        """The tool and the subject, in Markdown."""
        return format_subject(self.tool, self.subject)

    def text(self, zone: str, language: str) -> str:
        """Return one line with the decision, its end, and the command that revokes it."""
        until = format_moment(datetime.fromisoformat(self.until), zone, language)
        key = "tools.standing_yes" if self.is_allowed else "tools.standing_no"
        return translate(key, language, what=self.what, until=until, id=self.id)


def build_decision(question: ToolQuestion, account: str, now: datetime, *, is_allowed: bool) -> StandingDecision:
    """Return the decision about further calls like that of *question*; a new one has the id of an earlier one."""
    chat = str(SessionKey.parse(question.key).parent)
    return StandingDecision(
        id="g" + short_id("\n".join((chat, account, question.tool, question.subject)), 10),
        key=chat,
        by=account,
        tool=question.tool,
        subject=question.subject,
        schema=question.schema,
        is_allowed=is_allowed,
        at=now.isoformat(timespec="seconds"),
        until=(now + (DURATION if is_allowed else _UNTIL_REVOKED)).isoformat(timespec="seconds"),
    )


def decision_job(decision: StandingDecision, scope: str) -> Job:
    """Return the job of a decision; it is due when the decision ends."""
    return Job(
        id=f"grant:{decision.key}:{decision.id}",
        kind=STANDING_DECISION,
        scope=scope,
        payload=asdict(decision),
        due_at=datetime.fromisoformat(decision.until),
    )


class StandingDecisions:
    """The decisions that hold now."""

    def __init__(self, jobs: SqlJobs) -> None:
        self._jobs = jobs

    async def read(self, scope: str, key: SessionKey, account: str) -> Sequence[tuple[StandingDecision, Job]]:
        """Return the decisions of *account* in the chat of *key* with their jobs, the oldest first."""
        found = [
            (StandingDecision(**job.payload), job)
            for job in await self._jobs.pending_in(scope)
            if job.kind == STANDING_DECISION
        ]
        return [each for each in found if each[0].key == str(key.parent) and each[0].by == account]

    async def verdicts(self, scope: str, key: SessionKey, account: str) -> Mapping[tuple[str, str, str], bool]:
        """Return the decisions of *account* in the chat of *key*, by tool, subject and digest of the tool's schema."""
        found = await self.read(scope, key, account)
        return {(each.tool, each.subject, each.schema): each.is_allowed for each, _ in found}

    async def expire(self, _: Job) -> None:
        """End a decision: the runner removes its job."""


# -- questions that end without a decision ---------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LapsedQuestions:
    """Handlers of the jobs that end without an answer; the runner removes them afterwards."""

    approvals: ToolApprovals
    journal: SqlJournal
    records: SqlTurnRecords
    locales: ChatLocales
    has_lost_access: Callable[[InboundMessage], bool]  # the sender of a job that they set
    now: Callable[[], datetime]

    async def lapse(self, job: Job) -> None:
        """End a denial; or a question, and say in its chat which calls did not run. Raises StoreUnavailable.

        Nothing is sent about the question of a person who has lost access.
        """
        if job.kind == TOOL_DENIAL:  # the model did not read it in a day
            return
        question = ToolQuestion(**job.payload)
        if await self.approvals.is_allowed(question):
            return  # by a press whose commit, which would have ended the question, is still to come
        self.approvals.count("lapsed")
        if self.has_lost_access(allowed_message(question, self.now())):
            return
        key = SessionKey.parse(question.key)
        waiting = [each for each, other in await self.approvals.pending(key) if other.due_at <= job.due_at]
        tools = dict.fromkeys(f"`{each.tool}`" for each in waiting if each.turn == question.turn)
        language = self.locales.language(key)
        await send_job_report(
            self.records,
            replace(job, id=f"lapsed:{question.turn}:{question.seconds}"),  # the turn's other questions add no line
            await self.journal.session(key),
            translate("tools.lapsed", language, tools=", ".join(tools)),
            at=self.now(),
            chat_kind=ChatKind(question.chat_kind),
        )

    async def withdraw(self, part: MessagePart) -> str:
        """End the question whose arguments are in the file of *part*, which cannot be sent.

        Return the sentence that says so, the same each time; "" for any other file. Raises StoreUnavailable.
        """
        if part.file is None or not part.file.question:
            return ""
        if (found := await self.approvals.find(part.key, part.file.question)) is not None:
            await self.approvals.end(found[1])
            self.approvals.count("not_shown")
        return translate("tools.not_shown", self.locales.language(part.key))
