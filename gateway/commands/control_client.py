"""Commands that call operations of the running gateway, or run them on the home themselves when none runs."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from gateway.access.access_roster import orphan_summary, pending_summary, refusal_summary
from gateway.alerts.alert_messages import line_of_delay, status_line
from gateway.control import Line
from gateway.control.gateway_client import connect
from gateway.home import Home
from gateway.logs import configure_logs
from gateway.settings import Settings, load_settings, secret_values

# Messages of people are printed: nothing in them may move the cursor or hide what follows.
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


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
    # No gateway: the same operation here, under the home's lock. Its logs would only disturb.
    configure_logs(level="error", form=settings.log.format, secrets=secret_values(settings))
    from gateway.app import build_operations, open_app

    async with open_app(settings, channels=False) as app:
        async for line in build_operations(app).by_name()[name](arguments):
            yield line


def show_status(*, as_json: bool) -> None:
    """Print the status, one field per row."""
    (line,) = call_operation("status")
    if as_json:
        print_json([line])
        return
    channels = line.get("channels", {})
    states = {True: "connected", False: "degraded", None: "not connected yet"}
    rows = {**line, "channels": ", ".join(f"{name} {states[state]}" for name, state in channels.items()) or "none open"}
    dead, jobs, budget = rows.pop("dead_letters", []), rows.pop("jobs", []), rows.pop("background_budget", None)
    today = rows.pop("today", [])
    notices = [("waits", each) for each in pending_summary(rows.pop("waits", {}))]
    notices += [("reminders", each) for each in orphan_summary(rows.pop("orphaned_reminders", []))]
    notices += [("unheard", each) for each in refusal_summary(rows.pop("unheard", {}))]
    notices += [("alerts", strip_control_characters(status_line(each))) for each in rows.pop("alerts", [])]
    notices += [("delayed", strip_control_characters(line_of_delay(each))) for each in rows.pop("delayed", [])]
    for name, value in rows.items():
        typer.echo(f"{name:16} {value}")
    for name, text in notices:
        typer.echo(f"{name:16} {text}")
    for job in jobs:
        typer.echo(f"{'job ' + job['kind']:16} {_job_row(job)}")
    if today:
        calls, tokens, cached, cost = summarize_usage(today)
        typer.echo(f"{'today':16} {calls:,} model calls, {tokens:,} tokens, {cached}% of input tokens cached, {cost}")
    if budget and budget["limit"]:
        spent = ", spent: pending jobs continue tomorrow" if budget["is_spent"] else ""
        typer.echo(f"{'background':16} {budget['spent']} of {budget['limit']} tokens today{spent}")
    for group in dead:
        row = (
            f"{group['channel']}: {group['count']} dead-lettered, the latest {group['newest'][:19]}Z: {group['reason']}"
        )
        typer.echo(f"{'dead letters':16} {strip_control_characters(row)}")


def _job_row(job: Mapping[str, Any]) -> str:
    """Return the counts of one kind of jobs; done and failed ones are counted since the start of the gateway."""
    oldest = f" (the oldest for {job['lag_seconds']:.0f} s)" if job["waiting"] else ""
    last = f", last run {job['last_run'][:19]}Z" if job["last_run"] else ""
    return (
        f"{job['running']} running, {job['waiting']} waiting{oldest}, {job['later']} later,"
        f" {job['done']} done, {job['failures']} failed{last}"
    )


def list_sessions(*, as_json: bool) -> None:
    """Print one row per session."""
    print_lines(
        call_operation("sessions list"),
        as_json,
        lambda line: f"{line['updated_at'][:19]}Z  {line['messages']:>7}  {line['key']}",
    )


def show_session(key: str, *, limit: int, as_json: bool) -> None:
    """Print the newest messages of a session."""

    def message_row(line: Line) -> str:
        who = line.get("name") or line["role"]
        waiting = " (waiting)" if line.get("state") == "waiting" else ""
        return f"{line['at'][:19]}Z  {who}{waiting}: {line['text']}"

    print_lines(call_operation("sessions show", {"key": key, "limit": limit}), as_json, message_row)


def send(key: str, text: str) -> None:
    """Submit a text to a session and print the reference of its turn."""
    (line,) = call_operation("send", {"key": key, "text": text})
    when = "" if line.get("running") else "; it will be answered when a gateway runs"
    typer.echo(f"accepted as {line['reference']}{when}")


def show_turn(reference: str) -> None:
    """Print the trace of a turn as JSON."""
    (line,) = call_operation("turn", {"reference": reference})
    typer.echo(json.dumps(line, indent=2))


def make_backup(file: Path) -> None:
    """Write a backup and print what it leaves out."""
    (line,) = call_operation("backup", {"file": str(file.absolute())})
    typer.echo(f"{line['file']}: {line['files']} files, {line['size']:,} bytes")
    for left_out in line["left_out"]:
        typer.echo(f"not included: {left_out}")


def prune() -> None:
    """Remove expired rows, events and files."""
    (line,) = call_operation("prune")
    typer.echo(f"{line['rows']} rows, {line['events']} quarantined events and {line['files']} expired files removed")


def list_quarantine(*, as_json: bool) -> None:
    """Print the quarantined events, each with its file."""
    lines = call_operation("quarantine list")
    print_lines(
        lines,
        as_json,
        lambda line: f"{line['at'][:19]}Z  {line['name']}  {line['reason']}  (in {line['file']})",
    )
    if not lines and not as_json:
        typer.echo("the quarantine is empty")


def drop_from_quarantine(name: str) -> None:
    """Remove one event from the quarantine."""
    call_operation("quarantine drop", {"name": name})
    typer.echo(f"{name} is removed; if its platform sends it again, it is handled")


def replay_from_quarantine(name: str) -> None:
    """Have the running gateway handle one quarantined event again."""
    call_operation("quarantine replay", {"name": name})
    typer.echo(f"{name} was handled and is no longer in quarantine")


def summarize_usage(lines: Sequence[Mapping[str, Any]]) -> tuple[int, int, int, str]:
    """Return calls, tokens, the cached percentage of the input, and the cost in words, of lines of `parlour usage`."""
    calls, tokens_in = sum(line["calls"] for line in lines), sum(line["tokens_in"] for line in lines)
    tokens = tokens_in + sum(line["tokens_out"] for line in lines)
    cached = round(100 * sum(line["tokens_cached"] for line in lines) / tokens_in) if tokens_in else 0
    known, unpriced = sum(line["known_cost"] for line in lines), sum(line["unpriced_calls"] for line in lines)
    if calls and unpriced == calls:
        return calls, tokens, cached, "unknown"
    return (
        calls,
        tokens,
        cached,
        f"${known:.4f}"
        + (f" plus {unpriced} {'call' if unpriced == 1 else 'calls'} of unknown cost" if unpriced else ""),
    )


def strip_control_characters(text: str) -> str:
    """Return *text* without control characters and direction marks."""
    return _CONTROL_CHARACTERS.sub("", text)


def print_lines(lines: Iterable[Line], as_json: bool, format_row: Callable[[Line], str]) -> None:
    """Print one row per line, formatted by *format_row*, or JSON."""
    if as_json:
        print_json(lines)
        return
    for line in lines:
        typer.echo(strip_control_characters(format_row(line)))


def print_json(lines: Iterable[Mapping[str, Any]]) -> None:
    """Print JSON lines."""
    for line in lines:
        typer.echo(json.dumps(line))
