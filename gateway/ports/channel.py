"""The records that channels and the gateway exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from gateway.events import AnswerSource, Attachment, MessageButton, Sender, SessionKey


class IntakeVerdict(StrEnum):
    """Result of handing a message to the intake."""

    ACCEPTED = "accepted"  # durable, or a duplicate: acknowledge the event
    FULL = "full"  # stored as refused; the chat was notified
    REJECTED = "rejected"  # not admitted: nothing was stored


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeResult:
    """The gateway's answer to `Intake.receive`."""

    verdict: IntakeVerdict
    is_repeated: bool = False  # the message was stored before
    reason: str = ""  # admission's reason; never shown to unknown senders
    line: str = ""  # line to show to the sender, or ""
    row: int = 0  # number of its inbox row, if it was accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOrigin:
    """Origin of a message event, as far as it can be read without parsing the event."""

    chat: str  # the chat part of its session key
    sender: str  # the user's id
    message_id: str = ""
    guild: str = ""  # the Discord server
    is_direct: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformEvent:
    """One unparsed event of a platform."""

    channel: str  # the channel's name
    id: str  # repeated on redelivery
    raw: str  # unparsed; for the quarantine, never for a log
    origin: EventOrigin | None = None  # sender to notify of a quarantine; None = unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipChange:
    """We were added to a place where several people are, or are gone from it. Said by the platform, not by a person.

    A place is a chat (Telegram, Slack) or a whole server (Discord: *chat* is empty).
    """

    channel: str  # the channel's name
    id: str  # repeated on redelivery
    chat: str = ""  # the chat part of its session key; "" for a whole server
    guild: str = ""  # the Discord server
    team: str = ""  # the Slack workspace
    title: str = ""  # display name, one line; decides nothing
    by: Sender | None = None  # the acting user, if the platform tells; not admitted yet
    is_gone: bool = False  # removed, or left

    @property
    def entry(self) -> str:
        """Return the `allow_from` entry that would admit every member of the chat."""
        return f"chat:{self.chat}" if self.chat else f"guild:{self.guild}"


CACHED_NOTES = "cached."  # how the names of notes begin that are served from memory


@dataclass(frozen=True, slots=True)
class AcceptedMessage:
    """A message of a channel that was accepted, open or ended."""

    row: int  # number of its inbox row
    key: SessionKey
    message_id: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCapabilities:
    """A channel's limits and behaviour, as data."""

    text_limit: int  # per part, in `unit`
    unit: str = "characters"  # characters, utf16 or bytes
    edits: bool = False  # a sent part can be edited in place
    finds: bool = False  # `find` usually succeeds, so that uncertain parts need no notice
    send_key: bool = False  # the platform deduplicates by part id, so that uncertain parts may be resent
    send_key_for: timedelta | None = None  # for how long; None = always
    rings: bool = False  # new messages notify users, edits do not
    preview_every: timedelta | None = None  # shortest time before and between preview edits; None = no previews
    shows_activity: bool = False  # typing or status
    file_limit: int = 0  # largest file that can be sent, in bytes; 0 = no files
    max_parts: int = 40  # a longer answer is cut, with a notice
    group_parts: int = 3  # a longer answer in a group becomes its beginning and a file, if files can be sent
    choices: int = 0  # most buttons below one message; beyond that the text names the commands
    private_choices: bool = False  # ephemeral messages in shared chats can have buttons
    footnotes: bool = False  # a part can list sources (`OutboundMessage.sources`); elsewhere the text names them
    mentions: bool = False  # a part can mention one user (`MessagePart.calls`); elsewhere the text names them


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStep:
    """A tool call of a turn as people see it."""

    words: str  # plain text, in the language of the chat
    state: str  # running, or a `CallOutcome`
    seconds: float = 0.0  # 0 = less than a tenth, or unknown
    error: str = ""  # the beginning of the result of a call that failed or was refused


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatActivity:
    """Activity to show in a chat while a turn runs. An empty `text` is plain typing; `on` False ends it."""

    key: SessionKey
    on: bool
    text: str = ""
    turn: str = ""  # that `steps` belong to
    steps: Sequence[CallStep] = ()  # its tool calls so far


@dataclass(frozen=True, slots=True)
class ReplyPolicy:
    """How people are answered in one chat."""

    reply_in: str = "channel"  # or "thread"
    follow_threads: bool = True
    group_policy: str = "mention"  # or "open", "off"; applied by admission, explained by channels

    @classmethod
    def of_block(cls, block: Any) -> ReplyPolicy:
        """Return the policy of a channel's settings, with defaults for missing values."""
        return cls(**{name: getattr(block, name) for name in cls.__slots__ if hasattr(block, name)})


@dataclass(frozen=True, slots=True)
class ReplyPolicies:
    """Reply policies of a channel's chats; the most specific override applies."""

    of: Callable[[str, str], ReplyPolicy]  # a chat or thread ("C042/1712.34"), and its guild
    every: frozenset[ReplyPolicy]  # every policy of the channel's chats


def in_english(key: SessionKey) -> str:  # noqa: ARG001 - the same everywhere
    """Return "en", the language of chats without a choice."""
    return "en"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformTraits:
    """Facts about a platform that the gateway acts on: the class variable `traits` of its settings model."""

    chat_is_person: bool = False  # the id of a direct chat is its user's id
    group_prefix: str = ""  # chat ids that begin with it are groups, where the platform tells by the id
    has_teams: bool = False  # user ids are unique within a team only, which is part of the account
    is_local: bool = False  # reached on this machine: its user `owner` is the owner of the bot
    has_uploads: bool = False  # files can be uploaded to the gateway before they are sent
    shows_notices: bool = True  # people see what is said to them without a question
    saves_files: bool = False  # files that the bot sends are saved in the home's downloads folder

    def is_group(self, key: SessionKey) -> bool:
        """Return True if the id of a chat tells that it is a group."""
        return bool(self.group_prefix) and key.chat.startswith(self.group_prefix)


def channel_wide_key(block: str) -> SessionKey:
    """Return the key that stands for all chats of a channel's block, for what is said to no chat: menus, a login."""
    return SessionKey(block, "*")


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
    steps: int = 0  # tool calls of the turn, on its last line by the bot
    has_reasoning: bool = False  # some was stored, on the same line
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
    chats: Mapping[str, str] = field(default_factory=dict)  # titles by key of where it can come, its own first
    chat: str = ""  # the one of them in which it comes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """How one run of a scheduled request ended, in words, in the language of the chat."""

    when: str
    state: str
    spent: str  # tokens and cost; "" where no model was asked


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """A background task that waits or runs, or ended in the last week."""

    id: str
    text: str  # what was asked for
    state: str  # in words, in the language of the chat
    is_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceEntry:
    """A service that people sign in to, as one person sees it."""

    name: str
    state: str  # in words, in the language of the chat
    is_in: bool  # the person has signed in, though they may have to again


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDetails:
    """The models, tokens, cost and time of one turn."""

    models: Sequence[str] = ()  # that were called, the one whose answer it is last; none once the day was folded
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0  # a part of `tokens_in`
    cost: str = ""  # in words, in the language of the chat
    seconds: float = 0.0  # from the message to its answer; 0 = unknown
    steps: Sequence[CallStep] = ()
    reasoning: str = ""  # as far as it was stored: with tool calls, and where the provider wants it back


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """The model that answers in a chat, and the models and profiles that it can choose."""

    current: str
    offered: Sequence[str]
    is_offline: bool = False  # no model is configured: the built-in one answers
    chosen_effort: str = ""  # by `/effort` in the chat; "" = as the settings have it
    profile: str = ""  # that applies; "" = none
    profiles: Sequence[str] = ()  # that `/as` offers
    has_chosen_profile: bool = False  # by `/as` in the chat
