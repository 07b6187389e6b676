"""`parlour people list|allow|block|remove|link|audit` and `parlour owner …`: who may write, and who decides."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.control_client import call_operation, print_lines
from gateway.control import Line

owner = typer.Typer(help="Who owns the bot, and becoming the owner.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]
Who = Annotated[str, typer.Argument(help="As channel:user_id, or channel:chat:ID, guild:ID, team:ID, role:ID.")]

_RULED = {
    ("allow", "done"): "{whom} may write from the next message on",
    ("allow", "same"): "{whom} may write already",
    ("block", "done"): "{whom} is not heard any more",
    ("block", "same"): "{whom} is blocked already",
    ("remove", "done"): "what was decided about {whom} is taken back; the settings are in force again",
    ("disown", "done"): "{whom} is no owner any more",
}


def add_to(people: typer.Typer) -> None:
    """Add the commands about who may write to `parlour people`."""
    people.command("list")(list_people)
    people.command()(allow)
    people.command()(block)
    people.command()(remove)
    people.command()(link)
    people.command()(audit)


def list_people(
    channel: Annotated[str, typer.Argument(help="Only this channel block.")] = "", as_json: AsJson = False
) -> None:
    """List who may write and who may not, and how each came in."""
    lines = call_operation("people list", {"channel": channel})
    print_lines(lines, as_json, _listed)
    if not lines and not as_json:
        where = f" on {channel}" if channel else ""
        typer.echo(f"nobody is let in{where} yet: see `parlour owner claim` and `parlour people allow`")


def allow(who: Who, as_json: AsJson = False) -> None:
    """Let somebody or a place in, at once; lifts a block."""
    _rule("allow", call_operation("people allow", {"who": who}), as_json)


def block(who: Who, as_json: AsJson = False) -> None:
    """Shut somebody or a place out, whatever the settings say."""
    _rule("block", call_operation("people block", {"who": who}), as_json)


def remove(who: Who, as_json: AsJson = False) -> None:
    """Take back what was decided about somebody; the settings are in force again."""
    _rule("remove", call_operation("people remove", {"who": who}), as_json)


def link(
    account: Annotated[str, typer.Argument(help="As kind:id, such as telegram:42 or slack:T0TEAM:U0USER.")],
    other: Annotated[str, typer.Argument(help="Another account of the same person.")],
    as_json: AsJson = False,
) -> None:
    """Make two accounts one person, with one memory; nobody is asked, and `/unlink` takes it apart again."""

    def shown(line: Line) -> str:
        done = "are one person from now on" if line["done"] else "become one person when nothing is under way there"
        return f"{account} and {other} {done}"

    print_lines(call_operation("people link", {"accounts": [account, other]}), as_json, shown)


def audit(
    about: Annotated[str, typer.Argument(help="Only of this channel:user_id, as decider or as decided about.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, the newest.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List what was decided about people and shared chats: who, when, where, what and whom. Kept for a year."""
    lines = call_operation("people audit", {"about": about, "limit": limit})
    print_lines(lines, as_json, _decision)
    if not lines and not as_json:
        typer.echo(f"nothing was decided by {about}, or about them" if about else "nothing was decided yet")


@owner.command("claim")
def claim(as_json: AsJson = False) -> None:
    """Print a code, good once for 15 minutes: whoever sends it to the bot is the owner. Only while there is none."""
    print_lines(call_operation("owner claim"), as_json, claim_line)


@owner.command("list")
def list_owners(as_json: AsJson = False) -> None:
    """List the owners."""
    lines = call_operation("owner list")
    print_lines(lines, as_json, _listed)
    if not lines and not as_json:
        typer.echo("there is no owner yet, but who opens the page on this machine: `parlour owner claim`")


@owner.command("remove")
def disown(
    who: Annotated[str, typer.Argument(help="As channel:user_id.")],
    as_json: AsJson = False,
) -> None:
    """Take back an ownership that was claimed by a code."""
    _rule("disown", call_operation("owner remove", {"who": who}), as_json)


def claim_line(line: Line) -> str:
    """Say what to do with a claim code."""
    where = " or ".join(line["channels"]) or "a channel, once one is set up"
    when = "" if line["running"] else "; start the gateway first"
    until = f"{line['until'][11:16]} UTC"
    told = f"Send this code, alone, to the bot in a direct message on {where}: good once, until {until}{when}."
    return f"{line['code']}\n{told}"


def _rule(what: str, lines: list[Line], as_json: bool) -> None:
    print_lines(lines, as_json, lambda line: _RULED[what, line["ruling"]].format(whom=line["whom"]))


def _listed(line: Line) -> str:
    ways = {"setting": "by the settings", "code": "by a claim code"}
    how = ways.get(line["came_by"], f"by {line['by']}")
    since = f" since {line['at'][:10]}" if line["at"] else ""
    called = f"  ({line['name']})" if line["name"] else ""
    return f"{line['channel']}:{line['who']}".ljust(32) + f"  {line['standing']:8}{how}{since}{called}"


def _decision(line: Line) -> str:
    whom = f" {line['whom']}" if line["whom"] else ""
    where = f" in {line['where']}" if line["where"] else ""
    return f"{line['at'][:19]}Z  {line['by']}{where}: {line['what']}{whom}: {line['outcome']}"
