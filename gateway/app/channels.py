"""Channels: loaded by entry point, built from their settings, with the admission policy of each."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from starlette.routing import BaseRoute

from agent.llm.chat_model import ChatRequest
from agent.memory.jobs.job_runner import RetryJobLater, send_job_report
from gateway.admission import Admitted
from gateway.app.console import GatewayPersonPanels, is_console_owner
from gateway.app.context import ChannelPlatforms, ExtraPlugins
from gateway.channel import (
    Channel,
    ChannelContext,
    ChannelPlugin,
    PushOptions,
    StatelessAnswer,
    SupportsReplay,
    TurnUsage,
)
from gateway.errors import ParlourError, StoreUnavailable, UserError
from gateway.events import ChatKind, InboundMessage, PlatformAccount, Role, Sender, SessionKey, turn_id
from gateway.home import make_private
from gateway.i18n import translate
from gateway.installation import load_entry_points
from gateway.ports.access import CappedSender, CapReached, ChatOverride
from gateway.ports.channel import EventOrigin, PlatformEvent, ReplyPolicies, ReplyPolicy
from gateway.ports.journal import Job
from gateway.settings import Settings
from gateway.settings.channel_blocks import API, PAGE, TERMINAL
from gateway.settings.chat_settings import ChatOverrides

if TYPE_CHECKING:
    from channels.api.adapter import ApiChannel
    from channels.web.adapter import WebChannel
    from channels.web.frame_channel import ConsoleChannel
    from gateway.app.runtime import Runtime


@dataclass(frozen=True, slots=True)
class ConfiguredChannels:
    """The channels of one installation by name, and their routes of the web server."""

    channels: Mapping[str, Channel]
    routes: Sequence[BaseRoute] = ()

    def file_limit(self, channel: str) -> int:
        """Return the largest file that *channel* sends, in bytes; 0 for a channel that is not open."""
        found = self.channels.get(channel)
        return found.capabilities.file_limit if found is not None else 0


def find_pages(app: Runtime) -> Sequence[WebChannel]:
    """Return the open chat pages, that of the block `web` first."""
    if not (found := _channels_of(app, PAGE)):
        return ()
    from channels.web.adapter import WebChannel  # loaded with the channel

    return [each for each in found if isinstance(each, WebChannel)]


def find_terminals(app: Runtime) -> Sequence[ConsoleChannel]:
    """Return the open chats of terminals, that of the block `console` first."""
    if not (found := _channels_of(app, TERMINAL)):
        return ()
    from channels.web.frame_channel import ConsoleChannel  # loaded with the channel

    return [each for each in found if isinstance(each, ConsoleChannel)]


def find_apis(app: Runtime) -> Sequence[ApiChannel]:
    """Return the open APIs, that of the block `api` first."""
    if not (found := _channels_of(app, API)):
        return ()
    from channels.api.adapter import ApiChannel  # loaded with the channel

    return [each for each in found if isinstance(each, ApiChannel)]


def _channels_of(app: Runtime, platform: str) -> Sequence[Channel]:
    named = sorted(app.channels.items(), key=lambda item: item[0] != platform)
    return [channel for name, channel in named if app.platform(name) == platform]


def platforms_of(settings: Settings, plugins: ExtraPlugins) -> ChannelPlatforms:
    """Return the platform of every channel, the caller's extra channels included."""
    blocks, extras = settings.channels, plugins.channels
    return ChannelPlatforms(
        {name: block.kind for name, block in blocks.items()} | {extra.name: extra.kind.name for extra in extras},
        {block.kind: block.traits for block in blocks.values()} | {extra.kind.name: extra.traits for extra in extras},
    )


def reply_policies_of(chats: ChatOverrides, name: str, block: Any) -> ReplyPolicies:
    """Return the reply policy of each chat of a channel: as `chats` overrides it, else that of the channel."""
    default = ReplyPolicy.of_block(block)

    def apply(rules: ChatOverride) -> ReplyPolicy:
        return ReplyPolicy(
            reply_in=rules.reply_in or default.reply_in,
            follow_threads=default.follow_threads if rules.follow_threads is None else rules.follow_threads,
            group_policy=rules.group_policy or default.group_policy,
        )

    def of(chat: str, guild: str) -> ReplyPolicy:
        return apply(chats.of(SessionKey(name, chat), guild)) if chat else default

    return ReplyPolicies(of, frozenset({default, *map(apply, chats.every(name))}))


def build_channels(app: Runtime) -> ConfiguredChannels:
    """Build every enabled channel; nothing connects yet."""
    settings, store = app.settings, app.store
    entry_points = {entry.name: entry for entry in load_entry_points("parlour.channels")}
    channels: dict[str, Channel] = {}
    routes: list[BaseRoute] = []

    def add(name: str, plugin: ChannelPlugin, channel_settings: Any) -> None:
        channel = plugin.open(
            ChannelContext(
                name=name,
                settings=channel_settings,
                intake=app.intake,
                state=store.state(name),
                blobs=app.blobs,
                sessions=app.memory.sessions,
                conversations=app.memory.stored_conversations,
                panels=GatewayPersonPanels(app),
                allowed_commands=partial(allowed_commands, app),
                has_lost_access=partial(has_lost_access, app, name),
                is_console_owner=partial(is_console_owner, app, name),
                has_transcription=bool(settings.llm.transcription_model),
                language=app.locales.language,
                folder=settings.home / "uploads" / name,
                proxy=settings.proxy_address,
                reply_policies=reply_policies_of(app.chats, name, channel_settings),
                connections=store.connections,
                windows=store.windows,
                push=PushOptions(
                    secret=partial(push_secret, app),
                    contact=push_contact(settings),
                    is_private=lambda: app.web.is_private,
                ),
                turn_usage=partial(turn_usage, app),
                answer_stateless=partial(answer_stateless, app),
            )
        )
        channels[name] = channel
        app.closing.push_async_callback(channel.close)
        routes.extend(plugin.routes(channel))

    for name, block in settings.channels.items():
        if block.enabled:
            add(name, entry_points[block.kind].load(), block)
    for extra in app.plugins.channels:
        add(extra.name, extra.kind, extra.settings)
    return ConfiguredChannels(channels, routes)


async def turn_usage(app: Runtime, turn: str, since: datetime) -> TurnUsage:
    """Return the tokens of a turn that began *since*."""
    tokens_in, tokens_out, tokens_cached = await app.store.usage.of_turn(turn, since=since)
    return TurnUsage(tokens_in=tokens_in, tokens_out=tokens_out, tokens_cached=tokens_cached)


async def answer_stateless(app: Runtime, message: InboundMessage) -> StatelessAnswer | None:
    """Return the default model's answer to the text of *message* alone, as a turn of its sender's caps.

    Nothing of it is stored but its tokens. None: the sender is not admitted. Raises CapReached and ModelFailed.
    """
    context = app.context_of(message)
    decision = app.judge.decide(message, context)
    if not isinstance(decision, Admitted):
        return None
    sender = CappedSender(
        account=context.account,
        accounts=context.accounts,
        is_named=decision.is_named,
        caps=context.overrides.caps,
        chat_caps=context.parent_overrides.caps,
    )
    turn = turn_id(message)
    if (exceeded := await app.caps.admit_turn(message, turn, sender)) is not None:
        raise CapReached(exceeded)
    try:
        request = ChatRequest(
            messages=[{"role": "user", "content": message.text}],
            turn=turn,
            account=context.account,
            chat=str(message.key),
            max_tokens=_MOST_STATELESS_TOKENS,
            language=app.locales.language(message.key),
        )
        reply = await app.models.default.complete(request)
    finally:
        app.caps.end_turn(turn)
    tokens = reply.tokens
    usage = TurnUsage(tokens_in=tokens.input, tokens_out=tokens.output, tokens_cached=tokens.cached)
    return StatelessAnswer(text=app.redactor.redact(reply.text), usage=usage)


def allowed_commands(app: Runtime, key: SessionKey, user: str) -> Collection[str]:
    """Return the names of the commands that the role of *user* allows in their direct chat *key*.

    With one memory for the whole installation, some commands need a higher role than in a direct chat else.
    """
    role = app.judge.role(_empty_message(app, key, user)) or Role.MEMBER
    has_one_memory = app.settings.memory.isolation == "shared"
    return [
        each.name
        for each in app.router.commands
        if role.covers(each.needs.general.direct)
        and (not has_one_memory or role.covers(each.needs.general.single or Role.MEMBER))
    ]


def has_lost_access(app: Runtime, channel: str, user: str) -> bool:
    """Return True if *user* is no longer admitted to their direct chat, which has their own id."""
    return app.judge.has_lost_access(_empty_message(app, SessionKey(channel, user), user))


def _empty_message(app: Runtime, key: SessionKey, user: str) -> InboundMessage:
    return InboundMessage(key=key, message_id="", sender=Sender(id=user), text="", sent_at=app.now(), is_addressed=True)


# -- notifications of browsers -------------------------------------------------------------------------

_PUSH_KEY_FILE = "web__push_key"  # in the folder of secrets: the setting of that name at the next start


def push_contact(settings: Settings) -> str:
    """Return the public https address for push services, or ""."""
    address = settings.web.public_url or ""
    return address if address.startswith("https:") else ""


async def push_secret(app: Runtime) -> str:
    """Return the secret of the key pair for push services; the first call creates it.

    Raises UserError where several gateways share the store, which all need the same one, or if it cannot be written.
    """
    if (key := app.settings.web.push_key) is not None:
        return key.get_secret_value()
    if app.settings.store.shared:
        raise UserError(
            "notifications are off, because several gateways share this store: set web.push_key on each of them, to"
            " the same 32 or more random characters (`openssl rand -hex 24`), and start them again"
        )
    try:
        return await asyncio.to_thread(_read_or_make_secret, app.home.secrets / _PUSH_KEY_FILE)
    except OSError as error:
        raise UserError(
            f"the key of notifications cannot be written to {app.home.secrets} ({error.strerror}); set web.push_key"
            " yourself, to 32 or more random characters"
        ) from None


def _read_or_make_secret(file: Path) -> str:
    """Return the text of *file*. The first of several who make it wins: it never changes. Blocks."""
    if not file.exists():
        make_private(file.parent)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(secrets.token_urlsafe(32) + "\n")
                out.flush()
                os.fsync(out.fileno())
            with suppress(FileExistsError):
                os.link(name, file)
        finally:
            Path(name).unlink()
    return file.read_text(encoding="utf-8").strip()


async def notify_browsers(app: Runtime, job: Job) -> RetryJobLater | None:
    """Announce an unseen answer in each browser of its person. Raises StoreUnavailable."""
    turn = job.id.partition(":")[2]
    sent = await app.store.outbox.messages_of(turn)
    message = next((each.message for each in sent if each.message.text), None)
    page = (
        None if message is None else next((each for each in app.chat_pages if each.name == message.key.channel), None)
    )
    if message is None or page is None:  # erased or expired, or its page is switched off
        return None
    message = replace(message, text=app.redactor.redact(message.text))
    at, left = datetime.fromisoformat(job.payload["at"]), job.payload.get("left")
    again, delay = await page.notify(message, at, left)
    if not again:
        return None
    return RetryJobLater(delay, "a push service cannot be reached", payload={**job.payload, "left": sorted(again)})


async def list_browsers(app: Runtime, person: str) -> list[dict[str, Any]]:
    """Return the browsers of a person that show notifications, without keys. Raises StoreUnavailable."""
    return [
        {"account": account.name, "browser": each.name, "endpoint": each.endpoint, "at": each.at}
        for page in app.chat_pages
        if page.push is not None
        for account in _page_accounts(app, person)
        for each in await page.push.browsers(account.id)
    ]


async def list_shared_links(app: Runtime, person: str) -> list[dict[str, Any]]:
    """Return the links to conversations of a person, without what opens them. Raises StoreUnavailable."""
    return [
        {
            "account": account.name,
            "conversation": each.conversation,
            "at": each.at.isoformat(),
            "until": each.until.isoformat(),
        }
        for page in app.chat_pages
        for account in _page_accounts(app, person)
        for each in await page.links.of_person(account.id)
    ]


def _page_accounts(app: Runtime, person: str) -> list[PlatformAccount]:
    accounts = [each.account for each in app.store.links.accounts(person)] or [PlatformAccount.from_name(person)]
    return [each for each in accounts if each.kind == PAGE]


async def forget_page_users(app: Runtime, accounts: Collection[str] | None) -> None:
    """Forget what pages keep of *accounts*, by their names; without names, of all. Raises StoreUnavailable."""
    named = [PlatformAccount.from_name(each) for each in accounts or ()]
    ids = None if accounts is None else {each.id for each in named if each.kind == PAGE}
    for page in app.chat_pages:
        await page.forget(ids)


log = structlog.get_logger(__name__)

_MOST_STATELESS_TOKENS = 2_000  # of an answer beside conversations: a title or a few questions
_READY_INTERVAL = timedelta(seconds=1)  # until a channel is connected to its platform
_STORE_RETRY = timedelta(seconds=5)


class QuarantineRetrier:
    """Retries struck events once, and notifies the senders of events that were set aside."""

    def __init__(self, app: Runtime) -> None:
        self._app = app

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tell_senders(), name="quarantine notices")
            for name in self._app.quarantine.struck_names:
                tasks.create_task(self._try_again(name), name="second try")

    async def replay(self, name: str) -> bool:
        """Pass a quarantined event to its channel again; return False if the event does not exist.

        Raises UserError if the channel cannot take it now, and errors of handling it.
        """
        return await self._app.quarantine.replay(name, self._replay)

    async def _replay(self, event: PlatformEvent) -> None:
        channel = self._app.channels.get(event.channel)
        if not isinstance(channel, SupportsReplay):
            raise UserError(f"no running channel {event.channel} can replay events")
        if not channel.is_ready():
            raise UserError(f"the channel {event.channel} is not connected to its platform; try again when it is")
        await channel.replay(event)

    async def _try_again(self, name: str) -> None:
        """Hand a struck event over, unless its platform brought it first."""
        channel = self._app.channels.get(name.rpartition("-")[0])
        while channel is not None and not channel.is_ready():  # noqa: ASYNC110 - a channel rings no event
            await asyncio.sleep(_READY_INTERVAL.total_seconds())
        try:
            is_done = await self.replay(name)
            log.info("quarantine.second_try", name=name, is_done=is_done)
        except ParlourError as error:
            log.warning("quarantine.second_try_failed", name=name, reason=type(error).__name__)
        except Exception as error:  # noqa: BLE001 - the service boundary; its text may quote the event
            log.error("quarantine.second_try_failed", name=name, reason=type(error).__name__)  # noqa: TRY400

    async def _tell_senders(self) -> None:
        quarantine = self._app.quarantine
        while True:
            await quarantine.news.wait()
            quarantine.news.clear()
            for name, channel, origin in await quarantine.list_unnotified():
                if origin is not None and channel in self._app.channels:
                    await self._tell(name, channel, origin)
                with suppress(OSError):
                    await quarantine.mark_notified(name)

    async def _tell(self, name: str, channel: str, origin: EventOrigin) -> None:
        key = SessionKey(channel, origin.chat)
        kind = ChatKind.DIRECT if origin.is_direct else ChatKind.GROUP
        # A sender who is not admitted receives no notice.
        unread = InboundMessage(
            key=key,
            message_id=origin.message_id,
            sender=Sender(id=origin.sender),
            text="",
            sent_at=self._app.now(),
            chat_kind=kind,
            guild=origin.guild,
            is_addressed=True,
        )
        if self._app.judge.role(unread) is None:
            return
        notice = Job(id=f"quarantine:{name}", kind="", scope="", payload={}, due_at=self._app.now())
        while True:
            try:
                session = await self._app.store.journal.session(key)
                await send_job_report(
                    self._app.store.records,
                    replace(notice, scope=session.scope),
                    session,
                    translate("queue.set_aside", self._app.locales.language(key)),
                    at=self._app.now(),
                    reply_to=origin.message_id if kind is ChatKind.GROUP else "",
                    chat_kind=kind,
                )
            except StoreUnavailable:
                await asyncio.sleep(_STORE_RETRY.total_seconds())
            else:
                return
