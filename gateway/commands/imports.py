"""`parlour import …`: taking over what another bot remembered, while no gateway runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from agent.base.disk import Disk
from agent.base.scopes import SHARED, ScopeNames, chat_scope
from agent.importers import SYSTEMS
from agent.importers.conversation_importer import ConversationImporter, ImportTarget
from agent.importers.import_data import ImportLedgers
from agent.importers.importer import MemoryImporter
from gateway.app.runtime import Runtime, resolve_recipient
from gateway.commands.operation_commands import print_json
from gateway.control import Line, connect
from gateway.errors import UserError
from gateway.events import ChatKind, PlatformAccount, SessionKey
from gateway.home import Home
from gateway.logs import configure_logs
from gateway.operations.memory import MemoryOperations
from gateway.settings import Settings, load_settings, secret_values
from gateway.text.message_text import strip_control_characters


def import_folder(
    system: str, folder: Path, *, person: str, mapped: Sequence[str], is_dry: bool, is_sure: bool, as_json: bool
) -> None:
    """Take over a folder and print what was taken, what was left, and why; before that, list it and ask."""
    settings = load_settings(os.environ)
    if as_json and not is_dry and not is_sure:
        raise UserError("--json cannot ask; add --dry-run to preview, or --yes to import")

    def import_once(*, dry: bool) -> Sequence[Line]:
        return asyncio.run(_import_data(settings, system, folder.absolute(), person, mapped, dry))

    if not is_dry and not is_sure:
        _show(import_once(dry=True))
        typer.confirm("Import this?", abort=True)
    lines = import_once(dry=is_dry)
    if as_json:
        print_json(lines)
        return
    if is_dry or is_sure:  # else it was shown
        _show(lines)
    imported = [line for line in lines if line["what"] != "left"]
    new = sum(line["new"] for line in imported)
    done = "would be imported; nothing was changed (--dry-run)" if is_dry else "imported; the originals are unchanged"
    typer.echo(f"{new} items from {len(imported)} files {done}")


def _show(lines: Sequence[Line]) -> None:
    for line in lines:
        if line["what"] != "left":
            typer.echo(strip_control_characters(_import_row(line)))
    skipped = [line for line in lines if line["what"] == "left"]
    if skipped:
        typer.echo("not imported:")
    for line in skipped:
        typer.echo(strip_control_characters(f"  {line['source']}: {line['why']}"))


async def _import_data(
    settings: Settings, system: str, folder: Path, person: str, mapped: Sequence[str], is_dry: bool
) -> Sequence[Line]:
    async with connect(Home(settings.home)) as client:
        if client is not None:
            raise UserError("a gateway is running on this home; stop it, run the import, then start it again")
    configure_logs(level="error", form=settings.log.format, secrets=secret_values(settings))
    from gateway.app.composition import open_app

    async with open_app(settings, channels=False) as app:
        return await run_import(app, system, folder, person=person, mapped=_pairs(mapped), is_dry=is_dry)


def _pairs(mapped: Sequence[str]) -> Mapping[str, str]:
    """Read `OLD=NEW`; `OLD` alone is mapped to itself."""
    return {old: new or old for old, _, new in (each.partition("=") for each in mapped)}


def _import_row(line: Line) -> str:
    known = f", {line['known']} already imported" if line["known"] else ""
    bad = f", {line['bad']} unreadable lines kept in a separate file" if line["bad"] else ""
    loose = f", {line['unsummarised']} not in any summary" if line["unsummarised"] else ""
    why = f" ({line['why']})" if line["why"] else ""
    target = f" -> {line['target']}" if line["target"] else ""
    return f"{line['what']:12} {line['new']} new{known}{loose}{bad}: {line['source']}{target}{why}"


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
    await app.memory_files.flush()
    return [asdict(item) for item in items]


def _default_scope(app: Runtime, names: ScopeNames, person: str) -> str:
    """Return the scope of *person*, or of the only owner. Raises UserError if there is not exactly one owner."""
    owners = [person] if person else [str(each) for each in app.roster.owners()]
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
