"""The page's channel: which browser may open a window on which conversation, and serving it over its WebSocket."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect

from channels.kit import is_person_name
from channels.kit.background import ChatRateLimits, KeyedSlots
from channels.kit.bodies import WebUploads
from channels.web.files import FileDownload, ServedFiles
from channels.web.frame_channel import CAPABILITIES, FrameChannel, Receive, Send
from channels.web.frame_codec import Frame, encode_shared, safe_file_name, shown_file, trouble_line
from channels.web.logins import StoredLogin, WebLogins
from channels.web.push import PushNotice, PushNotifier
from channels.web.shared_links import SharedLinks
from channels.web.windows import ClientConnection, SharedFrame
from gateway.channel import ChannelContext
from gateway.errors import FileUnavailable, StoreUnavailable, UserError
from gateway.events import (
    Attachment,
    DeliveryReceipt,
    InboundMessage,
    MessagePart,
    OutboundKind,
    OutboundMessage,
    SessionKey,
)
from gateway.i18n import accepted_languages, command_names, translate
from gateway.net.addresses import FORWARDING_HEADERS, is_system_account
from gateway.net.public_http import PublicHttpClient
from gateway.ports.channel import MOST_CONVERSATIONS, channel_wide_key
from gateway.text import render_plain

log = structlog.get_logger(__name__)

OWNER = "owner"
MOST_WINDOWS = 20  # of one person
FIRST = "main"  # how the page calls the conversation that is the chat itself
_CONVERSATION = re.compile(r"[a-z0-9]{16}\Z")
MOST_DOWNLOADS = 6  # of one person at once, as many as a browser makes
READS_AT_ONCE, READ_INTERVAL = 20, 2.0  # pages of links that one network reads, then seconds for each
MOST_WAITING_READERS = 10  # of links, while one is served
DOCUMENTS_AT_ONCE = 2  # whole conversations that are read: each may be some megabytes
_LIST_CHANGED = "conversations"  # the frame
_BUTTONS = 20  # below one message
_TRY_AGAIN_LATER = 1013
_SERVICE_RESTART = 1012
_NOTICED_TEXT = 1_000  # characters of an answer that the first words of a notification are taken from
PUSH_AFTER = timedelta(seconds=3)  # a page that is connected again by then shows the answer itself


@dataclass(frozen=True, slots=True)
class WebVisitor:
    """The user of a page; without a login, the owner of this machine."""

    who: str
    login: StoredLogin | None = None


class WebChannel(FrameChannel):
    """The web chat. A visitor's chat id is their user name, so that all their browsers show the same conversations.

    A key is made of the login and a conversation's id: nothing that a browser sends can name another person's.
    """

    capabilities = replace(CAPABILITIES, choices=_BUTTONS, private_choices=True, footnotes=True)

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context)
        self.logins = WebLogins(context.state, is_shared=context.is_shared)
        context.state.when_cached_changed(self._close_ended_windows)
        self._open: dict[str, set[ClientConnection]] = {}  # by the digest of the login
        self._people: dict[str, set[ClientConnection]] = {}  # every window of a person
        self.conversations = context.conversations
        self.panels = context.panels
        self._allowed_commands = context.allowed_commands
        self._is_console_owner = context.is_console_owner
        if self.conversations is not None:
            self.conversations.watch(self._note_title)
        self.searches = KeyedSlots(1, waiting_limit=2)
        self.sessions = context.sessions
        self.links = SharedLinks(context.state)
        self.reader_paces = ChatRateLimits(READS_AT_ONCE, lambda _: READ_INTERVAL)  # of links, by network
        self.readers = KeyedSlots(1, waiting_limit=MOST_WAITING_READERS)  # of links
        self.documents = KeyedSlots(DOCUMENTS_AT_ONCE, waiting_limit=10)  # of all visitors
        self._has_lost_access = context.has_lost_access
        self._shelf = ServedFiles()
        self.downloads = KeyedSlots(MOST_DOWNLOADS, waiting_limit=0)
        self.uploads = WebUploads(context.folder) if context.folder is not None else None
        self.can_record = context.has_transcription and self.uploads is not None
        self.push_after = PUSH_AFTER
        self.push: PushNotifier | None = None
        self._push_options = context.push
        if context.push is not None:
            http = PublicHttpClient(proxy=context.proxy)
            self.push = PushNotifier(
                context.state, http, secret=context.push.secret, contact=context.push.contact, is_valid=self._is_login
            )

    @property
    def cookie(self) -> str:
        """The cookie's name. Cookies know no ports, so each block has its own."""
        return f"parlour-{self.name}"

    @property
    def wrong_codes(self) -> int:
        """The number of wrong login codes since the start."""
        return self.logins.wrong

    async def run(self) -> None:
        """Take windows until cancelled; no window waits for the tidying of old uploads."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tidy_uploads(), name="tidy uploads")
            await super().run()

    async def _tidy_uploads(self) -> None:
        if self.uploads is not None:
            with suppress(OSError):  # a disk in trouble is for the next upload to say
                await self.uploads.tidy()
        with suppress(StoreUnavailable):
            await self.links.tidy()

    async def issue_code(self, name: str = "") -> str:
        """Return a login code: ten minutes, once; the owner's without a *name*. Raises UserError for a bad one."""
        if name == OWNER:
            raise UserError(f"{OWNER!r} is the name of the owner; omit --as to log in as the owner")
        if name and not is_person_name(name):
            raise UserError(f"{name!r} is not a valid name; use at most 32 of a-z, 0-9, dots and dashes, such as ann")
        return await self.logins.issue_code(name or OWNER)

    async def invite(self, name: str, life: timedelta) -> str:
        """Return an invitation for *name*: valid once within *life*. Raises UserError for a bad name."""
        if name == OWNER or not is_person_name(name):
            raise UserError(f"{name!r} is not a valid name; use at most 32 of a-z, 0-9, dots and dashes, such as ann")
        return await self.logins.invite(name, life)

    async def users(self) -> Sequence[Mapping[str, object]]:
        """Return the users of the page: their name, role, logins, last visit and unused invitation."""

        def iso(at: datetime | None) -> str:
            return "" if at is None else at.isoformat()

        return [
            {
                "who": each.who,
                "role": "owner" if self.is_owner(WebVisitor(each.who)) else "member",
                "browsers": each.browsers,
                "until": iso(each.until),
                "is_open": self._has_window(each.who),
                "seen_at": iso(each.seen_at),
                "invited_until": iso(each.invited_until),
            }
            for each in await self.logins.users()
        ]

    async def forget(self, people: Collection[str] | None) -> None:
        """Forget last visits, links and browsers of *people*; `None` stands for all people. Raises StoreUnavailable."""
        await self.logins.forget_seen(people)
        await self.links.remove_all(people)
        if self.push is not None:
            await self.push.remove_all(people)

    async def log_out(self, who: str) -> int:
        """End the logins of *who* with their windows, unused codes and links; return the number of browsers."""
        ended = await self.logins.end(who)
        for login in ended:
            self._close_windows_of(login)
        await self.links.remove_all({who})
        if self.push is not None:
            await self.push.remove_logins(who, {login.digest for login in ended})
        return len(ended)

    async def visitor(self, connection: HTTPConnection) -> WebVisitor | None:
        """Return the visitor, or None if a login code is needed."""
        login = await self.logins.find(connection.cookies.get(self.cookie, ""))
        if login is not None:
            return WebVisitor(login.who, login)
        return WebVisitor(OWNER) if await _is_this_machine(connection) else None

    def language(self, visitor: WebVisitor | None) -> str:
        """Return the language of a visitor's chat, or the channel's default for an unknown visitor."""
        return self._language(channel_wide_key(self.name) if visitor is None else SessionKey(self.name, visitor.who))

    def page_language(self, visitor: WebVisitor | None, connection: HTTPConnection) -> str:
        """Return the language of the page: the visitor's, or the browser's if none was chosen or set."""
        if self.panels is None:
            return self.language(visitor)
        key = channel_wide_key(self.name) if visitor is None else SessionKey(self.name, visitor.who)
        return self.panels.page_language(key, accepted_languages(connection.headers.get("accept-language", "")))

    def allowed_commands(self, visitor: WebVisitor) -> Collection[str]:
        """Return the names of the commands that the visitor may use in general."""
        if self._allowed_commands is None:
            return command_names()
        return self._allowed_commands(SessionKey(self.name, visitor.who), visitor.who)

    def is_owner(self, visitor: WebVisitor) -> bool:
        """Return True if the visitor may use the console of this page as an owner."""
        return self._is_console_owner is not None and self._is_console_owner(visitor.who)

    def has_lost_access(self, who: str) -> bool:
        """Return True if a user of the page may not write to the bot any more."""
        return self._has_lost_access is not None and self._has_lost_access(who)

    async def close_windows(self, login: StoredLogin) -> None:
        """End *login*, and close what it has open."""
        await self.logins.leave(login)
        self._close_windows_of(login)
        if self.push is not None:
            await self.push.remove_logins(login.who, {login.digest})

    def _close_ended_windows(self) -> None:
        """Close what has open a login that was ended at another gateway."""
        for digest, windows in self._open.items():
            if digest and not self.logins.is_stored(digest):
                for window in windows:
                    window.close()

    def _close_windows_of(self, login: StoredLogin) -> None:
        for window in self._open.get(login.digest, ()):
            window.close()

    def key_of(self, visitor: WebVisitor, conversation: str) -> SessionKey | None:
        """Return the session of a visitor's conversation, None for an invalid id."""
        if conversation == FIRST:
            return SessionKey(self.name, visitor.who)
        if not _CONVERSATION.match(conversation):
            return None
        return SessionKey(self.name, f"{visitor.who}/{conversation}")

    async def serve(self, socket: WebSocket, visitor: WebVisitor, key: SessionKey) -> None:
        """Serve one browser's window on *key* until it leaves, its login ends or the channel stops."""
        await socket.accept()
        window = self._window(visitor, key)
        if len(self._people.get(visitor.who, ())) >= MOST_WINDOWS:
            await self._refuse(socket, window)
            return
        self._people.setdefault(visitor.who, set()).add(window)
        digest = visitor.login.digest if visitor.login else ""
        self._open.setdefault(digest, set()).add(window)
        self.logins.note_seen(visitor.who)
        try:
            await self.attend(window, _reader(socket), _writer(socket))
        finally:
            self.logins.note_seen(visitor.who)
            self._open[digest].discard(window)
            if not self._open[digest]:
                del self._open[digest]
            self._people[visitor.who].discard(window)
            if not self._people[visitor.who]:
                del self._people[visitor.who]
        # The page comes back by itself, and asks for a code if it must.
        await _close(socket, _SERVICE_RESTART)

    async def _refuse(self, socket: WebSocket, window: ClientConnection) -> None:
        """Tell a window that is one too many, and close it; the page tries again after growing pauses."""
        line = translate("frames.windows", self._language(window.key), most=MOST_WINDOWS)
        with suppress(OSError):
            await _writer(socket)(trouble_line(line))
        await _close(socket, _TRY_AGAIN_LATER)

    async def download(self, visitor: WebVisitor, token: str) -> FileDownload | None:
        """Return a file that *visitor* was shown, or None if it does not exist."""
        kept = self._shelf.get(visitor.who, token)
        if kept is None:
            return None
        text = kept.text.encode()
        size = await self._blobs.measure(kept.file.blob) if kept.file.blob else len(text)
        return (
            None
            if size is None
            else FileDownload(safe_file_name(kept.file.name), size, self._blobs, kept.file.blob, text)
        )

    async def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield a file that a visitor handed over; see `SupportsFiles`."""
        if self.uploads is None:
            raise FileUnavailable("the page cannot store files here")
        async with aclosing(self.uploads.fetch(attachment.url)) as pieces:
            async for piece in pieces:
                yield piece

    async def _attached(self, window: ClientConnection, files: Sequence[str]) -> tuple[Attachment, ...] | None:
        if not files:
            return ()
        if self.uploads is None:
            return None
        found = [await self.uploads.find_file(window.sender, token) for token in files]
        there = tuple(each for each in found if each is not None)
        return there if len(there) == len(found) else None

    def _address(self, key: SessionKey, file: Attachment, text: str) -> Frame:
        # A reference names the scope, which is nobody's business on the wire.
        token = self._shelf.add(key.parent.chat, file, "" if file.blob else text)
        return {**shown_file(file), "href": f"files/{token}"}

    # Notifications.

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Hand *part* to every open window; where its person has none, the receipt says when to notify them."""
        return await self._noticed(part, await super().send(part, may_be_duplicate=may_be_duplicate))

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace the message *message_id* by *part*; it keeps its id. Notifies as `send` does."""
        return await self._noticed(part, await super().edit(message_id, part))

    async def _noticed(self, part: MessagePart, receipt: DeliveryReceipt) -> DeliveryReceipt:
        who = part.key.parent.chat
        is_first = part.kind is not OutboundKind.PREVIEW and part.id.endswith(".1")
        if self.push is None or not is_first or self._has_window(who):
            return receipt
        with suppress(StoreUnavailable):  # the windows have the part: the job finds out whom to notify
            if not await self.push.browsers(who):
                return receipt
        return replace(receipt, notify_at=receipt.at + self.push_after)

    async def notify(
        self, message: OutboundMessage, at: datetime, ids: Collection[str] | None
    ) -> tuple[Collection[str], timedelta]:
        """Notify the person of *message*, which was delivered *at*, unless they have a window open by now.

        Return as `PushNotifier.notify`. Raises StoreUnavailable.
        """
        key, who = message.key, message.key.parent.chat
        if self.push is None or self._has_window(who):
            return (), timedelta(0)
        known = () if self.conversations is None else await self.conversations.list_conversations(key.parent)
        notice = PushNotice(
            turn=message.turn,
            conversation=key.thread or FIRST,
            at=at,
            line=translate("web.push_answer", self._language(key)),
            title=next((each.title for each in known if each.key == key), ""),
            text=" ".join(render_plain(message.text[:_NOTICED_TEXT]).split()),
        )
        return await self.push.notify(who, notice, ids)

    def _has_window(self, who: str) -> bool:
        chat = SessionKey(self.name, who)
        return bool(self._people.get(who)) or (self._shared is not None and self._shared.is_watched(chat))

    async def _is_login(self, who: str, digest: str) -> bool:
        if not digest:  # added without a login, while the page was this machine's alone
            return who == OWNER and self._push_options is not None and self._push_options.is_private()
        login = await self.logins.find_digest(digest)
        return login is not None and login.who == who

    # Conversations.

    def tell_list_changed(self, who: str) -> None:
        """Ask every window of *who* to read the list of conversations again."""
        frame = {"type": _LIST_CHANGED}
        self._tell(who, frame)
        if self._shared is not None:
            self._shared.post(SessionKey(self.name, who), encode_shared(frame), slot=_LIST_CHANGED)

    def _note_title(self, key: SessionKey) -> None:
        if key.channel == self.name:
            self.tell_list_changed(key.parent.chat)

    def _refusal(self, window: ClientConnection) -> str:
        if self.conversations is None:
            return ""
        language = self._language(window.key)
        if self.conversations.is_deleted(window.key):
            return translate("web.conversation_deleted", language)
        if not self.conversations.has_room(window.key):
            return translate("web.conversations_full", language, most=MOST_CONVERSATIONS)
        return ""

    async def _note_message(self, message: InboundMessage) -> None:
        if self.conversations is None:
            return
        text = message.text or next((each.name for each in message.attachments), "")
        try:
            is_news = await self.conversations.note_message(message.key, text)
        except StoreUnavailable:  # the message is stored: its conversation is listed without a title until the next one
            log.warning("web.conversation_not_noted", key=str(message.key))
            return
        if is_news:
            self.tell_list_changed(message.key.parent.chat)

    def _apply(self, key: SessionKey, frame: Frame, *, visible_to: str = "", is_foreign: bool = False) -> None:
        if frame["type"] == _LIST_CHANGED:
            self._tell(key.chat, frame)
            return
        if frame["type"] == "message":
            self._tell(key.parent.chat, {"type": "news", "conversation": key.thread or FIRST}, except_for=key)
        super()._apply(key, frame, visible_to=visible_to, is_foreign=is_foreign)

    def _tell(self, who: str, frame: Frame, *, except_for: SessionKey | None = None) -> None:
        shared = SharedFrame(frame)
        for window in self._people.get(who, ()):
            if window.key != except_for:
                window.push(shared)

    def _window(self, visitor: WebVisitor, key: SessionKey) -> ClientConnection:
        login = visitor.login
        still = (lambda: True) if login is None else (lambda: self.logins.counts(login))
        return ClientConnection(key, visitor.who, still)


async def _is_this_machine(connection: HTTPConnection) -> bool:
    """Return True if the visitor needs no login.

    The web server decides (`app.state.is_private`: bound to loopback, `login: auto`, no public address).
    A forwarding header only takes the right away, because any user may be behind a proxy on this machine.
    A proxy that adds no header is recognised by its account.
    """
    if not getattr(connection.app.state, "is_private", False):
        return False
    if any(name in connection.headers for name in FORWARDING_HEADERS) or connection.client is None:
        return False
    return not await is_system_account(connection.client, connection.scope["server"])


def _reader(socket: WebSocket) -> Receive:
    async def receive() -> object:
        event = await socket.receive()
        if event["type"] == "websocket.disconnect":
            return None
        # A binary frame is read like text; what is no JSON is answered with an error frame.
        return event.get("text") or event.get("bytes") or ""

    return receive


def _writer(socket: WebSocket) -> Send:
    async def send(frame: Frame) -> None:
        try:
            await socket.send_text((frame if isinstance(frame, SharedFrame) else SharedFrame(frame)).encoded())
        except (WebSocketDisconnect, RuntimeError) as error:  # RuntimeError: the socket is closed already
            raise ConnectionError("the browser is gone") from error

    return send


async def _close(socket: WebSocket, code: int) -> None:
    try:
        await socket.close(code)
    except (WebSocketDisconnect, RuntimeError, OSError):
        return  # the browser closed it first
