"""The contract of a channel: its methods, its optional abilities, and the context that it is built from.

Turns read files and earlier messages from channels here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import structlog

from gateway.errors import FileUnavailable, ParlourError
from gateway.events import (
    UNKNOWN,
    Attachment,
    DeliveryReceipt,
    InboundMessage,
    MessagePart,
    OutboundMessage,
    Sender,
    SessionKey,
)
from gateway.ports.channel import (
    ChannelCapabilities,
    ChatActivity,
    ConversationHits,
    ConversationInfo,
    DisplayedMessage,
    DisplayedPage,
    LineSource,
    ModelOffer,
    PlatformEvent,
    ReminderEntry,
    ReplyPolicies,
    ReplyPolicy,
    RunEntry,
    ServiceEntry,
    SessionInfo,
    TaskEntry,
    TurnDetails,
    in_english,
)

if TYPE_CHECKING:
    from gateway.intake import Intake
    from gateway.store.attachment_store import AttachmentStore
    from gateway.store.claims import WorkerConnections
    from gateway.store.records import SqlChannelState
    from gateway.store.shared_windows import WorkerWindows


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


class SessionReader(Protocol):
    """Read access to conversations."""

    async def displayed_messages(self, key: SessionKey, *, limit: int) -> tuple[DisplayedMessage, ...]:
        """Return the newest *limit* lines people saw, oldest first; pending and waiting ones included."""

    async def displayed_page(self, key: SessionKey, before: str = "", *, turns: int) -> DisplayedPage | None:
        """Return the messages of *turns* turns before the position *before*, by default the newest ones.

        Pages go back through the transcripts that /new ended. The newest one has pending and waiting messages besides.
        None for a position that is not one of this conversation.
        """

    async def all(self) -> tuple[SessionInfo, ...]:
        """Return every session, the most recently used first."""


class ConversationStore(Protocol):
    """The conversations of each person. Reads are served from memory where they are not async."""

    def is_deleted(self, key: SessionKey) -> bool:
        """Return True while the conversation *key* is deleted and can be restored."""

    def has_room(self, key: SessionKey) -> bool:
        """Return False if *key* would be one conversation too many."""

    async def list_conversations(self, chat: SessionKey) -> Sequence[ConversationInfo]:
        """Return the conversations of *chat*, deleted ones too, the most recently used first."""

    async def note_message(self, key: SessionKey, text: str) -> bool:
        """Note that its person wrote *text* in the conversation *key*; return True if the list has changed."""

    def watch(self, watcher: Callable[[SessionKey], None]) -> None:
        """Call *watcher* with each conversation that gets its title later, from a model."""

    async def rename(self, key: SessionKey, title: str) -> None:
        """Give the conversation a title; "" takes the next message."""

    async def pin(self, key: SessionKey, *, is_pinned: bool) -> None:
        """Put the conversation to the top of the list, or back."""

    async def delete(self, key: SessionKey) -> None:
        """Hide the conversation, and erase it after `RESTORABLE`."""

    async def restore(self, key: SessionKey) -> None:
        """Undo `delete`."""

    async def search(self, chat: SessionKey, query: str, *, limit: int) -> ConversationHits:
        """Return messages of *chat* that contain each word of *query*, in any case; not of deleted conversations."""


class PersonPanels(Protocol):
    """Reads the memory, the reminders, the tasks and the models of the person whose direct chat *key* is."""

    async def remembered_lines(self, key: SessionKey) -> Sequence[str]:
        """Return the remembered lines, at most `MOST_LINES`, pending writes included."""

    async def last_erasure(self, key: SessionKey) -> str:
        """Return the name of the last erasure of words from the person's memory, "" for none."""

    def search_limitation(self, key: SessionKey) -> str:
        """Return the sentence about a search by words alone, in the chat's language; "" if it is by meaning too."""

    async def line_source(self, key: SessionKey, line: str) -> LineSource | None:
        """Return the source of a remembered line, None for an unknown line."""

    async def reminders(self, key: SessionKey) -> Sequence[ReminderEntry]:
        """Return the reminders, the next one first."""

    async def reminder_runs(self, key: SessionKey, reminder: str) -> Sequence[RunEntry] | None:
        """Return the newest runs of the reminder of this id, None for an unknown one."""

    @property
    def has_tasks(self) -> bool:
        """True if background tasks are switched on."""

    async def tasks(self, key: SessionKey) -> Sequence[TaskEntry]:
        """Return the background tasks, those that wait or run first."""

    async def services(self, key: SessionKey) -> Sequence[ServiceEntry]:
        """Return the services that people sign in to, with the person's logins."""

    async def turn_details(self, key: SessionKey, turn: str) -> TurnDetails | None:
        """Return the models, tokens and cost of a turn of the conversation *key*, None for an unknown turn."""

    def models(self, key: SessionKey) -> ModelOffer:
        """Return the models of the chat."""

    def has_locale(self, key: SessionKey) -> bool:
        """Return True if language and time zone of the person are known."""

    def page_language(self, key: SessionKey, languages: Sequence[str]) -> str:
        """Return the language of the page for a browser that prefers *languages*; a choice or setting wins over it."""

    async def note_locale(self, key: SessionKey, *, languages: Sequence[str], zone: str) -> None:
        """Store what the person's browser says, unless they chose a language or zone. Raises StoreUnavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnUsage:
    """Tokens of the model calls of a turn; `tokens_cached` is a part of `tokens_in`."""

    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessAnswer:
    """A model's answer that belongs to no conversation."""

    text: str
    usage: TurnUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """Settings of a channel that notifies closed browsers."""

    secret: Callable[[], Awaitable[str]]  # shared by every gateway of the store; raises UserError if it is missing
    contact: str  # the public https address, for push services that want to complain; "" = none
    is_private: Callable[[], bool]  # True while every visitor of this machine is the owner, without a login


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelContext:
    """Arguments a channel is built from."""

    name: str  # the channel's name
    settings: Any  # the channel's block, an instance of the plugin's settings model
    intake: Intake
    state: SqlChannelState
    blobs: AttachmentStore  # the bytes of parts that are files
    sessions: SessionReader  # stored messages, for channels that show history
    conversations: ConversationStore | None = None  # for channels where a person has several
    allowed_commands: Callable[[SessionKey, str], Collection[str]] | None = None  # in a direct chat, by its user's role
    panels: PersonPanels | None = None  # for channels that show what is kept of a person
    has_lost_access: Callable[[str], bool] | None = None  # True if a user is no longer admitted to their direct chat
    is_console_owner: Callable[[str], bool] | None = None  # True if a user may call every operation of the console here
    has_transcription: bool = False  # recordings are transcribed for the model
    language: Callable[[SessionKey], str] = in_english  # of catalogue messages in a chat
    folder: Path | None = None  # for the channel's files; created by the first write
    proxy: str = field(default="", repr=False)  # for all connections, by gateway.net; "" = none; secret
    reply_policies: ReplyPolicies | None = None  # None = the block's policy everywhere
    push: PushOptions | None = None  # None = browsers are not notified
    windows: WorkerWindows | None = None  # of this channel at other workers; None = there are none
    connections: WorkerConnections | None = None  # of all workers; None = there are no others
    # The tokens of a turn that began at a time. Raises StoreUnavailable.
    turn_usage: Callable[[str, datetime], Awaitable[TurnUsage]] | None = None
    # A model's answer to the text of a message, within its sender's caps; nothing is stored of either. None: its sender
    # is not admitted. Raises CapReached and ModelFailed.
    answer_stateless: Callable[[InboundMessage], Awaitable[StatelessAnswer | None]] | None = None

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


log = structlog.get_logger(__name__)

NEWEST = 50  # messages (docs/admins.md)
_HISTORY_PATIENCE = 5.0  # seconds; history is optional, so turns wait no longer for it
_AT_ONCE = 4  # downloads, so that they hold a bounded part of the memory
_PATIENCE = 60.0  # seconds for one file


class ChannelHistory:
    """Messages before a mention, of senders that the chat admits, over the channels that have a history."""

    def __init__(self, channels: Mapping[str, Channel], *, admits: Callable[[InboundMessage], bool]) -> None:
        """Read through *channels*; *admits* judges each message by its sender's facts, and notes nothing."""
        self._channels = channels
        self._admits = admits

    async def messages_before(self, message: InboundMessage, *, since: datetime | None) -> tuple[InboundMessage, ...]:
        """Return messages of admitted people before *message*, oldest first; () without an answer. Never raises.

        The start of its thread comes first, also the bot's own; an author that the chat does not admit is UNKNOWN.
        """
        channel = self._channels.get(message.key.channel)
        if not isinstance(channel, SupportsHistory):
            return ()
        try:
            async with asyncio.timeout(_HISTORY_PATIENCE):
                said = await channel.messages_before(message, since=since, limit=NEWEST)
        except (ParlourError, TimeoutError) as error:
            log.warning("overheard.unanswered", key=str(message.key), reason=str(error) or type(error).__name__)
            return ()
        except Exception:  # the channel boundary: a turn can do without
            log.exception("overheard.failed", key=str(message.key))
            return ()
        found = [each for each in said if not each.sender.is_self and self._admits(each)]
        start = next((each for each in said[:1] if each.message_id and each.message_id == message.key.thread), None)
        if start is None or start in found[:1]:
            return tuple(found)
        if not start.sender.is_self:
            start = replace(start, sender=replace(start.sender, id=UNKNOWN))
        return (start, *found)

    def admits(self, message: InboundMessage, sender: str) -> bool:
        """Return True if the person *sender* is admitted by id alone; a sender admitted by a role is not."""
        return sender != UNKNOWN and self._admits(replace(message, sender=Sender(id=sender)))


class ChannelAttachmentFetcher:
    """Fetches the bytes of attachments of admitted messages, over the channels that carry files."""

    def __init__(self, channels: Mapping[str, Channel], *, most_mb: int) -> None:
        """Fetch through *channels*, files of at most *most_mb* megabytes."""
        self._channels = channels
        self._most_mb = most_mb
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def fetch(self, key: SessionKey, attachment: Attachment) -> bytes:
        """Return the whole file. Raises FileUnavailable with a short phrase for users ("larger than 20 MB")."""
        channel = self._channels.get(key.channel)
        if not isinstance(channel, SupportsFiles):
            raise FileUnavailable("files cannot be fetched here")
        self._fits(attachment.size)
        async with self._slots:
            try:
                async with asyncio.timeout(_PATIENCE):
                    return await self._read(channel, attachment)
            except TimeoutError:
                raise FileUnavailable("it took too long to download") from None
            except FileUnavailable:
                raise
            except Exception as error:  # the channel boundary: the message is answered without its file
                log.exception("files.fetch_failed", channel=key.channel)
                raise FileUnavailable("it could not be downloaded") from error

    async def _read(self, channel: SupportsFiles, attachment: Attachment) -> bytes:
        data = bytearray()
        # Sizes from the platform may be wrong, so received bytes are counted too.
        async with aclosing(channel.fetch(attachment)) as pieces:
            async for piece in pieces:
                data += piece
                self._fits(len(data))
        return bytes(data)

    def _fits(self, size: int) -> None:
        if size > self._most_mb * 1_000_000:
            raise FileUnavailable(f"larger than {self._most_mb} MB")
