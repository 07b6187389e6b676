"""`parlour usage`: calls, tokens and cost, by person, chat, purpose or day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from agent.memory.jobs.token_budget import MEMORY_PURPOSES
from gateway.commands.control_client import call_operation, print_json, strip_control_characters, summarize_usage

_MEMORY = "of it memory"  # the sum of the purposes that write memory
_NOBODY = "(nobody)"  # embeddings, and persons who were erased


def show_usage(by: str, since: str, *, as_json: bool) -> None:
    """Print a row per person, chat, purpose or day, and the total."""
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
    names = [str(line[by]) or _NOBODY for line in lines]
    width = max(len(name) for name in (*names, by, "together", _MEMORY))
    rows = [f"{by:{width}}  {'calls':>8}  {'tokens':>12}  {'cached':>6}  cost"]
    rows += [_row(name, width, [line]) for name, line in zip(names, lines, strict=True)]
    memory = [line for line in lines if by == "purpose" and line[by] in MEMORY_PURPOSES]
    if memory:
        rows.append(_row(_MEMORY, width, memory))
    return [*rows, _row("together", width, lines)]


def _row(name: str, width: int, lines: Sequence[Mapping[str, Any]]) -> str:
    calls, tokens, cached, cost = summarize_usage(lines)
    return f"{name:{width}}  {calls:>8,}  {tokens:>12,}  {cached:>5}%  {cost}"
