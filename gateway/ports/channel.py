"""What a channel is to the rest of the house."""

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
    """What became of a message at the door."""

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
    """Where a message event comes from, as far as that can be told without parsing it."""

    chat: str  # the chat part of its session key
    sender: str  # the user's id
    message_id: str = ""
    guild: str = ""  # the Discord server
    is_direct: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformEvent:
    """One event as the platform gave it, before anybody has read it."""

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
        """Return what `allow_from` would have to name to let everybody there in."""
        return f"chat:{self.chat}" if self.chat else f"guild:{self.guild}"


class Intake(Protocol):
    """Where an adapter hands over what it parsed. Admit and accept happen behind it."""

    @property
    def is_cautious(self) -> bool:
        """Say whether the last two runs were killed: then events are fetched and handled one at a time."""
        ...

    async def handle(self, event: PlatformEvent, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work*, which parses *event* and hands it to `receive`; on return the platform may be told.

        An event that cannot be read (Unreadable) is quarantined. One that breaks us (a bug) raises twice,
        so that it comes again, and is quarantined the third time. While `is_cautious`, the event is on disk
        while *work* runs: one that is there at two crashes is quarantined, and then passed over. After the first
        it is handled once more, when the platform brings it again or by `SupportsReplay`.
        Other ParlourErrors (StoreUnavailable, SendFailed) pass through and count for nothing.
        """
        ...

    async def receive(self, message: InboundMessage) -> IntakeResult:
        """Admit and store *message*; return when it is durable.

        Raises StoreUnavailable when it could not be stored: do not ack, the platform will deliver again.
        """
        ...

    async def membership_changed(self, place: MembershipChange) -> None:
        """Take note that we were added to *place*, or are gone from it; on return the platform may be told.

        It may be told twice under one id. Whether anybody there may speak is judged by what they say. Raises
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
    """What a chat may be shown while a turn runs; `text` empty = plain typing, `on` False = over."""

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
        """Say whether the channel hears its platform now."""
        ...

    def is_watched(self, key: SessionKey) -> bool:
        """Say whether a stream in this chat would be seen."""
        ...

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
        """Cut and format *message* for the platform; pure, the same parts every time, and safe in a thread.

        The first part holds the first *least* characters of the clean text, where they fit: a preview showed them.
        """
        ...

    async def send(self, part: MessagePart, *, marked: bool = False) -> DeliveryReceipt:
        """Send one part; *marked* = it may repeat one that was already seen, say so visibly.

        An empty `payload` means: send `plain` as it stands, without formatting. The mark is the
        channel's to add, in its dialect and within its limit: the sentence `delivery.may_repeat`.
        A part that `is_placed` must not ring, where the platform can send silently.
        What is `visible_to` the very person whose id the key's chat is goes into their direct chat, opened if need be.
        Its `choices` are buttons below it; a press is an inbound BUTTON of whoever pressed. One that `settles`
        answers a press, whose turn is the part's: that row of buttons is taken away, if it still can be.
        Raises RetryLater, SendRefused, FormatRefused or OutcomeUnknown; for a part with a `file` whose
        bytes are lost (`Blobs.get` gives None) FileUnavailable: delivery then sends a line in its place.
        """
        ...

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace what stands under *message_id*; the same errors as send. "Not modified" is success."""
        ...

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Ask the platform whether *part* stands there; None = certainly not. Raises OutcomeUnknown."""
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
        """Return what a block says; as it is by default for one that says nothing."""
        return cls(**{name: getattr(block, name) for name in cls.__slots__ if hasattr(block, name)})


@dataclass(frozen=True, slots=True)
class ReplyPolicies:
    """What was decided for places of a block: by what is most specific."""

    of: Callable[[str, str], ReplyPolicy]  # a chat or thread ("C042/1712.34"), and its guild
    every: frozenset[ReplyPolicy]  # all that there are anywhere in the block


async def none_open(_: SessionKey) -> frozenset[str]:
    """Return that no message of a session waits for its answer."""
    return frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelContext:
    """What a channel is built from."""

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
        """Return how people are answered in *chat*, a thread's own manners included; a few dictionary look-ups."""
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
    """What an entry point in `parlour.channels` names: one platform."""

    name: str  # the `kind` of a configuration block
    settings: type[Any]  # a pydantic model of the block

    def open(self, context: ChannelContext) -> Channel:
        """Build a channel; connect nothing yet."""
        ...

    def routes(self, channel: Channel) -> Sequence[Any]:
        """Return Starlette routes to mount on the gateway's web server, or nothing."""
        ...

    def check(self, settings: Any, environment: Mapping[str, str]) -> Sequence[str]:
        """Return what is wrong with the block, one line each that says how to mend it; no network."""
        ...
