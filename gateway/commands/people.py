"""`parlour people …`: what an operator decides about people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gateway.commands.control_client import call_operation

app = typer.Typer(help="The people who talk to the bot.", no_args_is_help=True)


@app.command()
def export(
    person: Annotated[str, typer.Argument(help="As kind:id, such as telegram:42 or slack:T0TEAM:U0USER.")],
    file: Annotated[Path, typer.Argument(help="Where to; a .zip that is not there yet.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Write all that is kept of somebody into a zip: memory, conversations, files, usage."""
    (line,) = call_operation("people export", {"person": person, "file": str(file.expanduser().absolute())})
    typer.echo(json.dumps(line) if as_json else f"{line['file']} holds {line['files']} files of {line['scope']}")


@app.command()
def forget(
    person: Annotated[str, typer.Argument(help="As kind:id, such as telegram:42 or slack:T0TEAM:U0USER.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Forget somebody everywhere: memory, conversations, files, choices, and what they said in groups."""
    if not yes:
        (found,) = call_operation("people look", {"person": person})
        what = "Everything" if found["is_known"] else "Nothing of their own is kept, but everything said in groups"
        typer.confirm(f"{what} of {person} will be gone, and nothing brings it back. Go on?", abort=True)
    (line,) = call_operation("people forget", {"person": person})
    if as_json:
        typer.echo(json.dumps(line))
        return
    typer.echo(f"{person} is forgotten: their own memory, and what they said in {len(line['chats'])} shared chats.")
    typer.echo("What remains, and where:")
    for each in line["remains"]:
        typer.echo(f"- {each}")
