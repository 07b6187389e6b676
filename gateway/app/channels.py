"""Channels: found by entry point, built from their blocks, judged by their blocks' policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from agent.llm.chat_model import ChatModel
from agent.memory.scopes import person_of
from agent.tools.tool import Tool
from gateway.access.access_roster import AccessRoster, PlatformAccount
from gateway.access.refusal_log import RefusalLog
from gateway.admission import AdmissionPolicy, Admitted, GroupPolicy, Rejected, admit, policy_of
from gateway.events import InboundMessage, SessionKey
from gateway.i18n import SLASH
from gateway.ports import (
    AccountLinkStore,
    BlobStore,
    Channel,
    ChannelContext,
    ChannelPlugin,
    Intake,
    ReplyPolicies,
    ReplyPolicy,
    SessionReader,
    Store,
)
from gateway.ports.channel_support import SupportsCommandPrefix
from gateway.ports.entry_points import load_entry_points
from gateway.settings import Settings
from gateway.settings.chat_overrides import ChatOverride, ChatOverrides

Judge = Callable[[InboundMessage], Admitted | Rejected]
_LOCAL = frozenset({"web", "console"})  # who got through their door is the owner


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraChannel:
    """A channel that no settings block names: what a test brings."""

    name: str
    kind: ChannelPlugin
    settings: Any
    policy: AdmissionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraPlugins:
    """What a caller adds to the entry points."""

    channels: Sequence[ExtraChannel] = ()
    tools: Sequence[Tool] = ()
    models: Sequence[ChatModel] = ()  # instead of those that the settings name


@dataclass(frozen=True, slots=True)
class ConfiguredChannels:
    """The channels of one installation, before anything connects."""

    channels: Mapping[str, Channel]
    kinds: Mapping[str, str]  # block name -> kind
    routes: Sequence[Any]


def platforms_of(settings: Settings, plugins: ExtraPlugins) -> Mapping[str, str]:
    """Return the platform kind of every block, the callers' own included."""
    return {name: block.kind for name, block in settings.channels.items()} | {
        extra.name: extra.kind.name for extra in plugins.channels
    }


def sign_of(settings: Settings, plugins: ExtraPlugins) -> Callable[[SessionKey], str]:
    """Return what says how a command is typed in a chat: as the kind of its block has it."""
    found = {entry.name: entry for entry in load_entry_points("parlour.channels")}
    kinds = {name: found[block.kind].load() for name, block in settings.channels.items() if block.enabled}
    kinds |= {extra.name: extra.kind for extra in plugins.channels}
    signs = {name: kind.command_sign for name, kind in kinds.items() if isinstance(kind, SupportsCommandPrefix)}

    def sign(key: SessionKey) -> str:
        return signs[key.channel](key) if key.channel in signs else SLASH

    return sign


def reply_policies_of(chats: ChatOverrides, name: str, block: Any) -> ReplyPolicies:
    """Return how people are answered in the chats of a block: as `chats` says, else as the block does."""
    usual = ReplyPolicy.of_block(block)

    def apply(rules: ChatOverride) -> ReplyPolicy:
        return ReplyPolicy(
            reply_in=rules.reply_in or usual.reply_in,
            follow_threads=usual.follow_threads if rules.follow_threads is None else rules.follow_threads,
            group_policy=rules.group_policy or usual.group_policy,
        )

    def of(chat: str, guild: str) -> ReplyPolicy:
        return apply(chats.of(SessionKey(name, chat), guild)) if chat else usual

    return ReplyPolicies(of, frozenset({usual, *map(apply, chats.every(name))}))


def open_doors(
    settings: Settings,
    chats: ChatOverrides,
    plugins: ExtraPlugins,
    intake: Intake,
    sessions: SessionReader,
    blobs: BlobStore,
    store: Store,
    *,
    language: Callable[[SessionKey], str],
) -> ConfiguredChannels:
    """Build every enabled channel; nothing connects yet. *language* is that of a chat."""
    found = {entry.name: entry for entry in load_entry_points("parlour.channels")}
    kinds = platforms_of(settings, plugins)
    channels: dict[str, Channel] = {}
    routes: list[Any] = []

    async def open_messages(key: SessionKey) -> frozenset[str]:
        return frozenset(row.message.message_id for row in await store.journal.waiting_rows(key))

    def add(name: str, kind: ChannelPlugin, block: Any) -> None:
        context = ChannelContext(
            name=name,
            settings=block,
            intake=intake,
            state=store.state(name),
            blobs=blobs,
            sessions=sessions,
            open_messages=open_messages,
            language=language,
            folder=settings.home / "uploads" / name,
            proxy=settings.proxy_address,
            manners=reply_policies_of(chats, name, block),
        )
        channels[name] = kind.open(context)
        routes.extend(kind.routes(channels[name]))

    for name, block in settings.channels.items():
        if block.enabled:
            add(name, found[block.kind].load(), block)
    for extra in plugins.channels:
        add(extra.name, extra.kind, extra.settings)
    return ConfiguredChannels(channels, kinds, routes)


def policies_of(settings: Settings, plugins: ExtraPlugins) -> Mapping[str, AdmissionPolicy]:
    """Return each block's policy as the settings have it, the callers' own blocks included."""
    return {
        name: policy_of(name, block.allow_from, settings.owners, block.group_policy, is_local=block.kind in _LOCAL)
        for name, block in settings.channels.items()
    } | {extra.name: extra.policy for extra in plugins.channels}


def build_admission_judge(
    roster: AccessRoster, links: AccountLinkStore, kinds: Mapping[str, str], chats: ChatOverrides
) -> Judge:
    """Return who may speak, over all blocks: the settings' entries, and what owners decided since."""

    def judge(message: InboundMessage) -> Admitted | Rejected:
        channel = message.key.channel
        policy = roster.policies.get(channel) or AdmissionPolicy(channel=channel)
        rules = chats.of(message.key, message.guild)
        if rules.group_policy is not None:
            place = rules.said_by["group_policy"]
            policy = replace(policy, group_policy=GroupPolicy(rules.group_policy), decided_for=place)
        accounts = accounts_of(links, person_of(message, kinds.get(channel, "")))
        return admit(message, policy, roster.facts(message, accounts))

    return judge


def accounts_of(links: AccountLinkStore, account: str) -> Sequence[PlatformAccount]:
    """Return all accounts of a person who has several, each as its platform and the id there."""
    return [platform_id(each.identity) for each in links.accounts(links.person(account))]


def platform_id(identity: str) -> PlatformAccount:
    """Return an account as its platform and the id there; its name is <kind>:[<team>:]<id>."""
    kind, _, rest = unquote(identity).partition(":")
    return kind, rest.rpartition(":")[2]


def logging_judge(judge: Judge, refusals: RefusalLog, now: Callable[[], datetime]) -> Judge:
    """Return *judge*, whose refusals are noted, so that silence can be explained."""

    def judge_and_note(message: InboundMessage) -> Admitted | Rejected:
        decision = judge(message)
        if isinstance(decision, Rejected):
            refusals.note(message, decision, now())
        return decision

    return judge_and_note


def may_be_read(judge: Judge, message: InboundMessage) -> bool:
    """Say whether a turn may know what was not said to us: whether its sender could have said it to us."""
    return isinstance(judge(replace(message, is_addressed=True)), Admitted)
