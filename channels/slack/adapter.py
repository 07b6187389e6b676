"""A Slack app in one workspace: hears by Socket Mode or HTTP, speaks by the Web API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from channels.slack import codec
from channels.slack.activity import SlackActivity
from channels.slack.api import ForeignAnswer, SlackApi, SlackRefusal, SlackTokenRejected, is_slack, not_slack, scopes_of
from channels.slack.buttons import SlackButtons
from channels.slack.catchup import SlackCatchUp
from channels.slack.files import SlackFiles
from channels.slack.history import SlackHistory
from channels.slack.inbound import SlackInbound
from channels.slack.joined import HeardUntil, JoinedChannels
from channels.slack.outbound import SlackOutbound
from channels.slack.pages import HistoryPages
from channels.slack.reactions import SlackReactions
from channels.slack.sent_lookup import find_sent_part, missing_scopes
from channels.slack.settings import SlackSettings
from channels.slack.socket_mode import PING, SlackSocketMode
from channels.slack.streams import SlackStreams
from channels.slack.uploads import LIMIT, SCOPE, SlackUploads
from gateway.errors import LoginRefused, ParlourError, SendRefused, SettingsError
from gateway.events import (
    Attachment,
    DeliveryReceipt,
    InboundMessage,
    MessagePart,
    OutboundKind,
    OutboundMessage,
    Sender,
    SessionKey,
)
from gateway.i18n import translate
from gateway.ports import ChannelCapabilities, ChannelContext, ChatActivity, PlatformEvent

log = structlog.get_logger(__name__)

_BUTTONS = 20  # below one message; Slack takes 25 in each row
_EVERY = timedelta(seconds=1.2)  # between the edits of one preview


class SlackChannel:
    """One configured block: `Channel`, `SupportsFiles`, `SupportsHistory`, `SupportsSenderLookup`."""

    def __init__(self, context: ChannelContext, *, ping: timedelta = PING) -> None:
        settings: SlackSettings = context.settings
        if settings.bot_token is None:
            raise SettingsError(f"channels.{context.name} needs a bot_token (xoxb-…)")
        self.name = context.name
        self.capabilities = ChannelCapabilities(
            text_limit=codec.LIMIT,
            edits=True,
            finds=True,
            rings=True,
            preview_every=_EVERY,
            shows_activity=True,
            file_limit=LIMIT,
            choices=_BUTTONS,
            private_choices=True,
        )
        self._app_token = settings.app_token.get_secret_value() if settings.app_token else ""
        self._by_http = settings.by_http
        self._language = context.language
        self._base_url = settings.base_url
        self._signing_secret = settings.signing_secret.get_secret_value() if settings.signing_secret else ""
        self._ping = ping
        self._api = SlackApi(settings.bot_token.get_secret_value(), settings.base_url, proxy=context.proxy)
        self._errands = SlackReactions(context, self._api)
        presses = SlackButtons(self._errands)
        self._ears = SlackInbound(context, self._api, self._errands, presses)
        self._history = SlackHistory(context, self._api, self._ears)
        pages = HistoryPages(self._api)
        self._heard_until = HeardUntil(context.state)
        self._catch_up = SlackCatchUp(
            pages,
            self._ears,
            heard_until=self._heard_until,
            joined=JoinedChannels(pages, self._ears, lambda: self._scopes),
            is_hearing=self.is_ready,
        )
        self._status = SlackActivity(self._api, self._language)
        self._streams = SlackStreams(self._api, self._ears.asker) if settings.streaming == "native" else None
        self._speech = SlackOutbound(self._api, self._errands, self._streams, presses, self._language)
        self._uploads = SlackUploads(self._api, context.blobs, context.state)
        self._downloads = SlackFiles(self._api, settings.base_url)
        self._socket: SlackSocketMode | None = None
        self._serving: codec.SlackBotIdentity | None = None  # by HTTP, while we run
        self._me: codec.SlackBotIdentity | None = None
        self._scopes: frozenset[str] = frozenset()

    # -- receiving -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Listen until cancelled; raise LoginRefused when a token is not taken (any more), or what else is wrong."""
        if not self._app_token and not self._by_http:
            raise SettingsError(f"channels.{self.name} needs an app_token (xapp-…), or a signing_secret for HTTP")
        try:
            me = await self._identify(anew=True)
        except SlackTokenRejected as error:
            raise self._refused(error.code) from None
        except (SlackRefusal, ForeignAnswer) as error:
            if is_slack(self._base_url):
                raise
            raise SettingsError(f"channels.{self.name}: {not_slack(self._base_url, str(error))}") from None
        await self._ears.marks.load()
        await self._heard_until.load()
        log.info("slack.listening", channel=self.name, team=me.team, user=me.user, by_http=self._by_http)
        refusal: ParlourError | None = None
        async with asyncio.TaskGroup() as tasks:
            beside = [
                tasks.create_task(self._errands.run(), name=f"{self.name} errands"),
                tasks.create_task(self._status.run(), name=f"{self.name} status"),
                tasks.create_task(self._catch_up.run(me), name=f"{self.name} catch-up"),
            ]
            try:
                await self._listen_while_let(me)
            except ParlourError as error:
                refusal = error  # raised below as what it is, not as a group of one
            for task in beside:
                task.cancel()
        if refusal is not None:
            raise refusal

    async def _listen_while_let(self, me: codec.SlackBotIdentity) -> None:
        """Listen until a call of ours is refused for its token: that is nothing to wait for."""
        listening = asyncio.create_task(self._listen(me), name=f"{self.name} listens")
        refused = asyncio.create_task(self._api.refused.wait(), name=f"{self.name} is let in")
        both = {listening, refused}
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)
        if listening in done:
            return listening.result()
        raise self._refused("it was revoked")

    def _refused(self, why: str) -> LoginRefused:
        return LoginRefused(
            f"channels.{self.name}: Slack refuses the token: {why}; copy it again from the app's page, OAuth &"
            " Permissions, Bot User OAuth Token"
        )

    async def _listen(self, me: codec.SlackBotIdentity) -> None:
        try:
            if self._by_http:
                self._serving = me
                self._catch_up.request()
                await asyncio.Event().wait()
            self._socket = SlackSocketMode(
                self._app_token,
                self._api.client,
                lambda body: self._ears.handle_event(body, me),
                returned=self._catch_up.request,
                ping=self._ping,
                proxy=self._api.proxy,
            )
            await self._socket.run()
        finally:
            self._socket = self._serving = None

    def routes(self) -> Sequence[Any]:
        """Return where Slack brings events to, if that is how they come."""
        if not self._by_http:
            return ()
        from channels.slack.webhook import SlackWebhook

        return (SlackWebhook(self.name, self._signing_secret, self.receive_event).route(),)

    async def receive_event(self, body: dict[str, Any]) -> bool:
        """Take in what Slack brought by HTTP; False = not durable, or not now: it shall bring it again."""
        return self._serving is not None and await self._ears.handle_event(body, self._serving)

    async def replay(self, event: PlatformEvent) -> None:
        """Take in a payload that the quarantine kept; see `gateway.ports.SupportsReplay`."""
        await self._ears.replay(json.loads(event.raw), await self._identify())

    async def _identify(self, *, anew: bool = False) -> codec.SlackBotIdentity:
        if self._me is None or anew:
            answer = await self._api.post("auth.test")
            self._scopes = scopes_of(answer)
            self.capabilities = self._able(self._scopes)
            self._me = codec.SlackBotIdentity(
                user=str(answer["user_id"]),
                bot=str(answer.get("bot_id") or ""),
                team=str(answer["team_id"]),
                handle=str(answer.get("user") or "parlour"),
            )
        return self._me

    def _able(self, scopes: frozenset[str]) -> ChannelCapabilities:
        """Return what we can do by *scopes*: better no file to begin with than one that may not be sent."""
        if not scopes:  # Slack did not say
            return self.capabilities
        lacks = {scope for chat in "CD" for scope in missing_scopes(chat, scopes)}
        return replace(self.capabilities, finds=not lacks, file_limit=LIMIT if SCOPE in scopes else 0)

    def is_ready(self) -> bool:
        """Say whether Slack gave a sign of life within two ping intervals; by HTTP, whether it knew our token."""
        return self._serving is not None or (self._socket is not None and self._socket.is_heard())

    def is_watched(self, key: SessionKey) -> bool:  # noqa: ARG002 - the port's signature
        """Slack does not say who looks on, so every chat is streamed to."""
        return True

    # -- files and what was said before ----------------------------------------------------------

    def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield a file that somebody sent; see `gateway.ports.SupportsFiles`."""
        return self._downloads.fetch(attachment)

    async def messages_before(
        self, message: InboundMessage, *, since: datetime | None, limit: int
    ) -> Sequence[InboundMessage]:
        """Return what was said before us; see `gateway.ports.SupportsHistory`."""
        return await self._history.messages_before(message, await self._identify(), since=since, limit=limit)

    async def sender(self, message: InboundMessage) -> Sender:
        """Return who sent *message*, as they are now; see `gateway.ports.SupportsSenderLookup`."""
        return await self._ears.stewards.sender(message, await self._identify())

    # -- sending -------------------------------------------------------------------------------

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
        """Cut and format for Slack."""
        return codec.render(
            message, max_parts=self.capabilities.max_parts, language=self._language(message.key), least=least
        )

    async def send(self, part: MessagePart, *, marked: bool = False) -> DeliveryReceipt:
        """Post one part; the send key rides in its metadata."""
        if part.file is not None:
            return _receipt(part, await self._send_file(part, part.file, marked=marked))
        return _receipt(part, await self._speech.post(part, marked=marked))

    async def _send_file(self, part: MessagePart, file: Attachment, *, marked: bool) -> str:
        if part.visible_to and not part.key.chat.startswith("D"):
            await self._speech.refer_to_privacy(part)
            raise SendRefused("Slack shows no file to one person alone")
        try:
            mark = translate("delivery.may_repeat", self._language(part.key)) if marked else ""
            return await self._uploads.send(part, file, mark=mark)
        except SlackRefusal as error:
            if error.code != "missing_scope":
                raise
            log.warning("slack.no_files", channel=self.name, needs=error.needed or SCOPE)
            self.capabilities = replace(self.capabilities, file_limit=0)
            return await self._speech.post_replacement(
                part, translate("slack.no_files", self._language(part.key), name=file.name)
            )

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace the text under *message_id*; its key becomes the part's."""
        await self._speech.edit(message_id, part)
        return _receipt(part, message_id)

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Read back whether *part* stands in the chat, by the key in its metadata, or by its file."""
        me = await self._identify()
        if part.file is not None:
            ident = await self._uploads.find(part, self._scopes)
            if ident or self.capabilities.file_limit:
                return _receipt(part, ident) if ident else None
        streams = self._streams is not None and part.kind is OutboundKind.PREVIEW and bool(part.key.thread)
        ts = await find_sent_part(self._api, part, me, self._scopes, streams=streams)
        return _receipt(part, ts) if ts else None

    # -- the rest ------------------------------------------------------------------------------

    async def show(self, activity: ChatActivity) -> None:
        """Show a status in a thread, where Slack lets us; elsewhere there is nothing to show it with."""
        await self._status.show(activity)

    async def close(self) -> None:
        """Close the connections."""
        await self._errands.reactions.close()
        await self._ears.people.close()
        await self._api.close()


def _receipt(part: MessagePart, message_id: str) -> DeliveryReceipt:
    return DeliveryReceipt(part=part.id, message_id=message_id, at=datetime.now(UTC))
