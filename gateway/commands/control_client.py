"""Commands that ask the gateway that runs, or, when none does, own the home for a moment and ask themselves."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from gateway.access.access_summary import pending_summary, refusal_summary
from gateway.alerts.alert_messages import line_of_delay, status_line
from gateway.commands.sums import summarize_usage
from gateway.control import Line
from gateway.control.gateway_client import connect
from gateway.home import Home
from gateway.logs import configure_logs
from gateway.settings import Settings, load_settings, secret_values

# What people wrote is shown on a terminal: nothing in it may move the cursor or hide what follows.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def call_operation(name: str, arguments: Line | None = None) -> list[Line]:
    """Run one operation and return its lines; raises UserError with the operation's own line."""
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
    # No gateway: the same operation here, under the home's lock. Its logs would only disturb.
    configure_logs(level="error", form=settings.log.format, secrets=secret_values(settings))
    from gateway.app import build_operations, open_app

    async with open_app(settings, channels=False) as app:
        async for line in build_operations(app).by_name()[name](arguments):
            yield line


def show_status(*, as_json: bool) -> None:
    """Print the one line of the operation `status`, a field per row."""
    (line,) = call_operation("status")
    if as_json:
        print_json([line])
        return
    channels = line.get("channels", {})
    states = {True: "hears", False: "degraded", None: "not tried yet"}
    rows = {**line, "channels": ", ".join(f"{name} {states[state]}" for name, state in channels.items()) or "none open"}
    dead, jobs, budget = rows.pop("dead_letters", []), rows.pop("jobs", []), rows.pop("background_budget", None)
    today = rows.pop("today", [])
    door = [("waits", each) for each in pending_summary(rows.pop("waits", {}))]
    door += [("unheard", each) for each in refusal_summary(rows.pop("unheard", {}))]
    door += [("alerts", strip_control_characters(status_line(each))) for each in rows.pop("alerts", [])]
    door += [("delayed", strip_control_characters(line_of_delay(each))) for each in rows.pop("delayed", [])]
    for name, value in rows.items():
        typer.echo(f"{name:16} {value}")
    for name, told in door:
        typer.echo(f"{name:16} {told}")
    for job in jobs:
        typer.echo(f"{'job ' + job['kind']:16} {_job(job)}")
    if today:
        calls, tokens, cached, cost = summarize_usage(today)
        typer.echo(f"{'today':16} {calls:,} model calls, {tokens:,} tokens, {cached}% of the input cached, {cost}")
    if budget and budget["limit"]:
        spent = ", spent: what waits goes on tomorrow" if budget["is_spent"] else ""
        typer.echo(f"{'background':16} {budget['spent']} of {budget['limit']} tokens today{spent}")
    for group in dead:
        given_up = f"{group['channel']}: {group['count']} given up, the last {group['newest'][:19]}Z: {group['reason']}"
        typer.echo(f"{'dead letters':16} {_OBEYED.sub('', given_up)}")


def _job(job: Mapping[str, Any]) -> str:
    """Return how the jobs of one kind stand; what is done and failed counts since the gateway's start."""
    oldest = f" (the oldest for {job['lag_seconds']:.0f} s)" if job["waiting"] else ""
    last = f", last run {job['last_run'][:19]}Z" if job["last_run"] else ""
    return (
        f"{job['running']} running, {job['waiting']} waiting{oldest}, {job['later']} later,"
        f" {job['done']} done, {job['failures']} failed{last}"
    )


def list_sessions(*, as_json: bool) -> None:
    """Print a line per session."""
    print_lines(
        call_operation("sessions list"),
        as_json,
        lambda line: f"{line['updated_at'][:19]}Z  {line['messages']:>7}  {line['key']}",
    )


def show_session(key: str, *, limit: int, as_json: bool) -> None:
    """Print what was said."""

    def shown(line: Line) -> str:
        who = line.get("name") or line["role"]
        waiting = " (waiting)" if line.get("state") == "waiting" else ""
        return f"{line['at'][:19]}Z  {who}{waiting}: {line['text']}"

    print_lines(call_operation("sessions show", {"key": key, "limit": limit}), as_json, shown)


def send(key: str, text: str) -> None:
    """Hand a text over and print the turn's reference."""
    (line,) = call_operation("send", {"key": key, "text": text})
    when = "" if line.get("running") else "; it is answered when a gateway runs"
    typer.echo(f"accepted as {line['reference']}{when}")


def show_turn(reference: str) -> None:
    """Print everything the journal knows of a turn."""
    (line,) = call_operation("turn", {"reference": reference})
    typer.echo(json.dumps(line, indent=2))


def make_backup(file: Path) -> None:
    """Write a backup and say what is not in it."""
    (line,) = call_operation("backup", {"file": str(file.absolute())})
    typer.echo(f"{line['file']}: {line['files']} files, {line['size']:,} bytes")
    for left_out in line["left_out"]:
        typer.echo(f"not in it: {left_out}")


def prune() -> None:
    """Remove what is past its time."""
    (line,) = call_operation("prune")
    typer.echo(f"{line['rows']} rows and {line['events']} quarantined events removed")


def list_quarantine(*, as_json: bool) -> None:
    """Print what was set aside, and where it stands."""
    lines = call_operation("quarantine list")
    print_lines(
        lines,
        as_json,
        lambda line: f"{line['at'][:19]}Z  {line['name']}  {line['reason']}  (it stands in {line['file']})",
    )
    if not lines and not as_json:
        typer.echo("nothing is in quarantine")


def drop_from_quarantine(name: str) -> None:
    """Remove one event from quarantine."""
    call_operation("quarantine drop", {"name": name})
    typer.echo(f"{name} is dropped; it is handled when its platform brings it again")


def replay_from_quarantine(name: str) -> None:
    """Have one event of the quarantine taken in by the running gateway."""
    call_operation("quarantine replay", {"name": name})
    typer.echo(f"{name} was taken in, and is no longer in quarantine")


def strip_control_characters(text: str) -> str:
    """Return *text* without what a terminal obeys."""
    return _OBEYED.sub("", text)


def print_lines(lines: Iterable[Line], as_json: bool, shown: Callable[[Line], str]) -> None:
    """Print a row per line, as *shown* words it, or JSON."""
    if as_json:
        print_json(lines)
        return
    for line in lines:
        typer.echo(strip_control_characters(shown(line)))


def print_json(lines: Iterable[Mapping[str, Any]]) -> None:
    """Print JSON lines."""
    for line in lines:
        typer.echo(json.dumps(line))
