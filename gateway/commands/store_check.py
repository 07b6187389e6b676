"""`parlour store check`: reads the whole store, and names what is damaged and the remedy."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from gateway.commands.control_client import call_operation, print_json
from gateway.control import Line
from gateway.ports.entry_points import with_operator_commands
from gateway.text.text_units import strip_control_characters

_TABLES = """\
Rows were changed or lost by a damaged disk or another program. What helps, with the gateway stopped:
  - `parlour restore FILE --force` with the newest backup; or a later dump of the database
  - without a backup, and if the files of conversations and memory in the home are right: move the journal to another
    place, and run `parlour mirror import`, which rebuilds it from them"""
_FILES = """\
Files are not what was stored. What helps:
  - bring the bytes back from a copy, under the same name: in the home as SCOPE/bytes/PLACE, with an object store as the
    object PLACE; a file without a place in `-` is in the database, whose backup or dump has it
  - if no copy exists, `parlour store check --remove`: these files are removed, everything else stays"""


def check_store(*, removes: bool, is_sure: bool, as_json: bool) -> int:
    """Print each fault and the numbers of rows; return 2 if a fault is left, else 0."""
    lines = call_operation("store check")
    damaged = [line for line in lines if line.get("state") == "damaged"]
    if damaged and removes:
        if not is_sure:
            for line in damaged:
                typer.echo(_row(line), err=as_json)
            typer.confirm(f"Remove these files ({len(damaged):,})?", abort=True, err=as_json)
        named = [[line["scope"], line["kind"], line["file"]] for line in damaged]
        lines = call_operation("store check", {"remove": named})
    faults = [line for line in lines if "fault" in line]
    left = [line for line in lines if line.get("state") == "damaged"]
    if as_json:
        print_json(lines)
    else:
        _print(lines, faults, left)
    return 2 if faults or left else 0


def _print(lines: Sequence[Line], faults: Sequence[Line], damaged: Sequence[Line]) -> None:
    *found, numbers = lines
    for line in found:
        typer.echo(f"{line['count']:,} {line['fault']}" if "fault" in line else _row(line))
    counts = ", ".join(f"{count:,} {name}" for name, count in numbers["counts"].items())
    typer.echo(f"{'the store is whole' if not faults and not damaged else 'the store is damaged'}: {counts}")
    for text in [text for text, is_needed in ((_TABLES, faults), (_FILES, damaged)) if is_needed]:
        typer.echo(with_operator_commands(text))


def _row(line: Line) -> str:
    return strip_control_characters(
        f"{line['name']}: {line['kind']} {line['file']} ({line['size']:,} bytes, place {line['place'] or 'none'}) is"
        f" {line['state']}: {line['reason']}"
    )
