"""The API's channel: requests become messages of their conversations, and wait for the answers.

The answer is stored with the conversation, so a part counts as sent when it was passed to every waiting request, even
to none. A repeated request finds its message by the id, and the answer in the store.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import structlog
from cachetools import LRUCache

from channels.api.keys import ApiKey, ApiKeys
from channels.api.parse import ApiError, ApiRequest, RequestImage, busy, read_idempotency_key, unavailable
from channels.api.render import render, restrict_markdown
from channels.kit import is_person_name
from channels.kit.background import KeyedSlots, SlotsTaken, utc_now
from channels.kit.bodies import UploadHeader, UploadRefused, WebUploads, build_receipt
from gateway.channel import ChannelContext, StatelessAnswer, TurnUsage
from gateway.errors import FileUnavailable, ModelFailed, OutcomeUnknown, StoreUnavailable, UserError
from gateway.events import (
    Attachment,
    DeliveryReceipt,
    InboundMessage,
    MessagePart,
    OutboundKind,
    OutboundMessage,
    QuoteKind,
    Sender,
    SessionKey,
    short_id,
    turn_id,
)
from gateway.i18n import translate
from gateway.ports.access import CapReached
from gateway.ports.channel import ChannelCapabilities, ChatActivity, DisplayedMessage, IntakeVerdict
from gateway.text import find_command

log = structlog.get_logger(__name__)

OWNER = "owner"
OPEN_OF_ONE_KEY = 16  # requests of one key that run or wait at once
ANSWER_SECONDS = 600.0  # that a request waits; the answer is stored all the same
TEXT_LIMIT = 400_000  # characters of one part
CAPABILITIES = ChannelCapabilities(
    text_limit=TEXT_LIMIT,
    edits=True,
    send_key=True,
    preview_every=timedelta(milliseconds=100),
    finds=True,
    max_parts=10,
    footnotes=False,
)
_LOOK_EVERY = 1.0  # seconds, whether a turn has ended without a word
_ASK_STORE_EVERY = 5  # looks: another gateway may have ended it
_GRACE = 3  # looks after its end, until its words are read from the store
_LINES = 40  # of a conversation, in which an earlier version of a message is looked for
_TURNS = 100  # of a conversation, in which a message is looked for by its id
_MOST_PAGES = 10
_RESENT_WITHIN = timedelta(minutes=10)  # an answer that nobody took is given to the same request for so long
_MOST_SERVED = 10_000  # messages
_BUSY_AT_ONCE, _BUSY_WAITING = 1, 15  # messages of one conversation that are being accepted


@dataclass(slots=True, eq=False)
class AnswerSubscription:
    """One waiting request, and what its conversation has shown of the answer so far."""

    key: SessionKey
    message_id: str
    turn: str  # of the answer; another one's if the message was merged into that
    preview: str = ""
    parts: dict[str, str] = field(default_factory=dict)  # by part
    kind: str = OutboundKind.ANSWER
    is_over: bool = False
    is_closing: bool = False  # the gateway stops
    has_other: bool = False  # another turn was answered since the last look
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def show(self, frame: Mapping[str, Any]) -> None:
        """Take a frame of the conversation, if it is of this answer."""
        if self.message_id == frame["answers"]:
            self.turn = frame["turn"]
        if frame["turn"] != self.turn:
            # Our message may have been merged into that turn.
            if frame["last"] and frame["kind"] != OutboundKind.PREVIEW:
                self.has_other = True
                self.news.set()
            return
        if frame["kind"] == OutboundKind.PREVIEW:
            self.preview = frame["text"] or self.preview
        else:
            self.parts[frame["part"]] = frame["text"]
            self.kind = frame["kind"]
            self.is_over = self.is_over or frame["last"]
        self.news.set()

    async def wait_news(self, seconds: float) -> bool:
        """Wait for the next news at most *seconds*; return False on a timeout."""
        try:
            async with asyncio.timeout(seconds):
                await self.news.wait()
        except TimeoutError:
            return False
        self.news.clear()
        return True

    @property
    def text(self) -> str:
        """The text of the parts that have come."""
        return "\n\n".join(text for _, text in sorted(self.parts.items(), key=lambda each: _part_order(each[0])))


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """The answer so far, all of it if it *is_over*. A preview may restart with another text."""

    text: str
    is_over: bool = False
    kind: str = OutboundKind.ANSWER
    turn: str = ""
    at: datetime | None = None  # of its message, if it was read from the store


@dataclass(slots=True, kw_only=True)
class AcceptedRequest:
    """A request whose message is durable."""

    subscription: AnswerSubscription
    row: int
    since: datetime  # when the message came first
    is_repeated: bool

    @property
    def chat(self) -> str:
        """The name of the conversation."""
        return self.subscription.key.thread


class ApiChannel:
    """The API. A conversation's key is made of the key's person and the conversation's name.

    So nothing that a client sends can name another person's.
    """

    capabilities = CAPABILITIES

    def __init__(self, context: ChannelContext) -> None:
        self.name = context.name
        self.keys = ApiKeys(context.state, is_shared=context.is_shared)
        self.open_requests = KeyedSlots(OPEN_OF_ONE_KEY, waiting_limit=0)
        self._context = context
        self._accepting = KeyedSlots(_BUSY_AT_ONCE, _BUSY_WAITING)
        self._subscriptions: dict[SessionKey, set[AnswerSubscription]] = {}
        self._served: LRUCache[tuple[SessionKey, str], None] = LRUCache(_MOST_SERVED)
        self._uploads = WebUploads(context.folder) if context.folder is not None else None
        self._last_stamp = datetime.min.replace(tzinfo=UTC)
        self._running = False
        self._shared = context.windows
        if self._shared is not None:
            self._shared.subscribe(self.name, self._receive_frame, lambda _: None, self._wake_all)

    # -- the port ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take requests until cancelled; then end those that wait."""
        self._running = True
        try:
            if self._uploads is not None:
                with suppress(OSError):  # a disk in trouble is for the next upload to say
                    await self._uploads.tidy()
            await asyncio.get_running_loop().create_future()
        finally:
            self._running = False
            for subscription in self._all_subscriptions():
                subscription.is_closing = True
                subscription.news.set()

    def is_ready(self) -> bool:
        """Return True while requests are accepted."""
        return self._running

    def is_watched(self, key: SessionKey) -> bool:
        """Return True if a request waits in this conversation, here or at another worker."""
        return bool(self._subscriptions.get(key)) or (self._shared is not None and self._shared.is_watched(key))

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:  # noqa: ARG002 - the port's signature
        """Return the Markdown of *message*, which clients render, in one part unless it is extremely long."""
        return render(message, TEXT_LIMIT, CAPABILITIES.max_parts, self._context.language(message.key))

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:  # noqa: ARG002 - a part sent again is shown once
        """Hand *part* to every request that waits for it; fails only if it could not be stored for other workers."""
        return await self._show(part, part.id)

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace the preview by *part*."""
        return await self._show(part, message_id)

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:  # noqa: ARG002 - the port's signature
        """Return None: sending a part again has no effect on requests."""
        return None

    async def show(self, activity: ChatActivity) -> None:
        """Show nothing: the protocol has no status."""

    async def close(self) -> None:
        """Hold nothing open."""

    async def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield an image of a request; see `SupportsFiles`."""
        if self._uploads is None:
            raise FileUnavailable("images cannot be stored here")
        async with aclosing(self._uploads.fetch(attachment.url)) as pieces:
            async for piece in pieces:
                yield piece

    # -- keys ----------------------------------------------------------------------------------------

    async def create_key(self, name: str = "") -> tuple[str, ApiKey]:
        """Return a new key of the person *name*, by default of the owner. Raises UserError for a bad name."""
        if name == OWNER:
            raise UserError(f"{OWNER!r} is the name of the owner; omit --as for a key of the owner")
        if name and not is_person_name(name):
            raise UserError(f"{name!r} is not a valid name; use at most 32 of a-z, 0-9, dots and dashes, such as ann")
        return await self.keys.create(name or OWNER)

    # -- requests ------------------------------------------------------------------------------------

    def conversation(self, key: ApiKey, name: str) -> SessionKey:
        """Return the conversation *name* of the person of *key*, by default the key's own."""
        return SessionKey(self.name, f"{key.who}/{name or f'key-{key.id}'}")

    async def answer_stateless(self, conversation: SessionKey, key: ApiKey, request: ApiRequest) -> StatelessAnswer:
        """Have the model answer a request about a conversation, which is stored nowhere. Raises ApiError."""
        if self._context.answer_stateless is None:
            raise unavailable("no model answers here")
        fields = request.fields
        if fields is not None:
            form = f"Answer with one JSON object and nothing else; its fields are texts: {', '.join(fields.names)}"
            request = replace(request, text=f"{request.text}\n\n{form}")
        message = self._message(conversation, key, request, message_id=f"aside-{secrets.token_hex(8)}")
        try:
            answer = await self._context.answer_stateless(message)
        except CapReached as error:
            raise busy(f"a usage cap is reached ({error}); try again later", seconds=60) from error
        except ModelFailed as error:
            raise ApiError("the model did not answer; try again later", status=502, code="model_failed") from error
        if answer is None:
            raise _not_allowed("")
        # Its text quotes a conversation, which may have words of others; clients render pictures.
        restrict = partial(restrict_markdown, links=frozenset())
        return replace(answer, text=restrict(answer.text) if fields is None else fields.read(answer.text, restrict))

    @asynccontextmanager
    async def accepted(
        self, conversation: SessionKey, key: ApiKey, request: ApiRequest, *, idempotency_key: str | None, is_retry: bool
    ) -> AsyncIterator[AcceptedRequest]:
        """Accept the message of *request* durably, and subscribe to its answer while the context is open.

        Raises ApiError. *is_retry*: the client says that it sends the same request again.
        """
        subscription = AnswerSubscription(conversation, "", "")
        self._subscriptions.setdefault(conversation, set()).add(subscription)
        try:
            if self._shared is not None:
                await self._shared.watch(conversation.parent)
            async with self._accepting.hold(str(conversation)):
                accepted = await self._accept(subscription, key, request, idempotency_key, is_retry=is_retry)
            yield accepted
        except SlotsTaken:
            raise busy(
                "too many requests of this conversation come at once; send them one after the other", seconds=1
            ) from None
        except StoreUnavailable as error:
            raise unavailable("messages cannot be stored right now; try again later") from error
        finally:
            self._unsubscribe(subscription)

    async def _accept(
        self,
        subscription: AnswerSubscription,
        key: ApiKey,
        request: ApiRequest,
        idempotency_key: str | None,
        *,
        is_retry: bool,
    ) -> AcceptedRequest:
        if not self._running:
            raise unavailable("the gateway is stopping; try again in a moment")
        if idempotency_key is not None:
            message_id, replaced = read_idempotency_key(idempotency_key), ""
        else:
            message_id, replaced = await self._identify(subscription.key, request, is_retry=is_retry)
        message = self._message(subscription.key, key, request, message_id=message_id, replaces=replaced)
        subscription.message_id, subscription.turn = message_id, turn_id(message)
        attach = self._lazy_upload(key, request.images)
        result = await self._context.intake.receive(message, attach=attach)
        line = await self.find_line(subscription.key, message_id) if result.is_repeated else None
        if idempotency_key is not None and result.is_repeated:
            _check_same(line, message)
        elif result.is_repeated and line is None:  # of a conversation that was forgotten since
            message = replace(message, message_id=f"{message_id}.{secrets.token_hex(4)}")
            subscription.message_id, subscription.turn = message.message_id, turn_id(message)
            result = await self._context.intake.receive(message, attach=attach)
        if result.verdict is IntakeVerdict.FULL:
            text = result.line or translate("frames.full", self._context.language(subscription.key))
            raise busy(text, seconds=10)
        if result.verdict is IntakeVerdict.REJECTED:
            raise _not_allowed(result.line)
        since = message.sent_at if line is None else line.at
        return AcceptedRequest(subscription=subscription, row=result.row, since=since, is_repeated=result.is_repeated)

    async def _identify(self, key: SessionKey, request: ApiRequest, *, is_retry: bool) -> tuple[str, str]:
        """Return the id of the message of *request*, and the id of the message that it is another version of.

        The id is made of the message, its place, and the message before it here. So of two equal requests at once,
        also at two gateways, one message is stored; and the same words later are another message.
        """
        lines = await self._context.sessions.displayed_messages(key, limit=_LINES)
        own = [line for line in lines if line.role == "user" and line.message_id]
        head = f"{request.position or '0'}.{request.digest}."
        if own and own[-1].message_id.startswith(head) and self._is_untaken(key, own[-1], is_retry=is_retry):
            return own[-1].message_id, own[-1].replaces
        before = own[-1].message_id if own else lines[-1].id if lines else ""
        replaced = ""
        if request.position and not find_command(request.text):
            versions = (line.message_id for line in reversed(own) if line.message_id.startswith(f"{request.position}."))
            replaced = next(versions, "")
        return f"{head}{short_id(before, 12)}", replaced

    def _is_untaken(self, key: SessionKey, line: DisplayedMessage, *, is_retry: bool) -> bool:
        """Return True if a request like that of *line* asks for its answer, and not for another one."""
        if is_retry or line.state == "waiting":
            return True
        return (key, line.message_id) not in self._served and utc_now() - line.at < _RESENT_WITHIN

    def record_served(self, accepted: AcceptedRequest) -> None:
        """Record that a client has the whole answer: from now on the same request asks for another one."""
        self._served[accepted.subscription.key, accepted.subscription.message_id] = None

    def _lazy_upload(
        self, key: ApiKey, images: Sequence[RequestImage]
    ) -> Callable[[], Awaitable[tuple[Attachment, ...]]] | None:
        """Return a function that stores *images* at its first call; None without images."""
        stored: list[tuple[Attachment, ...]] = []

        async def upload() -> tuple[Attachment, ...]:
            if not stored:
                stored.append(await self._upload(key, images))
            return stored[0]

        return upload if images else None

    async def _upload(self, key: ApiKey, images: Sequence[RequestImage]) -> tuple[Attachment, ...]:
        found: list[Attachment] = []
        for image in images:
            if self._uploads is None:
                raise unavailable("images cannot be stored here")
            try:
                token, _ = await self._uploads.take(
                    UploadHeader(key.who, image.name, image.media_type), _once(image.data), announced=len(image.data)
                )
            except (UploadRefused, SlotsTaken) as error:
                raise busy("too many images are kept for this person; try again later", seconds=60) from error
            except OSError as error:
                raise unavailable("images cannot be stored right now", seconds=30) from error
            attachment = await self._uploads.find_file(key.who, token)
            if attachment is not None:
                found.append(attachment)
        return tuple(found)

    def _message(
        self, conversation: SessionKey, key: ApiKey, request: ApiRequest, *, message_id: str, replaces: str = ""
    ) -> InboundMessage:
        # Strictly later than the one before: lanes are ordered by time.
        self._last_stamp = max(utc_now(), self._last_stamp + timedelta(microseconds=1))
        return InboundMessage(
            key=conversation,
            message_id=message_id,
            sender=Sender(id=key.who),
            text=request.text,
            command=find_command(request.text),
            replaces=replaces,
            sent_at=self._last_stamp,
            is_addressed=True,
            quoted=request.instructions,
            quoted_by=key.who if request.instructions else "",
            quote_kind=QuoteKind.INSTRUCTIONS if request.instructions else QuoteKind.ANSWERED,
        )

    # -- answers -------------------------------------------------------------------------------------

    async def follow(self, accepted: AcceptedRequest) -> AsyncGenerator[ApiAnswer | None]:
        """Yield the answer as it grows, and last the whole; None after a while without news.

        Raises ApiError when the gateway stops.
        """
        subscription = accepted.subscription
        if accepted.is_repeated and (stored := await self._read_answer(subscription)) is not None:
            yield stored
            return
        looks = ended_at = 0
        shown = ""
        while not subscription.is_over:
            if subscription.is_closing:
                raise unavailable("the gateway is stopping; the same request gets the answer when it is back")
            if subscription.has_other and (stored := await self._read_merged(accepted)) is not None:
                yield stored
                return
            if subscription.preview != shown:
                shown = subscription.preview
                yield ApiAnswer(shown, turn=subscription.turn)
            elif not await subscription.wait_news(_LOOK_EVERY):
                looks += 1
                if not ended_at and await self._has_ended(subscription.key, accepted.row, looks):
                    ended_at = looks
                if ended_at and looks >= ended_at + _GRACE:
                    break
                yield None
        if not subscription.is_over and (stored := await self._read_answer(subscription)) is not None:
            yield stored
            return
        yield ApiAnswer(subscription.text, is_over=True, kind=subscription.kind, turn=subscription.turn)

    async def _read_merged(self, accepted: AcceptedRequest) -> ApiAnswer | None:
        """Return the stored answer of another turn, if the message was merged into that."""
        subscription = accepted.subscription
        subscription.has_other = False
        if subscription.parts or not await self._has_ended(subscription.key, accepted.row, 0):
            return None
        return await self._read_answer(subscription)

    async def _has_ended(self, key: SessionKey, row: int, looks: int) -> bool:
        state = self._context.state
        if state.just_ended({row}):
            return True
        if looks % _ASK_STORE_EVERY:
            return False
        with suppress(StoreUnavailable):
            return row in await state.find_ended(key, {row})
        return False

    async def find_line(self, key: SessionKey, message_id: str) -> DisplayedMessage | None:
        """Return the line of the message *message_id*, if it is among the newest ones of its conversation."""
        return next((line for line in await self._lines_of(key, message_id) if line.message_id == message_id), None)

    async def read_answer(self, key: SessionKey, message_id: str) -> ApiAnswer | None:
        """Return the stored answer to a message: None for an unknown message; not *is_over* while it waits."""
        lines = await self._lines_of(key, message_id)
        line = next((each for each in lines if each.message_id == message_id), None)
        if line is None:
            return None
        if line.state == "waiting":
            return ApiAnswer("", turn=line.turn, at=line.at)
        said = [each for each in lines if each.turn == line.turn and each.role in ("assistant", "notice", "command")]
        texts = [render_stored(each) for each in said if each.text]
        kind = OutboundKind.ANSWER if any(each.role == "assistant" for each in said) else OutboundKind.NOTICE
        return ApiAnswer("\n\n".join(texts), is_over=True, kind=kind, turn=line.turn, at=line.at)

    async def wait_answer(self, key: SessionKey, message_id: str, *, seconds: float) -> ApiAnswer | None:
        """Return the result of `read_answer` when the answer is complete, or after *seconds*."""
        deadline = asyncio.get_running_loop().time() + seconds
        subscription = AnswerSubscription(key, message_id, "")
        self._subscriptions.setdefault(key, set()).add(subscription)
        try:
            while True:
                subscription.news.clear()
                subscription.is_over = False  # the store may know it a moment later
                answer = await self.read_answer(key, message_id)
                left = deadline - asyncio.get_running_loop().time()
                if answer is None or answer.is_over or left <= 0 or subscription.is_closing:
                    return answer
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, _LOOK_EVERY * _ASK_STORE_EVERY)):
                        while not (subscription.is_over or subscription.is_closing):
                            await subscription.news.wait()
                            subscription.news.clear()
        finally:
            self._unsubscribe(subscription)

    async def _read_answer(self, subscription: AnswerSubscription) -> ApiAnswer | None:
        found = await self.read_answer(subscription.key, subscription.message_id)
        if found is None or not found.is_over:
            return None
        return found

    async def _lines_of(self, key: SessionKey, message_id: str) -> Sequence[DisplayedMessage]:
        """Return the lines of the page of the history that has a message; none if it is too old or unknown."""
        before = ""
        for _ in range(_MOST_PAGES):
            page = await self._context.sessions.displayed_page(key, before, turns=_TURNS)
            if page is None:
                break
            if any(line.message_id == message_id for line in page.lines):
                return page.lines
            if not (before := page.before):
                break
        return ()

    async def usage(self, turn: str, since: datetime) -> TurnUsage:
        """Return the tokens of a turn; none where they cannot be read."""
        if self._context.turn_usage is None:
            return TurnUsage()
        try:
            return await self._context.turn_usage(turn, since)
        except StoreUnavailable:
            return TurnUsage()

    # -- frames --------------------------------------------------------------------------------------

    async def _show(self, part: MessagePart, message_id: str) -> DeliveryReceipt:
        payload = json.loads(part.payload) if part.payload else {"text": part.plain, "last": False}
        frame = {
            "turn": part.turn,
            "part": part.id,
            "kind": part.kind.value,
            "answers": part.reply_to,
            "text": payload["text"],
            "last": payload["last"],
        }
        if part.kind is OutboundKind.PREVIEW:
            if self._shared is not None and self._shared.is_watched(part.key):
                self._shared.post(part.key, json.dumps(frame), slot=f"preview{part.turn}")
        elif self._shared is not None:
            try:
                await self._shared.send(part.key, json.dumps(frame))
            except StoreUnavailable as error:
                raise OutcomeUnknown("requests at other gateways may not have it") from error
        self._apply(part.key, frame)
        return build_receipt(part, message_id)

    def _receive_frame(self, key: SessionKey, text: str) -> None:
        self._apply(key, json.loads(text))

    def _apply(self, key: SessionKey, frame: Mapping[str, Any]) -> None:
        for subscription in self._subscriptions.get(key, ()):
            subscription.show(frame)

    def _wake_all(self) -> None:
        """Do nothing more than wake: a request whose frame was lost reads the answer from the store."""
        for subscription in self._all_subscriptions():
            subscription.news.set()

    def _all_subscriptions(self) -> list[AnswerSubscription]:
        return [subscription for subscriptions in self._subscriptions.values() for subscription in subscriptions]

    def _unsubscribe(self, subscription: AnswerSubscription) -> None:
        subscriptions = self._subscriptions.get(subscription.key, set())
        subscriptions.discard(subscription)
        if not subscriptions:
            self._subscriptions.pop(subscription.key, None)
        chat = subscription.key.parent
        if self._shared is not None and not any(key.parent == chat for key in self._subscriptions):
            self._shared.unwatch(chat)


def render_stored(line: DisplayedMessage) -> str:
    """Return the text of a stored line as `ApiChannel.render` gives it to clients."""
    (part,) = render(
        OutboundMessage(id="t.1", key=SessionKey("api", "stored"), text=line.text, links=line.links),
        TEXT_LIMIT,
        1,
        "en",
    ) or (None,)
    return "" if part is None else str(json.loads(part.payload)["text"])


def _check_same(line: DisplayedMessage | None, message: InboundMessage) -> None:
    """Raise ApiError if the stored *line* of the same id is gone, or is another message than *message*."""
    if line is None:
        raise ApiError(
            "the message of this Idempotency-Key was forgotten or is too old; use a new key to send it again",
            status=410,
            code="message_gone",
            param="Idempotency-Key",
        )
    if line.typed != message.text:
        raise ApiError(
            "this Idempotency-Key was used for another message; use a new one for each message",
            status=409,
            code="idempotency_key_reused",
            param="Idempotency-Key",
        )


def _not_allowed(line: str) -> ApiError:
    return ApiError(
        line or "this message was not accepted: `parlour why` tells the operator the reason",
        status=403,
        code="not_allowed",
    )


def _part_order(part: str) -> tuple[int, int]:
    _, row, number = part.split(".", 2)
    return int(row), int(number)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
