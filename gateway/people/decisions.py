"""What owners decide about people and places while the gateway runs, under rules that no decision gets round."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias

import structlog

from gateway.admission import Entry, Grants
from gateway.people.roster import PlatformAccount, Roster
from gateway.ports.access import AuditLine, Change, Decided, Decider, Listed, Member, Ruling, Standing

log = structlog.get_logger(__name__)

Linked: TypeAlias = Callable[[str, str], Sequence[PlatformAccount]]  # (block, user) -> all accounts of that person

# What is wrong with an entry on the platform of a block, "" for nothing: (block, entry) -> line for the operator
WrongEntry: TypeAlias = Callable[[str, str], str]

_GRANTS = frozenset(each.value for each in Grants)
_BLOCK = re.compile(r"[a-z][a-z0-9-]*\Z")  # how blocks are called (gateway/settings/blocks.py)
_MENTION = re.compile(r"<@!?([A-Za-z0-9]+)(?:\|[^<>]*)?>\Z")  # Slack and Discord; a Telegram mention holds no id


class Decisions:
    """Implements `gateway.ports.access.Deciding` over the roster."""

    def __init__(
        self,
        roster: Roster,
        linked: Linked,
        *,
        now: Callable[[], datetime],
        wrong: WrongEntry = lambda _channel, _entry: "",
    ) -> None:
        """*wrong* knows how ids look on each platform, so that nobody is told of a decision that meets nobody."""
        self._roster = roster
        self._linked = linked
        self._now = now
        self._wrong = wrong

    def listed(self) -> Sequence[Listed]:
        """Return who may write and who may not."""
        return self._roster.listed()

    async def allow(self, text: str, decider: Decider, *, here: str = "", name: str = "") -> Decided:
        """Let somebody or a place in."""
        found = self._somebody(text, here)
        if isinstance(found, Decided):
            return found
        channel, entry = found
        whom = f"{channel}:{entry}"
        if self._is_owner(channel, entry):
            return Decided(ruling=Ruling.SAME, whom=whom)
        elsewhere = self._blocked_elsewhere(channel, entry)
        if elsewhere:
            return Decided(ruling=Ruling.BLOCKED_AS, whom=whom, other=elsewhere)
        return await self._put(channel, entry, Standing.ALLOWED, decider, name, "allow")

    async def block(self, text: str, decider: Decider, *, here: str = "", name: str = "") -> Decided:
        """Shut somebody or a place out."""
        found = self._somebody(text, here)
        if isinstance(found, Decided):
            return found
        channel, entry = found
        if entry.grants not in (Grants.USER, Grants.CHAT, Grants.GUILD):
            return Decided(ruling=Ruling.ONLY_LET_IN, whom=f"{channel}:{entry}")
        if entry.grants is Grants.USER and self._is_owner(channel, entry):
            is_set = self._roster.is_set_owner(channel, entry.id)
            return Decided(ruling=Ruling.SET_OWNER if is_set else Ruling.OWNER, whom=f"{channel}:{entry}")
        return await self._put(channel, entry, Standing.BLOCKED, decider, name, "block")

    async def remove(self, text: str, decider: Decider, *, here: str = "") -> Decided:
        """Take a decision back."""
        found = self._read(text, here)
        if isinstance(found, Decided):
            return found
        channel, entry = found
        whom = f"{channel}:{entry}"
        member = self._roster.access.members().get((channel, str(entry)))
        if member is None:
            policy = self._roster.policies[channel]
            is_set = entry in policy.entries or str(entry) in policy.owners
            return Decided(ruling=Ruling.BY_SETTING if is_set else Ruling.UNLISTED, whom=whom)
        if member.standing is Standing.OWNER:
            return Decided(ruling=Ruling.OWNER, whom=whom)
        return await self.forget(member, decider, "remove")

    async def disown(self, text: str, decider: Decider) -> Decided:
        """Take back an ownership that was claimed by a code."""
        found = self._read(text, "")
        if isinstance(found, Decided):
            return found
        channel, entry = found
        member = self._roster.access.members().get((channel, str(entry)))
        if member is None or member.standing is not Standing.OWNER:
            is_set = self._roster.is_set_owner(channel, str(entry))
            return Decided(ruling=Ruling.SET_OWNER if is_set else Ruling.UNLISTED, whom=f"{channel}:{entry}")
        return await self.forget(member, decider, "owner remove")

    async def forget(self, member: Member, decider: Decider, what: str) -> Decided:
        """Remove what was decided about *member*."""
        whom = f"{member.channel}:{member.who}"
        line = self._line(decider, what, whom)
        await self._roster.access.change(Change(remove=((member.channel, member.who),), line=line))
        log.info("people.decided", what=what, whom=whom, by=decider.by)
        return Decided(ruling=Ruling.DONE, whom=whom)

    async def note_forgetting(self, name: str, accounts: Collection[PlatformAccount], decider: Decider) -> None:
        """Keep that somebody is to be forgotten, and from now on no name of theirs: how they stand is told by id."""
        members = self._roster.access.members().values()
        named = [each for each in members if each.name and self._roster.account(each.channel, each.who) in accounts]
        await self._roster.access.change(
            Change(put=tuple(replace(each, name="") for each in named), line=self._line(decider, "forget", name))
        )

    # -- inside ----------------------------------------------------------------------------------------

    def _somebody(self, text: str, here: str) -> tuple[str, Entry] | Decided:
        """Read who is meant, as `_read` does, and refuse what cannot be anybody or any place of that platform."""
        found = self._read(text, here)
        if isinstance(found, Decided):
            return found
        channel, entry = found
        wrong = self._wrong(channel, str(entry))
        return Decided(ruling=Ruling.NOBODY, whom=f"{channel}:{entry}", other=wrong) if wrong else found

    def _read(self, text: str, here: str) -> tuple[str, Entry] | Decided:
        """Read "channel:who", or who alone in the block *here*."""
        wanted = text.strip()
        channel, colon, rest = wanted.partition(":")
        if not (colon and channel in self._roster.policies):
            is_block = colon and _BLOCK.match(channel) and channel not in _GRANTS
            channel, rest = "" if is_block else here, wanted
        if channel not in self._roster.policies:
            return Decided(ruling=Ruling.ELSEWHERE, whom=wanted, other=", ".join(self._doors()))
        mention = _MENTION.match(rest)
        try:
            entry = Entry.parse(mention[1] if mention else rest)
        except ValueError:
            return Decided(ruling=Ruling.NOBODY, whom=wanted)
        if entry.grants is Grants.EVERYONE or rest.startswith("@"):
            return Decided(ruling=Ruling.NOBODY, whom=wanted)
        return channel, entry

    def _doors(self) -> list[str]:
        """Return the blocks that people are let in to; where there is none, those of this machine."""
        policies = self._roster.policies
        return sorted(name for name, policy in policies.items() if not policy.is_local) or sorted(policies)

    def _accounts(self, channel: str, entry: Entry) -> list[PlatformAccount]:
        return [self._roster.account(channel, entry.id), *self._linked(channel, entry.id)]

    def _is_owner(self, channel: str, entry: Entry) -> bool:
        if entry.grants is not Grants.USER:
            return False
        return self._roster.is_owner(channel, entry.id) or self._roster.owns(self._linked(channel, entry.id))

    def _blocked_elsewhere(self, channel: str, entry: Entry) -> str:
        """Return under which other name the same person is blocked: allowing this one would change nothing."""
        if entry.grants is not Grants.USER:
            return ""
        found = self._roster.blocked_as(self._accounts(channel, entry))
        return "" if found == f"{channel}:{entry}" else found

    async def _put(
        self, channel: str, entry: Entry, standing: Standing, decider: Decider, name: str, what: str
    ) -> Decided:
        whom = f"{channel}:{entry}"
        before = self._roster.access.members().get((channel, str(entry)))
        if before is not None and before.standing is standing:
            return Decided(ruling=Ruling.SAME, whom=whom)
        new = Member(
            channel=channel,
            who=str(entry),
            standing=standing,
            by=decider.by,
            at=self._now(),
            name=name or (before.name if before else ""),
        )
        await self._roster.access.change(Change(put=(new,), line=self._line(decider, what, whom)))
        log.info("people.decided", what=what, whom=whom, by=decider.by)
        return Decided(ruling=Ruling.DONE, whom=whom)

    def _line(self, decider: Decider, what: str, whom: str) -> AuditLine:
        return AuditLine(id=decider.id, at=self._now(), by=decider.by, where=decider.where, what=what, whom=whom)
