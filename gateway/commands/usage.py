"""`parlour usage`: calls, tokens and cost, by person, chat, purpose or day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from gateway.commands.control_client import AsJson, call_operation, print_json
from gateway.commands.status import summarize_usage
from gateway.text.text_units import strip_control_characters

_MEMORY = "of it memory"  # the sum of the purposes that write memory
_NOBODY = "(nobody)"  # embeddings, and persons who were erased


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
    rows += [_row(name, width, [line]) for name, line in zip(names, lines, strict=True)]
    memory = [line for line in lines if by == "purpose" and line[by] in MEMORY_PURPOSES]
    if memory:
        rows.append(_row(_MEMORY, width, memory))
    return [*rows, _row("together", width, lines)]


def _row(name: str, width: int, lines: Sequence[Mapping[str, Any]]) -> str:
    calls, tokens, cached, cost = summarize_usage(lines)
    return f"{name:{width}}  {calls:>8,}  {tokens:>12,}  {cached:>5}%  {cost}"
