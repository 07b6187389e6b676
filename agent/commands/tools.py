"""/tools: the tools of this chat, their last calls, and those that wait; /files, and /skills and /skill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

import structlog

from agent.commands.command import CommandContext, CommandNeed, CommandReply, command, first_word
from agent.llm.chat_model import ToolCall
from agent.memory.jobs.approval_questions import short
from agent.tools.call_record import CallOutcome, ToolCallRecord, call_records, sender_of
from agent.tools.tool_questions import (
    LASTING_NO,
    LASTING_YES,
    MOST_QUESTIONS,
    ToolQuestion,
    build_decision,
    decision_job,
    format_questions,
)
from agent.tools.toolbox import SKILL
from gateway.errors import ModelAbility, ToolFailed
from gateway.events import Role
from gateway.i18n.formats import format_file_size, format_moment
from gateway.ports.memory import ScopeFile
from gateway.text.message_text import clean_name, one_line

_LONGEST_ID = 20


def _is_owners(context: CommandContext) -> bool:
    """Return True in the direct chat of an owner."""
    return context.turn.role is Role.OWNER and not context.turn.is_shared


_DECIDES = CommandNeed(is_audited=True)  # who may decide depends on the question: see `_decide`
_SEES_CALLS = CommandNeed(others=Role.ADMIN, looks=True)


_REVOKES = CommandNeed(is_audited=True)
_WORDS = {"allow": _DECIDES, "deny": _DECIDES, "revoke": _REVOKES, "last": _SEES_CALLS}


@command("tools", words=_WORDS, control_words=("allow", "deny"))
async def tools(context: CommandContext) -> CommandReply:
    """List tools and questions, or the `last` calls; `allow <id>` runs the stored call, `deny <id>` drops it.

    `allow <id> here` and `deny <id> never` also decide about further calls, until `revoke <id>`.
    """
    word = first_word(context.args)
    if word in ("allow", "deny") and _name(context):
        return await _decide(context, is_allowed=word == "allow")
    if word == "revoke" and _name(context):
        return await _revoke(context)
    if word == "last":
        return CommandReply(text=await list_last_calls(context), is_private=True)
    if word:
        return context.private_reply("tools.usage")
    names = context.turn.profile.toolbox.names
    listed = ", ".join(f"`{name}`" for name in names)
    none = "tools.not_by_model" if context.turn.profile.model.lacks(ModelAbility.TOOLS) else "tools.none"
    lines = [context.translate("tools.here", names=listed) if names else context.translate(none)]
    decisions = await context.services.decisions.read(context.scope, context.key, context.account.name)
    zone = context.services.locales.zone(context.scope)
    if decisions:
        lines.append("\n".join(f"- {each.text(zone, context.language)}" for each, _ in decisions))
    waiting = await context.services.approvals.pending(context.key, is_owners=_is_owners(context))
    text, buttons = format_questions([question for question, _ in waiting][:MOST_QUESTIONS], context.language)
    return CommandReply(text="\n\n".join([*lines, text] if text else lines), is_private=True, choices=buttons)


def _words(context: CommandContext) -> list[str]:
    """Return the words after the first: an id, and what the decision is beyond that call."""
    return [each.strip("`").lower()[:_LONGEST_ID] for each in context.args.split()[1:]]


def _name(context: CommandContext) -> str:
    return next(iter(_words(context)), "")


async def _decide(context: CommandContext, *, is_allowed: bool) -> CommandReply:
    approvals = context.services.approvals
    found = await approvals.find(context.key, _name(context), is_owners=_is_owners(context))
    settled = CommandReply(text=context.translate("tools.settled"), is_private=True, settles=True, outcome="settled")
    if found is not None and (needed := _needed_role(context, found[0])) is not None:
        text = context.translate(f"commands.only_{needed}", command=f"tools {first_word(context.args)}")
        return CommandReply(text=text, is_private=True, outcome="refused", tool=found[0].tool)
    if found is not None and found[0].is_personal and found[0].sender != context.message.sender.id:
        text = context.translate("tools.only_asker")
        return CommandReply(text=text, is_private=True, outcome="refused", tool=found[0].tool)
    if found is None or not approvals.claim(found[0], context.turn.id):
        return settled
    question, job = found
    if not is_allowed and await approvals.is_allowed(question):  # by a press that a kill ended
        approvals.release(question)
        return settled
    if is_allowed and question.attached and not await approvals.is_delivered(question):
        approvals.release(question)
        return CommandReply(text=context.translate("tools.on_the_way"), is_private=True, outcome="refused")
    extra = _words(context)[1:]
    if extra and not _is_offered(question, extra, is_allowed=is_allowed):
        approvals.release(question)
        text = context.translate("tools.once_only", id=question.id)
        return CommandReply(text=text, is_private=True, outcome="refused", tool=question.tool)
    by = clean_name(context.message.sender.name) or context.message.sender.id
    if is_allowed and not await approvals.allow(question, by, context.now):
        approvals.release(question)
        text = context.translate("tools.queue_full")
        return CommandReply(text=text, is_private=True, outcome="refused", tool=question.tool)
    approvals.count("allowed" if is_allowed else "denied")
    text = context.translate("tools.allowed" if is_allowed else "tools.denied", tool=question.tool)
    ends, jobs = [job.id], [] if is_allowed else [await approvals.deny(question, by, job.scope, context.now)]
    if extra:
        decision = build_decision(question, context.account.name, context.now, is_allowed=is_allowed)
        lasting = decision_job(decision, context.scope)
        text += "\n" + decision.text(context.services.locales.zone(context.scope), context.language)
        ends, jobs = [*ends, lasting.id], [*jobs, lasting]
    return CommandReply(text=text, settles=True, ends=tuple(ends), jobs=tuple(jobs), tool=question.tool)


def _needed_role(context: CommandContext, question: ToolQuestion) -> Role | None:
    """Return the role that the sender lacks to decide *question*; None if they may, as the one who requested it may."""
    if question.is_for_owner:
        needed = Role.OWNER
    elif context.turn.is_shared and question.sender != context.message.sender.id:
        needed = Role.ADMIN
    else:
        return None
    return None if context.turn.role.covers(needed) else needed


def _is_offered(question: ToolQuestion, extra: list[str], *, is_allowed: bool) -> bool:
    """Return True if *extra*, the words after the id, decide about further calls as the question offers it."""
    offered = (question.offers_yes, [LASTING_YES]) if is_allowed else (question.offers_no, [LASTING_NO])
    return offered == (True, extra)


async def _revoke(context: CommandContext) -> CommandReply:
    decisions = await context.services.decisions.read(context.scope, context.key, context.account.name)
    for decision, job in decisions:
        if decision.id == _name(context):
            text = context.translate("tools.revoked", what=decision.what)
            return CommandReply(text=text, ends=(job.id,), tool=decision.tool)
    return CommandReply(text=context.translate("tools.no_decision"), is_private=True, outcome="refused")


_LOOK_BACK = 200  # turns


async def list_last_calls(context: CommandContext) -> str:
    """Return the calls of the chat's last turn; of the sender's own last turn unless the sender may read all."""
    turns = await context.services.sessions.recent_turns(context.key, limit=_LOOK_BACK)
    for lines in reversed(turns):
        sender = sender_of(lines)
        if sender is not None and (context.may_all or sender[0] == context.message.sender.id):
            records = list(call_records(lines))
            break
    else:
        return context.translate("tools.last_nothing")
    if not records:
        return context.translate("tools.last_none")
    waiting = {question.id for question, _ in await context.services.approvals.pending(context.key)}
    zone = context.services.locales.zone(context.scope)
    at = format_moment(records[0].at or context.now, zone, context.language)
    rows = [_row(context, each, is_waiting=each.question in waiting) for each in records]
    return "\n".join([context.translate("tools.last", at=at), "", *rows])


def _row(context: CommandContext, record: ToolCallRecord, *, is_waiting: bool) -> str:
    if record.outcome is CallOutcome.REFUSED:
        outcome = context.translate(f"tools.refused_{record.rule}")
    elif record.outcome is CallOutcome.ASKED:
        outcome = context.translate("tools.outcome_waiting" if is_waiting else "tools.outcome_asked")
    else:
        outcome = context.translate(f"tools.outcome_{record.outcome}")
    what = f"{short(record.tool)} {short(record.summary)}" if record.summary else short(record.tool)
    return f"{record.number}. {what}: {outcome} (`{record.reference}`)"


log = structlog.get_logger(__name__)

_MOST_FILES = 30
_MOST_DELETED = 10


@command("files", words={"empty": CommandNeed(shared=Role.ADMIN, single=Role.OWNER)})
async def files(context: CommandContext) -> CommandReply:
    """List files; `restore <id>` brings a deleted one back, `empty` removes the deleted ones for good."""
    workspace = context.services.workspaces.of(context.scope)
    word, rest = first_word(context.args), context.args.partition(" ")[2].strip()
    try:
        if word == "restore" and rest:
            name = await workspace.restore(rest.strip("`").lower()[:_LONGEST_ID])
            if name is None:
                return context.private_reply("files.unknown")
            return context.reply("files.restored", name=_as_code(name))
        if word == "empty" and not rest:
            return context.private_reply("files.emptied", files=await workspace.empty_trash())
        if word:
            return context.private_reply("files.usage")
        current, deleted = await workspace.list_files(), await workspace.deleted_files()
    except (OSError, ToolFailed) as error:
        log.warning("workspace.failed", error=type(error).__name__)
        return context.private_reply("files.failed")
    return CommandReply(text="\n".join(_list(context, current, deleted)), is_private=True)


def _list(context: CommandContext, current: Sequence[ScopeFile], deleted: Sequence[ScopeFile]) -> list[str]:
    if not current:
        lines = [context.translate("files.none")]
    else:
        size = format_file_size(sum(each.size for each in current), context.language)
        lines = [context.translate("files.title", files=len(current), size=size)]
        lines += [f"- {_facts(context, each.name, each.size, each.at)}" for each in current[:_MOST_FILES]]
    if len(current) > _MOST_FILES:
        lines.append(context.translate("files.more", files=len(current) - _MOST_FILES))
    if deleted:
        lines += ["", context.translate("files.deleted")]
        for each in deleted[:_MOST_DELETED]:
            restore = context.translate("files.restore", id=each.name)
            lines.append(f"- {_facts(context, each.original, each.size, each.at)} · {restore}")
    return lines


def _facts(context: CommandContext, name: str, size: int, at: datetime) -> str:
    moment = format_moment(at, context.turn.zone, context.language)
    return f"{_as_code(name)} · {format_file_size(size, context.language)} · {moment}"


def _as_code(name: str) -> str:
    """Return a file's name as code: models and other people choose names, which are never markup."""
    plain = name.replace("`", "'")
    return f"`{plain}`"


_LONGEST_SHOWN = 200  # characters of a description


@command("skills", is_control=True)
async def skills(context: CommandContext) -> CommandReply:
    """List the skills that the bot has here."""
    library = context.services.profiles.skills
    if SKILL not in context.turn.profile.toolbox.names:
        return context.private_reply("skills.off" if library.skills else "skills.none")
    lines = [context.translate("skills.list"), ""]
    lines += [f"- {_as_code(each.name)} {one_line(each.description, _LONGEST_SHOWN)}" for each in library.skills]
    if library.faults and _is_owners(context):
        lines += ["", context.translate("skills.faults", count=len(library.faults))]
    return CommandReply(text="\n".join(lines), is_private=True)


@command("skill")
async def skill(context: CommandContext) -> CommandReply:
    """Let the model answer with the skill named first read; without a name, list them."""
    library, name = context.services.profiles.skills, first_word(context.args).strip("`")
    if not name or SKILL not in context.turn.profile.toolbox.names:
        return await skills.run(context)
    if library.find(name) is None:
        names = ", ".join(_as_code(each.name) for each in library.skills)
        return context.private_reply("skills.unknown", name=short(name[:_LONGEST_ID]), names=names)
    return CommandReply(text="", begins=ToolCall("", SKILL, json.dumps({"name": name})))
