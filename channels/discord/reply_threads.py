"""`reply_in: thread`: a mention in a channel starts a thread, which has the message's id.

The session key is `<channel>/<message id>` from the start, so a redelivered message has the same key. Without the right
to create threads the answer is posted in the channel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog
from cachetools import FIFOCache

from channels.discord.api import DiscordApi, DiscordRefusal
from channels.discord.codec import DiscordChat
from gateway.errors import SendFailed, SendRefused
from gateway.events import InboundKind, InboundMessage, SessionKey
from gateway.i18n import command_names, translate
from gateway.ports import ChannelState

log = structlog.get_logger(__name__)

_SIZE = 5_000  # threads whose chat is cached
_START_LIMIT = 20_000  # notes of messages that started a thread; edits and deletions of older ones go to the chat
_PREFIX = "begun/"
_NAME_LIMIT = 100  # characters (docs.discord.com/developers/resources/channel, start thread)
_FORBIDDEN = 403


class DiscordReplyThreads:
    """The threads that the bot started, and the chats to which the answers of each session go."""

    def __init__(
        self,
        state: ChannelState,
        api: DiscordApi,
        *,
        name: str,
        is_on: Callable[[InboundMessage], bool],
        anywhere: bool,
        exists: Callable[[str], bool],
        language: Callable[[SessionKey], str],
    ) -> None:
        """Start threads for messages for which *is_on* is true; *exists* returns True if Discord announced a chat.

        *anywhere* is True if any chat has `reply_in: thread`: a message part does not name its guild, so that then each
        unknown thread may have to be started. A thread without text is named in the chat's *language*.
        """
        self._state = state
        self._api = api
        self._name = name
        self._is_on = is_on
        self._anywhere = anywhere
        self._exists = exists
        self._language = language
        self._chats: FIFOCache[str, str] = FIFOCache(_SIZE)  # thread -> the chat of its messages
        self._started: dict[str, None] | None = None  # messages that started a thread, the oldest first; None = unread
        self._logged: set[str] = set()  # channels without the right to create threads

    async def with_thread(self, message: InboundMessage, place: DiscordChat) -> InboundMessage:
        """Return *message* with the key of the thread that it starts or started."""
        if not place.has_threads or not self._is_on(message):
            return message
        is_command = message.command.startswith(("/", "!")) or message.command.lower() in command_names()
        starts = message.kind is InboundKind.MESSAGE and message.is_addressed and not is_command
        if not starts and not await self._has_started(message.message_id):
            return message
        return replace(message, key=SessionKey(message.key.channel, f"{message.key.chat}/{message.message_id}"))

    async def start(self, message: InboundMessage) -> None:
        """Store that *message*, which was accepted, started its thread, and start it. Raises SendFailed."""
        thread = message.key.thread
        if not thread or thread != message.message_id or not self._is_on(message):
            return
        if not await self._has_started(thread):
            await self._save_start(thread)
        await self.chat_of(message.key, name=message.text)

    async def chat_of(self, key: SessionKey, *, name: str = "") -> str:
        """Return the Discord channel of a session's messages; start the thread if necessary. Raises SendFailed."""
        thread = key.thread
        if not thread or not self._anywhere:
            return thread or key.chat
        if thread not in self._chats:
            self._chats[thread] = thread if self._exists(thread) else await self._start(key, name)
        return self._chats[thread]

    async def _start(self, key: SessionKey, text: str) -> str:
        parent, message = key.parent.chat, key.thread
        name = " ".join(text.removeprefix("@").split())[:_NAME_LIMIT] or translate(
            "discord.thread", self._language(key)
        )
        try:
            await self._api.start_thread(parent, message, name)
        except DiscordRefusal as error:
            if error.status == _FORBIDDEN:
                self._log_once(parent)
                return parent
        except SendRefused as error:
            log.debug("discord.thread_stands", channel=self._name, thread=message, reason=str(error))
        # It exists, or it was not started from a message of that channel, like a forum post.
        return message

    def _log_once(self, parent: str) -> None:
        if parent not in self._logged:
            self._logged.add(parent)
            log.warning("discord.no_threads", channel=self._name, chat=parent, mend="allow Create Public Threads")

    async def _has_started(self, message: str) -> bool:
        return message in await self._load_started()

    async def _load_started(self) -> dict[str, None]:
        if self._started is None:
            ids = [name.removeprefix(_PREFIX) for name in await self._state.all(_PREFIX)]
            if self._started is None:  # another message may have read them meanwhile
                self._started = dict.fromkeys(sorted(ids, key=int))
        return self._started

    async def _save_start(self, message: str) -> None:
        """Note that *message* started a thread; the oldest notes beyond the limit are removed."""
        started = await self._load_started()
        await self._state.save(f"{_PREFIX}{message}", "1")
        started[message] = None
        while len(started) > _START_LIMIT:
            oldest = next(iter(started))
            del started[oldest]
            await self._state.save(f"{_PREFIX}{oldest}", None)


async def try_to_start(threads: DiscordReplyThreads, message: InboundMessage) -> None:
    """Start the thread of an accepted message; a failure is retried when the answer is sent."""
    try:
        await threads.start(message)
    except SendFailed as error:
        log.info("discord.thread_later", thread=message.key.thread, reason=str(error))
