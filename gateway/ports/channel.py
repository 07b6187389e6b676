"""The Channel port, and the types that channels exchange with the gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from gateway.events import DeliveryReceipt, InboundMessage, MessagePart, OutboundMessage, Sender, SessionKey
from gateway.ports.files import BlobStore
from gateway.ports.locales import in_english
from gateway.ports.memory import SessionReader


class IntakeVerdict(StrEnum):
    """Result of handing a message to the intake."""

    ACCEPTED = "accepted"  # durable (or a duplicate of what is): the platform may be told
    FULL = "full"  # durable as refused; the chat was told
    REJECTED = "rejected"  # not admitted: nothing was stored


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeResult:
    """The gateway's answer to `Intake.receive`."""

    verdict: IntakeVerdict
    reason: str = ""  # why it was rejected (a word of admission's table), never for strangers' eyes
    line: str = ""  # one line the sender may be shown, or ""


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

    channel: str  # the block's name
    id: str  # the same when the platform brings it again
    raw: str  # as it came; for the quarantine, never for a log
    origin: EventOrigin | None = None  # whom to tell when it is set aside; None: nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipChange:
    """We were added to a place where several people are, or are gone from it. Said by the platform, not by a person.

    A place is a chat (Telegram, Slack) or a whole server (Discord: *chat* is empty).
    """

    channel: str  # the block's name
    id: str  # the same when the platform brings it again
    chat: str = ""  # the chat part of its session key; "" for a whole server
    guild: str = ""  # the Discord server
    team: str = ""  # the Slack workspace
    title: str = ""  # what people there call it: one line, for reading; it never decides anything
    by: Sender | None = None  # who did it, where the platform says; their rights are as unknown as anybody's
    is_gone: bool = False  # taken away again, or left

    @property
    def entry(self) -> str:
        """Return the `allow_from` entry that would admit every member of the chat."""
        return f"chat:{self.chat}" if self.chat else f"guild:{self.guild}"


class Intake(Protocol):
    """Receives parsed messages from adapters, then admits and accepts them."""

    @property
    def is_cautious(self) -> bool:
        """Return True if the last two runs were killed: events are then fetched and handled one at a time."""
        ...

    async def handle(self, event: PlatformEvent, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work*, which parses *event* and passes it to `receive`. Acknowledge the event when the call returns.

        An event that cannot be parsed (UnreadableEvent) is quarantined. If *work* fails with a bug, the exception is
        raised twice, so that the platform delivers the event again, and the event is quarantined the third time. While
        `is_cautious`, the event is on disk while *work* runs: an event that is there at two crashes is quarantined and
        skipped. After the first crash it is handled once more, when the platform delivers it again or by
        `SupportsReplay`. Other ParlourErrors (StoreUnavailable, SendFailed) are raised and not counted.
        """
        ...

    async def receive(self, message: InboundMessage) -> IntakeResult:
        """Admit and store *message*; return when it is durable.

        Raises StoreUnavailable when it could not be stored: do not ack, the platform will deliver again.
        """
        ...

    async def membership_changed(self, place: MembershipChange) -> None:
        """Handle that the bot was added to or removed from a chat. Acknowledge the event when the call returns.

        Calls with the same id are idempotent. Admission of members is decided at their messages. Raises
        StoreUnavailable like `receive`.
        """
        ...


class ChannelState(Protocol):
    """A channel's own small durable notes (high-water marks, login sessions), by name."""

    async def load(self, name: str) -> str | None:
        """Return a note, or None."""
        ...

    async def save(self, name: str, value: str | None) -> None:
        """Store a note durably; None removes it."""
        ...

    async def all(self, prefix: str) -> Mapping[str, str]:
        """Return the notes whose names begin with *prefix*, which is not empty, by name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCapabilities:
    """A channel's limits and manners, as data."""

    text_limit: int  # per part, in `unit`
    unit: str = "characters"  # characters, utf16 or bytes
    edits: bool = False  # a sent part can be edited in place
    finds: bool = False  # `find` knows, as a rule: an unknown need not be marked
    send_key: bool = False  # the platform recognises a repeated part id, so an unknown may be sent again
    send_key_for: timedelta | None = None  # for how long it does; None = always
    rings: bool = False  # a new message calls people who are not looking; an edit does not
    preview_every: timedelta | None = None  # shortest time between preview edits; None = no previews
    shows_activity: bool = False  # typing or status
    file_limit: int = 0  # bytes of one file that can be sent; 0 = none can
    max_parts: int = 40  # a longer answer is cut, and says so (TRUST.md F14)
    group_parts: int = 3  # a longer answer in a group is its beginning and a file, where files can be sent
    choices: int = 0  # buttons below one message; where they do not suffice, the text says the commands
    private_choices: bool = False  # in a shared chat, what one person alone sees can have them: it stands in that chat


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
        ...

    def is_ready(self) -> bool:
        """Return True if the channel is connected and receiving events."""
        ...

    def is_watched(self, key: SessionKey) -> bool:
        """Return True if a user would see a stream in this chat."""
        ...

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
        """Cut and format *message* for the platform; pure, the same parts every time, and safe in a thread.

        The first part holds the first *least* characters of the clean text, where they fit: a preview showed them.
        """
        ...

    async def send(self, part: MessagePart, *, marked: bool = False) -> DeliveryReceipt:
        """Send one part. With *marked*, add a visible notice that the part may be a repeat.

        The notice is `delivery.may_repeat`, added in the platform's markup and within its limit. An empty `payload`
        means: send `plain` unformatted. A part that `is_placed` is sent silently, where the platform can. If
        `visible_to` is the id of the key's chat, the part goes to that user's direct chat, which is opened if needed.
        `choices` are buttons below the part; a press is an inbound BUTTON message of its sender. A part that `settles`
        answers a press of its turn: that row of buttons is removed if possible.
        Raises RetryLater, SendRefused, FormatRefused or OutcomeUnknown, and FileUnavailable for a `file` whose bytes
        are lost: delivery then sends a line in its place.
        """
        ...

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace the message *message_id*. Raises the errors of `send`; "not modified" is success."""
        ...

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Return the receipt of *part* if the platform has it; None if it certainly has not. Raises OutcomeUnknown."""
        ...

    async def show(self, activity: ChatActivity) -> None:
        """Show or end typing or a status; failures are the channel's own affair and never raise."""
        ...

    async def close(self) -> None:
        """Release connections; called once, after run has ended."""
        ...


@dataclass(frozen=True, slots=True)
class ReplyPolicy:
    """How people are answered in one chat."""

    reply_in: str = "channel"  # or "thread"
    follow_threads: bool = True
    group_policy: str = "mention"  # or "open", "off"; admission judges by it, a channel may explain it

    @classmethod
    def of_block(cls, block: Any) -> ReplyPolicy:
        """Return the policy of a channel's settings, with defaults for missing values."""
        return cls(**{name: getattr(block, name) for name in cls.__slots__ if hasattr(block, name)})


@dataclass(frozen=True, slots=True)
class ReplyPolicies:
    """Reply policies of a channel's chats; the most specific override applies."""

    of: Callable[[str, str], ReplyPolicy]  # a chat or thread ("C042/1712.34"), and its guild
    every: frozenset[ReplyPolicy]  # all that there are anywhere in the block


async def none_open(_: SessionKey) -> frozenset[str]:
    """Return that no message of a session waits for its answer."""
    return frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelContext:
    """Arguments a channel is built from."""

    name: str  # the block's name
    settings: Any  # the block, an instance of the kind's own settings model
    intake: Intake
    state: ChannelState
    blobs: BlobStore  # the bytes of parts that are files
    sessions: SessionReader  # what was said, for channels that show history themselves
    open_messages: Callable[[SessionKey], Awaitable[Collection[str]]] = none_open  # ids that wait for their answer
    language: Callable[[SessionKey], str] = in_english  # of the sentences of ours in a chat
    folder: Path | None = None  # for files of the channel's own; it is made by whoever writes first
    proxy: str = field(default="", repr=False)  # for gateway.net, whatever the channel connects to; "" = none; secret
    manners: ReplyPolicies | None = None  # None: as the block says, everywhere

    def reply_policy(self, chat: str, guild: str = "") -> ReplyPolicy:
        """Return the reply policy of *chat*, a thread's own overrides included. Cheap: a few dictionary look-ups."""
        return ReplyPolicy.of_block(self.settings) if self.manners is None else self.manners.of(chat, guild)

    def manners_anywhere(self) -> frozenset[ReplyPolicy]:
        """Return every way in which people of the block are answered."""
        return frozenset({ReplyPolicy.of_block(self.settings)}) if self.manners is None else self.manners.every


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
        ...

    def routes(self, channel: Channel) -> Sequence[Any]:
        """Return Starlette routes to mount on the gateway's web server, or nothing."""
        ...

    def check(self, settings: Any, environment: Mapping[str, str]) -> Sequence[str]:
        """Return the errors of a settings block, one line each with its remedy. Uses no network."""
        ...
