"""Voice answers to voice messages: the sound of an answer follows its text, as a separate message.

The turn's commit queues a job, so the text never waits for a sound, and a turn that a kill repeats queues none twice.
The job is ended by the transaction that stores the sound's message: it is sent at most once, and not at all if the
answer was erased before. A sound that fails, or comes late, is left out; people have the text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from agent.attachments.speech import VOICE, SpeechModel, SpokenSound, spoken_words
from agent.base.file_facts import fact_of
from agent.llm.media_model import UsageAttribution
from agent.memory.erasure.message_deletions import remove_unreferenced
from agent.memory.jobs.job_runner import JobErasure, JobKind, JobPace, RetryJobLater, send_job_report
from gateway.errors import ModelFailed, ModelRateLimited, ModelTimeout, ModelUnreachable
from gateway.events import Attachment, ChatKind, InboundKind, InboundMessage, Role, SessionKey
from gateway.i18n import translate
from gateway.ports.access import CapReached, MessageContext, capped_sender
from gateway.ports.journal import InboxRow, Job

if TYPE_CHECKING:
    from agent.turns.turn import Turn
    from gateway.access.usage_caps import UsageCapTracker
    from gateway.admission import Admitted
    from gateway.store.attachment_store import AttachmentStore
    from gateway.store.files import SqlFiles
    from gateway.store.journal import SqlJournal
    from gateway.store.outbox import SqlOutbox
    from gateway.store.records import SqlTurnRecords
    from gateway.store.transcripts import SqlTranscripts

log = structlog.get_logger(__name__)

SPEECH = "speech"
SPEECH_JOBS = JobKind(name=SPEECH, pace=JobPace.TASK, erasure=JobErasure.OWN)
FRESH = timedelta(minutes=5)  # a sound that is later than this is left out
_MOST_TRIES = 2  # of a job whose model is down for a moment, or that ends the process
_RETRY = timedelta(seconds=10)
_PASSING = (ModelRateLimited, ModelUnreachable, ModelTimeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenAnswers:
    """Plans what is read out, and handles the jobs."""

    model: SpeechModel
    who: Role  # the least role that answers are read out to
    max_characters: int
    limit: Callable[[str], int]  # largest file of a channel in bytes; 0 = none
    redact: Callable[[str], str]
    context_of: Callable[[InboundMessage], MessageContext]
    current_admission: Callable[[InboxRow, MessageContext], Awaitable[Admitted | None]]
    caps: UsageCapTracker
    outbox: SqlOutbox
    records: SqlTurnRecords
    journal: SqlJournal
    blobs: AttachmentStore
    files: SqlFiles
    transcripts: SqlTranscripts
    now: Callable[[], datetime]

    async def plan(self, turn: Turn, answer: str) -> tuple[tuple[Job, ...], str]:
        """Return the job that reads *answer* out, if the turn answers a voice message, and a line for below the answer.

        The line is "", unless the answer is too long to be read out.
        """
        is_voice = any(each.kind == VOICE for row in turn.lease.rows for each in row.message.attachments)
        if not is_voice or not turn.role.covers(self.who) or self.limit(turn.key.channel) <= 0:
            return (), ""
        # Again without markup, which may stand inside of a secret.
        text = self.redact(await asyncio.to_thread(spoken_words, self.redact(answer)))
        if not text:
            return (), ""
        if len(text) > self.max_characters:
            return (), translate("speech.too_long", turn.language, limit=self.max_characters)
        now, message = self.now(), turn.lease.rows[-1].message
        payload = {
            "turn": turn.id,
            "key": str(turn.key),
            "person": turn.account.name,
            "text": text,
            "reply_to": "" if message.kind is InboundKind.JOB else message.message_id,
            "chat_kind": str(message.chat_kind),
            "at": now.isoformat(),
        }
        return (Job(id=f"{SPEECH}:{turn.id}", kind=SPEECH, scope=turn.scope, payload=payload, due_at=now),), ""

    async def run(self, job: Job) -> RetryJobLater | None:
        """Send the sound of an answer. Raises StoreUnavailable."""
        is_late = self.now() - datetime.fromisoformat(job.payload["at"]) > FRESH
        if is_late or job.attempts >= _MOST_TRIES:
            return None
        turn, text = str(job.payload["turn"]), str(job.payload["text"])
        try:
            sound = await self._speak(job, turn, text)
        except CapReached:
            log.info("speech.capped", turn=turn)
            return None
        except ModelFailed as error:
            log.warning("speech.failed", turn=turn, error=type(error).__name__, reason=str(error))
            return RetryJobLater(_RETRY, type(error).__name__) if isinstance(error, _PASSING) else None
        if sound is not None:
            await self._send(job, sound, text)
        return None

    async def _speak(self, job: Job, turn: str, text: str) -> SpokenSound | None:
        """Return the sound, counted to the caps of the person; None if their access ended or their memory moved."""
        message = await self.outbox.question(turn)
        if message is None:
            return None
        context = self.context_of(message)
        admission = await self.current_admission(InboxRow(seq=0, message=message, accepted_at=self.now()), context)
        if context.scope != job.scope or admission is None or not admission.role.covers(self.who):
            return None
        self.caps.admit_calls(message, turn, capped_sender(context, is_named=admission.is_named))
        try:
            return await self.model.speak(text, UsageAttribution(turn, context.account, str(message.key)))
        finally:
            self.caps.end_turn(turn)

    async def _send(self, job: Job, sound: SpokenSound, text: str) -> None:
        key = SessionKey.parse(job.payload["key"])
        if len(sound.data) > self.limit(key.channel):
            return
        try:
            blob = await self.blobs.put(job.scope, sound.data, is_medium=True)
        except OSError as error:
            log.warning("speech.not_stored", turn=job.payload["turn"], error=error.strerror)
            return
        file = Attachment(
            kind=sound.kind,
            name=sound.name,
            size=len(sound.data),
            media_type=sound.media_type,
            blob=blob,
            caption=text,  # what it says: an erasure finds it by that, and players show it
        )
        length = {} if sound.seconds is None else {"seconds": sound.seconds}
        fact = {name: value for name, value in fact_of(file).items() if name != "caption"}
        is_sent = await send_job_report(
            self.records,
            job,
            await self.journal.session(key),
            "",
            at=self.now(),
            reply_to=str(job.payload["reply_to"]),
            chat_kind=ChatKind(job.payload["chat_kind"]),
            attachments=(file,),
            facts=({**fact, "blob": blob, "said": text, **length},),
            ends_job=True,
        )
        if not is_sent:  # the answer was erased meanwhile; an equal sound of another answer stays
            digest = blob.rpartition("/")[2]
            await remove_unreferenced(self.files, self.transcripts, job.scope, (digest,))
