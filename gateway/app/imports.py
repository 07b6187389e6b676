"""Import another bot's data: into the owner's scope, unless the operator names other people or chats."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.importers import SYSTEMS
from agent.importers.conversation_importer import ConversationImporter, ImportTarget
from agent.importers.import_ledger import ImportLedgers
from agent.importers.importer import MemoryImporter
from agent.memory.scope_names import ScopeNames
from agent.memory.scopes import SHARED, chat_scope
from agent.memory.storage.disk import Disk
from gateway.app.memory_operations import MemoryOperations
from gateway.app.runtime import Runtime, resolve_recipient
from gateway.errors import UserError
from gateway.events import ChatKind, PlatformAccount, SessionKey


def _now() -> datetime:
    return datetime.now(UTC)


async def run_import(
    app: Runtime, system: str, folder: Path, *, person: str, mapped: Mapping[str, str], is_dry: bool
) -> list[dict[str, Any]]:
    """Import *folder* into the scope of *person* (default: the owner); *mapped* gives conversations another target.

    Returns the lines of the report. Raises UserError for a target or folder that the operator must correct.
    The gateway must not be running.
    """
    if system not in SYSTEMS:
        raise UserError(f"{system!r} cannot be imported; use one of: {', '.join(SYSTEMS)}")
    names = await MemoryOperations(app).names()
    scope = _default_scope(app, names, person)
    data = await asyncio.to_thread(SYSTEMS[system], folder, app.settings.timezone)
    keys = sorted(each.key for each in data.sessions)
    for key in mapped:
        if key not in keys:
            raise UserError(f"there is no conversation {key!r}; conversations: {', '.join(keys) or 'none'}")
    targets = {key: await _parse_target(app, names, target) for key, target in mapped.items()}
    disk, home = Disk(), app.home.path
    ledgers = ImportLedgers(app.store.history, is_dry=is_dry)
    importer = MemoryImporter(
        home=home,
        system=system,
        documents=app.store.documents,
        history=app.store.history,
        ledgers=ledgers,
        conversations=ConversationImporter(
            home=home,
            system=system,
            ledgers=ledgers,
            session=app.store.journal.session,
            sessions=app.store.records.sessions,
            append=app.store.records.append,
            transcripts=app.store.transcripts,
            now=_now,
            disk=disk,
            is_dry=is_dry,
        ),
        now=_now,
        disk=disk,
        is_dry=is_dry,
    )
    items = await importer.run(data, scope, targets)
    await app.session_files.flush()
    await app.history_files.flush()
    return [asdict(item) for item in items]


def _default_scope(app: Runtime, names: ScopeNames, person: str) -> str:
    """Return the scope of *person*, or of the only owner. Raises UserError if there is not exactly one owner."""
    owners = [person] if person else [str(each) for each in app.access.roster.owners()]
    if app.settings.memory.isolation == "shared" and not person:
        return ""
    if len(owners) != 1:
        owner = "there is no owner yet" if not owners else f"there are several owners ({', '.join(owners)})"
        raise UserError(f"{owner}; name the person to import for with --as, such as --as telegram:42")
    return names.person_scope(owners[0])


async def _parse_target(app: Runtime, names: ScopeNames, target: str) -> ImportTarget:
    """Return the chat or memory scope that the operator named. Raises UserError if *target* is neither."""
    if target == SHARED:
        raise UserError(
            "the shared memory is readable by everyone; import conversations into a person's scope or a chat"
        )
    if target in names.all():
        return ImportTarget(scope=target)
    try:
        key = SessionKey.parse(target)
    except ValueError:
        raise UserError(
            f"{target!r} is neither a chat (channel:chat_id) nor a scope; `parlour memory` lists the scopes"
        ) from None
    app.platforms.require(key.channel)
    if app.settings.memory.isolation == "shared":
        return ImportTarget(scope="", key=key)
    sessions = await app.store.records.sessions()
    traits = app.platforms.traits(key.channel)
    if traits.is_group(key):
        return ImportTarget(scope=chat_scope(key.parent), key=key)
    chat_kind, sender = resolve_recipient(key, traits, sessions)
    if chat_kind is ChatKind.GROUP:
        return ImportTarget(scope=chat_scope(key.parent), key=key)
    account = PlatformAccount(kind=app.platforms[key.channel], team=sender.team, id=sender.id)
    return ImportTarget(scope=f"people/{app.store.links.person(account)}", key=key)
