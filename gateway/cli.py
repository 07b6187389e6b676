"""The command `parlour`. Settings are read once, by the commands, which import heavy modules only when needed."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import gateway.operations  # noqa: F401 - declares them
from gateway.commands.operation_commands import AsJson, Sure, add_commands, ask_gateway, call_operation, print_json
from gateway.errors import UserError
from gateway.journal_file import OpenChoice, StoreKind

_SECTIONS = {
    "Run it": ("run", "chat", "open", "send"),
    "Set it up": ("init", "mcp", "import", "deploy", "upgrade"),
    "See that all is well": (
        "status",
        "doctor",
        "activity",
        "promises",
        "usage",
        "why",
        "turn",
        "replay",
        "tools",
        "workers",
    ),
    "People and conversations": ("people", "owner", "web", "sessions", "memory", "search", "mirror", "quarantine"),
    "Keep the data": ("backup", "restore", "store", "prune", "accept-loss"),
}


class CommandGroup(TyperGroup):
    """A group whose help has each command's whole first paragraph, and the program's own the commands in sections."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections."""
        shown = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        texts = {name: self.commands[name].get_short_help_str(10_000) for name in shown}
        if ctx.parent is None:
            for title, names in _SECTIONS.items():
                with formatter.section(title):
                    formatter.write_dl([(name, texts.pop(name)) for name in names])
        if texts:
            with formatter.section("Commands"):
                formatter.write_dl(list(texts.items()))


app = typer.Typer(
    name="parlour",
    cls=CommandGroup,
    help="A self-hosted chat bot: one agent, many channels, memory per person.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_GROUPS = {
    "sessions": "Sessions and their messages.",
    "web": "The chat page.",
    "mcp": "Tools of MCP servers.",
    "memory": "What the bot remembers, about whom, and why.",
    "mirror": "The files that conversations and memory are written to, for people.",
    "people": "The people who talk to the bot.",
    "owner": "The owners of the bot.",
    "quarantine": "Platform events that could not be read, or that caused a crash.",
    "store": "Where messages, people and usage are stored.",
}
groups = {
    name: typer.Typer(
        cls=CommandGroup, help=text, no_args_is_help=name != "memory", invoke_without_command=name == "memory"
    )
    for name, text in _GROUPS.items()
}
for _name, _group in groups.items():
    app.add_typer(_group, name=_name)

_ROOT = Path(__file__).parents[1]
_PROGRAM = "/opt/parlour/.venv/bin/parlour"  # in the units

OpenWorkChoice = Annotated[
    OpenChoice,
    typer.Option(
        "--open",
        help="What to do with unanswered messages: answer (after a lookup, or marked as a repeat) or drop.",
    ),
]


class DeployKind(StrEnum):
    """A kind of files for operators."""

    SYSTEMD = "systemd"
    COMPOSE = "compose"
    MONITORING = "monitoring"


def _version(is_requested: bool) -> None:
    if is_requested:
        from gateway.installation import program_version

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
    from gateway.health.doctor import run_doctor

    raise typer.Exit(run_doctor(as_json=as_json, is_offline=offline, asks_model=model))


@app.command("workers")
def list_workers(as_json: AsJson = False) -> None:
    """List the gateways that use the database, and what each of them runs."""
    from gateway.commands.store import show_workers

    show_workers(as_json=as_json)


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="An archive written by `parlour backup`.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace the existing home, which is kept in backups/.")
    ] = False,
    open_work: OpenWorkChoice = OpenChoice.ANSWER,
    yes: Sure = False,
) -> None:
    """Restore a backup into the home, after verifying it and showing its contents."""
    from gateway.commands.recovery import put_back

    put_back(file, force=force, choice=open_work, is_sure=yes)


@app.command()
def upgrade(
    source: Annotated[str, typer.Argument(help="A wheel of Parlour, or a commit of this checkout.")] = "",
    is_trial: Annotated[bool, typer.Option("--try", help="Only try it on a copy of the home, and report.")] = False,
    back: Annotated[bool, typer.Option("--back", help="Put the program of before the last upgrade back.")] = False,
    seconds: Annotated[
        int, typer.Option("--watch", help="How many seconds to watch the new program.", min=1, max=3_600)
    ] = 300,
    yes: Sure = False,
) -> None:
    """Try a new program on a copy of the home; then let it take over, and go back by itself if it fails.

    Its doctor is run and the last 100 turns are run again; nothing is sent. Only an installation from a wheel in a
    virtual environment is replaced; for others, the commands are printed.
    """
    import signal

    from gateway.commands.upgrade import go_back, upgrade

    # A lost terminal ends it as Ctrl-C does: the copy of the home is removed.
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.default_int_handler)
    if back == bool(source):
        raise UserError("give a wheel or a commit to upgrade to, or --back")
    raise typer.Exit(go_back() if back else upgrade(source, is_trial=is_trial, is_sure=yes, seconds=seconds))


@app.command(hidden=True)
def ask(operation: Annotated[str, typer.Argument(help="Its name, such as status.")]) -> None:
    """Print the lines of one operation of the running gateway as JSON. Without one, the exit code is 3.

    An upgrade asks the program in place with it, whichever of the two that is: its name and form do not change.
    """
    lines = ask_gateway(operation)
    if lines is None:
        raise typer.Exit(3)
    print_json(lines)


@app.command("accept-loss")
def accept_loss(
    open_work: OpenWorkChoice = OpenChoice.ANSWER,
    yes: Sure = False,
) -> None:
    """Continue with a home whose journal is lost, damaged or outdated, when no backup can be restored."""
    from gateway.commands.recovery import accept_loss as accept

    accept(open_work, is_sure=yes)


@app.command()
def deploy(
    kind: Annotated[DeployKind, typer.Argument(help="systemd, compose or monitoring")],
    file: Annotated[str, typer.Argument(help="One file's name; without it, all of them with their names.")] = "",
) -> None:
    """Print the units, compose files or monitoring files that belong to this version."""
    files = _deploy_files(kind)
    if file and file not in files:
        raise UserError(f"no file of {kind} is called {file!r}; there are: {', '.join(files)}")
    for name, path in files.items():
        if file in ("", name):
            text = path.read_text("utf-8")
            if kind is DeployKind.SYSTEMD:  # the command that runs now is the one that the units start
                text = text.replace(_PROGRAM, str(Path(sys.argv[0]).absolute()))
            typer.echo(f"{'' if file else f'# ---- {name}{chr(10)}'}{text}", nl=False)


def _deploy_files(kind: DeployKind) -> dict[str, Path]:
    if kind is not DeployKind.COMPOSE:
        found = sorted((_ROOT / "deploy" / kind).iterdir())
    elif (folder := _ROOT / "deploy" / "compose").is_dir():  # a wheel
        found = sorted(folder.iterdir())
    else:
        found = [_ROOT / "docker-compose.yml", *sorted((_ROOT / "deploy").glob("compose.*.yml"))]
    return {path.name: path for path in found if path.is_file()}


@groups["store"].command("migrate")
def migrate_store(
    target: Annotated[StoreKind, typer.Argument(help="postgresql (the database of store.url) or sqlite (journal.db).")],
) -> None:
    """Move messages, people and usage between journal.db and PostgreSQL; no gateway may be running.

    Every table is read back and compared. Run it again if it is interrupted.
    """
    from gateway.commands.store import migrate_store as move

    move(target)


@groups["store"].command("check")
def check_store(
    remove: Annotated[bool, typer.Option("--remove", help="Remove the files whose bytes are damaged.")] = False,
    yes: Sure = False,
    as_json: AsJson = False,
) -> None:
    """Read the whole store and list damaged rows and files, with the remedy. Exit code 2 if one is left."""
    from gateway.commands.store import check_store as check

    raise typer.Exit(check(removes=remove, is_sure=yes, as_json=as_json))


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
    yes: Sure = False,
    as_json: AsJson = False,
) -> None:
    """Import conversations and memory files of another bot. Repeating an import adds nothing twice."""
    from gateway.commands.imports import import_folder as take

    take(system, folder.expanduser(), person=person, mapped=mapped or (), is_dry=dry_run, is_sure=yes, as_json=as_json)


@groups["mirror"].command("import")
def import_mirror(open_work: OpenWorkChoice = OpenChoice.ANSWER, yes: Sure = False) -> None:
    """Rebuild a lost store from the files, or take over what they have and the store lacks.

    Shows what that is, and asks. No gateway may be running. Run it again if it is interrupted.
    """
    from gateway.commands.recovery import take_mirror

    take_mirror(open_work, is_sure=yes)


@app.command("open")
def open_page(
    console: Annotated[bool, typer.Option("--console", help="The console instead of the chat.")] = False,
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="Log in as a user with this name, who is not an owner."),
    ] = None,
) -> None:
    """Print a link that logs a browser in to the page. It works once, for ten minutes."""
    (line,) = call_operation("web login", {"as": name})
    # A fragment stays in the browser: no log of a server or proxy contains it.
    typer.echo(f"{line['page']}{'console' if console else ''}#code={line['code']}")


add_commands(app, groups)
