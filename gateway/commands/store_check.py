"""`parlour store check`: reads the journal, or restores and removes damaged files of memories in a database."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from gateway.commands.control_client import call_operation, print_json
from gateway.control import Line
from gateway.ports.entry_points import with_operator_commands
from gateway.text.text_units import strip_control_characters

_REMEDIES = """\
Messages of these people and chats wait on gateways that have no copy of the file. What helps:
  - bring the object back from a copy of the bucket, under its name: gateways find it within a minute;
  - `parlour store check --from PATH`: PATH is another gateway's home, a copy of the bucket's folder, or an archive of
    `parlour backup`. A gateway's own home is looked at without it, so run the command on each machine;
  - if no copy exists, `parlour store check --remove`: these files are removed, everything else stays. If many are
    missing, check first that store.objects.url names the bucket and prefix that belong to this database."""


def check_store(copies: Sequence[Path], *, removes: bool, is_sure: bool, as_json: bool) -> int:
    """Print each damaged file and its new state; return 2 if one is left, else 0."""
    arguments: Line = {"copies": [str(each.absolute()) for each in copies]}
    lines = call_operation("store check", arguments)
    left = _damaged(lines)
    lost = [line for line in left if line["object"]]
    if lost and removes:
        if not is_sure:
            for line in lost:
                typer.echo(_row(line), err=as_json)
            typer.confirm(
                f"Remove these files ({len(lost):,}) from the memory, in every home?", abort=True, err=as_json
            )
        named = [[line["scope"], line["path"], line["object"]] for line in lost]
        lines = call_operation("store check", {**arguments, "remove": named})
        left = _damaged(lines)
    if as_json:
        print_json(lines)
        return 2 if left else 0
    *files, numbers = lines
    if "journal" in numbers:
        typer.echo("the journal is whole; the memory is in the files of this home")
        return 0
    for line in files:
        typer.echo(_row(line))
    typer.echo(f"{numbers['whole']:,} objects are whole; damaged files: {len(left):,}")
    if left:
        typer.echo(with_operator_commands(_REMEDIES))
    return 2 if left else 0


def _damaged(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.get("state") == "damaged"]


def _row(line: Line) -> str:
    return strip_control_characters(
        f"{line['name']}: {line['path']} ({line['size']:,} bytes) is {line['state']}: {line['reason']}"
    )
