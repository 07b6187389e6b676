"""A Bot API server over real HTTP, as strict as the real one where an adapter could be careless.

It keeps updates until a later offset confirms them (24 hours at most), numbers them anew after a quiet week, counts
text in UTF-16 units after entities parsing, checks entities, refuses what it refuses, limits each group, hides from a
bot in privacy mode what is not meant for it, and ends one poll when another begins. Written from
core.telegram.org/bots/api.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import BodyPartReader, web

from tests.fakes.conditions import wait_for_news
from tests.fakes.loopback import serve_app
from tests.fakes.telegram_buttons import FakeTelegramButtons, checked_markup
from tests.fakes.telegram_files import TelegramSentFile, TelegramServerFiles
from tests.fakes.telegram_rules import ApiError, checked_text, reactions
from tests.fakes.telegram_webhook import WebhookCalls

TOKEN = "123456789:AAH-abcdefghijklmnopqrstuvwxyz012"
BOT = {"id": 123456789, "is_bot": True, "first_name": "Parlour", "username": "parlour_bot"}
START = 1_763_769_600  # 2025-11-22
_WEEK = 7 * 24 * 3600
_QUEUE_AGE = 24 * 3600


@dataclass(slots=True)
class TelegramPost:
    """A message of the bot as people see it; `versions` holds every text it had, the present one last."""

    id: int
    chat: int
    text: str
    entities: list[dict[str, Any]]
    thread: int | None
    reply_to: int | None
    has_preview: bool
    is_silent: bool = False
    file: TelegramSentFile | None = None
    versions: list[str] = field(default_factory=list)
    markup: dict[str, Any] = field(default_factory=dict)

    @property
    def buttons(self) -> list[list[str]]:
        """What the buttons say, in rows."""
        return [[str(each["text"]) for each in row] for row in self.markup.get("inline_keyboard", ())]


@dataclass(slots=True)
class TelegramServerChat:
    """A chat as the server knows it."""

    id: int
    type: str
    blocked: bool = False
    has_put_us_out: bool = False
    moved_to: int | None = None
    topics: set[int] = field(default_factory=set)
    admins: set[int] = field(default_factory=set)
    last_id: int = 0
    deleted: set[int] = field(default_factory=set)
    known: set[int] = field(default_factory=set)  # message ids


@dataclass(slots=True)
class TelegramFault:
    """What goes wrong with one call: a status, a reply that is lost, a connection that drops, or a wait."""

    kind: str  # "status", "lost" (done, no reply), "drop" (not done, no reply), "garbage", "hang" (no reply, ever)
    status: int = 0
    retry_after: int = 0
    description: str = ""


class TelegramServer:
    """The state of one bot's world, and the people in it."""

    def __init__(self) -> None:
        self.base = ""
        self.privacy = True
        self.joins_groups = True
        self.topics_in_private = False
        self.per_minute = 20  # messages into one group
        self.now: Callable[[], int] = lambda: START
        self.chats: dict[int, TelegramServerChat] = {}
        self.posts: list[TelegramPost] = []
        self.drafts: list[dict[str, Any]] = []
        self.actions: list[dict[str, Any]] = []
        self.reactions: list[dict[str, Any]] = []
        self.answered: list[str] = []
        self.menus: dict[str, list[dict[str, Any]]] = {}  # by the language of people's apps; "" = of all others
        self.menu_sets = 0
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.faults: dict[str, deque[TelegramFault]] = {}
        self.unknown_methods: set[str] = set()
        self.token = TOKEN
        self.bot: dict[str, Any] = BOT
        self.updates: deque[dict[str, Any]] = deque()
        self.confirmed: list[int] = []
        # "before" a call is done, "after"; after a "confirmation" too
        self.on_call: Callable[[str, str], None] = lambda method, when: None
        self.files = TelegramServerFiles(self)
        self.hooks = WebhookCalls(self)
        self.buttons = FakeTelegramButtons(self)
        self._next_update = 870_000_001
        self._last_update_at = self.now()
        self._sent_at: dict[int, deque[int]] = {}
        self._poll: asyncio.Event | None = None
        self._changed = asyncio.Event()

    # People

    def chat(self, ident: int, type_: str = "") -> TelegramServerChat:
        """Return a chat, made when it is not known."""
        kind = type_ or ("private" if ident > 0 else "supergroup")
        return self.chats.setdefault(ident, TelegramServerChat(ident, kind))

    def say(self, text: str | None, *, chat: int = 42, sender: int = 42, **fields: Any) -> dict[str, Any]:
        """Let somebody write; more fields of the message as they are. Returns the message."""
        message = self.message(chat, sender, **({"text": text} if text is not None else {}), **fields)
        if self._is_heard(message):
            self.push({"message": message})
        return message

    def message(self, chat: int, sender: int, **fields: Any) -> dict[str, Any]:
        """Return a new message of a person, without handing it to the bot."""
        place = self.chat(chat)
        place.last_id += 1
        place.known.add(place.last_id)
        shown = {"id": chat, "type": place.type}
        shown |= {"first_name": "Ann"} if place.type == "private" else {"title": "The team"}
        person = {"id": sender, "is_bot": False, "first_name": "Ann", "last_name": "Bee", "language_code": "en"}
        return {"message_id": place.last_id, "from": person, "chat": shown, "date": self.now()} | fields

    def edit(self, message: Mapping[str, Any], text: str, *, at: int | None = None) -> None:
        """Let somebody change what they wrote."""
        changed = {**message, "text": text, "edit_date": at if at is not None else self.now() + 5}
        self.push({"edited_message": changed})

    def push(self, update: Mapping[str, Any]) -> int:
        """Queue an update; return its id."""
        if self.now() - self._last_update_at >= _WEEK:
            self._next_update = self._next_update * 31 % 800_000_000  # lower: the ids begin anew, anywhere
        self._last_update_at = self.now()
        ident = self._next_update
        self._next_update += 1
        self.updates.append({"update_id": ident, **update, "_at": self.now()})
        self.changed()
        return ident

    def redeliver(self, update: Mapping[str, Any]) -> None:
        """Hand the very same update out again, as after a confirmation that was lost."""
        self.updates.append({**update, "_at": self.now()})
        self.changed()

    def fail(self, method: str, *faults: TelegramFault) -> None:
        """Let the next calls of *method* go wrong."""
        self.faults.setdefault(method, deque()).extend(faults)

    def _is_heard(self, message: Mapping[str, Any]) -> bool:
        """Say whether privacy mode lets the bot see a message of a group."""
        if not self.privacy or message["chat"]["type"] == "private":
            return True
        if message.get("reply_to_message", {}).get("from", {}).get("id") == self.bot["id"]:
            return True
        entities = message.get("entities", message.get("caption_entities", ()))
        text = str(message.get("text", message.get("caption", "")))
        kinds = {entity["type"] for entity in entities}
        return bool(kinds & {"bot_command", "text_mention"}) or f"@{self.bot['username']}" in text

    # What people see

    def shown(self, chat: int) -> list[str]:
        """Return the bot's texts in a chat, in order."""
        return [post.text for post in self.posts if post.chat == chat]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when *holds* holds."""
        while not holds():
            await wait_for_news(self._changed)

    async def wait_changed(self) -> None:
        """Return at the next thing that happens."""
        await self._changed.wait()

    def changed(self) -> None:
        """Tell who waits that something happened."""
        self._changed.set()
        self._changed = asyncio.Event()

    # The protocol

    def app(self) -> web.Application:
        """Return the routes."""
        app = web.Application(client_max_size=60_000_000)
        app.router.add_get("/file/bot{token}/{path:.*}", self.files.serve)
        app.router.add_route("*", "/bot{token}/{method}", self._handle)
        return app

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        if request.match_info["token"] != self.token:
            return _error(ApiError(401, "Unauthorized"))
        read = {name: _value(name, value) for name, value in (await _read_fields(request)).items()}
        self.calls.append((method, read))
        self.changed()
        call = self._call_of(_snake(method))
        if call is None or method in self.unknown_methods:
            return _error(ApiError(404, "Not Found"))
        queue = self.faults.get(method)
        fault = queue.popleft() if queue else None
        if fault is not None and fault.kind == "hang":
            await asyncio.Event().wait()
        if fault is not None and fault.kind != "lost":
            self.changed()
            return self._break(request, fault)
        self.on_call(method, "before")
        try:
            result = await call(read)
            self.on_call(method, "after")
        except ApiError as error:
            return _error(error)
        finally:
            self.changed()
        if fault is not None:
            return self._break(request, TelegramFault("drop"))
        return web.json_response({"ok": True, "result": result})

    def _call_of(self, name: str) -> Callable[[Mapping[str, Any]], Awaitable[Any]] | None:
        found = (getattr(room, f"do_{name}", None) for room in (self.files, self.hooks, self.buttons))
        return getattr(self, f"_do_{name}", None) or next((call for call in found if call is not None), None)

    def _break(self, request: web.Request, fault: TelegramFault) -> web.StreamResponse:
        if fault.kind == "garbage":
            return web.Response(text="<html>secret words of a user</html>")
        if fault.kind == "status":
            text = fault.description or "Internal Server Error"
            if fault.retry_after:
                text = f"Too Many Requests: retry after {fault.retry_after}"
            return _error(ApiError(fault.status, text, retry_after=fault.retry_after))
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _do_get_me(self, _: Mapping[str, Any]) -> Any:
        flags = {"can_join_groups": self.joins_groups, "can_read_all_group_messages": not self.privacy}
        return {**self.bot, **flags, "supports_inline_queries": False, "has_main_web_app": False}

    async def _do_get_updates(self, asked: Mapping[str, Any]) -> Any:
        if self.hooks.url:
            raise ApiError(409, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook")
        if self._poll is not None:
            self._poll.set()  # the newer poll ends the older one
        mine = self._poll = asyncio.Event()
        self._confirm(asked.get("offset"))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(float(asked.get("timeout", 0))):
                    while not self.ready(asked) and not mine.is_set():
                        await self._wait_either(mine)
            if mine.is_set():
                raise ApiError(
                    409,
                    "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running",
                )
            return [{k: v for k, v in each.items() if k != "_at"} for each in self.ready(asked)]
        finally:
            if self._poll is mine:
                self._poll = None

    def steal_poll(self) -> None:
        """Let somebody else poll with the same token, once."""
        if self._poll is not None:
            self._poll.set()
            self.changed()

    async def _wait_either(self, mine: asyncio.Event) -> None:
        changed = self._changed
        tasks = [asyncio.create_task(changed.wait()), asyncio.create_task(mine.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def ready(self, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what a poll would be given: nothing that is older than a day."""
        allowed = asked.get("allowed_updates") or []
        fresh = [each for each in self.updates if self.now() - int(each["_at"]) <= _QUEUE_AGE]
        wanted = [each for each in fresh if not allowed or set(each) & set(allowed)]
        return wanted[: int(asked.get("limit", 100))]

    def _confirm(self, offset: Any) -> None:
        """Everything below *offset* is confirmed, whatever it is: an old offset confirms what begins anew below it."""
        while offset is not None and self.updates and int(self.updates[0]["update_id"]) < int(offset):
            self.confirmed.append(int(self.updates.popleft()["update_id"]))
            self.on_call("confirmation", "after")
            self.changed()

    def place(self, fields: Mapping[str, Any]) -> TelegramServerChat:
        """Return the chat that a call names, or refuse."""
        chat = self.chats.get(int(fields["chat_id"]))
        if chat is None:
            raise ApiError(400, "Bad Request: chat not found")
        if chat.blocked:
            raise ApiError(403, "Forbidden: bot was blocked by the user")
        if chat.moved_to:
            text = "Bad Request: group chat was upgraded to a supergroup chat"
            raise ApiError(400, text, migrate_to=chat.moved_to)
        thread = fields.get("message_thread_id")
        if thread is not None and int(thread) not in chat.topics:
            raise ApiError(400, "Bad Request: message thread not found")
        return chat

    def _flood(self, chat: TelegramServerChat) -> None:
        if chat.type == "private":
            return
        at = self._sent_at.setdefault(chat.id, deque())
        while at and self.now() - at[0] >= 60:
            at.popleft()
        if len(at) >= self.per_minute:
            wait = 60 - (self.now() - at[0])
            raise ApiError(429, f"Too Many Requests: retry after {wait}", retry_after=wait)
        at.append(self.now())

    async def _do_send_message(self, fields: Mapping[str, Any]) -> Any:
        return self.post(fields, *checked_text(fields))

    def post(
        self,
        fields: Mapping[str, Any],
        text: str,
        entities: list[dict[str, Any]],
        *,
        file: TelegramSentFile | None = None,
    ) -> dict[str, Any]:
        """Let the bot say something; what is refused of any message is refused here."""
        chat = self.place(fields)
        reply = fields.get("reply_parameters")
        answered = int(reply["message_id"]) if reply else None
        if answered is not None and answered not in chat.known - chat.deleted:
            if not (reply or {}).get("allow_sending_without_reply"):
                raise ApiError(400, "Bad Request: message to be replied not found")
            answered = None
        self._flood(chat)
        chat.last_id += 1
        chat.known.add(chat.last_id)
        thread = fields.get("message_thread_id")
        has_preview = not fields.get("link_preview_options", {}).get("is_disabled") and file is None
        is_silent = bool(fields.get("disable_notification"))
        markup = checked_markup(fields)
        post = TelegramPost(
            chat.last_id, chat.id, text, entities, thread, answered, has_preview, is_silent, file, [text], markup
        )
        self.posts.append(post)
        self.drafts = [
            each for each in self.drafts if each["chat_id"] != chat.id or each.get("message_thread_id") != thread
        ]
        return self.message_of(post)

    async def _do_edit_message_text(self, fields: Mapping[str, Any]) -> Any:
        chat = self.place(fields)
        post = next((p for p in self.posts if p.chat == chat.id and p.id == int(fields["message_id"])), None)
        if post is None or post.id in chat.deleted:
            raise ApiError(400, "Bad Request: message to edit not found")
        if post.file is not None:
            raise ApiError(400, "Bad Request: there is no text in the message to edit")
        text, entities = checked_text(fields)
        markup = checked_markup(fields)
        if (text, entities, markup) == (post.text, post.entities, post.markup):
            raise ApiError(
                400,
                "Bad Request: message is not modified: specified new message content and reply markup are exactly"
                " the same as a current content and reply markup of the message",
            )
        self._flood(chat)
        post.text, post.entities, post.markup = text, entities, markup
        post.versions.append(text)
        return self.message_of(post) | {"edit_date": self.now()}

    async def _do_send_message_draft(self, fields: Mapping[str, Any]) -> Any:
        chat = self.place(fields)
        if chat.type != "private":
            raise ApiError(400, "Bad Request: method is available only for private chats")
        if not int(fields["draft_id"]):
            raise ApiError(400, "Bad Request: draft identifier must be non-zero")
        if fields.get("text"):
            checked_text(fields)
        self.drafts.append(dict(fields))
        return True

    async def _do_send_chat_action(self, fields: Mapping[str, Any]) -> Any:
        self.place(fields)
        self.actions.append(dict(fields))
        return True

    async def _do_set_message_reaction(self, fields: Mapping[str, Any]) -> Any:
        self.place(fields)
        if any(each["emoji"] not in reactions for each in fields.get("reaction", ())):
            raise ApiError(400, "Bad Request: REACTION_INVALID")
        self.reactions.append(dict(fields))
        return True

    async def _do_get_my_commands(self, fields: Mapping[str, Any]) -> Any:
        return self.menus.get(fields.get("language_code", ""), [])

    async def _do_set_my_commands(self, fields: Mapping[str, Any]) -> Any:
        if any(len(each["description"]) > 256 or not each["description"] for each in fields["commands"]):
            raise ApiError(400, "Bad Request: BOT_COMMAND_DESCRIPTION_INVALID")
        self.menus[fields.get("language_code", "")] = list(fields["commands"])
        self.menu_sets += 1
        return True

    async def _do_get_chat_member(self, fields: Mapping[str, Any]) -> Any:
        chat = self.place(fields)
        is_there = int(fields["user_id"]) == self.bot["id"] and not chat.has_put_us_out
        user = {"id": int(fields["user_id"]), "is_bot": True, "first_name": "Parlour"}
        return {"status": "member" if is_there else "left", "user": user}

    async def _do_get_chat_administrators(self, fields: Mapping[str, Any]) -> Any:
        rights = (
            "can_be_edited is_anonymous can_manage_chat can_delete_messages can_manage_video_chats can_restrict_members"
            " can_promote_members can_change_info can_invite_users can_post_stories can_edit_stories can_delete_stories"
        )
        flags = dict.fromkeys(rights.split(), False)
        return [
            {"status": "administrator", "user": {"id": ident, "is_bot": False, "first_name": "Ann"}, **flags}
            for ident in sorted(self.place(fields).admins)
        ]

    def message_of(self, post: TelegramPost) -> dict[str, Any]:
        """Return what the bot said as the Bot API shows it."""
        chat = self.chats[post.chat]
        message = {
            "message_id": post.id,
            "from": self.bot,
            "chat": {"id": chat.id, "type": chat.type, "title": "t"},
            "date": self.now(),
        } | ({"caption": post.text} if post.file else {"text": post.text, "entities": post.entities})
        message |= {"reply_markup": post.markup} if post.markup else {}
        return message | ({"message_thread_id": post.thread, "is_topic_message": True} if post.thread else {})


def _snake(method: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in method)


_TEXTS = ("text", "caption", "action", "callback_query_id", "file_id", "url", "secret_token")


async def _read_fields(request: web.Request) -> dict[str, Any]:
    """Return the fields of a call, files as name and bytes.

    `request.post()` would leave a file open when the client is killed during its upload.
    """
    if not request.content_type.startswith("multipart/"):
        return {**request.query, **(await request.post())}
    fields: dict[str, Any] = dict(request.query)
    async for part in await request.multipart():
        assert isinstance(part, BodyPartReader)
        body = bytes(await part.read(decode=True))
        fields[str(part.name)] = (part.filename, body) if part.filename else body
    return fields


def _value(name: str, value: Any) -> Any:
    """Read one field as the server does: files are name and bytes, text is text, everything else is JSON."""
    if isinstance(value, tuple):
        return value
    text = value.decode() if isinstance(value, bytes | bytearray) else str(value)
    if name in _TEXTS:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _error(error: ApiError) -> web.Response:
    body: dict[str, Any] = {"ok": False, "error_code": error.status, "description": error.text}
    parameters = {"retry_after": error.retry_after, "migrate_to_chat_id": error.migrate_to}
    if any(parameters.values()):
        body["parameters"] = {name: value for name, value in parameters.items() if value}
    return web.json_response(body, status=error.status)


@asynccontextmanager
async def open_telegram(server: TelegramServer | None = None, *, port: int = 0) -> AsyncIterator[TelegramServer]:
    """Serve on loopback until the block ends; polls that hang are cut off then."""
    server = server or TelegramServer()
    async with serve_app(server.app(), port=port, handler_cancellation=True) as place:
        server.base = f"http://{place}"
        try:
            yield server
        finally:
            await server.hooks.stop()


@asynccontextmanager
async def telegram_now() -> AsyncIterator[TelegramServer]:
    """Serve on today's clock: old messages are not answered."""
    async with open_telegram() as server:
        server.now = lambda: int(time.time())
        yield server
