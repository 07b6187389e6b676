"""`parlour replay`: the differences of a stored turn today, and the answer of another model."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from gateway.commands.control_client import AsJson, call_operation, print_json
from gateway.control import Line
from gateway.text.text_units import strip_control_characters

_MOST_LINES = 40  # of one difference


def replay_turn(
    reference: Annotated[str, typer.Argument(help="The turn, as `parlour turn` names it.")],
    model: Annotated[
        str, typer.Option(help="Also ask this model, with the same prompt; it is sent the conversation.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Run a stored turn again with its recorded answers, and show what is different today.

    Nothing is stored or sent, and no tool runs. Exit code 1 if something is different.
    """
    (line,) = call_operation("replay", {"reference": reference, "model": model})
    if as_json:
        print_json([line])
    else:
        for row in report_rows(line):
            typer.echo(strip_control_characters(row))
    if line["differences"]:
        raise typer.Exit(1)


def report_rows(line: Line) -> Iterator[str]:
    """Yield the report of a replay as rows of text."""
    count = len(line["differences"])
    yield f"{line['turn']}: {line['replies']} recorded answers, {count or 'no'} difference{'' if count == 1 else 's'}"
    for each in line["differences"]:
        yield ""
        yield f"{each['where']}:"
        yield from _difference(each["then"], each["now"])
    for note in line["notes"]:
        yield f"note: {note}"
    if (other := line["other"]) is not None:
        yield ""
        yield f"recorded, {line['model'] or 'unknown model'}:"
        yield line["answer"]
        yield ""
        yield f"now, {other['model']} ({_price(other)}):"
        yield other["text"] or f"(no answer: {other['failure']})"
        for call in other["calls"]:
            how = "with the recorded result" if call["is_recorded"] else "not run"
            yield f"call: {call['name']} {call['arguments']} ({how})"


def _difference(then: str, now: str) -> Iterator[str]:
    if "\n" not in then + now:
        yield f"  then: {then or '(nothing)'}"
        yield f"  now:  {now or '(nothing)'}"
        return
    rows = list(difflib.unified_diff(then.splitlines(), now.splitlines(), "then", "now", lineterm="", n=1))
    yield from (f"  {row}" for row in rows[:_MOST_LINES])
    if len(rows) > _MOST_LINES:
        yield f"  … {len(rows) - _MOST_LINES} more lines; --json prints all"


def _price(other: dict[str, Any]) -> str:
    tokens = other["tokens"]
    cost = "unknown cost" if other["cost"] is None else f"${other['cost']:.4f}"
    return f"{tokens['input']:,} tokens in, {tokens['output']:,} out, {cost}"
