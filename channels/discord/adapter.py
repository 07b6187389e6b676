"""Discord's channel: connections that are kept, and answers that are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import discord
import structlog

from channels.discord import codec
from channels.discord.client import GatewayClient
from channels.discord.connection import Connection, refused
from channels.discord.finding import find
from channels.discord.follows import Follows
from channels.discord.inbound import Inbound
from channels.discord.marks import Marks
from channels.discord.rest import Rest
from channels.discord.signs import Signs
from gateway.errors import RetryLater, SendRefused, UserMistake
from gateway.events import InboundKind, InboundMessage, OutboundKind, OutboundMessage, Part, Receipt, SessionKey
from gateway.ports import Accepted, Activity, Capabilities, ChannelContext, Verdict
from gateway.words import say

log = structlog.get_logger(__name__)

CAPABILITIES = Capabilities(
    text_limit=codec.LIMIT,
    max_parts=codec.MOST_PARTS,
    edits=True,
    send_key=True,
    send_key_for=timedelta(minutes=2),  # the nonce is remembered for "a few minutes"
    rings=True,
    preview_every=timedelta(seconds=1.2),
    shows_activity=True,
)

_FATAL_PAUSE = 900.0  # after a refused token or intent: each try costs one of the day's 1,000 IDENTIFYs
_NOT_YET = timedelta(seconds=2)
_FRESH = timedelta(minutes=10)  # a reaction on what is older would only startle


class DiscordChannel:
    """The Channel port over Discord's gateway and REST."""

    capabilities = CAPABILITIES

    def __init__(
        self,
        context: ChannelContext,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        identify_pause: float = 5.0,
        proxy: str | None = None,
    ) -> None:
        self.name = context.name
        self._settings = context.settings
        self._now = now
        addresses: dict[str, Any] = {
            "api_url": context.settings.api_url,
            "gateway_url": context.settings.gateway_url,
            "proxy": proxy,
        }
        self._rest = Rest(**addresses)
        self._signs = Signs(self._rest, name=self.name, reaction=context.settings.reaction)
        marks = Marks(context.state, now)
        follows = Follows(context.state, is_on=getattr(context.settings, "follow_threads", True))
        inbound = Inbound(self.name, context.intake, self._rest, marks, follows, now=now, answered=self._answered)
        make = partial(GatewayClient, **addresses, identify_pause=identify_pause)
        self._connection = Connection(self.name, inbound, marks, make=make, now=now)
        self._was_refused = False

    # Receiving.

    async def run(self) -> None:
        """Receive until cancelled. Raises when Discord refuses us, or cannot be reached from the start."""
        if self._was_refused:
            await asyncio.sleep(_FATAL_PAUSE)
        try:
            if not self._rest.me:
                await self._rest.login(self._token)
            await self._connection.run(self._token)
        except discord.LoginFailure:
            self._was_refused = True
            raise refused(self.name, "token") from None
        except UserMistake:
            self._was_refused = True
            raise

    @property
    def _token(self) -> str:
        token: str = self._settings.token.get_secret_value()
        return token

    def _answered(self, chat: str, message: InboundMessage, accepted: Accepted) -> None:
        """Show the sender what became of their message."""
        if accepted.line:
            post = partial(self._rest.post, chat, accepted.line, nonce=f"line{message.message_id}")
            self._signs.begin(partial(post, reply_to=message.message_id), "line")
        is_new = message.kind is InboundKind.MESSAGE and not message.revision
        if accepted.verdict is Verdict.ACCEPTED and is_new and self._now() - message.sent_at < _FRESH:
            self._signs.heard(chat, message.message_id)

    # The port.

    def is_ready(self) -> bool:
        """Say whether Discord was heard within twice its heartbeat."""
        return self._connection.is_ready()

    def is_watched(self, key: SessionKey) -> bool:  # noqa: ARG002 - the port's signature
        """Every chat may have readers: Discord does not say."""
        return True

    def render(self, message: OutboundMessage) -> Sequence[Part]:
        """Cut and write *message* in Discord's Markdown."""
        return codec.render(message)

    async def send(self, part: Part, *, marked: bool = False) -> Receipt:
        """Post *part* under its id as nonce; the library's own repeats find the message that stands."""
        self._must_be_logged_in()
        text = codec.written(part, marked=marked)
        if part.visible_to:
            message_id = await self._whisper(part, text)
        else:
            chat = _chat(part.key)
            message_id = await self._rest.post(chat, text, nonce=part.id, reply_to=_reply_to(part))
            if part.kind is not OutboundKind.PREVIEW:
                self._signs.answered(chat, part.reply_to)
        return Receipt(part=part.id, message_id=message_id, at=self._now())

    async def _whisper(self, part: Part, text: str) -> str:
        """Send what one person alone may see: as a direct message; where they take none, one line says so."""
        try:
            return await self._rest.post(await self._rest.direct(part.visible_to), text, nonce=part.id)
        except SendRefused:
            # One line for all parts of the message: they share the key.
            line, _, _ = part.id.rpartition(".")
            return await self._rest.post(
                _chat(part.key), say("discord.write_privately"), nonce=f"{line}.0p", reply_to=part.reply_to
            )

    async def edit(self, message_id: str, part: Part) -> Receipt:
        """Replace what stands under *message_id*."""
        self._must_be_logged_in()
        chat = await self._rest.direct(part.visible_to) if part.visible_to else _chat(part.key)
        await self._rest.edit(chat, message_id, codec.written(part))
        if part.kind is not OutboundKind.PREVIEW:
            self._signs.answered(chat, part.reply_to)
        return Receipt(part=part.id, message_id=message_id, at=self._now())

    async def find(self, part: Part) -> Receipt | None:
        """Look for *part* among what we said after the message it answers."""
        self._must_be_logged_in()
        chat = await self._rest.direct(part.visible_to) if part.visible_to else _chat(part.key)
        found = await find(self._rest, chat, part, self._now())
        return Receipt(part=part.id, message_id=found, at=self._now()) if found else None

    async def show(self, activity: Activity) -> None:
        """Type as long as the work lasts; Discord has no room for a status text."""
        if self._rest.me:
            self._signs.typing(_chat(activity.key), on=activity.on)

    async def close(self) -> None:
        """End typing and release the connections."""
        await self._signs.close()
        await self._rest.close()

    def _must_be_logged_in(self) -> None:
        if not self._rest.me:
            raise RetryLater(_NOT_YET, "not logged in yet")


def _chat(key: SessionKey) -> str:
    """Return the Discord channel behind a session: the thread where it is one."""
    return key.thread or key.chat


def _reply_to(part: Part) -> str:
    """Only the first part shows what it answers."""
    return part.reply_to if part.id.endswith(".1") and part.reply_to.isdigit() else ""
