"""Tool calls that were refused, or that a person was asked about, found in the transcripts; no argument is in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from agent.memory.storage.stored_sessions import StoredSessions
from agent.tools.call_record import CallOutcome, ToolCallRecord, call_records, sender_of
from agent.tools.rights import QuestionReason, RefusalRule
from agent.tools.tool_questions import LONGEST_SHOWN, MOST_QUESTIONS
from gateway.events import SessionKey

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
