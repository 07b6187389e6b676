"""Tool calls of past turns, as their transcript lines hold them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from agent.base.one_line import show_escapes
from agent.base.transcript_lines import decode, kind_of, parse_time
from agent.tools.tool import OUTCOME_UNKNOWN, STOPPED, STOPPED_RUNNING
from gateway.events import short_turn_id
from gateway.ports.journal import Line


class CallOutcome(StrEnum):
    """How a tool call ended."""

    DONE = "done"
    ERROR = "error"
    REFUSED = "refused"
    ASKED = "asked"  # a person was asked about it
    UNKNOWN = "unknown"  # it may have happened
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallRecord:
    """One tool call of a turn that is over."""

    turn: str
    number: int  # among the calls of the turn, from 1
    tool: str
    arguments: str  # the model's JSON
    outcome: CallOutcome
    rule: str = ""  # a `RefusalRule`, if it was refused
    question: str = ""  # the question's id, if a person was asked
    why: str = ""  # catalogue key of the reason for the question
    at: datetime | None = None

    @property
    def reference(self) -> str:
        """The question's id, or `<turn>.<number>` with the turn's short form."""
        return self.question or f"{short_turn_id(self.turn)}.{self.number}"

    @property
    def summary(self) -> str:
        """The arguments as one line, invisible characters as escapes."""
        given = decode(self.arguments or "{}")
        text = self.arguments if given is None else ", ".join(f"{name}={_value(each)}" for name, each in given.items())
        return show_escapes(" ".join(text.split()))


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def sender_of(lines: Sequence[Line]) -> tuple[str, str] | None:
    """Return id and name of the person of a turn, of which *lines* are; None if no message or request led to it."""
    # Edits of other people's messages come before the turn's own.
    last = next((line for line in reversed(lines) if line.get("role") == "user" and kind_of(line) == "message"), None)
    if last is None:
        return None
    by = last.get("by")
    return (str(by.get("id", "")), str(by.get("name", ""))) if isinstance(by, dict) else ("", "")


def call_records(lines: Sequence[Line]) -> Iterator[ToolCallRecord]:
    """Yield the calls of a turn, of which *lines* are, in the model's order."""
    results = {str(line.get("tool_call_id", "")): line for line in lines if line.get("role") == "tool"}
    calls = [(line, call) for line in lines for call in line.get("tool_calls") or ()]
    for number, (line, call) in enumerate(calls, 1):
        result = results.get(str(call["id"]), {})
        yield ToolCallRecord(
            turn=str(line.get("turn", "")),
            number=number,
            tool=str(call["function"]["name"]),
            arguments=str(call["function"]["arguments"]),
            outcome=_outcome(result),
            rule=str(result.get("refused", "")),
            question=str((result.get("ask") or {}).get("id", "")),
            why=str((result.get("ask") or {}).get("why", "")),
            at=parse_time(result.get("timestamp")),
        )


def _outcome(result: Line) -> CallOutcome:
    if result.get("refused"):
        return CallOutcome.REFUSED
    if result.get("ask"):
        return CallOutcome.ASKED
    text = result.get("content", OUTCOME_UNKNOWN)
    if text in (OUTCOME_UNKNOWN, STOPPED_RUNNING):
        return CallOutcome.UNKNOWN
    if text == STOPPED:
        return CallOutcome.STOPPED
    return CallOutcome.ERROR if result.get("error") else CallOutcome.DONE
