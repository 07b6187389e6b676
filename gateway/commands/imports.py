"""`parlour import …`: taking over what another bot remembered, while no gateway runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from gateway.commands.control_client import print_json
from gateway.control import Line
from gateway.control.gateway_client import connect
from gateway.errors import UserError
from gateway.home import Home
from gateway.logs import configure_logs
from gateway.settings import Settings, load_settings, secret_values
from gateway.text.text_units import strip_control_characters


def import_folder(
    system: str, folder: Path, *, person: str, mapped: Sequence[str], is_dry: bool, is_sure: bool, as_json: bool
) -> None:
    """Take over a folder and print what was taken, what was left, and why; before that, list it and ask."""
    settings = load_settings(os.environ)
    if as_json and not is_dry and not is_sure:
        raise UserError("--json cannot ask; add --dry-run to preview, or --yes to import")

    def take(*, dry: bool) -> Sequence[Line]:
        return asyncio.run(_take(settings, system, folder.absolute(), person, mapped, dry))

    if not is_dry and not is_sure:
        _show(take(dry=True))
        typer.confirm("Import this?", abort=True)
    lines = take(dry=is_dry)
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


async def _take(
    settings: Settings, system: str, folder: Path, person: str, mapped: Sequence[str], is_dry: bool
) -> Sequence[Line]:
    async with connect(Home(settings.home)) as client:
        if client is not None:
            raise UserError("a gateway is running on this home; stop it, run the import, then start it again")
    configure_logs(level="error", form=settings.log.format, secrets=secret_values(settings))
    from gateway.app import open_app
    from gateway.app.imports import run_import as take

    async with open_app(settings, channels=False) as app:
        return await take(app, system, folder, person=person, mapped=_pairs(mapped), is_dry=is_dry)


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
