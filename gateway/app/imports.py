"""Where what another bot remembered goes: the owner's own scope, unless the operator says otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.memory.documents.file_documents import FileDocumentStore
from agent.memory.documents.version_keeper import VersionKeeper
from agent.memory.documents.version_store import VersionStore
from agent.memory.importers import SYSTEMS
from agent.memory.importers.conversations import ConversationImporter, ImportTarget
from agent.memory.importers.import_data import ImportData
from agent.memory.importers.import_ledger import ImportLedgers
from agent.memory.importers.importer import MemoryImporter
from agent.memory.scope_names import SHARED, ScopeNames
from agent.memory.scopes import quote
from agent.memory.storage.disk import Disk
from gateway.app.app import GatewayApp
from gateway.app.memory_operations import MemoryOperations
from gateway.app.recipient import resolve_recipient
from gateway.errors import UserError
from gateway.events import ChatKind, SessionKey


def _now() -> datetime:
    return datetime.now(UTC)


async def run_import(
    app: GatewayApp, system: str, folder: Path, *, person: str, mapped: Mapping[str, str], is_dry: bool
) -> list[dict[str, Any]]:
    """Import *folder* into the scope of *person* (the owner's by default), chats that are *mapped* into their own.

    Returns the report, line by line. Raises UserError for what somebody can mend. Nothing else may be at work here.
    """
    if system not in SYSTEMS:
        raise UserError(f"{system!r} cannot be imported; there are: {', '.join(SYSTEMS)}")
    names = await MemoryOperations(app).names()
    scope = _whose(app, names, person)
    found = await asyncio.to_thread(SYSTEMS[system], folder, app.settings.timezone)
    goals = {old: await _goal(app, names, new) for old, new in _checked(found, mapped).items()}
    disk, home = Disk(), app.home.path
    ledgers = ImportLedgers(home, disk, is_dry=is_dry)
    importer = MemoryImporter(
        home=home,
        system=system,
        documents=FileDocumentStore(home, keeper=VersionKeeper(home, disk, VersionStore(home), now=_now)),
        ledgers=ledgers,
        talks=ConversationImporter(
            home=home,
            system=system,
            ledgers=ledgers,
            session=app.store.journal.session,
            sessions=app.store.records.sessions,
            append=app.store.records.append,
            now=_now,
            disk=disk,
            is_dry=is_dry,
        ),
        now=_now,
        disk=disk,
        is_dry=is_dry,
    )
    items = await importer.run(found, scope, goals)
    await app.projector.flush()
    return [asdict(item) for item in items]


def _whose(app: GatewayApp, names: ScopeNames, person: str) -> str:
    """Return the scope that a private life goes to: somebody's own, never one that others read."""
    owners = [person] if person else [str(each) for each in app.people.roster.owners()]
    if app.settings.memory.isolation == "shared" and not person:
        return ""
    if len(owners) != 1:
        who = "there is no owner yet" if not owners else f"there are several owners ({', '.join(owners)})"
        raise UserError(f"{who}; say whose memory it becomes with --as, such as --as telegram:42")
    return names.person_scope(owners[0])


def _checked(found: ImportData, mapped: Mapping[str, str]) -> Mapping[str, str]:
    there = [each.key for each in found.sessions]
    for old in mapped:
        if old not in there:
            raise UserError(f"no conversation there is called {old!r}; there are: {', '.join(sorted(there)) or 'none'}")
    return mapped


async def _goal(app: GatewayApp, names: ScopeNames, new: str) -> ImportTarget:
    """Return where a conversation goes that the operator gave a chat or a scope of ours."""
    if new == SHARED:
        raise UserError("everybody reads what is shared; put a conversation into somebody's scope or a chat")
    if new in names.all():
        return ImportTarget(scope=new)
    try:
        key = SessionKey.parse(new)
    except ValueError:
        raise UserError(
            f"{new!r} is neither a chat (channel:chat_id) nor a scope; `parlour memory` lists these"
        ) from None
    if key.channel not in app.kinds:
        known = ", ".join(sorted(app.kinds))
        raise UserError(f"there is no channel called {key.channel}; there are: {known}")
    kind = app.kinds[key.channel]
    if app.settings.memory.isolation == "shared":
        return ImportTarget(scope="", key=key)
    sessions = await app.store.records.sessions()
    if kind == "telegram" and key.chat.startswith("-"):  # Telegram's groups have negative numbers
        return ImportTarget(scope=f"chats/{quote(str(key.parent))}", key=key)
    chat_kind, sender = resolve_recipient(key, kind, sessions)
    if chat_kind is ChatKind.GROUP:
        return ImportTarget(scope=f"chats/{quote(str(key.parent))}", key=key)
    team = f"{sender.team}:" if sender.team else ""
    return ImportTarget(scope=names.person_scope(f"{key.channel}:{team}{sender.id}"), key=key)
