"""A Slack app in one workspace: hears by Socket Mode, speaks by the Web API."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import structlog
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from channels.slack import codec
from channels.slack.api import Refused, SlackApi, scopes_of
from channels.slack.catchup import CatchUp
from channels.slack.ears import Ears
from channels.slack.errands import Errands
from channels.slack.ledger import find
from channels.slack.pace import Bucket, Paces
from channels.slack.settings import SlackSettings
from channels.slack.socket import PING, Socket
from channels.slack.status import Status
from gateway.errors import ParlourError, RetryLater, SettingsMistake
from gateway.events import OutboundKind, OutboundMessage, Part, Receipt, SessionKey
from gateway.ports import Activity, Capabilities, ChannelContext
from gateway.words import say

log = structlog.get_logger(__name__)

_EVERY = timedelta(seconds=1.2)  # between the edits of one preview
_EDITS = (20, 1.25)  # of previews in the workspace: chat.update is Tier 3, the answers' own edits come on top
_POSTS = (5, 1.0)  # of one chat: a short burst, then one a second


class SlackChannel:
    """One configured block. Implements `gateway.ports.Channel`."""

    capabilities = Capabilities(
        text_limit=codec.LIMIT,
        edits=True,
        rings=True,
        preview_every=_EVERY,
        shows_activity=True,
    )

    def __init__(self, context: ChannelContext, *, ping: timedelta = PING) -> None:
        settings: SlackSettings = context.settings
        if settings.bot_token is None:
            raise SettingsMistake(f"channels.{context.name} needs a bot_token (xoxb-…)")
        self.name = context.name
        self._app_token = settings.app_token.get_secret_value() if settings.app_token else ""
        self._ping = ping
        self._api = SlackApi(settings.bot_token.get_secret_value(), settings.base_url)
        self._errands = Errands(self._api, reaction=settings.reaction)
        self._ears = Ears(context, self._api, self._errands)
        self._catch_up = CatchUp(self._api, self._ears, self._ears.marks)
        self._status = Status(self._api)
        self._posts = Paces(*_POSTS)
        self._edits = Bucket(*_EDITS)
        self._socket: Socket | None = None
        self._me: codec.Me | None = None
        self._scopes: frozenset[str] = frozenset()

    # -- receiving -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Listen until cancelled; raise when Slack refuses us or cannot be reached."""
        if not self._app_token:
            raise SettingsMistake(f"channels.{self.name} needs an app_token (xapp-…): events come by Socket Mode")
        me = await self._identify(anew=True)
        await self._ears.marks.load()
        self._socket = Socket(
            self._app_token,
            self._api.client,
            lambda body: self._ears.hear(body, me),
            returned=self._catch_up.want,
            ping=self._ping,
        )
        log.info("slack.listening", channel=self.name, team=me.team, user=me.user)
        refusal: ParlourError | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [
                    tasks.create_task(self._errands.run(), name=f"{self.name} errands"),
                    tasks.create_task(self._status.run(), name=f"{self.name} status"),
                    tasks.create_task(self._catch_up.run(me), name=f"{self.name} catch-up"),
                ]
                try:
                    await self._socket.run()
                except ParlourError as error:
                    refusal = error  # raised below as what it is, not as a group of one
                for task in beside:
                    task.cancel()
        finally:
            self._socket = None
        if refusal is not None:
            raise refusal

    async def _identify(self, *, anew: bool = False) -> codec.Me:
        if self._me is None or anew:
            answer = await self._api.post("auth.test")
            self._scopes = scopes_of(answer)
            self._me = codec.Me(
                user=str(answer["user_id"]),
                bot=str(answer.get("bot_id") or ""),
                team=str(answer["team_id"]),
                handle=str(answer.get("user") or "parlour"),
            )
        return self._me

    def is_ready(self) -> bool:
        """Say whether Slack gave a sign of life within two ping intervals."""
        return self._socket is not None and self._socket.is_heard()

    def is_watched(self, key: SessionKey) -> bool:  # noqa: ARG002 - the port's signature
        """Slack does not say who looks on, so every chat is streamed to."""
        return True

    # -- sending -------------------------------------------------------------------------------

    def render(self, message: OutboundMessage) -> Sequence[Part]:
        """Cut and format for Slack."""
        return codec.render(message, max_parts=self.capabilities.max_parts)

    async def send(self, part: Part, *, marked: bool = False) -> Receipt:
        """Post one part; the send key rides in its metadata."""
        await self._posts.turn(part.key.parent.chat)
        if part.visible_to:
            return await self._whisper(part, marked=marked)
        answer = await self._post(part, codec.body(part, marked=marked), metadata=codec.metadata(part))
        self._settle(part)
        return _receipt(part, str(answer["ts"]))

    async def edit(self, message_id: str, part: Part) -> Receipt:
        """Replace the text under *message_id*; its key becomes the part's."""
        if part.kind is OutboundKind.PREVIEW:
            if wait := self._edits.wait():
                raise RetryLater(timedelta(seconds=wait), "the workspace's edits are used up for now")
            self._edits.take()
        body = codec.body(part, marked=False)
        del body["mrkdwn"]  # chat.update has no such switch
        await self._api.post("chat.update", **body, ts=message_id, metadata=codec.metadata(part))
        self._settle(part)
        return _receipt(part, message_id)

    async def find(self, part: Part) -> Receipt | None:
        """Read back whether *part* stands in the chat, by the key in its metadata."""
        me = await self._identify()
        ts = await find(self._api, part, me, self._scopes)
        return _receipt(part, ts) if ts else None

    async def _post(self, part: Part, body: dict[str, object], **more: object) -> AsyncSlackResponse:
        if part.key.thread:
            body["thread_ts"] = part.key.thread
        return await self._api.post("chat.postMessage", **body, unfurl_links=False, unfurl_media=False, **more)

    async def _whisper(self, part: Part, *, marked: bool) -> Receipt:
        """Show a part to one person alone; where Slack will not, everybody is told where to ask, and nothing else."""
        body = codec.body(part, marked=marked)
        if part.key.thread:
            body["thread_ts"] = part.key.thread
        try:
            answer = await self._api.post("chat.postEphemeral", **body, user=part.visible_to)
        except Refused as error:
            if part.id.endswith(".1"):
                line = {**body, "text": say("slack.write_privately"), "mrkdwn": False}
                await self._post(part, line)
            raise Refused(f"chat.postEphemeral: {error.code}") from error
        return _receipt(part, str(answer["message_ts"]))

    def _settle(self, part: Part) -> None:
        """Take the acknowledging reaction back once the answer stands."""
        if part.kind is not OutboundKind.PREVIEW and part.reply_to and part.id.endswith(".1"):
            self._errands.unreact(part.key.parent.chat, part.reply_to)

    # -- the rest ------------------------------------------------------------------------------

    async def show(self, activity: Activity) -> None:
        """Show a status in a thread, where Slack lets us; elsewhere there is nothing to show it with."""
        await self._status.show(activity)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()


def _receipt(part: Part, message_id: str) -> Receipt:
    return Receipt(part=part.id, message_id=message_id, at=datetime.now(UTC))
