"""Durable jobs that are due with a turn (flush, consolidation), the range of messages of each, and kinds of others."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agent.memory.storage.messages import MessageRange, TranscriptRange
from gateway.events import SessionKey
from gateway.ports.journal import Job, TurnRecord

if TYPE_CHECKING:
    from agent.memory.prompt.conversation import Conversation

UPDATE, APPLY = "update", "apply"  # kinds of the jobs that ask a model, and of those that have its answer
PROMPT = "prompt"  # field of both: the name of the prompt, one of the next ones
CONSOLIDATE, SUMMARISE, FLUSH, NOTE = "consolidate", "summarise", "flush", "note"
SUMMARISE_RAW = "summarise_raw"  # of messages in the raw archive
EDIT = "memory_edit"  # edits that the model made, to be staged
ROUNDS = 5  # questions that one compaction takes at most; the next turn sees whether more is due


def prompt_of(job: Job) -> str:
    """Return the name of the prompt of a job that asks; earlier releases gave it as the job's kind."""
    return str(job.payload.get(PROMPT, job.kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSpan(TranscriptRange):
    """A range of messages, and the session that they belong to."""

    scope: str
    key: SessionKey

    @property
    def cycle(self) -> str:
        """The id of the compaction cycle that begins at *start*; a moved pointer or /new ends it."""
        return f"{self.transcript}.{self.start}"

    @classmethod
    def of(cls, job: Job) -> ConversationSpan:
        """Return the span stored in a job."""
        names = ("transcript", "start", "end")
        key = SessionKey.parse(str(job.payload["key"]))
        return cls(scope=job.scope, key=key, **{name: job.payload[name] for name in names})

    def payload(self) -> dict[str, Any]:
        """Return the span as the fields of a job."""
        return {"key": str(self.key), "transcript": self.transcript, "start": self.start, "end": self.end}


def consolidation_job(
    key: SessionKey, scope: str, transcript: str, range_: MessageRange, now: datetime, *, rounds: int = ROUNDS
) -> Job:
    """Return the job that is due when a window is full; its id is the same each time.

    A range that does not fit one prompt takes several rounds, *rounds* at most.
    """
    span = ConversationSpan(scope=scope, key=key, transcript=transcript, start=range_.start, end=range_.end)
    return Job(
        id=f"{CONSOLIDATE}:{span.cycle}",
        kind=UPDATE,
        scope=scope,
        payload={PROMPT: CONSOLIDATE, **span.payload(), "rounds": rounds},
        due_at=now,
    )


def due_jobs(conversation: Conversation, record: TurnRecord) -> tuple[Job, ...]:
    """Return the jobs that are due after *record*: usually none."""
    if record.new_transcript:
        return ()
    where = (record.key, record.scope, record.transcript)
    flush, range_ = conversation.flush_due(record), conversation.due(record.to_index, record)
    if flush:
        return (flush_job(*where, flush, record.at, then=range_),)
    return (consolidation_job(*where, range_, record.at),) if range_ else ()


def flush_job(
    key: SessionKey,
    scope: str,
    transcript: str,
    range_: MessageRange,
    now: datetime,
    *,
    then: MessageRange | None = None,
) -> Job:
    """Return the flush that is due before a compaction, once per cycle; *then* is the range to consolidate after it."""
    span = ConversationSpan(scope=scope, key=key, transcript=transcript, start=range_.start, end=range_.end)
    payload = {PROMPT: FLUSH, **span.payload(), "then": [then.start, then.end] if then else []}
    return Job(id=f"{FLUSH}:{span.cycle}", kind=UPDATE, scope=scope, payload=payload, due_at=now)


def raw_summary_job(scope: str, entry: str, at: datetime) -> Job:
    """Return the job that summarises the raw archive of a history entry, from *at* on."""
    payload = {PROMPT: SUMMARISE_RAW, "entry": entry}
    return Job(id=f"{SUMMARISE_RAW}:{entry}", kind=UPDATE, scope=scope, payload=payload, due_at=at)


def after_flush(job: Job, now: datetime) -> Job | None:
    """Return the consolidation that waited for a flush, or None."""
    span, then = ConversationSpan.of(job), job.payload.get("then")
    if not then:
        return None
    return consolidation_job(span.key, span.scope, span.transcript, MessageRange(int(then[0]), int(then[1])), now)
