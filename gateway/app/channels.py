"""Channels: loaded by entry point, built from their settings, with the admission policy of each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from starlette.routing import BaseRoute

from agent.commands import Command
from gateway.access.access_roster import AccessRoster
from gateway.access.chat_approvals import ChatApprovals
from gateway.access.refusal_log import RefusalLog
from gateway.admission import AdmissionPolicy, Admitted, Decision, GroupPolicy, Rejected, admit, policy_of
from gateway.app.context import AppContext, ChannelPlatforms, ExtraPlugins
from gateway.events import InboundMessage, PlatformAccount, Role, Sender, SessionKey
from gateway.i18n import SLASH
from gateway.ports import (
    AccountLinkStore,
    BlobStore,
    Channel,
    ChannelContext,
    ChannelPlugin,
    ChatOverride,
    Intake,
    MessageContext,
    ReplyPolicies,
    ReplyPolicy,
    SessionReader,
)
from gateway.ports.channel_support import SupportsCommandPrefix
from gateway.ports.conversations import ConversationStore
from gateway.ports.entry_points import load_entry_points
from gateway.ports.person_panels import PersonPanels
from gateway.settings import Settings
from gateway.settings.chat_overrides import ChatOverrides


class Judge(Protocol):
    """Decides whether a message is admitted; derives its context unless it is passed."""

    def __call__(self, message: InboundMessage, context: MessageContext | None = None, /) -> Decision:
        """Return the decision."""


@dataclass(frozen=True, slots=True)
class ConfiguredChannels:
    """The channels of one installation by name, and their routes of the web server."""

    channels: Mapping[str, Channel]
    routes: Sequence[BaseRoute] = ()

    def file_limit(self, channel: str) -> int:
        """Return the largest file that *channel* sends, in bytes; 0 for a channel that is not open."""
        found = self.channels.get(channel)
        return found.capabilities.file_limit if found is not None else 0


def platforms_of(settings: Settings, plugins: ExtraPlugins) -> ChannelPlatforms:
    """Return the platform of every channel, the caller's extra channels included."""
    blocks, extras = settings.channels, plugins.channels
    return ChannelPlatforms(
        {name: block.kind for name, block in blocks.items()} | {extra.name: extra.kind.name for extra in extras},
        {block.kind: block.traits for block in blocks.values()} | {extra.kind.name: extra.traits for extra in extras},
    )


def build_command_prefix(settings: Settings, plugins: ExtraPlugins) -> Callable[[SessionKey], str]:
    """Return the function that gives the prefix commands are typed with in a chat, as its platform has it."""
    entry_points = {entry.name: entry for entry in load_entry_points("parlour.channels")}
    installed = {name: entry_points[block.kind].load() for name, block in settings.channels.items() if block.enabled}
    installed |= {extra.name: extra.kind for extra in plugins.channels}
    prefixes = {
        name: plugin.command_prefix for name, plugin in installed.items() if isinstance(plugin, SupportsCommandPrefix)
    }

    def prefix(key: SessionKey) -> str:
        return prefixes[key.channel](key) if key.channel in prefixes else SLASH

    return prefix


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


@asynccontextmanager
async def open_channels(
    context: AppContext,
    intake: Intake,
    sessions: SessionReader,
    conversations: ConversationStore,
    panels: PersonPanels,
    blobs: BlobStore,
    *,
    allowed_commands: Callable[[SessionKey, str], Collection[str]],
    is_console_owner: Callable[[str, str], bool],
) -> AsyncIterator[ConfiguredChannels]:
    """Build every enabled channel, and close them on exit; nothing connects yet."""
    async with AsyncExitStack() as stack:
        settings, store = context.settings, context.store
        entry_points = {entry.name: entry for entry in load_entry_points("parlour.channels")}
        channels: dict[str, Channel] = {}
        routes: list[BaseRoute] = []

        async def open_messages(key: SessionKey) -> frozenset[str]:
            return frozenset(row.message.message_id for row in await store.journal.waiting_rows(key))

        def add(name: str, plugin: ChannelPlugin, channel_settings: Any) -> None:
            channel = plugin.open(
                ChannelContext(
                    name=name,
                    settings=channel_settings,
                    intake=intake,
                    state=store.state(name),
                    blobs=blobs,
                    sessions=sessions,
                    conversations=conversations,
                    panels=panels,
                    allowed_commands=allowed_commands,
                    is_console_owner=partial(is_console_owner, name),
                    has_transcription=bool(settings.llm.transcription_model),
                    open_messages=open_messages,
                    language=context.locales.language,
                    folder=settings.home / "uploads" / name,
                    proxy=settings.proxy_address,
                    reply_policies=reply_policies_of(context.chats, name, channel_settings),
                    connections=store.connections,
                    windows=store.windows,
                )
            )
            channels[name] = channel
            stack.push_async_callback(channel.close)
            routes.extend(plugin.routes(channel))

        for name, block in settings.channels.items():
            if block.enabled:
                add(name, entry_points[block.kind].load(), block)
        for extra in context.plugins.channels:
            add(extra.name, extra.kind, extra.settings)
        yield ConfiguredChannels(channels, routes)


def policies_of(settings: Settings, plugins: ExtraPlugins) -> Mapping[str, AdmissionPolicy]:
    """Return each channel's admission policy from the settings, the caller's extra channels included."""
    return {
        name: policy_of(name, block.allow_from, settings.owners, block.group_policy, is_local=block.traits.is_local)
        for name, block in settings.channels.items()
    } | {extra.name: extra.policy for extra in plugins.channels}


@dataclass(slots=True, eq=False)
class AdmissionJudge:
    """The admission decision for all channels: the settings' entries and the owners' decisions since.

    *context_of* returns the facts of messages that come without; rejections are noted in *refusals*.
    """

    roster: AccessRoster
    approvals: ChatApprovals
    context_of: Callable[[InboundMessage], MessageContext]
    refusals: RefusalLog
    now: Callable[[], datetime]

    def __call__(self, message: InboundMessage, context: MessageContext | None = None) -> Decision:
        """Return the decision without logging it."""
        context = context or self.context_of(message)
        channel, overrides = message.key.channel, context.overrides
        policy = self.roster.policies.get(channel) or AdmissionPolicy(channel=channel)
        if overrides.group_policy is not None:
            selector = overrides.said_by["group_policy"]
            policy = replace(policy, group_policy=GroupPolicy(overrides.group_policy), decided_for=selector)
        users = [each.user for each in context.linked]
        decision = admit(message, policy, self.roster.facts(message, users))
        return decision if isinstance(decision, Admitted) else self.approvals.question_text(message, decision)

    def decide(self, message: InboundMessage, context: MessageContext | None = None) -> Decision:
        """Return the decision, and note a rejection, so that `parlour why` can explain it."""
        decision = self(message, context)
        if isinstance(decision, Rejected):
            self.refusals.note(message, decision, self.now())
        return decision


def accounts_of(links: AccountLinkStore, account: PlatformAccount) -> Sequence[PlatformAccount]:
    """Return all accounts, without teams, of the person to whom *account* belongs; () if not linked."""
    return [each.account.user for each in links.accounts(links.person(account))]


def accounts_of_user(links: AccountLinkStore, user: PlatformAccount) -> Sequence[PlatformAccount]:
    """Return all accounts, without teams, of the persons to whom *user* belongs in any team; () if not linked."""
    return [each.account.user for each in links.accounts_of_user(user)]


def allowed_commands(
    judge: Judge,
    commands: Sequence[Command],
    now: Callable[[], datetime],
    key: SessionKey,
    user: str,
    *,
    has_one_memory: bool = False,
) -> Collection[str]:
    """Return the names of the commands that the role of *user* allows in their direct chat *key*.

    With *has_one_memory* for the whole installation, some commands need a higher role than in a direct chat else.
    """
    message = InboundMessage(key=key, message_id="", sender=Sender(id=user), text="", sent_at=now(), is_addressed=True)
    decision = judge(message)
    role = decision.role if isinstance(decision, Admitted) else Role.MEMBER
    return [
        each.name
        for each in commands
        if role.covers(each.needs.general.direct)
        and (not has_one_memory or role.covers(each.needs.general.single or Role.MEMBER))
    ]


def may_be_read(judge: Judge, message: InboundMessage) -> bool:
    """Return True if *message*, which was not addressed to the bot, may be context: its sender is admitted."""
    return isinstance(judge(replace(message, is_addressed=True)), Admitted)
