"""Views of a person for channels: conversations and their messages, memory, reminders and models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gateway.events import AnswerSource, Attachment, MessageButton, SessionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayedMessage:
    """One message as people saw it."""

    id: str  # "<turn>/<n>": stable over reloads
    turn: str
    role: str  # user, assistant, command, notice; divider = /new ended a transcript here
    text: str
    at: datetime
    name: str = ""  # display name, for user lines
    message_id: str = ""  # the platform's (or the page's own) id of a user line
    state: str = "done"  # waiting = accepted, not answered yet
    typed: str = ""  # the user's part of `text`, without the lines that name files
    attachments: tuple[Attachment, ...] = ()  # stored files received or sent with it
    quoted_files: tuple[Attachment, ...] = ()  # of the message that it quoted
    replaces: str = ""  # id of the user line that this one, a user line, is another version of
    is_others: bool = False  # `text` was forwarded from another author
    is_press: bool = False  # `text` is the command of a button; nobody wrote it
    is_partial: bool = False  # an answer that was stopped, or whose stream broke
    links: tuple[str, ...] | None = None  # as in OutboundMessage
    sources: tuple[AnswerSource, ...] = ()  # of the turn's answer, which `text` lists
    part: str = ""  # the message part that has `choices`
    choices: tuple[MessageButton, ...] = ()  # buttons that can still be pressed


@dataclass(frozen=True, slots=True)
class DisplayedPage:
    """Consecutive messages of a conversation, oldest first."""

    lines: tuple[DisplayedMessage, ...]
    before: str = ""  # the position where they begin; "" if no messages are before them


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A line of `parlour sessions list`."""

    key: SessionKey
    transcript: str
    messages: int
    updated_at: datetime


MOST_CONVERSATIONS = 1_000  # of one person
LONGEST_TITLE = 80  # characters
RESTORABLE = timedelta(days=1)  # after which a deleted conversation is erased


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationInfo:
    """A conversation as its person sees it in a list."""

    key: SessionKey
    used_at: datetime  # of a message of the person, within an hour
    title: str = ""  # from the first message, by a model, or as the person named it; "" if only commands were sent
    is_draft: bool = False  # the title is the beginning of a message; a model may find a better one
    is_pinned: bool = False
    deleted_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationHit:
    """A message that contains what a person looks for."""

    key: SessionKey
    turn: str
    role: str  # as in DisplayedMessage
    text: str  # an excerpt
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationHits:
    """Hits, by conversation in the order of the list and the newest first."""

    hits: Sequence[ConversationHit]
    is_partial: bool = False  # there was more to read than one search may


MOST_LINES = 500  # of a panel; the memory itself is limited to fewer


@dataclass(frozen=True, slots=True)
class LineSource:
    """Source of a remembered line."""

    text: str  # Markdown, in the language of the chat
    change: str  # the version that brought it, as `/memory undo` takes it


@dataclass(frozen=True, slots=True, kw_only=True)
class ReminderEntry:
    """A reminder that is still to come, or is paused."""

    id: str
    key: SessionKey  # the conversation that it was set in
    text: str
    at: str  # local wall time of the next slot, ISO
    when: str  # the same in words, with its time zone
    repeat: str = ""  # its rule
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """The model that answers in a chat, and those that `/model` offers there."""

    current: str
    offered: Sequence[str]
    is_offline: bool = False  # no model is configured: the built-in one answers
    chosen_effort: str = ""  # by `/effort` in the chat; "" = as the settings have it
