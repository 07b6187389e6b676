"""The command `parlour`. Settings are read here, once; heavy rooms are imported by the commands that need them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from gateway.commands.memory import app as memory
from gateway.commands.people import app as people
from gateway.commands.people import owner
from gateway.commands.web import app as web
from gateway.control import OperationFailed
from gateway.errors import ParlourError, UserError
from gateway.journal_file import OpenChoice

app = typer.Typer(
    name="parlour",
    help="A chat bot of your own: one agent, many channels, memory that belongs to somebody.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
sessions = typer.Typer(help="What was said, by session.", no_args_is_help=True)
app.add_typer(sessions, name="sessions")
app.add_typer(web, name="web")
app.add_typer(memory, name="memory")
app.add_typer(people, name="people")
app.add_typer(owner, name="owner")
quarantine = typer.Typer(help="Platform events that could not be read, or that broke us.", no_args_is_help=True)
app.add_typer(quarantine, name="quarantine")

OpenWorkChoice = Annotated[
    OpenChoice,
    typer.Option(
        "--open", help="What becomes of messages that had no answer: answer (looked up or marked as a repeat), or drop."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]


def main() -> NoReturn:
    """Run the command line; a mistake somebody can mend is one line on standard error and exit code 2."""
    try:
        app()
    except UserError as wrong:
        _tell(str(wrong))
        sys.exit(wrong.exit_code if isinstance(wrong, OperationFailed) else 2)
    except ParlourError as wrong:
        _tell(str(wrong) or type(wrong).__name__)
        sys.exit(1)
    except OSError as wrong:
        from gateway.home import full_disk, is_full_disk

        if not is_full_disk(wrong):
            raise
        _tell(full_disk(wrong))
        sys.exit(1)
    sys.exit(0)


def _tell(text: str) -> None:
    print(f"parlour: {' '.join(text.split())}", file=sys.stderr)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"parlour {version('parlour')}")
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
    """Run the gateway until it is told to stop."""
    from gateway.commands.run import run_gateway

    run_gateway()


@app.command()
def chat() -> None:
    """Chat in this terminal, with the gateway that runs or with one of its own."""
    from gateway.commands.run import run_local_chat

    raise typer.Exit(run_local_chat())


@app.command()
def init(
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing: take options, environment and what is there already.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="With --yes: write what could not be verified too.")] = False,
    model: Annotated[str | None, typer.Option(help="As litellm names it; `none` is offline.")] = None,
    api_base: Annotated[str | None, typer.Option(help="The address of a model server of your own.")] = None,
    platform: Annotated[list[str] | None, typer.Option(help="Set this platform up; may be given again.")] = None,
    owner: Annotated[list[str] | None, typer.Option(help="channel:user_id; may be given again.")] = None,
    timezone: Annotated[str | None, typer.Option(help="An IANA name, such as Europe/Berlin.")] = None,
) -> None:
    """Ask for a model and your platforms, verify every answer by a real call, and write the configuration.

    Secrets are asked for, or come from the environment (PARLOUR_LLM__API_KEY, PARLOUR_CHANNELS__TELEGRAM__TOKEN, each
    also with _FILE behind it): an option would stand in the shell's history.
    """
    from gateway.commands.init import InitOptions, set_up

    options = InitOptions(
        model=model, api_base=api_base, platforms=platform or (), owners=owner or (), timezone=timezone
    )
    raise typer.Exit(set_up(options, asks=not yes, keeps=keep))


@app.command()
def doctor(
    as_json: AsJson = False,
    offline: Annotated[bool, typer.Option("--offline", help="Ask neither the platforms nor the model.")] = False,
    model: Annotated[
        bool,
        typer.Option("--model", help="Ask the model even if it answered within a day; costs a few tokens."),
    ] = False,
) -> None:
    """Look at everything that could be wrong; exit code 2 when something is."""
    from gateway.commands.doctor import run_doctor

    raise typer.Exit(run_doctor(as_json=as_json, is_offline=offline, asks_model=model))


@app.command()
def status(as_json: AsJson = False) -> None:
    """Say what runs, what waits and which channels hear."""
    from gateway.commands.control_client import show_status

    show_status(as_json=as_json)


@sessions.command("list")
def list_sessions(as_json: AsJson = False) -> None:
    """List every session, the most recently used first."""
    from gateway.commands.control_client import list_sessions as show

    show(as_json=as_json)


@sessions.command("show")
def show_session(
    key: Annotated[str, typer.Argument(help="channel:chat_id")],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many lines, the newest.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the newest lines of a session."""
    from gateway.commands.control_client import show_session as show

    show(key, limit=limit, as_json=as_json)


@app.command()
def send(
    key: Annotated[str, typer.Argument(help="channel:chat_id")],
    text: Annotated[str, typer.Argument(help="What the agent is told in that session.")],
) -> None:
    """Hand a text to a session; its answer goes to that chat."""
    from gateway.commands.control_client import send as hand_over

    hand_over(key, text)


@app.command()
def turn(reference: Annotated[str, typer.Argument(help="The short reference people were shown.")]) -> None:
    """Tell the whole story of one turn."""
    from gateway.commands.control_client import show_turn

    show_turn(reference)


@app.command()
def usage(
    by: Annotated[str, typer.Option(help="person, chat, purpose or day.")] = "day",
    since: Annotated[str, typer.Option(help="A day, such as 2026-11-01, or 7d for the last seven.")] = "30d",
    as_json: AsJson = False,
) -> None:
    """Say what models were asked, and what it cost."""
    from gateway.commands.usage import show_usage

    show_usage(by, since, as_json=as_json)


@app.command()
def why(
    channel: Annotated[str, typer.Argument(help="The channel block.")] = "",
    ident: Annotated[str, typer.Argument(metavar="ID", help="A user's or a chat's id.")] = "",
    as_json: AsJson = False,
) -> None:
    """Explain silence: who was not heard lately, why, and what would let them be."""
    from gateway.commands.people import explain_silence

    explain_silence(channel, ident, as_json=as_json)


@app.command()
def search(
    text: Annotated[str, typer.Argument(help="A question, or words.")],
    scope: Annotated[str, typer.Option(help="Whose memory: telegram:42, a person's id, a chat's key, shared.")] = "",
    project: Annotated[str, typer.Option(help="Documents of this project (a folder in docs/) instead.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many places.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Find what was said and remembered, or what a project's documents say."""
    from gateway.commands.memory import find

    find(text, scope=scope, project=project, limit=limit, as_json=as_json)


@app.command()
def backup(file: Annotated[Path, typer.Argument(help="Where to; a .tar.gz that is not there yet.")]) -> None:
    """Write one archive of everything but secrets, while the gateway runs."""
    from gateway.commands.control_client import make_backup

    make_backup(file)


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="What `parlour backup` wrote.")],
    force: Annotated[bool, typer.Option("--force", help="Replace what the home holds (it is kept aside).")] = False,
    open_work: OpenWorkChoice = OpenChoice.ANSWER,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Put a backup into the home, after verifying all of it and saying what it brings."""
    from gateway.commands.restore_backup import put_back

    put_back(file, force=force, choice=open_work, is_sure=yes)


@app.command("accept-loss")
def accept_loss(
    open_work: OpenWorkChoice = OpenChoice.ANSWER,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Go on with a home whose journal is lost, damaged or older than it was, where no backup can be restored."""
    from gateway.commands.loss import accept_loss as accept

    accept(open_work, is_sure=yes)


@app.command()
def prune() -> None:
    """Remove from the journal what is past its time."""
    from gateway.commands.control_client import prune as remove

    remove()


@app.command("import")
def take_over(
    system: Annotated[str, typer.Argument(help="nanobot, autobot or openclaw")],
    folder: Annotated[Path, typer.Argument(help="Its folder, such as ~/.nanobot, or the workspace in it.")],
    person: Annotated[
        str, typer.Option("--as", help="Whose it becomes, such as telegram:42; the owner's by default.")
    ] = "",
    mapped: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="OLD[=NEW]", help="Let the chat NEW go on from their conversation OLD."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be taken, and take nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take over what another bot remembered: its conversations and memory files. Twice is once."""
    from gateway.commands.imports import import_folder as take

    take(system, folder.expanduser(), person=person, mapped=mapped or (), is_dry=dry_run, is_sure=yes, as_json=as_json)


@quarantine.command("list")
def list_quarantine(as_json: AsJson = False) -> None:
    """List what was set aside, the newest first, with the file that each stands in."""
    from gateway.commands.control_client import list_quarantine as show

    show(as_json=as_json)


@quarantine.command("drop")
def drop_from_quarantine(name: Annotated[str, typer.Argument(help="As `list` names it.")]) -> None:
    """Remove one, so that it is handled when its platform brings it again."""
    from gateway.commands.control_client import drop_from_quarantine as drop

    drop(name)


@quarantine.command("replay")
def replay_from_quarantine(name: Annotated[str, typer.Argument(help="As `list` names it.")]) -> None:
    """Let the running gateway take one in now, as if its platform had just brought it."""
    from gateway.commands.control_client import replay_from_quarantine as replay

    replay(name)


if __name__ == "__main__":
    main()
