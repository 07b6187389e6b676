"""Slack's channel: wires receiving and sending of an app in one workspace."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import structlog

from channels.kit.bodies import build_receipt
from channels.slack import SlackSettings
from channels.slack.api import ForeignAnswer, SlackApi, SlackRefusal, SlackTokenRejected, is_slack, not_slack, scopes_of
from channels.slack.connection import PING, SlackSocketMode
from channels.slack.history import HistoryPages, JoinedChannels, ReceivedUntil, SlackCatchUp, SlackHistory
from channels.slack.inbound import SlackInbound
from channels.slack.interactions import SlackInteractions, SlackReactions
from channels.slack.outbound import (
    UPLOAD_LIMIT,
    UPLOAD_SCOPE,
    SlackActivity,
    SlackFiles,
    SlackOutbound,
    SlackStreams,
    find_sent_part,
    missing_scopes,
)
from channels.slack.parse import SlackBotIdentity
from channels.slack.render import LIMIT, MOST_PARTS, render
from gateway.channel import ChannelContext
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
from gateway.ports.channel import ChannelCapabilities, ChatActivity, PlatformEvent

log = structlog.get_logger(__name__)

_BUTTON_LIMIT = 20  # below one message; Slack takes 25 in each row
_PREVIEW_INTERVAL = timedelta(seconds=1.2)


class SlackChannel:
    """One app. Implements `Channel` and the `Supports…` of files, history, replay, senders and one connection."""

    def __init__(self, context: ChannelContext, *, ping: timedelta = PING) -> None:
        settings: SlackSettings = context.settings
        if settings.bot_token is None:
            raise SettingsError(f"channels.{context.name} needs a bot_token (xoxb-…)")
        self.name = context.name
        self.capabilities = ChannelCapabilities(
            text_limit=LIMIT,
            max_parts=MOST_PARTS,
            edits=True,
            finds=True,
            rings=True,
            preview_every=_PREVIEW_INTERVAL,
            shows_activity=True,
            file_limit=UPLOAD_LIMIT,
            choices=_BUTTON_LIMIT,
            private_choices=True,
            mentions=True,
        )
        self._settings = settings
        self._app_token = settings.app_token.get_secret_value() if settings.app_token else ""
        self._language = context.language
        self._ping = ping
        self._api = SlackApi(settings.bot_token.get_secret_value(), settings.base_url, proxy=context.proxy)
        self._reactions = SlackReactions(context, self._api)
        interactions = SlackInteractions(context, self._api, self._reactions)
        self._inbound = SlackInbound(context, self._api, self._reactions, interactions)
        self._history = SlackHistory(context, self._api, self._inbound)
        pages = HistoryPages(self._api)
        self._received_until = ReceivedUntil(context.state)
        self._catch_up = SlackCatchUp(
            pages,
            self._inbound,
            received_until=self._received_until,
            joined_channels=JoinedChannels(pages, self._inbound, lambda: self._scopes),
            is_receiving=self.is_ready,
        )
        self._activity = SlackActivity(self._api, self._language)
        is_native = settings.streaming == "native"
        self._streams = SlackStreams(self._api, self._inbound.sender_of) if is_native else None
        self._outbound = SlackOutbound(self._api, self._streams, interactions, self._language)
        self._files = SlackFiles(self._api, settings.base_url, context.blobs, context.state)
        self._socket: SlackSocketMode | None = None
        self._webhook_bot: SlackBotIdentity | None = None  # while events come by HTTP
        self._bot: SlackBotIdentity | None = None
        self._scopes: frozenset[str] = frozenset()

    # -- receiving -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Receive until cancelled; raise LoginRefused for a rejected token, SettingsError for wrong settings."""
        if not self._app_token and not self._settings.by_http:
            raise SettingsError(f"channels.{self.name} needs an app_token (xapp-…), or a signing_secret for HTTP")
        bot = await self._log_in()
        await self._inbound.cursors.load()
        await self._received_until.load()
        self._reactions.acks.start()
        log.info("slack.listening", channel=self.name, team=bot.team, user=bot.user, by_http=self._settings.by_http)
        refusal: ParlourError | None = None
        async with asyncio.TaskGroup() as tasks:
            services = [
                tasks.create_task(self._activity.run(), name=f"{self.name} activity"),
                tasks.create_task(self._catch_up.run(bot), name=f"{self.name} catch-up"),
            ]
            try:
                await self._receive_until_refused(bot)
            except ParlourError as error:
                refusal = error  # raised below as itself, not in an exception group
            for task in services:
                task.cancel()
        if refusal is not None:
            raise refusal

    @property
    def connection(self) -> str:
        """Return the app whose socket only one worker opens; "" by HTTP. See `SupportsOneConnection`."""
        return "" if self._settings.by_http else _app_of(self._app_token)

    async def run_sender(self) -> None:
        """Send without receiving, until cancelled; raise as `run`. See `SupportsOneConnection`."""
        await self._log_in()
        await self._activity.run()

    async def _log_in(self) -> SlackBotIdentity:
        try:
            return await self._identify(anew=True)
        except SlackTokenRejected as error:
            raise self._login_refused(error.code) from None
        except (SlackRefusal, ForeignAnswer) as error:
            if is_slack(self._settings.base_url):
                raise
            raise SettingsError(f"channels.{self.name}: {not_slack(self._settings.base_url, str(error))}") from None

    async def _receive_until_refused(self, bot: SlackBotIdentity) -> None:
        """Receive until a call is refused for its token, which no retry can fix."""
        receiving = asyncio.create_task(self._receive_events(bot), name=f"{self.name} receives")
        refused = asyncio.create_task(self._api.refused.wait(), name=f"{self.name} token refused")
        both = {receiving, refused}
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)
        if receiving in done:
            return receiving.result()
        raise self._login_refused("it was revoked")

    def _login_refused(self, reason: str) -> LoginRefused:
        return LoginRefused(
            f"channels.{self.name}: Slack rejects the token: {reason}; copy it again from the app's page, OAuth &"
            " Permissions, Bot User OAuth Token"
        )

    async def _receive_events(self, bot: SlackBotIdentity) -> None:
        try:
            if self._settings.by_http:
                self._webhook_bot = bot
                self._catch_up.request()
                await asyncio.Event().wait()
            self._socket = SlackSocketMode(
                self._app_token,
                self._api.client,
                lambda body: self._inbound.receive(body, bot),
                on_return=self._catch_up.request,
                ping=self._ping,
                proxy=self._api.proxy,
            )
            await self._socket.run()
        finally:
            self._socket = self._webhook_bot = None

    def routes(self) -> Sequence[Any]:
        """Return the route of the webhook; none in Socket Mode."""
        if not self._settings.by_http or self._settings.signing_secret is None:
            return ()
        from channels.slack.connection import SlackWebhook

        return (SlackWebhook(self.name, self._settings.signing_secret.get_secret_value(), self.receive).route(),)

    async def receive(self, body: dict[str, Any]) -> bool:
        """Take in a webhook's payload; return False if it is not durable and Slack must redeliver it."""
        return self._webhook_bot is not None and await self._inbound.receive(body, self._webhook_bot)

    async def replay(self, event: PlatformEvent) -> None:
        """Take in a payload that was quarantined; see `SupportsReplay`."""
        await self._inbound.replay(event, await self._identify())

    async def _identify(self, *, anew: bool = False) -> SlackBotIdentity:
        if self._bot is None or anew:
            answer = await self._api.post("auth.test")
            self._scopes = scopes_of(answer)
            self.capabilities = self._capabilities_of(self._scopes)
            self._bot = SlackBotIdentity(
                user=str(answer["user_id"]),
                bot=str(answer.get("bot_id") or ""),
                team=str(answer["team_id"]),
                handle=str(answer.get("user") or "parlour"),
            )
        return self._bot

    def _capabilities_of(self, scopes: frozenset[str]) -> ChannelCapabilities:
        """Return the capabilities that *scopes* allow, so that no file is planned that cannot be sent."""
        if not scopes:  # Slack did not return them
            return self.capabilities
        missing = {scope for chat in "CD" for scope in missing_scopes(chat, scopes)}
        file_limit = UPLOAD_LIMIT if UPLOAD_SCOPE in scopes else 0
        return replace(self.capabilities, finds=not missing, file_limit=file_limit)

    def is_ready(self) -> bool:
        """Return True if Slack gave a sign of life within two ping intervals; by HTTP, if it accepted the token."""
        return self._webhook_bot is not None or (self._socket is not None and self._socket.is_connected())

    def is_watched(self, key: SessionKey) -> bool:  # noqa: ARG002 - the port's signature
        """Return True: Slack does not report readers."""
        return True

    # -- files, history, senders ---------------------------------------------------------------

    def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield a file that came with a message; see `SupportsFiles`."""
        return self._files.fetch(attachment)

    async def messages_before(
        self, message: InboundMessage, *, since: datetime | None, limit: int
    ) -> Sequence[InboundMessage]:
        """Return the messages before *message*; see `SupportsHistory`."""
        return await self._history.messages_before(message, await self._identify(), since=since, limit=limit)

    async def sender(self, message: InboundMessage) -> Sender:
        """Return the sender of *message* with their current rights; see `SupportsSenderLookup`."""
        return await self._inbound.members.sender(message, await self._identify())

    # -- sending -------------------------------------------------------------------------------

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
        """Split and format *message*."""
        return render(message, self._language, least=least)

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Send one part; its metadata carries the send key."""
        if part.file is not None:
            return build_receipt(part, await self._send_file(part, part.file, may_be_duplicate=may_be_duplicate))
        return build_receipt(part, await self._outbound.send(part, may_be_duplicate=may_be_duplicate))

    async def _send_file(self, part: MessagePart, file: Attachment, *, may_be_duplicate: bool) -> str:
        if part.visible_to and not part.key.chat.startswith("D"):
            await self._outbound.refer_to_privacy(part)
            raise SendRefused("Slack shows no file to one person alone")
        try:
            mark = translate("delivery.may_repeat", self._language(part.key)) if may_be_duplicate else ""
            return await self._files.send(part, file, mark=mark)
        except SlackRefusal as error:
            if error.code != "missing_scope":
                raise
            log.warning("slack.no_files", channel=self.name, needs=error.needed or UPLOAD_SCOPE)
            self.capabilities = replace(self.capabilities, file_limit=0)
            return await self._outbound.post_replacement(
                part, translate("slack.no_files", self._language(part.key), name=file.name)
            )

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace the text of a message; its send key becomes the part's."""
        await self._outbound.edit(message_id, part)
        return build_receipt(part, message_id)

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Look the part up by the send key in its metadata, or by its file."""
        bot = await self._identify()
        if part.file is not None:
            file_id = await self._files.find(part, self._scopes)
            if file_id or self.capabilities.file_limit:
                return build_receipt(part, file_id) if file_id else None
        streams = self._streams is not None and part.kind is OutboundKind.PREVIEW and bool(part.key.thread)
        ts = await find_sent_part(self._api, part, bot, self._scopes, streams=streams)
        return build_receipt(part, ts) if ts else None

    async def show(self, activity: ChatActivity) -> None:
        """Show or clear a status in a thread; Slack has none elsewhere."""
        await self._activity.show(activity)

    def remove_reactions(self, key: SessionKey) -> None:
        """Remove the reactions of the messages of *key* that have ended; see `SupportsReactions`."""
        self._reactions.acks.settle(key)

    async def close(self) -> None:
        """Cancel what is in flight and close the connections."""
        await self._reactions.acks.close()
        await self._inbound.members.close()
        await self._api.close()


def _app_of(app_token: str) -> str:
    """Return the id of the app of an app-level token (xapp-1-<app>-…), or a hash of another one."""
    fields = app_token.split("-")
    return fields[2] if len(fields) > 3 else hashlib.sha256(app_token.encode()).hexdigest()[:16]
