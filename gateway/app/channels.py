"""Channels: found by entry point, built from their blocks, judged by their blocks' policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from agent.llm.port import ChatModel
from agent.memory.scopes import person_of
from agent.tools.port import Tool
from gateway.admission import Admitted, GroupPolicy, Policy, Rejected, admit, policy_of
from gateway.events import InboundMessage, SessionKey
from gateway.people.refusals import RefusalLog
from gateway.people.roster import PlatformAccount, Roster
from gateway.ports import (
    Blobs,
    Channel,
    ChannelContext,
    ChannelKind,
    ChatManners,
    Intake,
    Links,
    Manners,
    Sessions,
    Store,
)
from gateway.ports.channel import SupportsCommandSign
from gateway.ports.installed import installed
from gateway.settings import Settings
from gateway.settings.chats import ChatRules, Chats
from gateway.words import SLASH

Judge = Callable[[InboundMessage], Admitted | Rejected]
_LOCAL = frozenset({"web", "console"})  # who got through their door is the owner


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraChannel:
    """A channel that no settings block names: what a test brings."""

    name: str
    kind: ChannelKind
    settings: Any
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugins:
    """What a caller adds to the entry points."""

    channels: Sequence[ExtraChannel] = ()
    tools: Sequence[Tool] = ()
    models: Sequence[ChatModel] = ()  # instead of those that the settings name


@dataclass(frozen=True, slots=True)
class Doors:
    """The channels of one installation, before anything connects."""

    channels: Mapping[str, Channel]
    kinds: Mapping[str, str]  # block name -> kind
    routes: Sequence[Any]


def kinds_of(settings: Settings, plugins: Plugins) -> Mapping[str, str]:
    """Return the platform kind of every block, the callers' own included."""
    return {name: block.kind for name, block in settings.channels.items()} | {
        extra.name: extra.kind.name for extra in plugins.channels
    }


def sign_of(settings: Settings, plugins: Plugins) -> Callable[[SessionKey], str]:
    """Return what says how a command is typed in a chat: as the kind of its block has it."""
    found = {entry.name: entry for entry in installed("parlour.channels")}
    kinds = {name: found[block.kind].load() for name, block in settings.channels.items() if block.enabled}
    kinds |= {extra.name: extra.kind for extra in plugins.channels}
    signs = {name: kind.command_sign for name, kind in kinds.items() if isinstance(kind, SupportsCommandSign)}

    def sign(key: SessionKey) -> str:
        return signs[key.channel](key) if key.channel in signs else SLASH

    return sign


def manners_of(chats: Chats, name: str, block: Any) -> Manners:
    """Return how people are answered in the chats of a block: as `chats` says, else as the block does."""
    usual = ChatManners.of_block(block)

    def apply(rules: ChatRules) -> ChatManners:
        return ChatManners(
            reply_in=rules.reply_in or usual.reply_in,
            follow_threads=usual.follow_threads if rules.follow_threads is None else rules.follow_threads,
            group_policy=rules.group_policy or usual.group_policy,
        )

    def of(chat: str, guild: str) -> ChatManners:
        return apply(chats.of(SessionKey(name, chat), guild)) if chat else usual

    return Manners(of, frozenset({usual, *map(apply, chats.every(name))}))


def open_doors(
    settings: Settings,
    chats: Chats,
    plugins: Plugins,
    intake: Intake,
    sessions: Sessions,
    blobs: Blobs,
    store: Store,
    *,
    language: Callable[[SessionKey], str],
) -> Doors:
    """Build every enabled channel; nothing connects yet. *language* is that of a chat."""
    found = {entry.name: entry for entry in installed("parlour.channels")}
    kinds = kinds_of(settings, plugins)
    channels: dict[str, Channel] = {}
    routes: list[Any] = []

    async def open_messages(key: SessionKey) -> frozenset[str]:
        return frozenset(row.message.message_id for row in await store.journal.waiting(key))

    def add(name: str, kind: ChannelKind, block: Any) -> None:
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
            manners=manners_of(chats, name, block),
        )
        channels[name] = kind.open(context)
        routes.extend(kind.routes(channels[name]))

    for name, block in settings.channels.items():
        if block.enabled:
            add(name, found[block.kind].load(), block)
    for extra in plugins.channels:
        add(extra.name, extra.kind, extra.settings)
    return Doors(channels, kinds, routes)


def policies_of(settings: Settings, plugins: Plugins) -> Mapping[str, Policy]:
    """Return each block's policy as the settings have it, the callers' own blocks included."""
    return {
        name: policy_of(name, block.allow_from, settings.owners, block.group_policy, is_local=block.kind in _LOCAL)
        for name, block in settings.channels.items()
    } | {extra.name: extra.policy for extra in plugins.channels}


def judge_of(roster: Roster, links: Links, kinds: Mapping[str, str], chats: Chats) -> Judge:
    """Return who may speak, over all blocks: the settings' entries, and what owners decided since."""

    def judge(message: InboundMessage) -> Admitted | Rejected:
        channel = message.key.channel
        policy = roster.policies.get(channel) or Policy(channel=channel)
        rules = chats.of(message.key, message.guild)
        if rules.group_policy is not None:
            place = rules.said_by["group_policy"]
            policy = replace(policy, group_policy=GroupPolicy(rules.group_policy), decided_for=place)
        accounts = accounts_of(links, person_of(message, kinds.get(channel, "")))
        return admit(message, policy, roster.facts(message, accounts))

    return judge


def accounts_of(links: Links, account: str) -> Sequence[PlatformAccount]:
    """Return all accounts of a person who has several, each as its platform and the id there."""
    return [platform_id(each.identity) for each in links.accounts(links.person(account))]


def platform_id(identity: str) -> PlatformAccount:
    """Return an account as its platform and the id there; its name is <kind>:[<team>:]<id>."""
    kind, _, rest = unquote(identity).partition(":")
    return kind, rest.rpartition(":")[2]


def noting(judge: Judge, refusals: RefusalLog, now: Callable[[], datetime]) -> Judge:
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
