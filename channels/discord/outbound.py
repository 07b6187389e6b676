"""Delivery of message parts to Discord: posts with the part's id as nonce, edits, files, responses, typing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from channels.discord import codec
from channels.discord.api import DiscordApi, DiscordRefusal
from channels.discord.interactions import DiscordButtons, DiscordInteractions
from channels.discord.reactions import DiscordReactions
from channels.discord.reply_threads import DiscordReplyThreads
from channels.discord.sent_lookup import find_sent_part
from channels.kit.background import BackgroundTasks, RepeatedActivity, utc_now
from channels.kit.parts import read_file
from gateway.errors import SendRefused
from gateway.events import MessagePart, OutboundKind, SessionKey
from gateway.i18n import translate
from gateway.ports import BlobStore


class DiscordOutbound:
    """Sends the parts of one channel. Methods raise SendFailed, and FileUnavailable if a file's bytes are lost."""

    def __init__(
        self,
        api: DiscordApi,
        threads: DiscordReplyThreads,
        interactions: DiscordInteractions,
        buttons: DiscordButtons,
        reactions: DiscordReactions,
        blobs: BlobStore,
        *,
        language: Callable[[SessionKey], str],
        file_limit: Callable[[str], int],
    ) -> None:
        self._api = api
        self._threads = threads
        self._interactions = interactions
        self._buttons = buttons
        self._reactions = reactions
        self._blobs = blobs
        self._language = language
        self._file_limit = file_limit

    async def send(self, part: MessagePart, *, may_be_duplicate: bool) -> str:
        """Post *part* under its id as nonce and return the message's id."""
        text = codec.message_content(part, may_be_duplicate=may_be_duplicate, language=self._language)
        if part.file is None and not part.reply_to and (message_id := await self._respond(part, text)):
            return message_id
        file = await self._file(part)
        if part.visible_to:
            message_id = await self._send_privately(part, text, file)
            self._reactions.acks.settle(part.key)
            self._buttons.presses.settle(part)
            return message_id
        chat = await self._threads.chat_of(part.key)
        message_id = await self._post(part, chat, text, file)
        self._settle(part)
        return message_id

    async def edit(self, message_id: str, part: MessagePart) -> None:
        """Replace the message *message_id*."""
        chat = await self._chat(part)
        await self._api.edit(chat, message_id, codec.message_content(part), codec.render_buttons(part.choices))
        self._settle(part)

    async def find(self, part: MessagePart) -> str:
        """Return the id of the message that is *part*, or "" if it was not sent."""
        if not part.reply_to:
            await self._buttons.check_sent(part)
            if await self._interactions.is_pending(part):
                return ""  # sending it again has no effect
        size = len(await read_file(part, self._blobs)) if part.file is not None else 0
        return await find_sent_part(self._api, await self._chat(part), part, utc_now(), size=size)

    async def _respond(self, part: MessagePart, text: str) -> str:
        """Send *part* as the response to its command or press; return "" if none is pending. Raises SendFailed."""
        message_id = await self._buttons.send_privately(part, text) or await self._interactions.send(part, text)
        if message_id:
            self._buttons.presses.settle(part)
        return message_id

    async def _chat(self, part: MessagePart) -> str:
        return await (self._api.direct(part.visible_to) if part.visible_to else self._threads.chat_of(part.key))

    async def _post(self, part: MessagePart, chat: str, text: str, file: tuple[str, bytes] | None) -> str:
        limit = self._file_limit(chat)
        if file is not None and len(file[1]) > limit:
            raise SendRefused(f"the file is larger than the {limit >> 20} MiB that Discord takes there")
        is_first = part.id.endswith(".1") and part.reply_to.isdigit()
        # The message that started a thread is shown above it anyway.
        reply_to = part.reply_to if is_first and part.reply_to != chat else ""
        below = codec.render_buttons(part.choices)
        return await self._api.post(
            chat, text, nonce=part.id, reply_to=reply_to, file=file, components=below, calls=part.calls
        )

    async def _send_privately(self, part: MessagePart, text: str, file: tuple[str, bytes] | None) -> str:
        """Send a part that one user may see as a direct message; if they accept none, post a line with a hint."""
        try:
            return await self._api.post(await self._api.direct(part.visible_to), text, nonce=part.id, file=file)
        except DiscordRefusal:
            if file is not None:
                raise
            # One line for all parts of the message: they share the key.
            line, _, _ = part.id.rpartition(".")
            chat = await self._threads.chat_of(part.key)
            reply_to = "" if part.reply_to == chat else part.reply_to
            words = translate("discord.write_privately", self._language(part.key))
            return await self._api.post(chat, words, nonce=f"{line}.0p", reply_to=reply_to)

    def _settle(self, part: MessagePart) -> None:
        """Remove the reaction and "is thinking" once a part of the answer is delivered."""
        if part.kind is OutboundKind.PREVIEW:
            return
        self._reactions.acks.settle(part.key)
        self._buttons.presses.settle(part)
        if not part.reply_to:
            self._reactions.tasks.start(partial(self._interactions.clear, part), "interaction")

    async def _file(self, part: MessagePart) -> tuple[str, bytes] | None:
        return None if part.file is None else (part.file.name or "file", await read_file(part, self._blobs))


_TYPING_INTERVAL = 8.0  # seconds; Discord shows it for ten


class DiscordActivity:
    """The typing indicators of one channel. *chat_of* returns the Discord channel of a session."""

    def __init__(
        self, api: DiscordApi, tasks: BackgroundTasks, chat_of: Callable[[SessionKey], Awaitable[str]]
    ) -> None:
        self._api = api
        self._chat_of = chat_of
        self.repeated = RepeatedActivity(tasks, _TYPING_INTERVAL)

    def start(self, key: SessionKey) -> None:
        """Show typing in *key* until `stop`; idempotent."""
        self.repeated.start(key, partial(self._show, key))

    async def stop(self, key: SessionKey) -> None:
        """Stop typing; idempotent."""
        await self.repeated.stop(key)

    async def _show(self, key: SessionKey) -> None:
        await self._api.typing(await self._chat_of(key))
