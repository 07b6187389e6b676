"""A platform in memory and the channel that speaks to it, with every way a platform can fail.

`MemoryPlatform` is what people see and what outlives the gateway; a `FakeChannel` dies with its process::

    platform = Platform()
    channel = FakeChannel(platform, capabilities=RINGING)
    platform.fail(Fault.LATER, seconds=30)            # the next send or edit
    platform.fail(Fault.LOST, chat="42", calls=2)     # posted, but the reply is lost, twice
    assert platform.texts(ANN) == ["Hello"]

Every call of the platform is written down in `platform.calls`, in order, with its time.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, auto

from gateway.errors import FileUnavailable, FormatRefused, OutcomeUnknown, PlaceGone, RetryLater, SendRefused
from gateway.events import DeliveryReceipt, MessagePart, OutboundMessage, SessionKey
from gateway.i18n import translate
from gateway.ports.channel import ChannelCapabilities, ChatActivity
from gateway.text import LengthUnit, render_plain, split_bounded

PLAIN = ChannelCapabilities(text_limit=100)
RINGING = ChannelCapabilities(
    text_limit=100, edits=True, rings=True, preview_every=timedelta(seconds=1), shows_activity=True, max_parts=8
)
KEYED = replace(RINGING, send_key=True)
FILING = replace(RINGING, file_limit=10_000)


class ChannelFault(Enum):
    """What goes wrong with one call."""

    LATER = auto()  # 429 with Retry-After; nothing happens
    REFUSED = auto()  # 400, 403
    GONE = auto()  # the thread or chat takes nothing any more
    FORMAT = auto()  # "can't parse entities"; plain text would be taken
    LOST = auto()  # it happens, but the reply never comes
    DROPPED = auto()  # it does not happen, and the reply never comes
    BUG = auto()  # the adapter itself breaks before anything is sent
    HANG = auto()  # nothing ever comes back


@dataclass
class ChatMessage:
    """A message as it stands in a chat."""

    id: str
    part: str
    text: str
    is_marked: bool = False
    reply_to: str = ""
    visible_to: str = ""
    versions: list[str] = field(default_factory=list)
    file: bytes | None = None
    is_silent: bool = False


@dataclass(frozen=True)
class ChannelCall:
    """One call that reached the channel."""

    at: float  # seconds of the loop's clock
    what: str  # send, edit, find
    chat: str
    part: str
    text: str


@dataclass
class _PlannedFault:
    fault: ChannelFault
    what: str
    chat: str
    seconds: float
    calls: int


class MemoryPlatform:
    """Chats, and the faults that are coming."""

    def __init__(self, *, finds: bool = True) -> None:
        self.finds = finds  # whether history can be read back
        self.chats: dict[str, list[ChatMessage]] = defaultdict(list)
        self.blobs: dict[str, bytes] = {}  # the gateway's, which outlive its processes as well
        self.calls: list[ChannelCall] = []
        self.latency = 0.0  # seconds each call takes
        self.news = asyncio.Event()
        self.gives_turns = asyncio.Event()  # cleared: the calls of all chats are used up
        self.gives_turns.set()
        self._planned: list[_PlannedFault] = []
        self._ids = 900

    def fail(self, fault: ChannelFault, *, what: str = "", chat: str = "", seconds: float = 0, calls: int = 1) -> None:
        """Plan *fault* for the next *calls* calls (of one kind, of one chat)."""
        self._planned.append(_PlannedFault(fault, what, chat, seconds, calls))

    def heal(self) -> None:
        """Plan nothing any more."""
        self._planned.clear()

    def texts(self, key: SessionKey) -> list[str]:
        """Return what stands in a chat, top to bottom."""
        return [posted.text for posted in self.chats[key.chat]]

    def at(self, what: str, key: SessionKey) -> list[float]:
        """Return the times of the calls of one kind in one chat."""
        return [call.at for call in self.calls if call.what == what and call.chat == key.chat]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when *holds* holds; looked at after each call."""
        while not holds():
            self.news.clear()
            await self.news.wait()

    async def call(
        self, what: str, part: MessagePart, act: Callable[[], DeliveryReceipt | None]
    ) -> DeliveryReceipt | None:
        """Do one call, or what is planned for it."""
        text = part.payload or part.plain
        self.calls.append(ChannelCall(asyncio.get_running_loop().time(), what, part.key.chat, part.id, text))
        if self.latency:
            await asyncio.sleep(self.latency)
        planned = self._take(what, part)
        try:
            return await self._suffer(planned, act)
        finally:
            self.news.set()

    def _take(self, what: str, part: MessagePart) -> _PlannedFault | None:
        for planned in self._planned:
            if planned.what in ("", what) and planned.chat in ("", part.key.chat):
                if planned.fault is ChannelFault.FORMAT and not part.payload:
                    continue
                planned.calls -= 1
                if planned.calls <= 0:
                    self._planned.remove(planned)
                return planned
        return None

    async def _suffer(
        self, planned: _PlannedFault | None, act: Callable[[], DeliveryReceipt | None]
    ) -> DeliveryReceipt | None:
        match planned.fault if planned else None:
            case ChannelFault.LATER:
                assert planned is not None
                raise RetryLater(timedelta(seconds=planned.seconds))
            case ChannelFault.REFUSED:
                raise SendRefused("403 blocked")
            case ChannelFault.GONE:
                raise PlaceGone("400 message thread not found")
            case ChannelFault.FORMAT:
                raise FormatRefused("400 can't parse entities")
            case ChannelFault.LOST:
                act()
                raise OutcomeUnknown("connection reset")
            case ChannelFault.DROPPED:
                raise OutcomeUnknown("timed out")
            case ChannelFault.BUG:
                raise KeyError("message_id")
            case ChannelFault.HANG:
                await asyncio.Event().wait()
        return act()

    def post(self, part: MessagePart, text: str, *, is_marked: bool, is_keyed: bool, file: bytes | None = None) -> str:
        """Put a message into its chat; a known key gives the message that stands there."""
        chat = self.chats[part.key.chat]
        if is_keyed:
            for posted in chat:
                if posted.part == part.id:
                    return posted.id
        self._ids += 1
        chat.append(
            ChatMessage(
                str(self._ids),
                part.id,
                text,
                is_marked,
                part.reply_to,
                part.visible_to,
                versions=[text],
                file=file,
                is_silent=part.is_placed,
            )
        )
        return str(self._ids)

    def find(self, part: MessagePart) -> str | None:
        """Return the message that *part* stands in, if any."""
        return next((posted.id for posted in self.chats[part.key.chat] if posted.part == part.id), None)

    def change(self, message_id: str, part: MessagePart, text: str) -> None:
        """Edit a message; raise SendRefused when it is gone."""
        for posted in self.chats[part.key.chat]:
            if posted.id == message_id:
                posted.text, posted.part = text, part.id
                if posted.versions[-1] != text:
                    posted.versions.append(text)
                return
        raise SendRefused("400 message to edit not found")


class FakeChannel:
    """One process's channel to a `MemoryPlatform`. Its dialect: the payload is Markdown, plain is without marks."""

    def __init__(
        self, platform: MemoryPlatform, *, name: str = "telegram", capabilities: ChannelCapabilities = PLAIN
    ) -> None:
        self.name = name
        self.capabilities = capabilities
        self.platform = platform
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.activities: list[ChatActivity] = []
        self.watched = True
        self.breaks_rendering = False
        self.without_reactions: list[SessionKey] = []

    async def run(self) -> None:
        """Hear nothing."""
        await asyncio.Event().wait()

    def is_ready(self) -> bool:
        """Always."""
        return True

    def is_watched(self, key: SessionKey) -> bool:
        """As `watched` says."""
        return self.watched

    def is_typing(self, key: SessionKey) -> bool:
        """Say whether the chat is shown typing now."""
        shown = [activity.on for activity in self.activities if activity.key == key]
        return bool(shown) and shown[-1]

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
        """Cut *message* by the capabilities."""
        if self.breaks_rendering:
            raise ValueError("a bug in the codec")
        pieces = split_bounded(
            message.text,
            limit=self.capabilities.text_limit,
            unit=LengthUnit(self.capabilities.unit),
            max_parts=self.capabilities.max_parts,
        )
        return [message.part(n, piece, render_plain(piece)) for n, piece in enumerate(pieces, 1)]

    async def wait_turn(self, key: SessionKey) -> bool:
        """Wait while the platform gives no turns."""
        if self.platform.gives_turns.is_set():
            return False
        await self.platform.gives_turns.wait()
        return True

    def try_turn(self, key: SessionKey) -> bool:
        """Take a turn if the platform gives them."""
        return self.platform.gives_turns.is_set()

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Post *part*."""
        text, file = part.payload or part.plain, None
        if part.file is not None:
            text = f"[{part.file.name}]"
            file = self.platform.blobs.get(part.file.blob) if part.file.blob else part.plain.encode()
            if file is None:
                raise FileUnavailable("it is lost")
        if may_be_duplicate:
            text = f"{translate('delivery.may_repeat')}\n{text}"

        def act() -> DeliveryReceipt:
            keyed = self.capabilities.send_key
            return self._receipt(
                part, self.platform.post(part, text, is_marked=may_be_duplicate, is_keyed=keyed, file=file)
            )

        receipt = await self.platform.call("send", part, act)
        assert receipt is not None
        return receipt

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Edit what stands under *message_id*."""

        def act() -> DeliveryReceipt:
            self.platform.change(message_id, part, part.payload or part.plain)
            return self._receipt(part, message_id)

        receipt = await self.platform.call("edit", part, act)
        assert receipt is not None
        return receipt

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Read the chat back, where the platform can."""

        def act() -> DeliveryReceipt | None:
            if not self.platform.finds:
                raise OutcomeUnknown("no history here")
            found = self.platform.find(part)
            return self._receipt(part, found) if found else None

        return await self.platform.call("find", part, act)

    async def show(self, activity: ChatActivity) -> None:
        """Note what is shown."""
        self.activities.append(activity)

    def remove_reactions(self, key: SessionKey) -> None:
        """Note the chats without reactions."""
        self.without_reactions.append(key)

    async def close(self) -> None:
        """Nothing to release."""

    def _receipt(self, part: MessagePart, message_id: str) -> DeliveryReceipt:
        return DeliveryReceipt(part=part.id, message_id=message_id, at=self.now())
