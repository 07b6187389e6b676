"""`parlour status`, and sums of usage in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from gateway.access.access_roster import orphan_summary, pending_summary, refusal_summary
from gateway.alerts.alert_messages import line_of_delay, status_line
from gateway.commands.control_client import AsJson, call_operation, print_json
from gateway.text.text_units import strip_control_characters


def show_status(as_json: AsJson = False) -> None:
    """Show the state of the gateway: channels, queues, jobs, alerts, usage."""
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
