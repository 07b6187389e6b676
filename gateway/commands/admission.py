"""`parlour why` and `parlour people pending|approve|deny`: who stands before the door, and opening it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from gateway.commands.control_client import call_operation, print_json, print_lines, strip_control_characters
from gateway.control import Line

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]
Who = Annotated[str, typer.Argument(help="The code, or channel:id, such as telegram:42 or slack:chat:C0TEAM.")]


def add_to(people: typer.Typer) -> None:
    """Add the commands about who waits to `parlour people`."""
    people.command()(pending)
    people.command()(approve)
    people.command()(deny)


def pending(as_json: AsJson = False) -> None:
    """Show who asked to be let in, and places that the bot was added to."""
    lines = call_operation("people pending")
    print_lines(lines, as_json, _waiting)
    if not as_json:
        typer.echo("nobody waits" if not lines else "decide with: parlour people approve|deny CHANNEL:ID")


def approve(who: Who, as_json: AsJson = False) -> None:
    """Let in somebody, or a place, that waits."""
    _decided(call_operation("people approve", {"who": who}), as_json)


def deny(who: Who, as_json: AsJson = False) -> None:
    """Say no; they are told nothing."""
    _decided(call_operation("people deny", {"who": who}), as_json)


def _decided(lines: list[Line], as_json: bool) -> None:
    def shown(line: Line) -> str:
        called = f" ({line['name']})" if line["name"] else ""
        return f"{line['who']}{called} {'is let in' if line['yes'] else 'stays out'}"

    print_lines(lines, as_json, shown)


def _waiting(line: Line) -> str:
    called = f" ({line['name']})" if line["name"] else ""
    by = f", added by {line['by_name'] or line['by']}" if line["by"] else ""
    until = f", until {_time(line['until'])}" if line["until"] else ""
    return f"{line['channel']}:{line['who']}{called}{by}, since {_time(line['at'])}{until}"


def explain_silence(channel: str, ident: str, *, as_json: bool) -> None:
    """Print who was not heard, why, and what would let them be."""
    header, *refused = call_operation("why", {"channel": channel, "id": ident})
    if as_json:
        print_json([header, *refused])
        return
    for line in refused:
        for row in _explained(line):
            typer.echo(strip_control_characters(row))
    for row in _ending(header, is_empty=not refused, wanted=" ".join(filter(None, (channel, ident)))):
        typer.echo(strip_control_characters(row))


def _explained(line: Line) -> Iterable[str]:
    where = f"{line['channel']}:{line['chat']}" if line["chat"] else line["channel"]
    who = f"  {line['sender']}" if line["sender"] else ""
    called = f" ({line['name']})" if line["name"] else ""
    times = f", {line['times']} times since {_time(line['first_at'])}" if line["times"] > 1 else ""
    yield f"{_time(line['last_at'])}  {where}{who}{called}: {line['words']} ({line['reason']}{times})"
    for paste in line["paste"]:
        yield f"    {paste}"


def _ending(header: Line, *, is_empty: bool, wanted: str) -> Iterable[str]:
    """Yield what the list itself does not say: since when it is kept, and whether the channels hear at all."""
    if not header["running"]:
        yield "no gateway runs here; refusals are kept in memory by the one that does"
        return
    if is_empty:
        about = f" of {wanted}" if wanted else ""
        yield f"nobody{about} was refused since the gateway started at {_time(header['since'])}"
    for name, hears in header["hears"].items():
        if hears is not True:
            state = "has not reached its platform yet" if hears is None else "does not hear its platform now"
            reason = header["refused_by"].get(name, "`parlour doctor` says more")
            yield f"{name} {state}, so nothing that is said there comes here: {reason}"


def _time(stamp: str) -> str:
    return f"{stamp[:10]} {stamp[11:19]}Z"
