"""`parlour status`, `parlour usage` and `parlour tools`: what runs, what was spent, and which tools are on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from gateway.commands.control_client import AsJson, call_operation, print_json, print_lines
from gateway.control import Line
from gateway.ports.entry_points import with_operator_commands
from gateway.text.text_units import strip_control_characters

_MEMORY = "of it memory"  # the sum of the purposes that write memory
_NOBODY = "(nobody)"  # embeddings, and persons who were erased


def show_status(as_json: AsJson = False) -> None:
    """Show the state of the gateway: channels, queues, jobs, alerts, usage."""
    (line,) = call_operation("status")
    if as_json:
        print_json([line])
        return
    from gateway.health.gateway_checks import status_findings  # which other commands do without

    channels = line.get("channels", {})
    states = {True: "connected", False: "degraded", None: "not connected yet"}
    rows = {**line, "channels": ", ".join(f"{name} {states[state]}" for name, state in channels.items()) or "none open"}
    jobs, budget, today = rows.pop("jobs", []), rows.pop("background_budget", None), rows.pop("today", [])
    for name, value in rows.items():
        if name != "search" and not isinstance(value, list | dict):  # these are in the findings
            typer.echo(f"{name:16} {value}")
    for finding in status_findings(line):
        text = with_operator_commands(strip_control_characters(finding.text))
        typer.echo(f"{finding.name:16} {text}")
    for job in jobs:
        if any(job[name] for name in ("running", "waiting", "later", "done", "failures", "last_run")):
            typer.echo(f"{'job ' + job['kind']:16} {_job_row(job)}")
    if today:
        calls, tokens, cached, cost = summarize_usage(today)
        typer.echo(
            f"{'today':16} {calls:,} model calls, {tokens:,} tokens, {cached}% of input tokens cached, cost {cost}"
        )
    if budget and budget["limit"]:
        spent = ", spent: pending jobs continue tomorrow" if budget["is_spent"] else ""
        typer.echo(f"{'background':16} {budget['spent']} of {budget['limit']} tokens today{spent}")


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
    if unpriced and not known:  # calls that failed cost nothing
        return calls, tokens, cached, "unknown"
    return (
        calls,
        tokens,
        cached,
        f"${known:.4f}"
        + (f" plus {unpriced} {'call' if unpriced == 1 else 'calls'} of unknown cost" if unpriced else ""),
    )


def list_tools(as_json: AsJson = False) -> None:
    """List the tools that are on and off, with the reasons, and the calls that wait for approval."""
    lines = call_operation("tools")
    width = max((len(line["tool"]) for line in lines if "tool" in line), default=0)
    print_lines(lines, as_json, lambda line: _tool_row(line, width))


def _tool_row(line: Line, width: int) -> str:
    if "questions" in line:
        count = line["questions"]
        return f"{count} {'question waits' if count == 1 else 'questions wait'} for approval in {line['chat']}"
    name = f"{line['state']:3}  {line['tool']:{width}}"
    if line["state"] == "off":
        return f"{name}  {line['reason']}"
    off_in = f"off in {', '.join(line['off_in'])}" if line["off_in"] else ""
    return "  ".join(filter(None, (name, f"{line['kind']:7}", line["package"], line["rights"], off_in)))


def show_usage(
    by: Annotated[str, typer.Option(help="person, chat, purpose, model or day.")] = "day",
    since: Annotated[str, typer.Option(help="A day, such as 2026-11-01, or 7d for the last seven.")] = "30d",
    as_json: AsJson = False,
) -> None:
    """Show model calls, tokens and cost."""
    lines = call_operation("usage", {"by": by, "since": since})
    if as_json:
        print_json(lines)
        return
    if not lines:
        typer.echo(f"no model was called since {since}")
        return
    for row in usage_table(by, lines):
        typer.echo(strip_control_characters(row))


def usage_table(by: str, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of *lines*, which are sums by *by*: a header, a row each, of it what memory used, the total."""
    from agent.memory.jobs.token_budget import MEMORY_PURPOSES  # which other commands do without

    names = [str(line[by]) or _NOBODY for line in lines]
    width = max(len(name) for name in (*names, by, "together", _MEMORY))
    rows = [f"{by:{width}}  {'calls':>8}  {'tokens':>12}  {'cached':>6}  cost"]
    rows += [_usage_row(name, width, [line]) for name, line in zip(names, lines, strict=True)]
    memory = [line for line in lines if by == "purpose" and line[by] in MEMORY_PURPOSES]
    if memory:
        rows.append(_usage_row(_MEMORY, width, memory))
    return [*rows, _usage_row("together", width, lines)]


def _usage_row(name: str, width: int, lines: Sequence[Mapping[str, Any]]) -> str:
    calls, tokens, cached, cost = summarize_usage(lines)
    return f"{name:{width}}  {calls:>8,}  {tokens:>12,}  {cached:>5}%  {cost}"
