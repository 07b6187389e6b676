"""The note about a conversation that /new ended, as a durable job beside its summary ([002], Phase 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from agent.llm.chat_model import ChatModel
from agent.memory.jobs.job_runner import Handler, RetryJobLater
from agent.memory.messages.message_reader import MessageReader
from agent.memory.model_calls import ModelProvider
from agent.memory.notes.session_note_writer import SessionMemoryWriter
from agent.memory.prompt.due_jobs import NOTE
from agent.memory.scopes import scope_folder
from gateway.events import SessionKey
from gateway.ports import Job

_LOOK_BACK = 10  # messages that are read for each one that the note is to be about: tools stand between them


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNoteJobs:
    """Writes them. *max_messages* and *min_user_messages* as the settings have them."""

    home: Path
    passages: MessageReader
    model: ChatModel
    zone: Callable[[str], str]
    now: Callable[[], datetime]
    max_messages: int
    min_user_messages: int

    @property
    def slow(self) -> Mapping[str, Handler]:
        """Handlers that call a model."""
        return {NOTE: self.write}

    async def write(self, job: Job) -> RetryJobLater | None:
        """Write the note about the job's transcript unless it exists."""
        key, transcript = SessionKey.parse(str(job.payload["key"])), str(job.payload["transcript"])
        _, end = await self.passages.extent(job.scope, key, transcript)
        start = max(end - _LOOK_BACK * self.max_messages, 0)
        messages = await self.passages.messages(job.scope, key, transcript, start, end)
        writer = SessionMemoryWriter(
            scope_folder(self.home, job.scope),
            ModelProvider(model=self.model, purpose="note", turn=job.id, key=str(key)),
            self.model.name,
            zone=self.zone(job.scope),
            min_user_messages=self.min_user_messages,
            now=self.now,
        )
        await writer.write_session_memory(str(key), messages, self.max_messages)
        return None
