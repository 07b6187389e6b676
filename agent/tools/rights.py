"""Rights to tools: the roles and chats that each kind needs, and the calls that need approval.

Checked at each call for the turn's person. The prompt, which is the same for all members of a chat, decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from agent.tools.tool import ASK_BY_KIND, AskRule, CallFacts, Tool, ToolKind
from agent.tools.tool_questions import digest_schema
from gateway.errors import SettingsError
from gateway.events import ChatKind, Role

_EVERYWHERE = frozenset(ChatKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class RightsRule:
    """A row of the rights table."""

    who: Role = Role.MEMBER  # the least role
    where: frozenset[ChatKind] = _EVERYWHERE
    is_for_untyped: bool = True  # also in turns that a job started


RIGHTS: Mapping[ToolKind, RightsRule] = {
    ToolKind.LOOK: RightsRule(),
    ToolKind.KEEP: RightsRule(is_for_untyped=False),  # tools of files say otherwise
    ToolKind.WEB: RightsRule(),
    ToolKind.COMPUTE: RightsRule(),
    ToolKind.SPEND: RightsRule(is_for_untyped=False),
    ToolKind.ACT: RightsRule(),  # asks
    ToolKind.RUN: RightsRule(who=Role.OWNER, where=frozenset({ChatKind.DIRECT}), is_for_untyped=False),
}
_ROLE_TEXT = {Role.ADMIN: "an admin of this chat", Role.OWNER: "an owner"}


class RefusalRule(StrEnum):
    """The rule that refused a tool call; stored in the line of its result, so that no table of refusals is needed."""

    WHERE = "where"  # not in this kind of chat
    ROLE = "role"
    UNTYPED = "untyped"  # a job started the turn
    CHAT = "chat"  # the chat's settings leave the tool out
    CHANGED = "changed"  # the tool changed after a person had allowed the call
    LENGTH = "length"  # too long to be shown in full
    QUESTIONS = "questions"  # too many questions in one answer
    WAITING = "waiting"  # another call of the answer waits for approval
    LIMIT = "limit"  # calls of one answer
    REPEATED = "repeated"  # the same call again and again
    DOUBT = "doubt"  # the same call may have happened
    CAP = "cap"  # calls of the person today
    NEVER = "never"  # the person has said no for good


class QuestionReason(StrEnum):
    """Why a person is asked about a tool call: a key of the catalogue; stored in the line of its result."""

    TAINTED = "tools.why_tainted"
    ACTS = "tools.why_acts"
    OTHERS = "tools.why_others"
    SEEN = "tools.why_seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRights:
    """The operator's rule for a tool or a kind of tools; None = as the tool or its kind says."""

    who: Role | None = None
    where: frozenset[ChatKind] | None = None
    ask: AskRule | None = None  # the least that asks


@dataclass(frozen=True, slots=True)
class CallVerdict:
    """The decision about a call: it runs at once, after a question, or not at all."""

    refusal: str = ""  # for the model to read
    rule: RefusalRule | None = None  # that refused it
    question: QuestionReason | None = None  # why a person is asked
    subject: str = ""  # of the call in question
    can_last: bool = False  # a yes to the question may hold for 30 days
    is_for_owner: bool = False  # the question belongs into an owner's direct chat
    is_personal: bool = False  # nobody but the turn's person may answer it


def apply_rights(
    tools: Iterable[Tool], rights: Mapping[str, OperatorRights], *, is_checked: bool = True
) -> Sequence[Tool]:
    """Return *tools* with the operator's *rights*, by name or kind; a tool's own entry goes before that of its kind.

    Raises SettingsError for a rule that asks less than the tool or the kind does; without *is_checked* the tool's own
    applies then.
    """
    found = list(tools)
    if not is_checked:
        return [_apply_rule(_apply_rule(each, rights.get(each.kind)), rights.get(each.name)) for each in found]
    own = {str(kind): ask for kind, ask in ASK_BY_KIND.items()} | {each.name: each.ask for each in found}
    for name, rule in rights.items():
        if rule.ask is not None and name in own and not rule.ask.covers(own[name]):
            raise SettingsError(f"tools.rights.{name}.ask: {rule.ask} asks less than {name} does; write {own[name]}")
    return [_apply_rule(_apply_rule(each, rights.get(each.kind)), rights.get(each.name)) for each in found]


def _apply_rule(tool: Tool, rule: OperatorRights | None) -> Tool:
    if rule is None:
        return tool
    changed = replace(tool, who=rule.who or tool.who, where=tool.where if rule.where is None else rule.where)
    if (least := rule.ask) is None:
        return changed
    review = tool.review
    if review is not None:  # decides instead of `ask`

        def stricter(arguments: Mapping[str, Any], facts: CallFacts) -> AskRule:
            return least.or_stricter(review(arguments, facts))

        changed = replace(changed, review=stricter)
    return replace(changed, ask=least.or_stricter(tool.ask))


def effective_rule(tool: Tool) -> RightsRule:
    """Return the row of *tool*: its own fields, else those of its kind."""
    rule = RIGHTS[tool.kind]
    return RightsRule(
        who=tool.who or rule.who,
        where=rule.where if tool.where is None else tool.where,
        is_for_untyped=rule.is_for_untyped if tool.is_for_untyped is None else tool.is_for_untyped,
    )


def review_call(tool: Tool, arguments: Mapping[str, Any], facts: CallFacts) -> CallVerdict:
    """Return whether *tool* may be called: its kind's rule, the sender's role, the chat, and what asks for approval."""
    rule = effective_rule(tool)
    if facts.chat_kind not in rule.where:
        text = f"not allowed here: only in a {'direct' if ChatKind.DIRECT in rule.where else 'shared'} chat"
        return CallVerdict(text, RefusalRule.WHERE)
    if not facts.role.covers(rule.who):
        return CallVerdict(f"not allowed here: only {_ROLE_TEXT[rule.who]}", RefusalRule.ROLE)
    if facts.is_untyped and not rule.is_for_untyped:
        return CallVerdict("not allowed here: no message of a person started this turn", RefusalRule.UNTYPED)
    if facts.exceeded_limit:
        counted = f"{facts.exceeded_limit} {tool.capped_as or tool.kind} calls"
        text = f"not run: the limit of {counted} a day is reached for this person"
        return CallVerdict(text, RefusalRule.CAP)
    if facts.allowed_schema:
        is_same = facts.allowed_schema == digest_schema(tool.schema)
        changed = CallVerdict("not run: the tool has changed since the person was asked", RefusalRule.CHANGED)
        return CallVerdict() if is_same else changed
    asks = tool.ask if tool.review is None else tool.review(arguments, facts)
    why = _reason_to_ask(tool, facts, asks)
    return _verdict_in_question(tool, arguments, facts, asks, why) if why else CallVerdict()


def _reason_to_ask(tool: Tool, facts: CallFacts, asks: AskRule) -> QuestionReason | None:
    """Return the reason to ask; None if the call needs no approval."""
    if facts.is_tainted and asks.covers(AskRule.TAINTED):
        return QuestionReason.TAINTED
    if asks.covers(AskRule.FIRST):
        is_seen = tool.is_personal and not tool.kind.has_effects
        return QuestionReason.SEEN if is_seen else QuestionReason.ACTS
    # Otherwise a member could use the rights of the person who writes next.
    if tool.kind.has_effects and asks.covers(AskRule.TAINTED) and _has_other_members(facts):
        return QuestionReason.OTHERS
    return None


def _has_other_members(facts: CallFacts) -> bool:
    """Return True if the prompt contains messages of other members of a shared chat."""
    if facts.chat_kind is ChatKind.DIRECT:
        return False
    messages = (line for line in facts.lines() if line.get("role") == "user")
    return any(line.get("quoted") or (line.get("by") or {}).get("id") not in (None, facts.sender) for line in messages)


def _verdict_in_question(
    tool: Tool, arguments: Mapping[str, Any], facts: CallFacts, asks: AskRule, why: QuestionReason
) -> CallVerdict:
    """Return the standing decision of `facts.decisions` about a call that asks, or the question."""
    subject = tool.subject(**arguments) if tool.subject is not None else ""
    is_for_people = facts.chat_kind is ChatKind.DIRECT and not facts.is_untyped and not facts.is_tainted
    can_last = bool(subject) and is_for_people and asks is not AskRule.ALWAYS
    decision = facts.decisions.get((tool.name, subject, digest_schema(tool.schema)))
    if decision is False:
        return CallVerdict("refused: the person does not want this here; `/tools` changes it", RefusalRule.NEVER)
    if decision and can_last:
        return CallVerdict()
    is_for_owner = facts.chat_kind is not ChatKind.DIRECT and (tool.who or RIGHTS[tool.kind].who) is Role.OWNER
    return CallVerdict(
        question=why, subject=subject, can_last=can_last, is_for_owner=is_for_owner, is_personal=tool.is_personal
    )
