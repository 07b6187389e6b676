"""Checks of access in the settings: admission entries, owners, caps."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.doctor.findings import DoctorFinding, FindingLevel
from gateway.doctor.incident_checks import claimed_owners
from gateway.home import Home
from gateway.settings import Settings
from gateway.settings.channel_blocks import entry_error

SEVERAL = frozenset({"role", "guild", "team", "chat"})  # admission entries that are not one person
_MANY = ("guild:", "team:")  # entries that admit an unknown number of people
_LEAST_TOKENS = 10_000  # a first answer may take so many, its prompt and tools included
_ENOUGH_TOKENS = 2_000_000  # a day: some two hundred answers over a long conversation


def check_access(home: Home, settings: Settings, url: str) -> Iterator[DoctorFinding]:
    """Yield findings about admission entries, caps and owners."""
    yield from _everyone(settings)
    yield from _caps(settings)
    yield from _owners(home, settings, url)


def _everyone(settings: Settings) -> Iterator[DoctorFinding]:
    wide = [
        f"{entry} of {name}"
        for name, block in settings.channels.items()
        for entry in block.allow_from
        if block.enabled and (entry == "*" or entry.startswith(_MANY))
    ]
    is_world = any(entry.startswith("*") for entry in wide)
    if settings.allow_everyone and not is_world:
        yield DoctorFinding(
            FindingLevel.WARN, "access", "PARLOUR_ALLOW_EVERYONE is on, but no channel needs it; remove it"
        )
    limit = settings.caps.tokens_per_day
    if wide and (limit is None or (is_world and not limit)):
        line = (
            f"{', '.join(wide)} admits an unlimited number of users, and their total cost has no limit; set"
            f" PARLOUR_CAPS__TOKENS_PER_DAY={_ENOUGH_TOKENS}"
        )
        yield DoctorFinding(FindingLevel.WARN, "access", line)


def _caps(settings: Settings) -> Iterator[DoctorFinding]:
    for name in ("person_tokens_per_day", "chat_tokens_per_day", "tokens_per_day"):
        limit = getattr(settings.caps, name)
        if limit and limit < _LEAST_TOKENS:
            line = (
                f"PARLOUR_CAPS__{name.upper()}={limit} is less than a single answer can need (with its prompt), so"
                f" messages may get no answer; set {10 * _LEAST_TOKENS} or more, or 0 for no cap"
            )
            yield DoctorFinding(FindingLevel.WARN, "caps", line)


def _owners(home: Home, settings: Settings, url: str) -> Iterator[DoctorFinding]:
    for owner in settings.owners:
        channel, _, who = owner.partition(":")
        block = settings.channels.get(channel)
        if block is None or not block.enabled:
            line = (
                f"PARLOUR_OWNERS: {owner!r} is of {channel}, which is not {'enabled' if block else 'configured'}, so"
                " this owner can neither write nor be alerted; set up the channel, or remove the owner"
            )
            yield DoctorFinding(FindingLevel.WARN, "owners", line, "channel")
        wrong = entry_error(who, block.entry_shapes) if block is not None else ""
        if wrong:
            yield DoctorFinding(
                FindingLevel.WARN, "owners", f"PARLOUR_OWNERS: {owner!r} is not a user of {channel}: {wrong}", "id"
            )
    owners = [*settings.owners, *(f"{each} (by claim code)" for each in claimed_owners(home, url))]
    if not owners:
        line = (
            "no owner is set; only someone at this machine can act as owner; run `parlour owner claim`, or set"
            " PARLOUR_OWNERS"
        )
        yield DoctorFinding(FindingLevel.WARN, "owners", line)
    else:
        yield DoctorFinding(FindingLevel.OK, "owners", ", ".join(owners))
