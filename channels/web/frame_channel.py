"""A channel for our own clients: windows of a chat that exchange frames.

The history is in the journal, and a window gets it whenever it connects. So a part counts as sent when it was pushed
to every open window, even to none; a part sent twice is shown once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from channels.kit.background import ChatRateLimits, utc_now
from channels.kit.bodies import build_receipt, require_file
from channels.web import frame_codec
from channels.web.frame_codec import BadFrame, Frame, HistoryFrame, PingFrame, PressFrame, SayFrame
from channels.web.windows import PAGE_BYTES, ClientConnection, HistoryPage, HistoryPager, SharedFrame
from gateway.channel import ChannelContext
from gateway.errors import OutcomeUnknown, StoreUnavailable
from gateway.events import (
    Attachment,
    DeliveryReceipt,
    InboundMessage,
    MessagePart,
    OutboundKind,
    OutboundMessage,
    Sender,
    SessionKey,
    turn_id,
)
from gateway.i18n import translate
from gateway.ports.channel import ChannelCapabilities, ChatActivity, IntakeResult, IntakeVerdict

log = structlog.get_logger(__name__)

_BURST, _FRAME_INTERVAL = 40, 0.1  # frames of a chat at once, then seconds for each; they are delayed, none is lost
_BYTES_OF_ONE = 25_000

CAPABILITIES = ChannelCapabilities(
    text_limit=frame_codec.TEXT_LIMIT,
    max_parts=frame_codec.MOST_PARTS,
    edits=True,
    send_key=True,
    preview_every=timedelta(milliseconds=50),
    shows_activity=True,
    finds=True,
    file_limit=frame_codec.LARGEST_FILE,
)

Receive = Callable[[], Awaitable[object]]  # a frame as JSON text or as an object; None when the window is gone
Send = Callable[[Frame], Awaitable[None]]  # raises OSError when the window is gone


@dataclass(slots=True)
class LiveChatState:
    """A chat's current activity and preview, for a window that opens during a turn."""

    activity: Frame | None = None
    preview: Frame | None = None
    is_foreign: bool = False  # another worker shows it

    def apply(self, frame: Frame, now: datetime, *, is_foreign: bool) -> None:
        """Keep what *frame* changes."""
        match frame["type"]:
            case "activity":
                self.activity, self.is_foreign = frame if frame["on"] else None, is_foreign
            case "preview":
                self._note_preview(frame, now)
                self.is_foreign = is_foreign
            case "message" if self.preview is not None and self.preview["turn"] == frame["turn"]:
                self.preview = None  # what another turn shows meanwhile, a command's answer, ends none

    def _note_preview(self, preview: Frame, now: datetime) -> None:
        """Note the text so far of a turn, and since when its first words stand in the chat."""
        known = self.preview if self.preview is not None and self.preview["turn"] == preview["turn"] else {}
        self.preview = {**preview, "since": known.get("since", now.isoformat())}

    def frames(self) -> list[Frame]:
        """Return the frames that a new window gets after the history."""
        return [frame for frame in (self.activity, self.preview) if frame is not None]


class FrameChannel:
    """The Channel port over windows; the page and the terminal add the connections."""

    capabilities = CAPABILITIES
    page_bytes = PAGE_BYTES  # of one frame of history

    def __init__(self, context: ChannelContext) -> None:
        self.name = context.name
        self._intake = context.intake
        self._blobs = context.blobs
        self._language = context.language
        self._history = HistoryPager(context.sessions, self._page, context.language, page_bytes=self.page_bytes)
        self._running = False
        self._windows: dict[SessionKey, set[ClientConnection]] = {}
        self._paces = ChatRateLimits(_BURST, lambda _: _FRAME_INTERVAL, clock=time.monotonic)  # of a chat's windows
        self._live: dict[SessionKey, LiveChatState] = {}
        self._last_stamp = datetime.min.replace(tzinfo=UTC)
        self._shared = context.windows
        if self._shared is not None:
            self._shared.subscribe(self.name, self._receive, self._repeat, self._refresh)

    # The port.

    async def run(self) -> None:
        """Take windows until cancelled; then ask each to come back later."""
        self._running = True
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._running = False
            self._close_windows()

    def is_ready(self) -> bool:
        """Return True while windows are accepted."""
        return self._running

    def is_watched(self, key: SessionKey) -> bool:
        """Return True if a window of this chat is open, here or at another worker."""
        return bool(self._windows.get(key)) or (self._shared is not None and self._shared.is_watched(key))

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:  # noqa: ARG002 - the port's signature
        """Cut *message* where a part would be too long; the page and the terminal read Markdown themselves."""
        return frame_codec.render(message, self._language(message.key))

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Hand *part* to every open window of its chat; fails only for a file that is lost, see the module's word.

        Where other workers have windows, it fails as well if the part could not be stored for them.
        """
        if part.file is not None and part.file.blob:
            await require_file(part.file.blob, self._blobs)
        return await self._show(part, may_be_duplicate=may_be_duplicate)

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace the message *message_id* by *part*; it keeps its id."""
        return await self._show(part, replaces=message_id)

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:  # noqa: ARG002 - the port's signature
        """Return None: sending a part again has no effect on windows, so an uncertain part is sent again."""
        return None

    async def show(self, activity: ChatActivity) -> None:
        """Show or end the status line."""
        frame = frame_codec.activity(activity)
        self._apply(activity.key, frame)
        self._post(activity.key, frame)

    async def close(self) -> None:
        """Close every window."""
        self._close_windows()

    # One window.

    async def attend(
        self,
        window: ClientConnection,
        receive: Receive,
        send: Send,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Serve *window* until it leaves or is closed: history first, then everything as it happens."""
        self._windows.setdefault(window.key, set()).add(window)
        try:
            # Registered before the history is read, or what is sent meanwhile would be in neither.
            if self._shared is not None:
                await self._shared.watch(window.key.parent)
            await _first_of(
                self._listen(window, receive, sleep),
                self._show_pages(window),
                self._write(window, send),
                window.wait_closed(),
                of=window,
            )
        except OSError:
            log.debug("frames.window_lost", key=str(window.key))
        except StoreUnavailable:  # it comes back by itself
            log.warning("frames.window_not_watched", key=str(window.key))
        finally:
            self._remove(window)

    async def _listen(
        self, window: ClientConnection, receive: Receive, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        pace = self._paces.of(str(window.key.parent))
        while (raw := await receive()) is not None:
            # Delayed, not closed: a client that is only fast loses nothing.
            if delay := pace.take(_cost_of(raw)):
                await sleep(delay)
            if not window.is_open():
                return
            try:
                await self._handle(window, frame_codec.parse_frame(raw))
            except BadFrame as error:
                window.push(frame_codec.error_frame(error, self._language(window.key)))

    async def _handle(self, window: ClientConnection, frame: SayFrame | PressFrame | HistoryFrame | PingFrame) -> None:
        match frame:
            case SayFrame():
                await self._hear(window, frame)
            case PressFrame():
                sender = Sender(id=window.sender)
                message = frame_codec.button_message(frame, key=window.key, sender=sender, at=self._stamp())
                await self._hand_over(window, frame, message)
            case HistoryFrame():
                window.ask(frame)
            case PingFrame():
                window.push(frame_codec.pong())

    async def _hear(self, window: ClientConnection, saying: SayFrame) -> None:
        attachments = await self._attached(window, saying.files)
        if attachments is None:
            line = translate("frames.file_gone", self._language(window.key))
            window.push(frame_codec.rejected(saying, IntakeResult(verdict=IntakeVerdict.REJECTED, line=line)))
            return
        if line := self._refusal(window):
            window.push(frame_codec.rejected(saying, IntakeResult(verdict=IntakeVerdict.REJECTED, line=line)))
            return
        sender = Sender(id=window.sender)
        message = frame_codec.inbound(saying, key=window.key, sender=sender, at=self._stamp(), attachments=attachments)
        if await self._hand_over(window, saying, message):
            self._tell_others(window, message)
            await self._note_message(message)

    def _refusal(self, window: ClientConnection) -> str:  # noqa: ARG002 - the page needs the window
        """Return why a window's chat takes no message; "" if it does."""
        return ""

    async def _note_message(self, message: InboundMessage) -> None:
        """Note an accepted message; a terminal has one chat, and nothing to note."""

    async def _hand_over(self, window: ClientConnection, frame: SayFrame | PressFrame, message: InboundMessage) -> bool:
        """Pass *message* to the intake and send the window its result; return True if it was accepted."""
        try:
            answer = await self._intake.receive(message)
        except StoreUnavailable:
            window.push(frame_codec.retry_frame(frame, self._language(window.key)))
            return False
        except Exception:  # the channel boundary: one bad message does not cost the window
            log.exception("frames.receive_failed", key=str(window.key), message_id=frame.id)
            window.push(frame_codec.retry_frame(frame, self._language(window.key)))
            return False
        if answer.verdict is not IntakeVerdict.ACCEPTED:
            window.push(frame_codec.rejected(frame, answer, self._language(window.key)))
            return False
        window.push(frame_codec.accepted(frame, turn_id(message)))
        return True

    async def _attached(self, window: ClientConnection, files: Sequence[str]) -> tuple[Attachment, ...] | None:  # noqa: ARG002 - the page needs the window
        """Return the files that a window names; None when one is not there. A terminal hands none over."""
        return None if files else ()

    async def _show_pages(self, window: ClientConnection) -> None:
        """Answer requests for history one by one: a page is read when the window has taken the one before it."""
        while True:
            look = await window.wait_asked()
            window.push(await self._history.read(window.key, look.before))
            if not look.before:
                self._push_live(window)

    def _page(self, key: SessionKey, page: HistoryPage, before: str) -> SharedFrame:
        def address(file: Attachment) -> Frame:
            return self._address(key, file, "")

        language = self._language(key)
        return SharedFrame(
            frame_codec.history(page.lines, address, language, before=page.before, is_earlier=bool(before))
        )

    async def _write(self, window: ClientConnection, send: Send) -> None:
        await send(await self._history.read(window.key))
        self._push_live(window)
        while True:
            await send(await window.take())

    def _push_live(self, window: ClientConnection) -> None:
        """Send what the newest page of the history, which replaces everything in a window, does not have yet."""
        for frame in self._live.get(window.key, LiveChatState()).frames():
            window.push(frame)

    def _stamp(self) -> datetime:
        # Strictly later than the one before: lanes are ordered by (time, id), and two windows' ids are random.
        self._last_stamp = max(utc_now(), self._last_stamp + timedelta(microseconds=1))
        return self._last_stamp

    # All windows of a chat.

    async def _show(self, part: MessagePart, *, may_be_duplicate: bool = False, replaces: str = "") -> DeliveryReceipt:
        frame = frame_codec.part_frame(part, may_be_duplicate=may_be_duplicate, replaces=replaces)
        if part.kind is OutboundKind.PREVIEW:
            self._post(part.key, frame)
        elif self._shared is not None:
            try:
                await self._shared.send(part.key, frame_codec.encode_shared(frame, part))
            except StoreUnavailable as error:
                raise OutcomeUnknown("windows of other gateways may not have it") from error
        self._apply(part.key, self._with_file(part.key, frame, part.file, part.plain), visible_to=part.visible_to)
        return build_receipt(part, replaces or part.id)

    def _with_file(self, key: SessionKey, frame: Frame, file: Attachment | None, text: str) -> Frame:
        return frame if file is None else {**frame, "file": self._address(key, file, text)}

    def _apply(self, key: SessionKey, frame: Frame, *, visible_to: str = "", is_foreign: bool = False) -> None:
        """Show *frame* in the windows that are open here, and keep what one that opens later needs."""
        live = self._live.setdefault(key, LiveChatState())
        live.apply(frame, utc_now(), is_foreign=is_foreign)
        self._tidy(key)
        self._push(key, frame, visible_to=visible_to)

    def _post(self, key: SessionKey, frame: Frame) -> None:
        """Show *frame*, an activity or a preview, in the windows of other workers."""
        if self._shared is not None and self._shared.is_watched(key):
            self._shared.post(key, frame_codec.encode_shared(frame), slot=frame["type"] + frame.get("turn", ""))

    def _repeat(self, chat: SessionKey) -> None:
        """Post what *chat* shows now, for a window that another worker has opened."""
        for key, live in self._live.items():
            if key.parent == chat and not live.is_foreign:
                for frame in live.frames():
                    self._post(key, frame)

    def _receive(self, key: SessionKey, text: str) -> None:
        """Show a frame of another worker."""
        shared = frame_codec.decode_shared(text)
        frame = self._with_file(key, shared.frame, shared.file, shared.text)
        self._apply(key, frame, visible_to=shared.visible_to, is_foreign=True)

    def _refresh(self) -> None:
        """Have every window read its history again."""
        for windows in self._windows.values():
            for window in windows:
                window.ask(HistoryFrame())

    def _address(self, key: SessionKey, file: Attachment, text: str) -> Frame:  # noqa: ARG002 - the page needs the key
        """Return the fields with which a window shows and fetches *file*; *text* is its content if not stored."""
        return {**frame_codec.shown_file(file), "blob": file.blob, "text": "" if file.blob else text}

    def _push(self, key: SessionKey, frame: Frame, *, visible_to: str = "") -> None:
        frame = SharedFrame(frame)
        for window in self._windows.get(key, ()):
            if visible_to in ("", window.sender):
                window.push(frame)

    def _tell_others(self, sender: ClientConnection, message: InboundMessage) -> None:
        frame = SharedFrame(frame_codec.echo_frame(message))
        for window in self._windows.get(sender.key, set()) - {sender}:
            window.push(frame)
        if self._shared is not None:
            self._shared.post(sender.key, frame_codec.encode_shared(frame))

    def _tidy(self, key: SessionKey) -> None:
        if not self._live[key].frames():
            del self._live[key]

    def _remove(self, window: ClientConnection) -> None:
        windows = self._windows.get(window.key, set())
        windows.discard(window)
        if not windows:
            self._windows.pop(window.key, None)
        chat = window.key.parent
        if self._shared is not None and not any(key.parent == chat for key in self._windows):
            self._shared.unwatch(chat)
            # Nobody tells when it ends.
            self._live = {key: live for key, live in self._live.items() if key.parent != chat or not live.is_foreign}

    def _close_windows(self) -> None:
        for windows in self._windows.values():
            for window in windows:
                window.close()


def _cost_of(raw: object) -> float:
    """Return the cost of reading a frame: its JSON, up to a megabyte, is parsed on the event loop."""
    return 1 + len(raw) / _BYTES_OF_ONE if isinstance(raw, (str, bytes)) else 1.0


async def _first_of(*jobs: Awaitable[None], of: ClientConnection) -> None:
    """Run *jobs* side by side until one ends; cancel the others. A job's OSError is the end as well."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_job(job), name=f"window {of.key}") for job in jobs]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


async def _job(job: Awaitable[None]) -> None:
    try:
        await job
    except OSError as error:
        log.debug("frames.window_lost", error=type(error).__name__)


# -- terminal --------------------------------------------------------------------------------------
# The terminal: one attached terminal is one window, served over the control socket.

_OWNER = "owner"  # whoever can open the control socket owns the home


class ConsoleChannel(FrameChannel):
    """Terminals of the owner; all of them see one chat."""

    # A line of the control socket has a megabyte, and its JSON may take three times as many bytes as a window's.
    page_bytes = 256_000

    async def attach(
        self,
        receive: Callable[[], Awaitable[Mapping[str, Any] | None]],
        send: Callable[[Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Serve one terminal until `receive` gives None or `send` raises OSError."""
        await self.attend(ClientConnection(SessionKey(self.name, _OWNER), _OWNER), receive, send)
