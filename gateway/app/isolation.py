"""Moves of memory that are completed before the first message is admitted.

These are interrupted moves, changes of `memory.isolation`, and the join of page and terminal to one person.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent.memory.account_links.account_linker import LINK, AccountLinker
from gateway.admission import LOCAL_OWNER
from gateway.app.context import ChannelPlatforms
from gateway.errors import UserError
from gateway.events import PlatformAccount, SessionKey
from gateway.ports.journal import Job
from gateway.settings.channel_blocks import ALWAYS_THERE, PAGE

if TYPE_CHECKING:
    from gateway.store.sql_store import SqlStore


log = structlog.get_logger(__name__)

# The owner at this machine. On the page and at the terminal they are one person, whom nothing separates.
LOCAL_ACCOUNTS = tuple(PlatformAccount(kind=kind, id=LOCAL_OWNER) for kind in ALWAYS_THERE)
_ADOPT = "adopt"
_MEMORIES = ("MEMORY.md", "history.jsonl", "HISTORY.md")


async def settle_scopes(
    isolation: str, home: Path, owners: Sequence[str], platforms: ChannelPlatforms, linker: AccountLinker
) -> None:
    """Complete interrupted moves, then move the home's shared memory to the owner's scope unless isolation is "shared".

    Raises UserError when the disk refuses; the gateway must not start then.
    """
    try:
        await linker.resume()
        if isolation == "shared":
            unread = list(unread_scopes(home))
            if unread:
                log.warning("memory.not_read", isolation="shared", scopes=len(unread), first=unread[0])
        elif has_memory(home):
            await _adopt(owners, home, platforms, linker)
    except OSError as error:
        raise UserError(
            f"the memory could not be moved within {home} ({error.strerror or error}); free some space and start again"
        ) from None


async def join_local_accounts(store: SqlStore, linker: AccountLinker, now: datetime) -> None:
    """Make the owner at this machine's page and terminal one person, as `/link` would; later starts change nothing.

    The older scope remains, with the memory and the conversations of both. Where other gateways may be at work, or the
    transcripts are behind, a job does it. Raises UserError when the disk refuses.
    """
    accounts = [each.name for each in LOCAL_ACCOUNTS]
    if len({store.links.person(each) for each in LOCAL_ACCOUNTS}) == 1:
        return
    job = Job(id="link:local", kind=LINK, scope="", payload={"accounts": accounts}, due_at=now)
    if store.connections is not None or await linker.link(job) is not None:
        await store.jobs.put(job)


async def _adopt(owners: Sequence[str], home: Path, platforms: ChannelPlatforms, linker: AccountLinker) -> None:
    target = owners_scope(owners, home, platforms)
    if not target:
        log.warning(
            "memory.without_owner",
            folder=str(home / "memory"),
            hint="this memory is not used; set PARLOUR_OWNERS to the person it belongs to, and start again",
        )
        return
    await linker.adopt(target, f"{_ADOPT}:{_number(home, target)}")
    log.info("memory.adopted", scope=target, was=str(home / "memory"))


def _number(home: Path, target: str) -> int:
    """Return a number that no earlier adoption of this scope has had."""
    mark = home / target / "memory" / ".move"
    before = mark.read_text("utf-8") if mark.is_file() else ""
    name, _, number = before.partition(":")
    return int(number) + 1 if name == _ADOPT and number.isdigit() else 1


def has_memory(home: Path) -> bool:
    """Return True if the home itself holds a memory, as with `memory.isolation: shared`."""
    there = any((home / "memory" / name).exists() for name in _MEMORIES) or (home / "USER.md").exists()
    return there or any((home / "sessions").glob("*.jsonl"))


def unread_scopes(home: Path) -> Iterator[str]:
    """Yield the scopes that are not read while `memory.isolation` is "shared"."""
    for area in ("people", "chats"):
        for folder in sorted((home / area).glob("*")):
            if folder.is_dir():
                yield f"{area}/{folder.name}"


def owners_scope(owners: Sequence[str], home: Path, platforms: ChannelPlatforms) -> str:
    """Return the scope of the first owner whose account can be derived; without owners that of the local user.

    Returns "" when there are owners and none can be derived.
    """
    for owner in owners:
        key = SessionKey.parse(owner)
        account = PlatformAccount(kind=platforms.get(key.channel, key.channel), id=key.chat)
        if not platforms.has_teams(account.kind):
            return f"people/{account.name}"
        # The team is part of the account, and no setting names it.
        names = [path.name for path in sorted((home / "people").glob("*"))]
        written = [name for name in names if PlatformAccount.from_name(name).user == account]
        if len(written) == 1:
            return f"people/{written[0]}"
    return "" if owners else f"people/{PlatformAccount(kind=PAGE, id=LOCAL_OWNER).name}"
