"""The contract of a channel, its optional abilities, and the records that it exchanges with the gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gateway.events import Attachment, DeliveryReceipt, InboundMessage, MessagePart, OutboundMessage, Sender, SessionKey
from gateway.ports.conversations import ConversationStore, PersonPanels, SessionReader
from gateway.ports.memory import BlobStore


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


class Intake(Protocol):
    """Receives parsed messages from adapters, then admits and accepts them."""

    @property
    def is_cautious(self) -> bool:
        """Return True if the last two runs were killed: events are then fetched and handled one at a time."""

    async def handle(self, event: PlatformEvent, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work*, which parses *event* and passes it to `receive`. Acknowledge the event when the call returns.

        An event that cannot be parsed (UnreadableEvent) is quarantined. If *work* fails with a bug, the exception is
        raised twice, so that the platform delivers the event again, and the event is quarantined the third time. While
        `is_cautious`, the event is on disk while *work* runs: an event that is there at two crashes is quarantined and
        skipped. After the first crash it is handled once more, when the platform delivers it again or by
        `SupportsReplay`. Other ParlourErrors (StoreUnavailable, SendFailed) are raised and not counted.
        """

    async def receive(self, message: InboundMessage) -> IntakeResult:
        """Admit and store *message*; return when it is durable.

        Raises StoreUnavailable when it could not be stored: do not ack, the platform will deliver again.
        """

    async def membership_changed(self, place: MembershipChange) -> None:
        """Handle that the bot was added to or removed from a chat. Acknowledge the event when the call returns.

        Calls with the same id are idempotent. Admission of members is decided at their messages. Raises
        StoreUnavailable like `receive`.
        """


CACHED_NOTES = "cached."  # how the names of notes begin that are served from memory


@dataclass(frozen=True, slots=True)
class AcceptedMessage:
    """A message of a channel that was accepted, open or ended."""

    row: int  # number of its inbox row
    key: SessionKey
    message_id: str
    at: datetime


class ChannelState(Protocol):
    """A channel's own small durable notes (high-water marks, login sessions), by name, and its accepted messages."""

    async def load(self, name: str) -> str | None:
        """Return a note, or None."""

    async def save(self, name: str, value: str | None, *, within: float = 0.0) -> None:
        """Store a note durably; None removes it. It may wait *within* seconds for a write that is needed anyway."""

    async def take(self, name: str) -> str | None:
        """Remove a note durably and return it. Of several callers, at any worker, one gets it; the others get None."""

    def forget(self, name: str) -> None:
        """Remove a note within some seconds, with other writes; after a kill it may still be there."""

    def cached(self) -> Mapping[str, str]:
        """Return the notes whose names begin with `CACHED_NOTES`, as of the worker's last transaction. Keep few."""

    def when_cached_changed(self, call: Callable[[], None]) -> None:
        """Call *call* when another worker has changed notes of `cached`, of this channel or of others."""

    async def all(self, prefix: str) -> Mapping[str, str]:
        """Return the notes whose names begin with *prefix*, which is not empty, by name."""

    def just_ended(self, rows: Collection[int]) -> frozenset[int]:
        """Return those of *rows* that a turn of this worker has ended a short time ago. Does not ask the store."""

    async def find_ended(self, key: SessionKey, rows: Collection[int]) -> frozenset[int]:
        """Return those of *rows*, which are of *key*, that have ended, or do not exist any more."""

    async def save_first_row(self, row: int | None, *, within: float = 0.0) -> None:
        """Note durably that this worker is not done with the messages from *row* on; None: it is done with all."""

    async def take_over_rows(self, limit: int) -> Sequence[AcceptedMessage]:
        """Return the messages with which killed workers were not done, the newest *limit*.

        The first of them becomes this worker's own first row, in the same transaction.
        """


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
    preview_every: timedelta | None = None  # shortest time between preview edits; None = no previews
    shows_activity: bool = False  # typing or status
    file_limit: int = 0  # largest file that can be sent, in bytes; 0 = no files
    max_parts: int = 40  # a longer answer is cut, with a notice
    group_parts: int = 3  # a longer answer in a group becomes its beginning and a file, if files can be sent
    choices: int = 0  # most buttons below one message; beyond that the text names the commands
    private_choices: bool = False  # ephemeral messages in shared chats can have buttons
    footnotes: bool = False  # a part can list sources (`OutboundMessage.sources`); elsewhere the text names them
    mentions: bool = False  # a part can mention one user (`MessagePart.calls`); elsewhere the text names them


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatActivity:
    """Activity to show in a chat while a turn runs. An empty `text` is plain typing; `on` False ends it."""

    key: SessionKey
    on: bool
    text: str = ""


class Channel(Protocol):
    """One configured block of one platform, alive."""

    name: str
    capabilities: ChannelCapabilities

    async def run(self) -> None:
        """Receive until cancelled; raise when the channel cannot go on (it is restarted with back-off)."""

    def is_ready(self) -> bool:
        """Return True if the channel is connected and receiving events."""

    def is_watched(self, key: SessionKey) -> bool:
        """Return True if a user would see a stream in this chat."""

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
        """Cut and format *message* for the platform; pure, the same parts every time, and safe in a thread.

        The first part holds the first *least* characters of the clean text, where they fit: a preview showed them.
        """

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Send one part. With *may_be_duplicate*, add a visible notice that the part may be a repeat.

        The notice is `delivery.may_repeat`, added in the platform's markup and within its limit. An empty `payload`
        means: send `plain` unformatted. A part that `is_placed` is sent silently, where the platform can. If
        `visible_to` is the id of the key's chat, the part goes to that user's direct chat, which is opened if needed.
        `choices` are buttons below the part; a press is an inbound BUTTON message of its sender. A part that `settles`
        answers a press of its turn: that row of buttons is removed if possible.
        Raises RetryLater, SendRefused, FormatRefused or OutcomeUnknown, and FileUnavailable for a `file` whose bytes
        are lost: delivery then sends a line in its place.
        """

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace the message *message_id*. Raises the errors of `send`; "not modified" is success."""

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Return the receipt of *part* if the platform has it; None if it certainly has not. Raises OutcomeUnknown."""

    async def show(self, activity: ChatActivity) -> None:
        """Show or end typing or a status; failures are the channel's own affair and never raise."""

    async def close(self) -> None:
        """Release connections; called once, after run has ended."""


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
class ChannelContext:
    """Arguments a channel is built from."""

    name: str  # the channel's name
    settings: Any  # the channel's block, an instance of the plugin's settings model
    intake: Intake
    state: ChannelState
    blobs: BlobStore  # the bytes of parts that are files
    sessions: SessionReader  # stored messages, for channels that show history
    conversations: ConversationStore | None = None  # for channels where a person has several
    allowed_commands: Callable[[SessionKey, str], Collection[str]] | None = None  # in a direct chat, by its user's role
    panels: PersonPanels | None = None  # for channels that show what is kept of a person
    is_console_owner: Callable[[str], bool] | None = None  # True if a user may call every operation of the console here
    has_transcription: bool = False  # recordings are transcribed for the model
    language: Callable[[SessionKey], str] = in_english  # of catalogue messages in a chat
    folder: Path | None = None  # for the channel's files; created by the first write
    proxy: str = field(default="", repr=False)  # for all connections, by gateway.net; "" = none; secret
    reply_policies: ReplyPolicies | None = None  # None = the block's policy everywhere
    windows: SharedWindows | None = None  # of this channel at other workers; None = there are none
    connections: ConnectionClaims | None = None  # of all workers; None = there are no others

    @property
    def is_shared(self) -> bool:
        """True if other workers receive and send for this channel, too, and memory has a part of the state."""
        return self.connections is not None

    def reply_policy(self, chat: str, guild: str = "") -> ReplyPolicy:
        """Return the reply policy of *chat*, a thread's own overrides included. Cheap: a few dictionary look-ups."""
        return (
            ReplyPolicy.of_block(self.settings) if self.reply_policies is None else self.reply_policies.of(chat, guild)
        )

    def all_reply_policies(self) -> frozenset[ReplyPolicy]:
        """Return every reply policy of the channel's chats."""
        return (
            frozenset({ReplyPolicy.of_block(self.settings)})
            if self.reply_policies is None
            else self.reply_policies.every
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformTraits:
    """Facts about a platform that the gateway acts on: the class variable `traits` of its settings model."""

    chat_is_person: bool = False  # the id of a direct chat is its user's id
    group_prefix: str = ""  # chat ids that begin with it are groups, where the platform tells by the id
    has_teams: bool = False  # user ids are unique within a team only, which is part of the account
    is_local: bool = False  # reached on this machine: its user `owner` is the owner of the bot
    has_uploads: bool = False  # files can be uploaded to the gateway before they are sent
    saves_files: bool = False  # files that the bot sends are saved in the home's downloads folder

    def is_group(self, key: SessionKey) -> bool:
        """Return True if the id of a chat tells that it is a group."""
        return bool(self.group_prefix) and key.chat.startswith(self.group_prefix)


class ChannelPlugin(Protocol):
    """One platform, named by an entry point in `parlour.channels`."""

    name: str  # the `kind` of a configuration block
    settings: type[Any]  # a pydantic model of the block

    def open(self, context: ChannelContext) -> Channel:
        """Build a channel; connect nothing yet."""

    def routes(self, channel: Channel) -> Sequence[Any]:
        """Return Starlette routes to mount on the gateway's web server, or nothing."""

    def check(self, settings: Any, environment: Mapping[str, str]) -> Sequence[str]:
        """Return the errors of a settings block, one line each with its remedy. Uses no network."""


@runtime_checkable
class SupportsReplay(Protocol):
    """A channel that takes in an event that the quarantine kept."""

    async def replay(self, event: PlatformEvent) -> None:
        """Parse *event* and hand it to `Intake.receive`, as when it came; called only while the channel is ready.

        Raises Unreadable for an event that cannot be taken in any more, and what `receive` raises.
        """


@runtime_checkable
class SupportsOneConnection(Protocol):
    """A channel whose platform has one connection for a bot. Where workers share a database, one of them runs it."""

    @property
    def connection(self) -> str:
        """Return the name of the bot, or of one of its shards, that only one process may run; no call is made for it.

        It is "" if every process receives, as by a webhook.
        """

    async def run_sender(self) -> None:
        """Be ready to send, without the connection, until cancelled: another worker runs it. Raises as `run`."""


class ChannelShard(SupportsOneConnection, Protocol):
    """One connection of a channel with several."""

    async def run(self) -> None:
        """Receive over this connection; see `Channel.run`."""

    def is_ready(self) -> bool:
        """Return True if this connection is up; see `Channel.is_ready`."""


@runtime_checkable
class SupportsShards(Protocol):
    """A channel whose platform divides the chats of a bot over several connections, each of which exists once.

    The supervisor runs each of them instead of the channel; workers that share a database may have some each.
    """

    async def shards(self) -> Sequence[ChannelShard]:
        """Return the connections in order, the same ones until a restart. Raises as `Channel.run`."""


@runtime_checkable
class SupportsCommandPrefix(Protocol):
    """A kind on whose platform "/stop" does not reach us everywhere."""

    def command_prefix(self, key: SessionKey) -> str:
        """Return the prefix of commands in the chat *key*, including a trailing blank where one is typed."""


@runtime_checkable
class SupportsFiles(Protocol):
    """A channel whose messages can carry files in."""

    def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield the file in pieces as the platform sends them; the caller stops when it has had enough.

        Raises FileUnavailable. An address that the platform did not make is never followed, and no
        address is logged: some hold the token.
        """


@runtime_checkable
class SupportsSenderLookup(Protocol):
    """A channel whose platform gives people rights that can be taken from them: roles, membership, being an admin."""

    async def sender(self, message: InboundMessage) -> Sender:
        """Return the sender of *message* with current roles, guest and admin flags from the platform.

        Facts received or looked up within five minutes count, unless the platform has reported a change since.
        Raises SendFailed if the platform cannot be asked or does not answer within a few seconds.
        """


@runtime_checkable
class SupportsHistory(Protocol):
    """A channel that returns earlier messages of a chat, from its platform or from its own memory."""

    async def messages_before(
        self, message: InboundMessage, *, since: datetime | None, limit: int
    ) -> Sequence[InboundMessage]:
        """Return users' messages before *message* in its chat or thread, oldest first, without the bot's own.

        The result holds the start of the thread, which may be the bot's own, and the newest *limit* messages, all newer
        than *since*, with the sender facts that admission needs. Where the bot receives all messages anyway, it holds
        the start alone, and only for a thread that begins. Raises SendFailed if the platform cannot be asked.
        """


@runtime_checkable
class SupportsSendTurns(Protocol):
    """A channel whose platform limits the messages of all its chats together, so that one waits for the others."""

    async def wait_turn(self, key: SessionKey) -> bool:
        """Return when the next message to *key* may be sent: False if that was at once. Chats are served in turn.

        Delivery waits here before it marks a part as `sending` and before it takes one of the channel's connections.
        A turn that is not used is kept for the chat's next message.
        """

    def try_turn(self, key: SessionKey) -> bool:
        """Take the turn of the next message to *key* if it is now; return False if it has to be waited for."""


@runtime_checkable
class SupportsReactions(Protocol):
    """A channel that acknowledges messages by a reaction, which goes when their answer is delivered."""

    def remove_reactions(self, key: SessionKey) -> None:
        """Remove the reactions of the messages of *key* that have ended: a part is stored as sent, or given up.

        Returns at once; failures are logged.
        """


class ConnectionClaims(Protocol):
    """Which worker has which connection. Names are `<channel>:<connection>` (`SupportsOneConnection`)."""

    async def acquire(self, name: str) -> None:
        """Return when the connection is ours, and no other worker's, until it is lost or released."""

    async def wait_lost(self, name: str) -> bool:
        """Return when the connection is to be ended: True if another worker should have it, and it is to be released.

        False if the database has not said for `DEAD_AFTER` that it is ours: others may have it.
        """

    def release(self, name: str) -> None:
        """Give the connection to the next worker that waits for it, within the next look; idempotent."""


class SharedWindows(Protocol):
    """Carries frames between the workers that serve windows of the same chats. *key* is a conversation's.

    A frame is the channel's JSON text in ASCII. Frames of one worker arrive in the order in which it gave them, each
    once; a frame that was lost with a session of the database is made good by `refresh`.
    """

    async def watch(self, chat: SessionKey) -> None:
        """Receive the frames of *chat*: all that are sent after the return. Raises StoreUnavailable."""

    def unwatch(self, chat: SessionKey) -> None:
        """Receive no more frames of *chat*."""

    def is_watched(self, key: SessionKey) -> bool:
        """Return True if another worker has windows of the chat of *key*; False for chats that are not ours."""

    async def send(self, key: SessionKey, frame: str) -> None:
        """Give *frame* to every other worker that watches; it is durable on return. Raises StoreUnavailable."""

    def post(self, key: SessionKey, frame: str, *, slot: str = "") -> None:
        """Give *frame* soon; of those with the same *slot* that wait, only the last one is given."""

    def subscribe(
        self,
        channel: str,
        receive: Callable[[SessionKey, str], None],
        repeat: Callable[[SessionKey], None],
        refresh: Callable[[], None],
    ) -> None:
        """Call *receive* with each frame from another worker for *channel*.

        *repeat* is called with one of our chats when another worker opens a window of it: activity and preview are to
        be posted again. *refresh* is called after a frame may have been lost: windows are to read their history again.
        """


def channel_wide_key(block: str) -> SessionKey:
    """Return the key that stands for all chats of a channel's block, for what is said to no chat: menus, a login."""
    return SessionKey(block, "*")
