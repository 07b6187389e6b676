"""`parlour memory …`: memory of a scope, its origin, changes and erasure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from gateway.commands.control_client import AsJson, call_operation, print_json
from gateway.control import Line
from gateway.text.text_units import strip_control_characters

app = typer.Typer(help="What the bot remembers, about whom, and why.", invoke_without_command=True)

Scope = Annotated[str, typer.Option(help="Memory scope: telegram:42, a person's id, a chat's key, or shared.")]
Person = Annotated[str, typer.Option(help="The same, but only a person.")]
Chat = Annotated[str, typer.Option(help="The same, but only a chat.")]
Change = Annotated[str, typer.Argument(help="Its id in `parlour memory log`.")]


def _ask(name: str, **arguments: object) -> list[Line]:
    return call_operation(f"memory {name}", arguments)


def _print(lines: Sequence[Line], text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(lines)
    else:
        typer.echo(strip_control_characters(text))


@app.callback()
def list_scopes(context: typer.Context, as_json: AsJson = False) -> None:
    """List whose memory there is, and how much of it."""
    if context.invoked_subcommand is not None:
        return
    lines = _ask("list")
    rows: list[tuple[str, ...]] = [("", "remembers", "entries", "conversations", "waiting", "bytes", "scope")]
    rows += [
        (
            str(line["name"]),
            *(f"{line[name]:,}" for name in ("remembered", "entries", "conversations", "waiting", "bytes")),
            str(line["scope"]) or "(the home itself)",
        )
        for line in lines
    ]
    _print(lines, _table(rows) if lines else "nothing is remembered yet", as_json=as_json)


@app.command()
def show(scope: Scope = "", person: Person = "", chat: Chat = "", as_json: AsJson = False) -> None:
    """Show what is remembered: USER.md and MEMORY.md."""
    lines = _ask("show", scope=scope, person=person, chat=chat)
    texts = [f"{line['document']}\n{'-' * len(line['document'])}\n{line['text']}" for line in lines]
    _print(lines, "\n\n".join(texts) or "nothing is remembered here yet", as_json=as_json)


@app.command()
def log(
    scope: Scope = "",
    person: Person = "",
    chat: Chat = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many of the newest changes to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the changes, the newest first."""
    lines = _ask("log", scope=scope, person=person, chat=chat, limit=limit)
    _print(lines, "\n".join(map(_logged, lines)) or "this memory has no changes yet", as_json=as_json)


@app.command()
def why(
    text: Annotated[str, typer.Argument(help="Words in the remembered line.")],
    scope: Scope = "",
    person: Person = "",
    chat: Chat = "",
    as_json: AsJson = False,
) -> None:
    """Say where remembered lines came from: the change, and what was said."""
    lines = _ask("why", text=text, scope=scope, person=person, chat=chat)
    _print(lines, "\n\n".join(map(_origin, lines)), as_json=as_json)


@app.command()
def diff(
    change: Annotated[str, typer.Argument(help="Its id in `parlour memory log`; the newest by default.")] = "",
    scope: Scope = "",
    person: Person = "",
    chat: Chat = "",
    as_json: AsJson = False,
) -> None:
    """Show what a change changed."""
    lines = _ask("diff", sha=change, scope=scope, person=person, chat=chat)
    _print(lines, "\n\n".join(f"{_change(line)}\n\n{line['diff']}" for line in lines), as_json=as_json)


@app.command()
def undo(change: Change, scope: Scope = "", person: Person = "", chat: Chat = "", as_json: AsJson = False) -> None:
    """Take one change back and keep the later ones."""
    lines = _ask("undo", sha=change, scope=scope, person=person, chat=chat)
    _print(lines, f"{change} is undone; this takes effect with the next message", as_json=as_json)


@app.command()
def forget(
    text: Annotated[str, typer.Argument(help="The words; everything that contains them is removed.")],
    scope: Scope = "",
    person: Person = "",
    chat: Chat = "",
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove them from versions, the journal, archives and the quarantine.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Clear words from what is remembered, summarised and said, after a preview and a confirmation."""
    words = {"text": text, "scope": scope, "person": person, "chat": chat, "purge": purge}
    if not yes:
        (found,) = _ask("preview-erasure", **words)
        typer.echo(strip_control_characters(_preview(found)), err=as_json)
        if not purge and not _total(found):
            raise typer.Exit
        typer.confirm("Remove permanently, with every copy?" if purge else "Remove?", abort=True, err=as_json)
    lines = _ask("forget", **words)
    parts = [f"removed: {_amounts(line)}" for line in lines]
    if purge:
        parts += [f"purge of versions, journal and archives: {line['purge']}" for line in lines]
        parts.append(
            "not removed: copies at platforms, the model's provider and in backups, rewordings, your shell's history"
        )
    else:
        parts.append(
            "not removed: copies at platforms, the model's provider and in backups, rewordings, earlier versions"
        )
    _print(lines, "\n".join(parts), as_json=as_json)


def _preview(matches: Line) -> str:
    """Return the amounts that would be removed, and a few of the lines."""
    if not (total := _total(matches)):
        return f"nothing matches; similar words: {', '.join(matches['near'])}" if matches["near"] else "nothing matches"
    more = total - len(matches["examples"])
    examples = [f"  {each}" for each in matches["examples"]] + ([f"  and {more} more"] if more > 0 else [])
    return "\n".join([f"would be removed: {_amounts(matches)}", *examples])


def _amounts(line: Line) -> str:
    amounts = (
        f"{line['remembered']} remembered, {line['summaries']} in summaries and notes, {line['messages']} messages"
    )
    return f"{amounts}, {line['files']} files" if line["files"] else amounts


def _total(line: Line) -> int:
    return sum(int(line[name]) for name in ("remembered", "summaries", "messages", "files"))


@app.command()
def dream(scope: Scope = "", person: Person = "", chat: Chat = "", as_json: AsJson = False) -> None:
    """Run Dream now: new entries of the history become lasting memory. Calls the model."""
    lines = _ask("dream", scope=scope, person=person, chat=chat)
    parts = []
    for line in lines:
        parts.append(f"{line['entries']} new entries reviewed, {len(line['changes'])} changes")
        parts += map(_change, line["changes"])
    _print(lines, "\n".join(parts), as_json=as_json)


def find(
    text: Annotated[str, typer.Argument(help="A question, or keywords.")],
    scope: Scope = "",
    project: Annotated[str, typer.Option(help="Search this project (a folder in docs/) instead.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many results.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Search messages and memory, or the documents of a project."""
    lines = _ask("search", text=text, scope=scope, project=project, limit=limit)
    _print(lines, "\n".join(map(_place, lines)) or "nothing was found", as_json=as_json)


def _place(line: Line) -> str:
    who = line["who"] or {"assistant": "the bot", "user": "a person"}.get(str(line["role"]), "")
    when = f"{line['at'][:16].replace('T', ' ')}Z" if line["at"] and line["role"] else ""
    parts = "  ".join(part for part in (f"{line['source']}:{line['line']}", f"{line['score']:.2f}", when, who) if part)
    return f"{parts}\n    {' '.join(str(line['text']).split())}"


def _change(line: Line) -> str:
    by = f" (by {line['by']})" if line["by"] else ""
    return f"{line['sha']}  {line['at'][:19]}Z  {', '.join(line['documents'])}: {line['why']}{by}"


def _logged(line: Line) -> str:
    """Return a change with its first changed line below."""
    return f"{_change(line)}\n    {line['first']}" if line["first"] else _change(line)


def _origin(line: Line) -> str:
    parts = [f"{line['document']}: {line['line']}", f"  changed by  {_change(line['change'])}"]
    if said := line["said"]:
        parts.append(f"  said        {said['at'][:19]}Z {said['name'] or 'unknown'}: {said['text']}")
    if summary := line["summary"]:
        parts.append(f"  summary of  {summary['session']}, {summary['timestamp']}: {summary['text']}")
    return "\n".join(parts)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    last = len(widths) - 1
    return "\n".join(
        "  ".join(
            cell.ljust(width) if n in (0, last) else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
