"""Optional capabilities of channels and plugins, one Protocol each, and what the agent reads through them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from gateway.events import Attachment, InboundMessage, Sender, SessionKey
from gateway.ports.channel import PlatformEvent


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


@runtime_checkable
class SupportsLogin(Protocol):
    """A channel that people log in to."""

    name: str

    @property
    def wrong_codes(self) -> int:
        """The number of wrong codes since the start."""

    async def issue_code(self, name: str = "") -> str:
        """Return a login code, good once; "" is the owner's. Raises UserError for an invalid name."""

    async def logged_in(self) -> Sequence[Mapping[str, object]]:
        """Return the users that are logged in: `who`, the number of `browsers`, and `until`."""

    async def log_out(self, who: str) -> int:
        """End every login of *who* at once; return the number of browsers."""


class HistoryReader(Protocol):
    """Access to the messages before a mention, restricted to senders that the chat admits."""

    async def messages_before(self, message: InboundMessage, *, since: datetime | None) -> tuple[InboundMessage, ...]:
        """Return the messages, oldest first; () if the platform did not answer in time. Never raises.

        The start of the thread of *message* comes first, also the bot's own; an author that the chat does not admit
        is UNKNOWN.
        """

    def admits(self, message: InboundMessage, sender: str) -> bool:
        """Return True if the person *sender* is admitted in the chat of *message*."""
