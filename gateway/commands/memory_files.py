"""`parlour mirror …`: the files that people read are written again, or a lost store is rebuilt from them."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.control_client import AsJson, call_operation, print_lines
from gateway.commands.memory import Chat, Person, Scope
from gateway.control import Line
from gateway.journal_file import OpenChoice

app = typer.Typer(help="The files that conversations and memory are written to, for people.", no_args_is_help=True)

OpenWorkChoice = Annotated[
    OpenChoice,
    typer.Option(
        "--open",
        help="What to do with unanswered messages: answer (after a lookup, or marked as a repeat) or drop.",
    ),
]


@app.command()
def rebuild(scope: Scope = "", person: Person = "", chat: Chat = "", as_json: AsJson = False) -> None:
    """Write every file of one scope or of all again from the store, and the search index."""

    def row(line: Line) -> str:
        return f"{line['scope'] or 'home'}: {line['name']}, {line['count']} entries"

    lines = call_operation("mirror rebuild", {"scope": scope, "person": person, "chat": chat})
    print_lines(lines, as_json, row, empty="nothing needs rebuilding")


@app.command("import")
def import_mirror(
    open_work: OpenWorkChoice = OpenChoice.ANSWER,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Rebuild a lost store from the files, or take over what they have and the store lacks.

    Shows what that is, and asks. No gateway may be running. Run it again if it is interrupted.
    """
    from gateway.commands.file_import import take_mirror

    take_mirror(open_work, is_sure=yes)
