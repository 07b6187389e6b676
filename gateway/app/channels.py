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
from gateway.admission import NO_FACTS, Admitted, Facts, Policy, Rejected, admit, policy_of
from gateway.events import InboundMessage
from gateway.people.refusals import RefusalLog
from gateway.ports import (
    Blobs,
    Channel,
    ChannelContext,
    ChannelKind,
    Intake,
    Links,
    Sessions,
    Store,
)
from gateway.ports.installed import installed
from gateway.settings import Settings

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


def open_doors(
    settings: Settings, plugins: Plugins, intake: Intake, sessions: Sessions, blobs: Blobs, store: Store
) -> Doors:
    """Build every enabled channel; nothing connects yet."""
    found = {entry.name: entry for entry in installed("parlour.channels")}
    kinds = kinds_of(settings, plugins)
    channels: dict[str, Channel] = {}
    routes: list[Any] = []

    def add(name: str, kind: ChannelKind, block: Any) -> None:
        context = ChannelContext(
            name=name,
            settings=block,
            intake=intake,
            state=store.state(name),
            blobs=blobs,
            sessions=sessions,
            folder=settings.home / "uploads" / name,
        )
        channels[name] = kind.open(context)
        routes.extend(kind.routes(channels[name]))

    for name, block in settings.channels.items():
        if block.enabled:
            add(name, found[block.kind].load(), block)
    for extra in plugins.channels:
        add(extra.name, extra.kind, extra.settings)
    return Doors(channels, kinds, routes)


def judge_of(settings: Settings, plugins: Plugins, links: Links) -> Judge:
    """Return who may speak, over all blocks. An owner's linked accounts are an owner's."""
    policies = {
        name: policy_of(name, block.allow_from, settings.owners, block.group_policy, is_local=block.kind in _LOCAL)
        for name, block in settings.channels.items()
    } | {extra.name: extra.policy for extra in plugins.channels}

    kinds = kinds_of(settings, plugins)
    owners = {(kinds.get(name, name), ident) for name, policy in policies.items() for ident in policy.owners}

    def facts(message: InboundMessage) -> Facts:
        account = person_of(message, kinds.get(message.key.channel, ""))
        linked = links.accounts(links.person(account))
        if not any(_platform_id(each.identity) in owners for each in linked):
            return NO_FACTS
        return Facts(owners=frozenset({message.sender.id}))

    def judge(message: InboundMessage) -> Admitted | Rejected:
        return admit(message, policies.get(message.key.channel, Policy(channel=message.key.channel)), facts(message))

    return judge


def _platform_id(identity: str) -> tuple[str, str]:
    """Return the platform and the id there of an account's name: <kind>:[<team>:]<id>."""
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
