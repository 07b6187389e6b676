"""`parlour people …`, `parlour owner …` and `parlour why`: access, pairing, owners, and the data of one person."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from gateway.commands.control_client import AsJson, call_operation, print_json, print_lines
from gateway.control import Line
from gateway.errors import UserError
from gateway.ports.caps import CapKind
from gateway.ports.entry_points import operator_command, with_operator_commands
from gateway.text.text_units import strip_control_characters

app = typer.Typer(help="The people who talk to the bot.", no_args_is_help=True)
owner = typer.Typer(help="The owners of the bot.", no_args_is_help=True)

Subject = Annotated[str, typer.Argument(help="channel:user_id, or channel:chat:ID, guild:ID, team:ID, role:ID.")]
Request = Annotated[str, typer.Argument(help="The code, or channel:id, such as telegram:42 or slack:chat:C0TEAM.")]
Account = Annotated[str, typer.Argument(help="As kind:id, such as telegram:42 or slack:T0TEAM:U0USER.")]

_RESULTS = {
    ("allow", "done"): "{whom} may write, starting with the next message",
    ("allow", "same"): "{whom} may already write",
    ("block", "done"): "{whom} is blocked",
    ("block", "same"): "{whom} is already blocked",
    ("remove", "done"): "the decision about {whom} is removed; the settings apply again",
    ("own", "done"): "{whom} is an owner, starting with the next message",
    ("own", "same"): "{whom} is already an owner",
    ("disown", "done"): "{whom} is no longer an owner",
}


# -- access ------------------------------------------------------------------------------------------


@app.command("list")
def list_people(
    channel: Annotated[str, typer.Argument(help="Only this channel.")] = "", as_json: AsJson = False
) -> None:
    """List access entries: members and blocked people, with the decision behind each."""
    where = f" on {channel}" if channel else ""
    empty = (
        f"no account of a platform may write{where} yet: use `parlour owner claim` or `parlour people allow`;"
        " `parlour web logins` lists the users of the page"
    )
    print_lines(call_operation("people list", {"channel": channel}), as_json, _access_row, empty=empty)


@app.command()
def allow(who: Subject, as_json: AsJson = False) -> None:
    """Admit a person, chat, guild, team or role at once, and lift a block."""
    _print_result("allow", call_operation("people allow", {"who": who}), as_json)


@app.command()
def block(who: Subject, as_json: AsJson = False) -> None:
    """Block a person, chat or guild, whatever the settings say."""
    _print_result("block", call_operation("people block", {"who": who}), as_json)


@app.command()
def remove(who: Subject, as_json: AsJson = False) -> None:
    """Remove a decision, so that the settings apply again."""
    _print_result("remove", call_operation("people remove", {"who": who}), as_json)


@app.command()
def link(
    account: Account,
    other: Annotated[str, typer.Argument(help="Another account of the same person.")],
    as_json: AsJson = False,
) -> None:
    """Link two accounts to one person with one memory. The person is not asked; `/unlink` separates them again."""

    def describe(line: Line) -> str:
        result = "are now one person" if line["done"] else "will become one person when their current turns finish"
        return f"{account} and {other} {result}"

    print_lines(call_operation("people link", {"account": account, "other": other}), as_json, describe)


@app.command()
def quota(
    who: Annotated[str, typer.Argument(help="channel:user_id; without one, list all quotas.")] = "",
    turns: Annotated[str, typer.Option(metavar="N", help="Messages in ten minutes: a number, 0, or default.")] = "",
    tokens: Annotated[str, typer.Option(metavar="N", help="Tokens a day: a number, 0, or default.")] = "",
    usd: Annotated[str, typer.Option(metavar="N", help="US dollars a day: a number, 0, or default.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show or set the caps of one person, over those of chats and settings. 0 = unlimited, default removes one."""
    given = {name: value for name, value in (("turns", turns), ("tokens", tokens), ("usd", usd)) if value}
    if who:
        name = "people quota" if given else "people show"
        print_lines(call_operation(name, {"who": who, **given}), as_json, _quota_rows)
    elif given:
        raise UserError("name the person: `parlour people quota CHANNEL:USER_ID --tokens N`")
    else:
        print_lines(
            call_operation("people quotas"),
            as_json,
            lambda line: f"{line['whom'].ljust(32)}  {_quota(line)}",
            empty="no person has a quota of their own",
        )


def _quota(line: Line) -> str:
    caps = {"turns": "messages in ten minutes", "tokens": "tokens a day", "usd": "US dollars a day"}
    given = [f"{line[name] or 'unlimited'} {words}" for name, words in caps.items() if line[name] is not None]
    return ", ".join(given)


def _quota_rows(line: Line) -> str:
    quota = f"quota {_quota(line['quota'])}" if line["quota"] else "no quota of their own"
    rows = [f"{line['whom']}  {line['role']}: {quota}"]
    for each in line["caps"]:
        until = f", more at {_time(each['until'])}" if each["until"] else ""
        used, limit = (CapKind(each["cap"]).format_amount(each[name]) for name in ("used", "limit"))
        rows.append(f"  {each['cap']}: {used} of {limit}{until}")
    return "\n".join(rows)


@app.command()
def audit(
    about: Annotated[str, typer.Argument(help="Only decisions by or about this channel:user_id.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many of the newest to show.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List decisions about people and shared chats, with actor, time and place. They are kept for a year."""
    empty = f"there are no decisions by or about {about}" if about else "there are no decisions yet"
    print_lines(call_operation("people audit", {"about": about, "limit": limit}), as_json, _audit_row, empty=empty)


def _print_result(command: str, lines: list[Line], as_json: bool) -> None:
    print_lines(lines, as_json, lambda line: _RESULTS[command, line["ruling"]].format(whom=line["whom"]))


def _access_row(line: Line) -> str:
    ways = {"setting": "by the settings", "code": "by a claim code"}
    how = ways.get(line["came_by"], f"by {line['by']}")
    since = f" since {line['at'][:10]}" if line["at"] else ""
    name = f"  ({line['name']})" if line["name"] else ""
    return f"{line['channel']}:{line['who']}".ljust(32) + f"  {line['standing']:8}{how}{since}{name}"


def _audit_row(line: Line) -> str:
    whom = f" {line['whom']}" if line["whom"] else ""
    where = f" in {line['where']}" if line["where"] else ""
    return f"{line['at'][:19]}Z  {line['by']}{where}: {line['what']}{whom}: {line['outcome']}"


# -- owners ------------------------------------------------------------------------------------------


@owner.command("claim")
def claim(as_json: AsJson = False) -> None:
    """Print a code that makes its sender the owner. It works once, for 15 minutes, while no owner exists."""
    print_lines(call_operation("owner claim"), as_json, claim_line)


@owner.command("list")
def list_owners(as_json: AsJson = False) -> None:
    """List the owners."""
    empty = "no owner is set, except on this machine's page: use `parlour owner claim`"
    print_lines(call_operation("owner list"), as_json, _access_row, empty=empty)


@owner.command("add")
def make_owner(who: Annotated[str, typer.Argument(help="As channel:user_id.")], as_json: AsJson = False) -> None:
    """Make a person an owner: they decide who may write, and everything else."""
    _print_result("own", call_operation("owner add", {"who": who}), as_json)


@owner.command("remove")
def disown(who: Annotated[str, typer.Argument(help="As channel:user_id.")], as_json: AsJson = False) -> None:
    """Remove an owner who is not in the settings."""
    _print_result("disown", call_operation("owner remove", {"who": who}), as_json)


def claim_line(line: Line) -> str:
    """Return a claim code and the instruction how to use it."""
    where = " or ".join(line["channels"]) or "a channel, once one is configured"
    when = "" if line["running"] else "; start the gateway first"
    until = f"{line['until'][11:16]} UTC"
    hint = f"Send only this code to the bot in a direct message on {where}. It works once, until {until}{when}."
    return f"{line['code']}\n{hint}"


# -- pairing -----------------------------------------------------------------------------------------


@app.command()
def pending(as_json: AsJson = False) -> None:
    """List pairing requests: people who asked for access, and chats that the bot was added to."""
    lines = call_operation("people pending")
    print_lines(lines, as_json, _request_row, empty="no requests are pending")
    if lines and not as_json:
        typer.echo(f"decide with: {operator_command('people approve|deny CHANNEL:ID')}")


@app.command()
def approve(who: Request, as_json: AsJson = False) -> None:
    """Approve a pairing request."""
    print_lines(call_operation("people approve", {"who": who}), as_json, _pairing_result)


@app.command()
def deny(who: Request, as_json: AsJson = False) -> None:
    """Deny a pairing request. Its sender is not notified."""
    print_lines(call_operation("people deny", {"who": who}), as_json, _pairing_result)


def _pairing_result(line: Line) -> str:
    name = f" ({line['name']})" if line["name"] else ""
    return f"{line['who']}{name} {'may write now' if line['yes'] else 'is not admitted'}"


def _request_row(line: Line) -> str:
    name = f" ({line['name']})" if line["name"] else ""
    by = f", added by {line['by_name'] or line['by']}" if line["by"] else ""
    until = f", until {_time(line['until'])}" if line["until"] else ""
    return f"{line['channel']}:{line['who']}{name}{by}, since {_time(line['at'])}{until}"


# -- why ---------------------------------------------------------------------------------------------


def explain_silence(
    channel: Annotated[str, typer.Argument(help="The channel.")] = "",
    id_: Annotated[str, typer.Argument(metavar="ID", help="The id of a user or chat.")] = "",
    as_json: AsJson = False,
) -> None:
    """Explain silence: rejected messages and refused tool calls, the reason, and the setting that would change it."""
    header, *refusals = call_operation("why", {"channel": channel, "id": id_})
    if as_json:
        print_json([header, *refusals])
        return
    for line in refusals:
        for row in _refusal_rows(line):
            typer.echo(strip_control_characters(row))
    for row in _state_rows(
        header, is_empty=all("tool" in each for each in refusals), subject=" ".join(filter(None, (channel, id_)))
    ):
        typer.echo(strip_control_characters(row))


def _refusal_rows(line: Line) -> Iterable[str]:
    where = f"{line['channel']}:{line['chat']}" if line["chat"] else line["channel"]
    who = f"  {line['sender']}" if line["sender"] else ""
    name = f" ({line['name']})" if line["name"] else ""
    times = f", {line['times']} times since {_time(line['first_at'])}" if line["times"] > 1 else ""
    verb = "asked a person first" if line["reason"] == "asked" else "did not run"
    tool = f"{line['tool']} {verb}: " if "tool" in line else ""
    yield f"{_time(line['last_at'])}  {where}{who}{name}: {tool}{line['words']} ({line['reason']}{times})"
    for paste in line["paste"]:
        yield f"    {paste}"


def _state_rows(header: Line, *, is_empty: bool, subject: str) -> Iterable[str]:
    """Yield the state that the list of rejections does not show: its start, and channels without a connection."""
    if not header["running"]:
        yield "no gateway runs here; rejections are kept in the memory of a running gateway"
        return
    if is_empty:
        about = f" of {subject}" if subject else ""
        yield f"no message{about} was rejected by this gateway since its start at {_time(header['since'])}"
    for name, is_connected in header["hears"].items():
        if is_connected is not True:
            state = "has not reached its platform yet" if is_connected is None else "is not connected to its platform"
            reason = header["refused_by"].get(name, f"see `{operator_command('doctor')}`")
            yield f"{name} {state}, so it receives no messages: {reason}"


def _time(stamp: str) -> str:
    return f"{stamp[:10]} {stamp[11:19]}Z"


# -- the data of one person --------------------------------------------------------------------------


@app.command()
def export(
    person: Account,
    file: Annotated[Path, typer.Argument(help="The .zip file to write; it must not exist yet.")],
    as_json: AsJson = False,
) -> None:
    """Write all data of a person into a zip file: memory, conversations, files and usage."""
    (line,) = call_operation("people export", {"person": person, "file": str(file.expanduser().absolute())})
    typer.echo(json.dumps(line) if as_json else f"{line['file']} holds {line['files']} files of {line['scope']}")


@app.command()
def forget(
    person: Account,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase a person everywhere: memory, conversations, files, preferences, and their messages in groups."""
    if not yes:
        (known,) = call_operation("people look", {"person": person})
        what = (
            "Everything"
            if known["is_known"]
            else "No memory of their own is stored, but everything they said in groups"
        )
        typer.confirm(f"{what} of {person} will be deleted permanently. Continue?", abort=True)
    (line,) = call_operation("people forget", {"person": person})
    if as_json:
        typer.echo(json.dumps(line))
        return
    typer.echo(f"{person} is forgotten: their own memory, and what they said in {len(line['chats'])} shared chats.")
    typer.echo("What remains, and where:")
    for each in line["remains"]:
        typer.echo(with_operator_commands(f"- {each}"))
