"""Who may write, who decides, and what it may cost: what the settings say of people."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.doctor.findings import Finding, Level
from gateway.doctor.traces import claimed_owners
from gateway.home import Home
from gateway.settings import Settings
from gateway.settings.blocks import wrong_entry

SEVERAL = frozenset({"role", "guild", "team", "chat"})  # admission entries that are not one person
_MANY = ("guild:", "team:")  # entries that let in people nobody here counts
_LEAST_TOKENS = 10_000  # a first answer may take so many, its prompt and tools included
_ENOUGH_TOKENS = 2_000_000  # a day: some two hundred answers over a long conversation


def access(home: Home, settings: Settings) -> Iterator[Finding]:
    """Yield what is to be said of who is let in, of caps, and of owners."""
    yield from _everyone(settings)
    yield from _caps(settings)
    yield from _owners(home, settings)


def _everyone(settings: Settings) -> Iterator[Finding]:
    wide = [
        f"{entry} of {name}"
        for name, block in settings.channels.items()
        for entry in block.allow_from
        if block.enabled and (entry == "*" or entry.startswith(_MANY))
    ]
    is_world = any(entry.startswith("*") for entry in wide)
    if settings.allow_everyone and not is_world:
        yield Finding(Level.WARN, "access", "PARLOUR_ALLOW_EVERYONE is on and no channel uses it; remove it")
    limit = settings.caps.tokens_per_day
    if wide and (limit is None or (is_world and not limit)):
        line = (
            f"{', '.join(wide)} lets in people whom nobody counts, and nothing bounds what they cost together; set"
            f" PARLOUR_CAPS__TOKENS_PER_DAY={_ENOUGH_TOKENS}"
        )
        yield Finding(Level.WARN, "access", line)


def _caps(settings: Settings) -> Iterator[Finding]:
    for name in ("person_tokens_per_day", "chat_tokens_per_day", "tokens_per_day"):
        limit = getattr(settings.caps, name)
        if limit and limit < _LEAST_TOKENS:
            line = (
                f"PARLOUR_CAPS__{name.upper()}={limit} is less than one answer may take with all that is sent along, so"
                f" nobody might be answered; set {10 * _LEAST_TOKENS} or more, or 0 for no cap"
            )
            yield Finding(Level.WARN, "caps", line)


def _owners(home: Home, settings: Settings) -> Iterator[Finding]:
    for owner in settings.owners:
        channel, _, who = owner.partition(":")
        block = settings.channels.get(channel)
        wrong = wrong_entry(who, block.entry_shapes) if block is not None else ""
        if wrong:
            yield Finding(Level.WARN, "owners", f"PARLOUR_OWNERS: {owner!r} is nobody on {channel}: {wrong}", "id")
    owners = [*settings.owners, *(f"{each} by a code" for each in claimed_owners(home))]
    if not owners:
        line = "nobody is owner but who sits at this machine; see `parlour owner claim`, or set PARLOUR_OWNERS"
        yield Finding(Level.WARN, "owners", line)
    else:
        yield Finding(Level.OK, "owners", ", ".join(owners))
