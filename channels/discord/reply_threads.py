"""`reply_in: thread`: a mention in a channel begins a thread of its own, which has the message's id.

The session is `<channel>/<message id>` from the first moment on, whatever becomes of the thread: so the same
message has the same key when it comes again. Where we may begin none, the answer stands in the channel.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import structlog

from channels.discord.api import DiscordApi
from channels.discord.codec import DiscordChat
from channels.discord.errors import DiscordRefusal
from gateway.errors import SendFailed, SendRefused
from gateway.events import InboundKind, InboundMessage, SessionKey
from gateway.i18n import command_names, translate
from gateway.ports import ChannelState

log = structlog.get_logger(__name__)

_MOST_KNOWN = 5_000
_LONGEST_NAME = 100  # characters (docs.discord.com/developers/resources/channel, start thread)
_MAY_NOT = 403


class DiscordReplyThreads:
    """Which threads of a block were begun by us, and where the answers of a session stand."""

    def __init__(
        self,
        state: ChannelState,
        rest: DiscordApi,
        *,
        name: str,
        is_on: Callable[[InboundMessage], bool],
        anywhere: bool,
        exists: Callable[[str], bool],
        language: Callable[[SessionKey], str],
    ) -> None:
        """Begin threads where *is_on*; *exists* says of a chat whether Discord has told us of it.

        *anywhere* says whether there are such places. What is sent does not tell its server, so that then any thread
        that nobody knows may be one to begin.
        A thread that nothing names is named in the chat's *language*.
        """
        self._state = state
        self._rest = rest
        self._name = name
        self._is_on = is_on
        self._anywhere = anywhere
        self._exists = exists
        self._language = language
        self._where: OrderedDict[str, str] = OrderedDict()  # thread -> the chat that its words stand in
        self._begun: OrderedDict[str, bool] = OrderedDict()  # message id -> whether it began one
        self._said: set[str] = set()  # channels in which we may begin none

    async def settle(self, message: InboundMessage, place: DiscordChat) -> InboundMessage:
        """Return *message* under the key of the thread that it begins, or once began."""
        if not place.has_threads or not self._is_on(message):
            return message
        is_command = message.command.startswith(("/", "!")) or message.command.lower() in command_names()
        begins = message.kind is InboundKind.MESSAGE and message.is_addressed and not is_command
        if not begins and not await self._has_begun(message.message_id):
            return message
        return replace(message, key=SessionKey(message.key.channel, f"{message.key.chat}/{message.message_id}"))

    async def begin(self, message: InboundMessage) -> None:
        """Remember that *message*, which was accepted, began its thread; and begin it. Raises SendFailed."""
        thread = message.key.thread
        if not thread or thread != message.message_id or not self._is_on(message):
            return
        if not await self._has_begun(thread):
            await self._state.save(f"begun/{thread}", "1")
            self._begun[thread] = True
        await self.chat(message.key, named=message.text)

    async def chat(self, key: SessionKey, *, named: str = "") -> str:
        """Return the Discord channel in which the words of a session stand, begun if need be. Raises SendFailed."""
        thread = key.thread
        if not thread or not self._anywhere:
            return thread or key.chat
        if thread not in self._where:
            self._where[thread] = thread if self._exists(thread) else await self._start(key, named)
            while len(self._where) > _MOST_KNOWN:
                self._where.popitem(last=False)
        return self._where[thread]

    async def _start(self, key: SessionKey, named: str) -> str:
        parent, message = key.parent.chat, key.thread
        name = " ".join(named.removeprefix("@").split())[:_LONGEST_NAME] or translate(
            "discord.thread", self._language(key)
        )
        try:
            await self._rest.start_thread(parent, message, name)
        except DiscordRefusal as error:
            if error.status == _MAY_NOT:
                self._say_once(parent)
                return parent
        except SendRefused as error:
            log.debug("discord.thread_stands", channel=self._name, thread=message, reason=str(error))
        # Begun already, or not begun from a message of that channel: a forum post, a thread of its own.
        return message

    def _say_once(self, parent: str) -> None:
        if parent not in self._said:
            self._said.add(parent)
            log.warning("discord.no_threads", channel=self._name, chat=parent, mend="allow Create Public Threads")

    async def _has_begun(self, message: str) -> bool:
        if message not in self._begun:
            self._begun[message] = await self._state.load(f"begun/{message}") is not None
            while len(self._begun) > _MOST_KNOWN:
                self._begun.popitem(last=False)
        return self._begun[message]


async def try_to_begin(threads: DiscordReplyThreads, message: InboundMessage) -> None:
    """Begin the thread of an accepted message; what fails now is tried again when there is something to say."""
    try:
        await threads.begin(message)
    except SendFailed as error:
        log.info("discord.thread_later", thread=message.key.thread, reason=str(error))
