"""The parts that a message becomes, and what its workers share: ports, back-off and waiting. Nothing here sends."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import SystemRandom
from typing import TYPE_CHECKING, TypeVar

import structlog

from gateway.channel import Channel
from gateway.errors import FileUnavailable, OutcomeUnknown, SendFailed, SendRefused, StoreUnavailable, exponential_delay
from gateway.events import (
    AnswerSource,
    Attachment,
    ChatKind,
    InboundKind,
    InboundMessage,
    MessagePart,
    OutboundKind,
    OutboundMessage,
    SessionKey,
)
from gateway.i18n import command_prefix, translate
from gateway.i18n.formats import format_file_size
from gateway.ports.channel import in_english
from gateway.ports.journal import OutboxPart, PartState
from gateway.ports.metrics import MetricsRecorder
from gateway.text import (
    LengthUnit,
    PartSplitter,
    append_commands,
    break_addresses,
    comparable_address,
    find_addresses,
    render_plain,
    sanitize,
    split,
    weight,
    width,
)
from gateway.text.message_text import format_sources, safe_display_name
from gateway.text.redaction import SecretRedactor

if TYPE_CHECKING:
    from gateway.delivery.outbox_dispatcher import TurnPreview
    from gateway.store.outbox import SqlOutbox


T = TypeVar("T")

FIRST_DELAY = 2.0  # seconds before a failed send is tried again; doubled each time
LONGEST_DELAY = 900.0
_STORE_PAUSES = (0.5, 30.0)
_KEPT = 256  # turns whose preview is remembered until their answer is cut
_CHEAP = (4_000, 250)  # characters and signs that are formatted on the event loop: a few milliseconds
_FILE_TIMEOUT = timedelta(minutes=5)  # an upload takes longer than a text
_dice = SystemRandom()


def backoff(failures: int) -> float:
    """Return the seconds to wait after *failures*, with a jitter of one fifth."""
    return exponential_delay(failures, FIRST_DELAY, LONGEST_DELAY) * _dice.uniform(0.8, 1.2)


def is_cheap(text: str) -> bool:
    """Return True if *text* is formatted on the event loop."""
    longest, heaviest = _CHEAP
    return len(text) <= longest and weight(text) <= heaviest


class AttachmentLost(SendRefused):
    """The bytes of a part that is a file are not there any more."""


class ChatBackoff:
    """Back-off of each chat as demanded by its platform; threads share their chat's."""

    def __init__(self) -> None:
        self._until: dict[SessionKey, tuple[float, str]] = {}

    def add(self, key: SessionKey, seconds: float, reason: str) -> None:
        """Say nothing in this chat for *seconds*."""
        until = asyncio.get_running_loop().time() + seconds
        self._until[key.parent] = max((until, reason), self._until.get(key.parent, (until, reason)))

    def remaining(self, key: SessionKey) -> tuple[float, str]:
        """Return the remaining seconds of the chat's back-off, or 0, and its reason."""
        if (found := self._until.get(key.parent)) is None:
            return 0.0, ""
        left = found[0] - asyncio.get_running_loop().time()
        if left <= 0:
            del self._until[key.parent]
            return 0.0, ""
        return left, found[1]


async def say_no_more(part: MessagePart) -> str:  # noqa: ARG001 - the signature of `on_missing_file`
    """Return "": the file has no meaning beyond itself."""
    return ""


@dataclass(slots=True, kw_only=True)
class DeliveryContext:
    """The ports, options and shared state of all deliveries; one per gateway."""

    outbox: SqlOutbox
    meter: MetricsRecorder
    now: Callable[[], datetime]
    language: Callable[[SessionKey], str] = in_english  # of a chat
    per_channel: int = 16  # sends at once in one channel
    call_timeout: timedelta = timedelta(seconds=60)  # a platform that says nothing for so long has an unknown outcome
    # delivery.once: where a platform can neither be asked nor takes a send key, texts go by edit into placeholders.
    is_strict: bool = False
    redactor: SecretRedactor = field(default_factory=SecretRedactor)  # keeps secrets out of whatever is sent
    # Called with the part of a file that the platform does not take, before the line that says so; returns another
    # sentence of it.
    on_missing_file: Callable[[MessagePart], Awaitable[str]] = say_no_more
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    quieter: asyncio.Event = field(default_factory=asyncio.Event)  # a delivery worker ended or paused
    pauses: ChatBackoff = field(default_factory=ChatBackoff)
    previews: dict[str, TurnPreview] = field(default_factory=dict)  # the open ones, by turn
    previewed: dict[str, str] = field(default_factory=dict)  # what the preview of a turn showed, as Markdown
    working: set[SessionKey] = field(default_factory=set)  # chats with something undelivered
    slots: dict[str, asyncio.Semaphore] = field(default_factory=dict)  # of each channel, for its sends
    formatting: asyncio.Lock = field(default_factory=asyncio.Lock)  # of long texts: one at a time

    async def formatted(self, text: str, call: Callable[[], T]) -> T:
        """Return the result of *call*, which formats *text*; long texts are formatted in a thread.

        One at a time, followed by a pause of the same length: however many long answers there are, half
        of the time is left to other chats.
        """
        if is_cheap(text):
            return call()
        await self.formatting.acquire()
        begun = time.perf_counter()
        try:
            return await asyncio.to_thread(call)
        finally:
            asyncio.get_running_loop().call_later(time.perf_counter() - begun, self.formatting.release)

    def remember_preview(self, turn: str, text: str) -> None:
        """Record the text that the preview of *turn* shows, for planning its parts; the oldest entry is dropped."""
        self.previewed.pop(turn, None)
        self.previewed[turn] = text
        if len(self.previewed) > _KEPT:
            del self.previewed[next(iter(self.previewed))]

    def without_secrets(self, part: MessagePart) -> MessagePart:
        """Return *part*, as plain text if its formatting hid a secret from the redaction of the Markdown."""
        plain = self.redactor.redact(part.plain)
        return part if plain == part.plain else replace(part, payload="", plain=plain)

    def uses_placeholders(self, channel: Channel, message: OutboundMessage) -> bool:
        """Return True if the texts of *message* are edited into placeholders because lost sends cannot be looked up.

        Not for messages that one person alone sees: they may be shown in another chat than their key's.
        """
        able = channel.capabilities
        return self.is_strict and able.edits and not able.send_key and not able.finds and not message.visible_to

    async def backoff_sleep(self, seconds: float) -> None:
        """Wait *seconds*, or until the gateway stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()

    async def retry_store(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call of the outbox until it is stored; raise StoreUnavailable only when the gateway stops."""
        pause, longest = _STORE_PAUSES
        while True:
            try:
                return await call()
            except StoreUnavailable as error:
                if self.stopping.is_set():
                    raise
                log.warning("delivery.waits_for_store", reason=str(error), seconds=pause)
                await self.backoff_sleep(pause)
                pause = min(2 * pause, longest)

    async def call_channel(self, channel: Channel, part: MessagePart, call: Awaitable[T]) -> T:
        """Await a call of *channel* about *part*; whatever it raises comes out as SendFailed."""
        timeout = self.call_timeout if part.file is None else max(self.call_timeout, _FILE_TIMEOUT)
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                return await call
        except SendFailed:
            raise
        except FileUnavailable as error:
            raise AttachmentLost(str(error)) from error
        except TimeoutError as error:
            raise OutcomeUnknown("the platform said nothing in time") from error
        except Exception as error:  # the channel boundary: its bug must not lose what it was to send
            log.exception("delivery.channel_failed", channel=channel.name, chat=str(part.key))
            raise OutcomeUnknown(type(error).__name__) from error


log = structlog.get_logger(__name__)

LATE = timedelta(minutes=1)  # docs/using.md: after that much preview the last part is a new message
WHOLE = "answer.md"  # the file that holds an answer too long for its chat
PLAIN_WHOLE = "answer.txt"  # if not all of its addresses may be links
PLACED_PARTS = 3  # texts of one answer that are placed: six calls, a few seconds
_STANDS = (PartState.SENT, PartState.SENDING, PartState.UNKNOWN)
_LONGEST_NAME = 64
_MARKS = frozenset("\\`*_{}[]()<>#+-.!|~$&:@=")
_LONGEST_QUESTION = 200  # characters of a question that a moved answer quotes


class PartPlanner:
    """Plans the parts of one channel's messages. A plan is stored before its first part is sent and never changes."""

    def __init__(self, channel: Channel, context: DeliveryContext) -> None:
        self._channel = channel
        self._context = context

    def plan_parts(self, message: OutboundMessage, preview: OutboxPart | None) -> list[MessagePart]:
        """Return the parts in their order: text, then a part per attachment; none when there is nothing to show."""
        redact = self._context.redactor.redact
        if message.sources:
            sources = tuple(AnswerSource(redact(each.url), redact(each.title)) for each in message.sources)
            message = replace(message, sources=sources)
            if not self._channel.capabilities.footnotes:
                message = self._with_source_line(message)
        redacted = redact(message.text)
        message = message if redacted == message.text else replace(message, text=redacted)
        if message.choices:
            message = self._with_buttons(message)
        if message.calls and not self._channel.capabilities.mentions:
            name = safe_display_name(message.calls_name)
            message = replace(message, text=f"{name}: {message.text}" if name else message.text, calls="")
        least = self._previewed(message)
        texts = self._render(message, least=least) if message.text else []  # a file alone has none
        is_placed = self._context.uses_placeholders(self._channel, message)
        if self._is_too_long(message, len(texts), is_placed=is_placed):
            texts = self._with_file(message, least) or texts
        parts = [*texts, *(self._file(message, each) for each in message.attachments)]
        if is_placed:
            parts = [replace(part, is_placed=part.file is None) for part in parts]
        if parts and preview is not None and self._needs_pointer(message, parts, preview):
            parts = [self._pointer(message), *parts]
        if message.choices or message.settles or message.calls:
            parts = _with_choices(parts, message)
        named = zip(parts, (f"{message.id}.{n}" for n in range(1, len(parts) + 1)), strict=True)
        return [part if part.id == name else replace(part, id=name) for part, name in named]

    def plan_moved(self, message: OutboundMessage, part: MessagePart, question: InboundMessage) -> list[MessagePart]:
        """Return the parts that *message* becomes elsewhere, because *part* was refused where it should go.

        A thread's answer goes to the parent chat, whole and below its question. If that is refused too,
        or the thread is private, its asker gets one line. Returns no parts if that was tried, or if the chat is the
        asker's own.
        """
        asker, parent = question.sender.id, message.key.parent
        if not part.moved_to and parent != message.key and not question.is_private:
            text = f"{_quote_question(question)}{message.text}"
            there = replace(message, key=parent, text=text, reply_to="", settles=False)
            return [replace(each, moved_to=parent.chat) for each in self.plan_parts(there, None)]
        is_own = message.chat_kind is ChatKind.DIRECT or not asker or message.key.parent.chat == asker
        if is_own or part.moved_to == asker:
            return []
        key = SessionKey(message.key.channel, asker)
        notice = translate("delivery.place_gone", self._context.language(message.key))
        to_asker = OutboundMessage(id=message.id, key=key, text=notice, kind=OutboundKind.NOTICE, visible_to=asker)
        return [replace(each, moved_to=asker) for each in self.plan_parts(to_asker, None)]

    # -- texts ---------------------------------------------------------------------------------

    def _with_source_line(self, message: OutboundMessage) -> OutboundMessage:
        """Return *message* with the sources that its text does not link as a line below it."""
        line = format_sources(message.sources, message.text, self._context.language(message.key))
        links = message.links
        if links is not None:
            links += tuple(map(comparable_address, find_addresses(line)))
        return replace(message, text=f"{message.text}\n\n{line}".strip(), links=links, sources=())

    def _with_buttons(self, message: OutboundMessage) -> OutboundMessage:
        """Return *message* as the channel can show its choices: as buttons, or as commands in the text."""
        capabilities = self._channel.capabilities
        # Elsewhere, in a chat of its own, the same command would be about that chat.
        is_elsewhere = bool(message.visible_to) and not capabilities.private_choices
        if len(message.choices) <= capabilities.choices and not is_elsewhere:
            return message
        prefix = command_prefix(self._context.language(message.key))
        return replace(message, text=append_commands(message.text, message.choices, prefix), choices=())

    def _previewed(self, message: OutboundMessage) -> int:
        """Return the length of the text that the turn's preview showed: the first part holds no less."""
        shown = self._context.previewed.get(message.turn, "")
        return len(shown) if sanitize(message.text[: 2 * len(shown)]).startswith(shown) else 0

    def _render(self, message: OutboundMessage, *, least: int = 0) -> list[MessagePart]:
        try:
            return [self._context.without_secrets(part) for part in self._channel.render(message, least=least)]
        except Exception:  # the channel boundary: an answer that cannot be formatted is still an answer
            log.exception("delivery.render_failed", channel=self._channel.name, message=message.id)
            capabilities = self._channel.capabilities
            plain = render_plain(message.text, message.links)
            pieces = split(plain, limit=capabilities.text_limit, unit=LengthUnit(capabilities.unit))
            return [message.part(0, "", piece) for piece in pieces[: capabilities.max_parts]]

    def _is_too_long(self, message: OutboundMessage, texts: int, *, is_placed: bool) -> bool:
        """Return True if an answer of so many *texts* is to be its beginning and a file.

        In a group this spares the other members, except for messages that one person alone sees. With
        placeholders each text takes two calls in a chat that allows one a second, which delays the next answer.
        A question is always sent in parts: its buttons stand below the last one, and a file may not arrive.
        """
        if message.choices:
            return False
        is_shared = message.chat_kind is ChatKind.GROUP and not message.visible_to
        return (is_shared and texts > self._channel.capabilities.group_parts) or (is_placed and texts > PLACED_PARTS)

    def _with_file(self, message: OutboundMessage, least: int) -> list[MessagePart]:
        """Return the beginning and the file that a long answer becomes; nothing where it cannot be a file."""
        capabilities = self._channel.capabilities
        whole, name, media_type = sanitize(message.text), WHOLE, "text/markdown"
        shown = whole if message.links is None else render_plain(whole)
        if (safe := break_addresses(shown, message.links, is_code=True)) != shown:
            # Whoever opens it as Markdown would have the links, and the pictures fetched.
            whole, name, media_type = safe, PLAIN_WHOLE, "text/plain"
        length = len(whole.encode())
        first = self._beginning(message, least) if length <= capabilities.file_limit else None
        if first is None:
            return []
        file = Attachment(kind="document", name=name, size=length, media_type=media_type)
        return [first, replace(message.part(0, "", whole), file=file)]

    def _beginning(self, message: OutboundMessage, least: int) -> MessagePart | None:
        """Return the answer's first part, which ends in a line that names the file; None if nothing fits."""
        able = self._channel.capabilities
        line = translate("delivery.in_the_file", self._context.language(message.key))
        source = sanitize(message.text[: 4 * able.text_limit])

        def render(text: str) -> list[MessagePart]:
            return self._render(replace(message, text=text, attachments=()))

        found = beginning(source, line, render, limit=able.text_limit, unit=LengthUnit(able.unit), least=least)
        return found[1] if found else None

    # -- files ---------------------------------------------------------------------------------

    def _file(self, message: OutboundMessage, file: Attachment) -> MessagePart:
        """Return *file* as a part, or the line that says why it cannot be one."""
        limit = self._channel.capabilities.file_limit
        if limit and file.size <= limit:
            return replace(message.part(0, "", ""), file=file)
        line = "delivery.file_large" if limit else "delivery.no_files"
        language = self._context.language(message.key)
        said = translate(
            line,
            language,
            name=shown_name(file),
            size=format_file_size(file.size, language),
            limit=format_file_size(limit, language),
        )
        return message.part(0, "", said)

    # -- the preview ---------------------------------------------------------------------------

    def _needs_pointer(self, message: OutboundMessage, parts: list[MessagePart], preview: OutboxPart) -> bool:
        """Return True if the preview becomes a pointer: a file cannot replace it, and a late answer must notify."""
        if preview.state not in _STANDS or not self._channel.capabilities.edits:
            return False
        if parts[0].file is not None:
            return True
        is_late = preview.state is PartState.SENT and preview.at is not None and self._context.now() - preview.at > LATE
        rings = message.rings and self._channel.capabilities.rings and not parts[0].is_placed
        return len(parts) == 1 and is_late and rings

    def _pointer(self, message: OutboundMessage) -> MessagePart:
        line = translate("delivery.next_message", self._context.language(message.key))
        return replace(self._render(replace(message, text=line, attachments=()))[0], kind=OutboundKind.PREVIEW)


def _with_choices(parts: list[MessagePart], message: OutboundMessage) -> list[MessagePart]:
    """Return *parts* with the buttons below the last text, and with what they settle."""
    last = max((n for n, part in enumerate(parts) if part.file is None), default=-1)
    return [
        replace(
            part,
            choices=message.choices if n == last else (),
            settles=message.settles and not n,
            calls="" if n else message.calls,
            calls_name="" if n else message.calls_name,
        )
        for n, part in enumerate(parts)
    ]


def _quote_question(question: InboundMessage) -> str:
    """Return the beginning of a question as a Markdown quote; nothing for jobs and for messages without text."""
    line = " ".join(sanitize(question.text).split())
    if question.kind is InboundKind.JOB or not line:
        return ""
    line = line if len(line) <= _LONGEST_QUESTION else f"{line[:_LONGEST_QUESTION]}…"
    name = safe_display_name(question.sender.name)
    # As entities, so that no sign of it is read as Markdown.
    literal = "".join(f"&#{ord(each)};" if each in _MARKS else each for each in line)
    return f"> {name}: {literal}\n\n" if name else f"> {literal}\n\n"


def shown_name(file: Attachment) -> str:
    """Return a file's name as one short line of text."""
    name = " ".join(sanitize(file.name).split())
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


_NOTED_FROM = 8  # of a message a note takes no more than this part; beyond that much text budget for it is made sure of
_SMALLEST_BUDGET = 16  # units; a beginning shorter than this says nothing
_CLOSER = 8  # units for what closes a fence that is cut
# The beginning of a link shows words that its end takes away: where it leads, or all of it when it defines one.
_OPEN_LINK = re.compile(
    r"!?\[[^\[\]\n]*(?:\](?:\([^()\n]*)?)?\Z|^[ \t>*+.)0-9-]*\[[^\[\]\n]+\]:[^\n]*\Z|<[^<>\s]*\Z", re.MULTILINE
)


def beginning(
    source: str, line: str, render: Callable[[str], Sequence[MessagePart]], *, limit: int, unit: LengthUnit, least: int
) -> tuple[int, MessagePart] | None:
    """Return the end of the part with the beginning of *source* above *line*, and the part; None if nothing fits.

    The part holds the first *least* characters of sanitized *source* if they fit.
    """
    splitter = PartSplitter(source, unit)
    start = splitter.skip(0)
    budget, held = limit - width(f"\n\n{line}", unit), width(source[:least], unit) + _CLOSER
    while start < len(source) and budget >= _SMALLEST_BUDGET:
        cut = splitter.cut(start, budget, least)
        parts = render(f"{cut.text}\n\n{line}")
        if len(parts) == 1:
            return cut.end, parts[0]
        shorter = budget * 3 // 4  # a dialect can be longer than its Markdown
        budget = held if shorter < held < budget else shorter
    return None


class GrowingText:
    """One answer's. `shown` is the beginning of it, as Markdown, that the last part showed."""

    def __init__(
        self,
        render: Callable[[str], Sequence[MessagePart]],
        redactor: SecretRedactor,
        *,
        limit: int,
        unit: LengthUnit,
        note: str,
    ) -> None:
        """Format by *render* up to *limit* units; *note* announces that the answer continues."""
        self._render = render
        self._redactor = redactor
        self._limit = limit
        self._unit = unit
        self._note = note if width(note, unit) * _NOTED_FROM <= limit else "…"
        self._is_full = False
        self.shown = ""

    def grow(self, text: str) -> MessagePart | None:
        """Return the part of *text*, the full text so far, to show; None if nothing is new.

        A text that does not continue the shown one starts a new preview.
        """
        source = self._redactor.redact_growing(sanitize(text[: 2 * self._limit]))
        source = _OPEN_LINK.sub("", source)
        if not source.startswith(self.shown):
            if self.shown.startswith(source):
                return None  # a word at the end that may become a secret is waited for
            self.shown, self._is_full = "", False
        if self._is_full or not source.strip():
            return None
        parts = self._render(source)
        if len(parts) == 1 and self._leaves_space(source):
            self.shown = source
            return parts[0]
        self._is_full = bool(parts)
        return self._last(source) if parts else None

    def _leaves_space(self, source: str) -> bool:
        if width(source, self._unit) * _NOTED_FROM <= self._limit:
            return True
        return len(self._render(self._with_note(source))) == 1

    def _last(self, source: str) -> MessagePart | None:
        """Return as much of *source* as its message holds beside the note, and no less than is shown."""
        for text in (source, self.shown):
            found = beginning(text, self._note, self._render, limit=self._limit, unit=self._unit, least=len(self.shown))
            if found is not None and found[0] >= len(self.shown.rstrip()):
                self.shown = text[: max(found[0], len(self.shown))]
                return found[1]
        return None

    def _with_note(self, source: str) -> str:
        return f"{source}\n\n{self._note}"
