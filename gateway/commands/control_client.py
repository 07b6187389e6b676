"""Commands that call operations of the running gateway, or run them on the home themselves when none runs."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from gateway.control import Line
from gateway.control.gateway_client import connect
from gateway.errors import UserError
from gateway.home import Home, is_home
from gateway.logs import configure_logs
from gateway.ports.entry_points import with_operator_commands
from gateway.settings import Settings, load_settings, secret_values
from gateway.text.text_units import strip_control_characters

# What a first start may follow: everything else reads or changes a home that exists, and makes none.
_BEFORE_FIRST_START = frozenset(
    {
        *("owner add", "owner claim", "people allow", "people block", "people link", "people quota"),
        *("send", "setup learned", "web login"),
    }
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]


def call_operation(name: str, arguments: Line | None = None) -> list[Line]:
    """Run one operation and return its lines; raises UserError with its error line."""
    settings = load_settings(os.environ)

    async def collect() -> list[Line]:
        return [line async for line in _lines(settings, name, arguments or {})]

    return asyncio.run(collect())


async def _lines(settings: Settings, name: str, arguments: Line) -> AsyncIterator[Line]:
    async with connect(Home(settings.home)) as client:
        if client is not None:
            async for line in client.call(name, arguments):
                yield line
            return
    if name not in _BEFORE_FIRST_START and not is_home(settings.home):
        raise UserError(
            f"no Parlour home exists at {settings.home}; nothing was written. Set PARLOUR_HOME to the gateway's"
            " home, and run this command as the gateway's user. A home is made by its first `parlour run`"
        )
    # No gateway: the same operation here, under the home's lock. Its logs would only disturb.
    configure_logs(level="error", form=settings.log.format, secrets=secret_values(settings))
    from gateway.app import open_app

    async with open_app(settings, channels=False) as app:
        async for line in app.operations[name](arguments):
            yield line


def print_lines(lines: Sequence[Line], as_json: bool, format_row: Callable[[Line], str], *, empty: str = "") -> None:
    """Print one row per line, formatted by *format_row*, or *empty* without any; or JSON."""
    if as_json:
        print_json(lines)
        return
    if empty and not lines:
        typer.echo(with_operator_commands(empty))
    for line in lines:
        typer.echo(strip_control_characters(format_row(line)))


def print_json(lines: Iterable[Mapping[str, Any]]) -> None:
    """Print JSON lines."""
    for line in lines:
        typer.echo(json.dumps(line))
