"""Commands that call operations of the running gateway, or run them on the home themselves when none runs.

A declared operation with a `show` is a command: `add_commands` builds it from its parameters and its docstring.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.control import Line, connect
from gateway.control.registry import OPERATIONS, CommandArgument, OperationDeclaration, Show
from gateway.errors import ParlourError, UserError
from gateway.home import Home, is_home
from gateway.logs import configure_logs
from gateway.settings import Settings, home_of, load_settings, secret_values
from gateway.text.message_text import strip_control_characters

_LONGEST_SECRET = 10_000  # characters
_INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]
Sure = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def call_operation(
    name: str, arguments: Line | None = None, *, receive: Callable[[Line], None] | None = None
) -> list[Line]:
    """Run one operation and return its lines; raises UserError with its error line.

    *receive* is called with each line when it comes, and keeps what an interrupted call has returned.
    """
    settings = load_settings(os.environ)

    async def collect() -> list[Line]:
        lines: list[Line] = []
        async for line in _lines(settings, name, arguments or {}):
            lines.append(line)
            if receive is not None:
                receive(line)
        return lines

    return asyncio.run(collect())


class _ProgressBar:
    """The results of an operation that takes long, and on a terminal a bar of how far it is."""

    def __init__(self, as_json: bool) -> None:
        self.lines: list[Line] = []
        self._as_json = as_json
        self._bar: Any = None
        self._done = 0

    def receive(self, line: Line) -> None:
        """Take a line: a result, which is printed at once as JSON, or progress."""
        if "of" not in line or "done" not in line:
            self.lines.append(line)
            if self._as_json:
                print_json([line])
            return
        if self._bar is None and sys.stderr.isatty():
            self._bar = typer.progressbar(length=int(line["of"]), file=sys.stderr, show_pos=True)
        if self._bar is not None:
            self._bar.update(int(line["done"]) - self._done)
            self._done = int(line["done"])

    def end(self) -> None:
        """Leave the line of the bar."""
        if self._bar is not None:
            self._bar.render_finish()


def ask_gateway(name: str) -> list[Line] | None:
    """Return the lines of one operation of the running gateway; None if none runs. The home is not opened."""

    async def collect() -> list[Line] | None:
        async with connect(Home(home_of(os.environ))) as client:
            return None if client is None else [line async for line in client.call(name, {})]

    return asyncio.run(collect())


async def _lines(settings: Settings, name: str, arguments: Line) -> AsyncIterator[Line]:
    async with connect(Home(settings.home)) as client:
        if client is not None:
            async for line in client.call(name, arguments):
                yield line
            return
    if not OPERATIONS[name].makes_home and not is_home(settings.home):
        raise UserError(
            f"no Parlour home exists at {settings.home}; nothing was written. Set PARLOUR_HOME to the gateway's"
            " home, and run this command as the gateway's user. A home is made by its first `parlour run`"
        )
    # No gateway: the same operation here, under the home's lock. Its logs would only disturb.
    configure_logs(level="error", form=settings.log.format, secrets=secret_values(settings))
    from gateway.app.composition import open_app

    async with open_app(settings, channels=False) as app:
        async for line in app.operations[name](arguments):
            yield line


def print_lines(lines: Sequence[Line], as_json: bool, show: Show, arguments: Line) -> None:
    """Print the rows of *lines*, or JSON."""
    if as_json:
        print_json(lines)
        return
    for row in show(lines, arguments):
        typer.echo(strip_control_characters(row))


def print_json(lines: Iterable[Mapping[str, Any]]) -> None:
    """Print JSON lines."""
    for line in lines:
        typer.echo(json.dumps(line))


def add_commands(app: typer.Typer, groups: Mapping[str, typer.Typer]) -> None:
    """Add a command for each operation that has one, to *app* or to the group of its first word.

    An operation whose command is the name of a group runs when no command of that group is given.
    """
    for each in OPERATIONS.values():
        group, _, name = each.command.rpartition(" ")
        if each.show is None:
            continue
        if each.command in groups:
            groups[each.command].callback()(_build_command(each, is_callback=True))
        else:
            # A Telegram group's id begins with a minus sign.
            settings = {"ignore_unknown_options": True} if each.name == "why" else None
            (groups[group] if group else app).command(name, context_settings=settings)(_build_command(each))


def _build_command(rule: OperationDeclaration, *, is_callback: bool = False) -> Callable[..., None]:
    """Return the function that typer runs: its signature has the arguments of *rule*."""

    def run(**values: Any) -> None:
        as_json, is_sure, context = values.pop("as_json"), values.pop("yes", True), values.pop("context", None)
        if context is None or context.invoked_subcommand is None:
            _run_command(rule, {name.rstrip("_"): value for name, value in values.items()}, as_json, is_sure)

    parameters: dict[str, tuple[Any, Any]] = {
        each.name: (_annotate(name, each.kind, each.form), each.default)
        for name, each in rule.parameters.items()
        if each.form is not None
    }
    parameters |= {"as_json": (AsJson, False)}
    if rule.confirm is not None:
        parameters["yes"] = (Sure, False)
    if is_callback:
        parameters["context"] = (typer.Context, inspect.Parameter.empty)
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in parameters.items()
        ]
    )
    run.__annotations__ = {name: kind for name, (kind, _) in parameters.items()}
    run.__doc__ = rule.help.partition("\n\n")[0]
    return run


def _annotate(name: str, kind: Any, form: CommandArgument) -> Any:
    """Return a parameter as typer reads it."""
    kind, text, metavar = str if kind is object else kind, form.help, form.metavar
    if form.is_option:
        decl = f"--{name.replace('_', '-')}"
        return Annotated[kind, typer.Option(decl, help=text, metavar=metavar, min=form.least, max=form.most)]
    return Annotated[kind, typer.Argument(help=text, metavar=metavar)]


def _read_secret(name: str) -> str:
    """Return the one line of the file *name*, or of standard input. Raises UserError."""
    try:
        text = sys.stdin.read(_LONGEST_SECRET) if name == "-" else Path(name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name} cannot be read ({error})") from None
    return text.strip()


def _confirm(rule: OperationDeclaration, arguments: Line, as_json: bool) -> Line | None:
    """Ask before the operation runs; return the arguments that the question has shown, None to end without a call.

    Raises typer.Abort for any answer but a yes.
    """
    ask = None if rule.confirm is None else rule.confirm(call_operation, arguments)
    if ask is None:
        return {}
    if ask.text:
        typer.echo(strip_control_characters(ask.text), err=as_json)
    if not ask.question:
        return None
    typer.confirm(ask.question, abort=True, err=as_json)
    return ask.confirmed


def _run_command(rule: OperationDeclaration, values: Mapping[str, Any], as_json: bool, is_sure: bool) -> None:
    # A gateway has another working directory than this command.
    arguments = {
        name: str(value.expanduser().absolute()) if isinstance(value, Path) else value for name, value in values.items()
    }
    asks = rule.confirm is not None and not is_sure
    for name, value in arguments.items():
        form = rule.parameters[name].form
        if form is not None and form.is_file and value:
            if value == "-" and asks:
                option = f"--{name.replace('_', '-')}"
                raise UserError(f"{option} - leaves no answer to the question: name a file, or give --yes as well")
            arguments[name] = _read_secret(value)
    if asks:
        confirmed = _confirm(rule, arguments, as_json)
        if confirmed is None:
            return
        arguments |= confirmed
    if rule.has_progress:
        _run_long_command(rule, arguments, as_json)
        return
    lines = call_operation(rule.name, arguments)
    if rule.show is not None:
        print_lines(lines, as_json, rule.show, arguments)
    if code := rule.exit_code(lines):
        raise typer.Exit(code)


def _run_long_command(rule: OperationDeclaration, arguments: Line, as_json: bool) -> None:
    """Run an operation with lines of progress; Ctrl-C or an error ends it, and its results until then are printed."""
    progress, was_interrupted = _ProgressBar(as_json), False
    failure: ParlourError | None = None
    try:
        call_operation(rule.name, arguments, receive=progress.receive)
    except KeyboardInterrupt:
        was_interrupted = True
    except ParlourError as error:
        failure = error
    finally:
        progress.end()
    if rule.show is not None and not as_json and (failure is None or progress.lines):
        print_lines(progress.lines, as_json, rule.show, arguments)
    if failure is not None:
        raise failure
    if code := _INTERRUPTED if was_interrupted else rule.exit_code(progress.lines):
        raise typer.Exit(code)
