"""The command `parlour`. Settings are read once, by the commands, which import heavy modules only when needed."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gateway.commands.control_client import AsJson, call_operation, print_lines
from gateway.commands.memory import app as memory
from gateway.commands.memory import find
from gateway.commands.memory_files import OpenWorkChoice
from gateway.commands.memory_files import app as mirror
from gateway.commands.people import app as people
from gateway.commands.people import explain_silence, owner
from gateway.commands.replay import replay_turn
from gateway.commands.status import list_tools, show_status, show_usage
from gateway.commands.web import app as web
from gateway.commands.web import open_page
from gateway.control import Line
from gateway.journal_file import OpenChoice, StoreKind

app = typer.Typer(
    name="parlour",
    help="A self-hosted chat bot: one agent, many channels, memory per person.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
sessions = typer.Typer(help="Sessions and their messages.", no_args_is_help=True)
app.add_typer(sessions, name="sessions")
app.add_typer(web, name="web")
app.add_typer(memory, name="memory")
app.add_typer(mirror, name="mirror")
app.add_typer(people, name="people")
app.add_typer(owner, name="owner")
quarantine = typer.Typer(help="Platform events that could not be read, or that caused a crash.", no_args_is_help=True)
app.add_typer(quarantine, name="quarantine")
store = typer.Typer(help="Where messages, people and usage are stored.", no_args_is_help=True)
app.add_typer(store, name="store")


class DeployKind(StrEnum):
    """A kind of files for operators."""

    SYSTEMD = "systemd"
    COMPOSE = "compose"
    MONITORING = "monitoring"


QuarantinedName = Annotated[str, typer.Argument(help="Its name in `parlour quarantine list`.")]


def _version(is_requested: bool) -> None:
    if is_requested:
        from gateway.ports.entry_points import program_version

        typer.echo(f"parlour {program_version()}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    os.umask(0o077)


@app.command()
def run() -> None:
    """Run the gateway until it receives SIGTERM or SIGINT."""
    from gateway.commands.run import run_gateway

    run_gateway()


@app.command()
def chat() -> None:
    """Chat in this terminal, with the running gateway or with a temporary one."""
    from gateway.commands.run import run_local_chat

    raise typer.Exit(run_local_chat())


@app.command()
def init(
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask; use options, environment and existing settings.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="With --yes: also write unverified answers.")] = False,
    model: Annotated[str | None, typer.Option(help="The name that litellm uses; `none` for the offline model.")] = None,
    api_base: Annotated[str | None, typer.Option(help="The address of your own model server.")] = None,
    platform: Annotated[list[str] | None, typer.Option(help="Set up this platform; repeatable.")] = None,
    owner: Annotated[list[str] | None, typer.Option(help="channel:user_id; repeatable.")] = None,
    timezone: Annotated[str | None, typer.Option(help="An IANA name, such as Europe/Berlin.")] = None,
) -> None:
    """Set up a model and platforms: verify every answer by a real call and write the configuration.

    Secrets are asked for, or come from the environment (PARLOUR_LLM__API_KEY, PARLOUR_CHANNELS__TELEGRAM__TOKEN, each
    also with _FILE appended). They are not options, which the shell would keep in its history.
    """
    from gateway.commands.init import InitOptions, set_up

    options = InitOptions(
        model=model, api_base=api_base, platforms=platform or (), owners=owner or (), timezone=timezone
    )
    raise typer.Exit(set_up(options, asks=not yes, keeps=keep))


@app.command()
def doctor(
    as_json: AsJson = False,
    offline: Annotated[bool, typer.Option("--offline", help="Call neither the platforms nor the model.")] = False,
    model: Annotated[
        bool,
        typer.Option("--model", help="Call the model even if it answered within a day; costs a few tokens."),
    ] = False,
) -> None:
    """Check settings, machine, platforms and recent incidents; exit code 2 when a check fails."""
    from gateway.commands.doctor import run_doctor

    raise typer.Exit(run_doctor(as_json=as_json, is_offline=offline, asks_model=model))


app.command("status")(show_status)


@app.command("workers")
def list_workers(as_json: AsJson = False) -> None:
    """List the gateways that use the database, and what each of them runs."""
    from gateway.commands.workers import show_workers

    show_workers(as_json=as_json)


@sessions.command("list")
def list_sessions(as_json: AsJson = False) -> None:
    """List every session, the most recently used first."""

    def session_row(line: Line) -> str:
        return f"{line['updated_at'][:19]}Z  {line['messages']:>7}  {line['key']}"

    print_lines(call_operation("sessions list"), as_json, session_row)


@sessions.command("show")
def show_session(
    key: Annotated[str, typer.Argument(help="channel:chat_id")],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many of the newest messages to show.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the newest messages of a session."""

    def message_row(line: Line) -> str:
        who = line.get("name") or line["role"]
        waiting = " (waiting)" if line.get("state") == "waiting" else ""
        return f"{line['at'][:19]}Z  {who}{waiting}: {line['text']}"

    print_lines(call_operation("sessions show", {"key": key, "limit": limit}), as_json, message_row)


@app.command()
def send(
    key: Annotated[str, typer.Argument(help="channel:chat_id")],
    text: Annotated[str, typer.Argument(help="The message.")],
) -> None:
    """Send a text to a session as a job; the reply goes to that chat."""
    (line,) = call_operation("send", {"key": key, "text": text})
    when = "" if line.get("running") else "; it will be answered when a gateway runs"
    typer.echo(f"accepted as {line['reference']}{when}")


@app.command()
def turn(reference: Annotated[str, typer.Argument(help="The short reference in the notice to the user.")]) -> None:
    """Show everything recorded about one turn."""
    (line,) = call_operation("turn", {"reference": reference})
    typer.echo(json.dumps(line, indent=2))


app.command("replay")(replay_turn)
app.command("open")(open_page)
app.command("usage")(show_usage)
# A Telegram group's id begins with a minus sign.
app.command("why", context_settings={"ignore_unknown_options": True})(explain_silence)
app.command("tools")(list_tools)
app.command("search")(find)


@app.command()
def backup(file: Annotated[Path, typer.Argument(help="The .tar.gz file to write; it must not exist yet.")]) -> None:
    """Write one archive of everything except secrets, while the gateway runs."""
    (line,) = call_operation("backup", {"file": str(file.absolute())})
    people = "1 person" if line["people"] == 1 else f"{line['people']:,} people"
    what = f"{line['turns']:,} turns, memories of {people}, {line['files']:,} files"
    typer.echo(f"{line['file']}: {what}, {line['size']:,} bytes")
    for left_out in line["left_out"]:
        typer.echo(f"not included: {left_out}")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="An archive written by `parlour backup`.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace the existing home, which is kept in backups/.")
    ] = False,
    open_work: OpenWorkChoice = OpenChoice.ANSWER,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Restore a backup into the home, after verifying it and showing its contents."""
    from gateway.commands.restore_backup import put_back

    put_back(file, force=force, choice=open_work, is_sure=yes)


@app.command("accept-loss")
def accept_loss(
    open_work: OpenWorkChoice = OpenChoice.ANSWER,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Continue with a home whose journal is lost, damaged or outdated, when no backup can be restored."""
    from gateway.commands.restore_backup import accept_loss as accept

    accept(open_work, is_sure=yes)


@app.command()
def deploy(
    kind: Annotated[DeployKind, typer.Argument(help="systemd, compose or monitoring")],
    file: Annotated[str, typer.Argument(help="One file's name; without it, all of them with their names.")] = "",
) -> None:
    """Print the units, compose files or monitoring files that belong to this version."""
    from gateway.commands.deploy import print_files

    print_files(kind, file)


@store.command("migrate")
def migrate_store(
    target: Annotated[StoreKind, typer.Argument(help="postgresql (the database of store.url) or sqlite (journal.db).")],
) -> None:
    """Move messages, people and usage between journal.db and PostgreSQL; no gateway may be running.

    Every table is read back and compared. Run it again if it is interrupted.
    """
    from gateway.commands.store_migration import migrate_store as move

    move(target)


@store.command("check")
def check_store(
    remove: Annotated[bool, typer.Option("--remove", help="Remove the files whose bytes are damaged.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read the whole store and say what is damaged, and how to mend it. Exit code 2 if something is left."""
    from gateway.commands.store_migration import check_store as check

    raise typer.Exit(check(removes=remove, is_sure=yes, as_json=as_json))


@app.command()
def prune() -> None:
    """Remove expired rows from the journal."""
    (line,) = call_operation("prune")
    typer.echo(f"{line['rows']} rows, {line['events']} quarantined events and {line['files']} expired files removed")


@app.command("import")
def take_over(
    system: Annotated[str, typer.Argument(help="nanobot, autobot or openclaw")],
    folder: Annotated[Path, typer.Argument(help="Its folder, such as ~/.nanobot, or the workspace in it.")],
    person: Annotated[
        str, typer.Option("--as", help="The person whose memory it becomes, such as telegram:42; by default the owner.")
    ] = "",
    mapped: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="OLD[=NEW]", help="Continue the conversation OLD in the chat NEW."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be imported.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Import conversations and memory files of another bot. Repeating an import adds nothing twice."""
    from gateway.commands.imports import import_folder as take

    take(system, folder.expanduser(), person=person, mapped=mapped or (), is_dry=dry_run, is_sure=yes, as_json=as_json)


@quarantine.command("list")
def list_quarantine(as_json: AsJson = False) -> None:
    """List quarantined events, the newest first, each with its file."""

    def event_row(line: Line) -> str:
        return f"{line['at'][:19]}Z  {line['name']}  {line['reason']}  (in {line['file']})"

    print_lines(call_operation("quarantine list"), as_json, event_row, empty="the quarantine is empty")


@quarantine.command("drop")
def drop_from_quarantine(name: QuarantinedName) -> None:
    """Remove one event, so that it is handled when its platform delivers it again."""
    call_operation("quarantine drop", {"name": name})
    typer.echo(f"{name} is removed; if its platform sends it again, it is handled")


@quarantine.command("replay")
def replay_from_quarantine(name: QuarantinedName) -> None:
    """Have the running gateway handle one event again, as if it had just arrived."""
    call_operation("quarantine replay", {"name": name})
    typer.echo(f"{name} was handled and is no longer in quarantine")
