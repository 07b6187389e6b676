"""From updates to the intake: poll or be called, parse, accept, then show the sender the result."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import hmac
import json
import os
import stat
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from telegram import Bot, WebhookInfo
from telegram.error import TelegramError

from channels.kit.bodies import read_body
from channels.telegram.api import AiohttpRequest, ApiRetrier, RetryDelays
from channels.telegram.chats import TelegramChats, TelegramHistory, TelegramMembers
from channels.telegram.interactions import TelegramButtons, TelegramReactions
from channels.telegram.parse import (
    TelegramBotIdentity,
    event_id,
    is_bot_added,
    origin_of,
    parse_membership,
    parse_migration,
    parse_update,
    rights_changed,
)
from gateway.channel import ChannelContext
from gateway.errors import StoreUnavailable
from gateway.events import InboundKind, InboundMessage
from gateway.i18n import translate
from gateway.ports.channel import IntakeResult, IntakeVerdict, PlatformEvent, ReplyPolicy

log = structlog.get_logger(__name__)

_MEMBERSHIP_UPDATES = ("my_chat_member", "chat_member")


class TelegramInbound:
    """Takes the updates of one bot in."""

    def __init__(
        self,
        context: ChannelContext,
        *,
        chats: TelegramChats,
        members: TelegramMembers,
        reactions: TelegramReactions,
        buttons: TelegramButtons,
        history: TelegramHistory,
    ) -> None:
        self._name = context.name
        self._intake = context.intake
        self._language = context.language
        self._reply_policy = context.reply_policy
        self._chats = chats
        self._members = members
        self._reactions = reactions
        self._buttons = buttons
        self._history = history
        self.bot = TelegramBotIdentity(id="", username="")
        self.reads_all = False  # privacy mode is off: the bot sees every message of its groups

    async def receive(self, update: Mapping[str, Any]) -> None:
        """Take one update in; return when Telegram may be acknowledged. An exception lets the update come again."""
        event = PlatformEvent(channel=self._name, id=event_id(update), raw=json.dumps(update), origin=origin_of(update))
        await self._intake.handle(event, partial(self.accept, update))

    async def replay(self, event: PlatformEvent) -> None:
        """Take in an update that was quarantined; raises as `accept`."""
        await self.accept(json.loads(event.raw))

    async def accept(self, update: Mapping[str, Any]) -> None:
        """Parse *update* and hand it to the intake; raise UnreadableEvent or StoreUnavailable."""
        await self._note_membership(update)
        message = self.parse(update)
        if message is None:
            return
        if message.is_addressed:
            # The mention may be on any photo: those before it were nobody's question until now.
            for part in self._history.album_of(message):
                await self._intake.receive(replace(part, is_addressed=True))
                self._history.remove(part)
        result = await self._intake.receive(message)
        self._history.update(message, result)
        if message.kind is InboundKind.BUTTON:
            await self._answer_press(update, message, result)
        else:
            self._show_result(message, result)

    def parse(self, update: Mapping[str, Any]) -> InboundMessage | None:
        """Return the message of *update*, or None if it has none; raise UnreadableEvent."""
        message = parse_update(update, channel=self._name, bot=self.bot, now=datetime.now(UTC))
        return None if message is None else self._chats.address_album(message)

    def misses_messages(self, policy: ReplyPolicy) -> bool:
        """Return True if *policy* answers every message of a group, but privacy mode hides most of them."""
        return policy.group_policy == "open" and not self.reads_all

    async def _note_membership(self, update: Mapping[str, Any]) -> None:
        if (ids := parse_migration(update)) is not None:
            await self._chats.save_migration(*ids)
        elif update.keys().isdisjoint(_MEMBERSHIP_UPDATES):
            return
        changed = rights_changed(update)
        if changed is not None:
            self._members.admins.forget(changed)
        membership = parse_membership(update, channel=self._name, bot=self.bot)
        if membership is not None:
            await self._intake.membership_changed(membership)

    async def _answer_press(self, update: Mapping[str, Any], message: InboundMessage, result: IntakeResult) -> None:
        if result.verdict is not IntakeVerdict.REJECTED:
            await self._buttons.hold_press(update, message)
        elif result.line:
            self._buttons.refuse_press(update, message, result.line)

    def _show_result(self, message: InboundMessage, result: IntakeResult) -> None:
        # Nothing is shown before admission.
        if result.verdict is IntakeVerdict.ACCEPTED:
            self._reactions.acknowledge(message, result)
            if is_bot_added(message) and self.misses_messages(self._reply_policy(message.key.chat)):
                self._reactions.send_line(message.key, translate("telegram.privacy", self._language(message.key)))
        if result.line:
            self._reactions.send_line(message.key, result.line)


# -- polling ---------------------------------------------------------------------------------------
# Long polling that confirms an update only after it is durable.
#
# The library's own updater confirms an update once it is in a queue in memory, so a kill there loses it. Here the poll
# after the commit confirms it, and waits for the next update.

Receive = Callable[[Mapping[str, Any]], Awaitable[None]]

POLL_SECONDS = 25
_BATCH = 100
KINDS = ("message", "edited_message", "callback_query", "my_chat_member", "chat_member")


class TelegramPoller:
    """Fetches updates and calls *receive* for each, in order; *receive* returns when Telegram may be acknowledged."""

    def __init__(
        self,
        name: str,
        address: str,
        request: AiohttpRequest,
        receive: Receive,
        retrier: ApiRetrier,
        *,
        waits: RetryDelays,
        is_cautious: Callable[[], bool],
    ) -> None:
        """Poll *address*, which contains the token, over *request*; fetch one update at a time if *is_cautious*."""
        self._is_cautious = is_cautious
        self._name = name
        self._address = address
        self._receive = receive
        self._waits = waits
        self._retrier = retrier
        self._request = request
        self._offset: int | None = None

    def is_receiving(self) -> bool:
        """Return True if the last good poll is at most as old as two polls take."""
        return self._retrier.had_contact_within(2 * (POLL_SECONDS + 5))

    async def run(self) -> None:
        """Poll until cancelled; raise SettingsError when Telegram rejects the token."""
        await self._request.initialize()
        try:
            while True:
                updates = await self._retrier.call_with_retry(self._poll)
                self._retrier.record_contact()
                await self._receive_all(updates)
        finally:
            self._retrier.contact_at = None
            self._offset = None  # another worker may poll until the next run

    async def close(self) -> None:
        """Release the connection."""
        await self._request.shutdown()

    async def _poll(self) -> Sequence[Mapping[str, Any]]:
        """Fetch new updates as raw objects: one that cannot be parsed must not cost the others."""
        limit = 1 if self._is_cautious() else _BATCH
        # The first poll of a run waits for nothing: its answer is what makes the channel ready.
        seconds = POLL_SECONDS if self._retrier.contact_at is not None else 0
        query: dict[str, Any] = {"timeout": seconds, "limit": limit, "allowed_updates": json.dumps(KINDS)}
        # An offset goes with one poll, answered or not. Update ids restart at random after a quiet week, and an old
        # offset would confirm updates that were never received. What was not confirmed comes again, and is known.
        offset, self._offset = self._offset, None
        if offset is not None:
            query["offset"] = offset
        updates = await self._request.post(f"{self._address}?{urlencode(query)}", read_timeout=POLL_SECONDS + 5.0)
        if not isinstance(updates, list) or not all(
            isinstance(each, dict) and isinstance(each.get("update_id"), int) for each in updates
        ):
            raise TelegramError("the answer to getUpdates is no list of updates")
        return updates

    async def _receive_all(self, updates: Sequence[Mapping[str, Any]]) -> None:
        """Receive a batch concurrently and in order, so that messages sent during downtime can merge into one turn.

        The offset stops at the first update that failed; later ones come again and are known by their ids.
        """
        results = await asyncio.gather(*(self._receive(update) for update in updates), return_exceptions=True)
        for update, error in zip(updates, results, strict=True):
            if error is not None:
                await self._handle_failure(update, error)
                return
            self._offset = int(update["update_id"]) + 1

    async def _handle_failure(self, update: Mapping[str, Any], error: BaseException) -> None:
        if isinstance(error, StoreUnavailable):
            log.warning("telegram.waits_for_store", channel=self._name, reason=str(error))
        elif isinstance(error, Exception):  # the channel boundary: it comes again, and the intake counts
            log.error("telegram.update_failed", channel=self._name, update=update["update_id"], exc_info=error)
        else:
            raise error
        await asyncio.sleep(self._waits.store)


# -- webhook ---------------------------------------------------------------------------------------
# Telegram's webhook: a call is answered once its update is durable.
#
# The secret is compared before the body is read. Telegram repeats every update that is not answered with 200, so a
# journal that is down only delays it.

_BODY_LIMIT = 500_000  # bytes; Telegram's longest updates are a fifth of it
_HEADER = "x-telegram-bot-api-secret-token"
# One at a time, so that the messages of a chat arrive in order.
_CONNECTIONS = 1


class TelegramWebhook:
    """Receives the calls of one bot, and watches whether Telegram reaches it."""

    def __init__(
        self, name: str, bot: Bot, receive: Receive, retrier: ApiRetrier, *, waits: RetryDelays, url: str, secret: str
    ) -> None:
        """Ask Telegram to call *url* with *secret*."""
        self._name = name
        self._bot = bot
        self._receive = receive
        self._retrier = retrier
        self._waits = waits
        self._url = url
        self._secret = secret
        self._is_open = False
        self._one_by_one = asyncio.Lock()
        self._logged: tuple[str, object] = ("", None)

    def is_receiving(self) -> bool:
        """Return True if Telegram recently said that its calls arrive."""
        return self._is_open and self._retrier.had_contact_within(2 * self._waits.watch + 10)

    async def run(self) -> None:
        """Set the webhook and watch its status until cancelled.

        Pending updates are never dropped, and the webhook stays set afterwards: Telegram keeps calling.
        """
        self._is_open = True
        try:
            await self._retrier.call_with_retry(
                lambda: self._bot.set_webhook(
                    self._url,
                    secret_token=self._secret,
                    allowed_updates=KINDS,
                    max_connections=_CONNECTIONS,
                )
            )
            while True:
                self._check(await self._retrier.call_with_retry(self._bot.get_webhook_info))
                await asyncio.sleep(self._waits.watch)
        finally:
            self._is_open, self._retrier.contact_at = False, None

    async def close(self) -> None:
        """Do nothing: no connection is held."""

    def _check(self, info: WebhookInfo) -> None:
        """Record whether Telegram's calls arrive, and log each failure once."""
        if info.url != self._url:
            self._retrier.contact_at = None
            self._log_once("telegram.webhook_elsewhere", info.url, "another program set this bot's webhook; stop it")
        elif info.pending_update_count and info.last_error_message:
            self._retrier.contact_at = None
            self._log_once("telegram.webhook_fails", info.last_error_date, info.last_error_message[:200])
        else:
            self._retrier.record_contact()

    def _log_once(self, event: str, details: object, reason: str) -> None:
        if self._logged != (event, details):
            self._logged = (event, details)
            log.error(
                event,
                channel=self._name,
                reason=reason,
                mend="see that webhook_url leads here from the internet, and that web.public_url names its host",
            )

    async def answer(self, request: Request) -> Response:
        """Answer one call."""
        secrets = request.headers.getlist(_HEADER)
        if len(secrets) != 1 or not hmac.compare_digest(secrets[0].encode(), self._secret.encode()):
            return Response(status_code=401, headers={"Connection": "close"})
        if not self._is_open:
            return Response(status_code=503)
        try:
            body = await read_body(request, limit=_BODY_LIMIT)
            if body is None:
                return Response(status_code=413, headers={"Connection": "close"})
            async with self._one_by_one:
                await self._receive(_update(body))
        except HTTPException:
            raise  # the server's own body limit
        except ClientDisconnect:
            return Response(status_code=400)
        except StoreUnavailable as error:
            log.warning("telegram.waits_for_store", channel=self._name, reason=str(error))
            return Response(status_code=503)
        except Exception:  # the channel boundary: it comes again, and the intake counts
            log.exception("telegram.update_failed", channel=self._name)
            return Response(status_code=500)
        return Response(status_code=200)


def _update(body: bytes) -> Mapping[str, Any]:
    """Return the update; a body that is not one becomes an update that the intake quarantines."""
    try:
        update = json.loads(body)
    except (ValueError, RecursionError):
        update = None
    return update if isinstance(update, dict) else {"message": body.decode("utf-8", "replace")}


# -- token lock ------------------------------------------------------------------------------------
# A lock per bot on this machine: two processes that poll with one token take each other's messages.
#
# It is a flock, which ends with its process. Its name is a hash, so that the token cannot be read from it, in a folder
# that only this user can open.


class TokenLock:
    """The lock of one bot at one server."""

    def __init__(self, token: str, base_url: str) -> None:
        self._name = hashlib.sha256(f"{base_url}\0{token}".encode()).hexdigest()
        self._file: int | None = None

    def acquire(self) -> bool:
        """Take the lock; return False if another process holds it. If locking is impossible, warn and return True."""
        if self._file is not None:
            return True
        try:
            folder = _private_folder()
            file = os.open(folder / f"telegram-{self._name}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            log.warning("telegram.no_lock", reason=error.strerror)
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._file = file
        with suppress(OSError):
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
        return True

    async def wait(self, channel: str, pause: float) -> None:
        """Take the lock, and retry every *pause* seconds while another process holds it; log that once."""
        is_logged = False
        while not await asyncio.to_thread(self.acquire):
            if not is_logged:
                is_logged = True
                log.error(
                    "telegram.token_in_use",
                    channel=channel,
                    process=self.holder(),
                    mend="another Parlour on this machine uses this bot's token; stop it, or give this one a bot of"
                    " its own with @BotFather. It is tried again by itself",
                )
            await asyncio.sleep(pause)

    def holder(self) -> str:
        """Return the process id of the holder, or "unknown"."""
        with suppress(OSError, ValueError):
            return str(int((_private_folder() / f"telegram-{self._name}").read_text("ascii")))
        return "unknown"

    def release(self) -> None:
        """Release the lock; idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _private_folder() -> Path:
    """Return the folder of this user's locks; raise OSError if another user can write to it."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"parlour-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(1, f"{folder} is not private to this user")
    return folder
