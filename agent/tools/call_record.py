"""Tool calls of past turns, as their transcript lines hold them, and those that were refused or asked about."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from agent.base.transcript_lines import decode, kind_of, parse_time
from agent.llm.chat_model import ToolCall
from agent.memory.storage.stored_sessions import StoredSessions
from agent.reminders.recurrence import parse_slot, to_utc
from agent.tools.deferred_tools import inner_call
from agent.tools.rights import QuestionReason, RefusalRule
from agent.tools.tool import OUTCOME_UNKNOWN, STOPPED, STOPPED_RUNNING
from agent.tools.tool_questions import LONGEST_SHOWN, MOST_QUESTIONS
from gateway.events import SessionKey, short_turn_id
from gateway.i18n import translate
from gateway.i18n.formats import format_moment
from gateway.ports.channel import CallStep
from gateway.ports.journal import Line
from gateway.text.message_text import one_line, show_escapes


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
        made = inner_call(ToolCall(str(call["id"]), str(call["function"]["name"]), str(call["function"]["arguments"])))
        yield ToolCallRecord(
            turn=str(line.get("turn", "")),
            number=number,
            tool=made.name,
            arguments=made.arguments,
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


# -- calls as people see them ----------------------------------------------------------------------

_LONGEST_WORDS = 160  # characters of an argument
_LONGEST_ERROR = 200
# The arguments that the words of our own tools name; those of other tools are shown as a line.
WORDED: Mapping[str, Sequence[str]] = {
    "compute": (),
    "file_delete": ("name",),
    "file_read": ("name",),
    "file_write": ("name",),
    "files_list": (),
    "files_search": ("query",),
    "memory_edit": (),
    "memory_get": ("source",),
    "memory_search": ("query",),
    "read_result": (),
    "remember": ("fact",),
    "remind": ("what",),
    "reminder_change": ("id",),
    "reminders": (),
    "send_file": ("name",),
    "task": ("goal",),
    "vector_search": ("query",),
    "web_fetch": ("url",),
    "web_search": ("query",),
}


def call_words(call: ToolCall, zone: str, language: str) -> str:
    """Return the effect of *call* as one line of plain text, with times in the IANA *zone*."""
    given, names = decode(call.arguments or "{}"), WORDED.get(call.name)
    values = {} if given is None else {name: _line_of(given.get(name)) for name in names or ()}
    if given is None or names is None or not all(values.values()):
        record = ToolCallRecord(turn="", number=0, tool=call.name, arguments=call.arguments, outcome=CallOutcome.DONE)
        return one_line(f"{call.name}: {record.summary}" if record.summary else call.name, _LONGEST_WORDS)
    if call.name == "remind":
        values["when"] = _reminder_time(given, zone, language)
        return translate("steps.remind" if values["when"] else "steps.remind_once", language, **values)
    return translate(f"steps.{call.name}", language, **values)


def _line_of(value: object) -> str:
    return one_line(show_escapes(value), _LONGEST_WORDS) if isinstance(value, str) else ""


def _reminder_time(arguments: Mapping[str, object], zone: str, language: str) -> str:
    """Return when a reminder comes, in words; "" if its arguments give no time."""
    at, minutes = arguments.get("at"), arguments.get("in_minutes")
    if isinstance(at, str):
        with suppress(ValueError, OverflowError):
            return format_moment(to_utc(parse_slot(at.strip()), zone), zone, language)
    return translate("steps.in_minutes", language, count=minutes) if isinstance(minutes, int) and minutes > 0 else ""


def call_steps(lines: Sequence[Line], zone: str, language: str, *, is_running: bool = False) -> Iterator[CallStep]:
    """Yield the calls of a turn as people see them; while it *is_running*, those without a result run."""
    results = {str(line.get("tool_call_id", "")): line for line in lines if line.get("role") == "tool"}
    for call in (call for line in lines for call in line.get("tool_calls") or ()):
        result = results.get(str(call["id"]))
        made = inner_call(ToolCall(str(call["id"]), str(call["function"]["name"]), str(call["function"]["arguments"])))
        outcome = _outcome(result or {})
        has_failed = outcome in (CallOutcome.ERROR, CallOutcome.REFUSED)
        yield CallStep(
            words=call_words(made, zone, language),
            state="running" if is_running and result is None else outcome.value,
            seconds=float((result or {}).get("seconds", 0.0)),
            error=one_line(show_escapes(str((result or {}).get("content", ""))), _LONGEST_ERROR) if has_failed else "",
        )


def reasoning_of(lines: Iterable[Line]) -> str:
    """Return the reasoning that is stored with the model's messages, in the providers' forms; "" without any."""
    messages = [(line.get("thinking") or {}).get("message") or {} for line in lines]
    return "\n\n".join(filter(None, (_reasoning(each).strip() for each in messages)))


def _reasoning(message: Mapping[str, object]) -> str:
    plain = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(plain, str):
        return plain
    blocks = message.get("thinking_blocks") or message.get("reasoning_details")
    parts = [each for each in blocks if isinstance(each, Mapping)] if isinstance(blocks, list) else []
    texts = [each.get("thinking") or each.get("text") or each.get("summary") for each in parts]
    return "\n".join(each for each in texts if isinstance(each, str))


# -- calls that were refused or asked about --------------------------------------------------------

_SESSIONS = 100  # that are read, the most recently used
_TURNS = 20  # of each
_MOST_CALLS = 50

REFUSAL_WORDS: Mapping[str, str] = {
    RefusalRule.WHERE: "tools of this kind are not for this kind of chat",
    RefusalRule.ROLE: "the role of the person is not enough for this tool",
    RefusalRule.UNTYPED: "a job started the turn, and this tool needs a message of the person",
    RefusalRule.CHAT: "the settings of the chat turn the tool off (tools.allow, tools.deny)",
    RefusalRule.CHANGED: "the tool has changed since the person was asked",
    RefusalRule.LENGTH: f"it needs approval, and its arguments have more than {LONGEST_SHOWN:,} characters",
    RefusalRule.QUESTIONS: f"one answer asks about at most {MOST_QUESTIONS} calls",
    RefusalRule.WAITING: "an earlier call of the answer waits for approval",
    RefusalRule.LIMIT: "the answer had as many calls of this kind as one answer may have",
    RefusalRule.REPEATED: "the model repeated the same call",
    RefusalRule.NEVER: "the person decided never to allow it in this chat (`/tools` lists and revokes such decisions)",
    RefusalRule.CAP: "the person reached a daily limit (PARLOUR_CAPS__TOOLS__WEB, PARLOUR_CAPS__TOOLS__ACT)",
    RefusalRule.DOUBT: "the same call may have happened already",
}
QUESTION_WORDS: Mapping[str, str] = {
    QuestionReason.ACTS: "it changes something outside the chat",
    QuestionReason.TAINTED: "text from other sources was in the conversation",
    QuestionReason.OTHERS: "other members' messages were in the conversation",
    QuestionReason.SEEN: "all members of the chat would see what it finds with the person's login",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCall:
    """Calls of one tool that the same rule refused in one chat for one person; holds no argument."""

    key: SessionKey
    sender: str
    name: str  # of the sender, as stored
    tool: str
    rule: str  # a `RefusalRule`; "asked" if a person was asked
    words: str
    first_at: datetime
    last_at: datetime
    times: int = 1


async def find_refused_calls(sessions: StoredSessions, channel: str, id_: str) -> list[RefusedCall]:
    """Return the latest refusals, newest first; of one channel and one sender or chat, if given."""
    found: dict[tuple[str, ...], RefusedCall] = {}
    infos = [each for each in await sessions.all() if channel in ("", each.key.channel)]
    for info in infos[:_SESSIONS]:
        for lines in await sessions.recent_turns(info.key, limit=_TURNS):
            sender, name = sender_of(lines) or ("", "")
            if id_ and id_ not in (sender, info.key.parent.chat):
                continue
            for each in _of_turn(info.key, sender, name, call_records(lines)):
                place = (str(each.key), each.sender, each.tool, each.rule, each.words)
                found[place] = _merge(found.get(place), each)
    return sorted(found.values(), key=lambda each: each.last_at, reverse=True)[:_MOST_CALLS]


def _of_turn(key: SessionKey, sender: str, name: str, records: Iterable[ToolCallRecord]) -> Iterable[RefusedCall]:
    for each in records:
        if each.at is None or each.outcome not in (CallOutcome.REFUSED, CallOutcome.ASKED):
            continue
        is_asked = each.outcome is CallOutcome.ASKED
        words = QUESTION_WORDS.get(each.why, "") if is_asked else REFUSAL_WORDS.get(each.rule, "")
        yield RefusedCall(
            key=key,
            sender=sender,
            name=name,
            tool=each.tool,
            rule="asked" if is_asked else each.rule,
            words=words,
            first_at=each.at,
            last_at=each.at,
        )


def _merge(before: RefusedCall | None, new: RefusedCall) -> RefusedCall:
    if before is None:
        return new
    first, last = min(before.first_at, new.first_at), max(before.last_at, new.last_at)
    return replace(new, times=before.times + 1, first_at=first, last_at=last)
