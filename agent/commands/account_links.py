"""/link and /unlink: join two accounts of one person, with consent from both; /share and /unshare: shared facts."""

from __future__ import annotations

import re

from agent.base.scopes import SHARED
from agent.commands.command import CommandContext, CommandReply, command
from agent.commands.privacy import ask_erasure
from agent.memory.account_links.account_linker import LinkLocked, LinkOffer, LinkParty, LinkRefusal
from agent.memory.erasure.word_match import SHORTEST, ErasurePattern
from agent.memory.jobs.chat_edits import LONGEST_FACT, remember_job
from gateway.events import MessageButton, OutboundMessage, PlatformAccount, Role
from gateway.i18n import translate

_LONGEST_NAME = 40
_UNSHARE_ANSWER = re.compile(r"(approve|reject) (f[a-z2-7]{16})")  # the name of a staged erasure
_UNSAFE = re.compile(r"[\[\]`*_~<>|\\\x00-\x1f\x7f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@command("link")
async def link(context: CommandContext) -> CommandReply:
    """Create a link code, redeem one, or answer the question that both accounts are asked."""
    word = context.args.strip()
    if context.turn.is_shared:
        # A code that others could read is revoked.
        is_revoked = bool(word) and await context.services.links.revoke(word)
        return context.private_reply("account_links.burnt" if is_revoked else "account_links.only_direct")
    if not context.scope:
        return context.reply("account_links.needless")
    if word.lower() == "yes":
        return await _agree(context)
    if word.lower() == "no":
        return await _refuse(context)
    return await (_redeem(context, word) if word else _offer(context))


@command("unlink")
async def unlink(context: CommandContext) -> CommandReply:
    """Separate an account from its person again; memory that is mixed stays with the older account."""
    if context.turn.is_shared:
        return context.private_reply("account_links.only_direct")
    links, survivor = context.services.links, context.turn.person
    others = links.separable(survivor)
    if not others:
        return context.reply("account_links.not_linked")
    if context.account in others:
        leaving = context.account
    elif len(others) == 1:
        leaving = others[0]
    elif context.args.isdigit() and 0 < int(context.args) <= len(others):
        leaving = others[int(context.args) - 1]
    else:
        listed = [f"{n}. `{_format_account(each)}`" for n, each in enumerate(others, 1)]
        return CommandReply(text="\n".join([context.translate("account_links.unlink_which"), *listed]))
    text = context.translate(
        "account_links.unlinking",
        account=_format_account(leaving),
        survivor=_format_account(PlatformAccount.from_name(survivor)),
    )
    return CommandReply(text=text, jobs=(await links.unlink_job(leaving, context.turn.id),))


async def _offer(context: CommandContext) -> CommandReply:
    links = context.services.links
    code = await links.offer(_account(context))
    lines = []
    if accounts := links.accounts(context.turn.person):
        lines = [
            context.translate("account_links.linked"),
            *(f"- `{_format_account(each.account)}`" for each in accounts),
            "",
        ]
    return CommandReply(text="\n".join([*lines, context.translate("account_links.code", code=code)]), is_secret=True)


async def _redeem(context: CommandContext, code: str) -> CommandReply:
    offer = await context.services.links.redeem(code, _account(context))
    match offer:
        case LinkLocked(minutes):
            return context.reply("account_links.locked", minutes=minutes)
        case LinkRefusal.UNKNOWN:
            return context.reply("account_links.wrong")
        case LinkRefusal.SAME_PERSON:
            return context.reply("account_links.own")
        case LinkOffer():
            own_question = context.translate(
                "account_links.question", mine=_account(context).label, other=offer.asker.label
            )
            other_language = _language(context, offer.asker)
            question = translate(
                "account_links.question", other_language, mine=offer.asker.label, other=_account(context).label
            )
            return CommandReply(
                text=own_question,
                choices=_choices(context.language),
                also=(_to(context, offer.asker, question, choices=_choices(other_language)),),
            )


async def _agree(context: CommandContext) -> CommandReply:
    offer = await context.services.links.agree(context.account)
    other = offer.other(context.account) if offer is not None else None
    if offer is None or other is None:
        return context.reply("account_links.nothing_asked")
    if not offer.is_agreed:
        return CommandReply(text=context.translate("account_links.waits_for_other", other=other.label), settles=True)
    notice = _to(context, other, translate("account_links.done", _language(context, other)))
    done = context.translate("account_links.done")
    return CommandReply(text=done, settles=True, also=(notice,), jobs=(context.services.links.link_job(offer),))


async def _refuse(context: CommandContext) -> CommandReply:
    offer = await context.services.links.refuse(context.account)
    other = offer.other(context.account) if offer is not None else None
    if other is None:
        return context.reply("account_links.nothing_asked")
    notice = _to(context, other, translate("account_links.refused_by_other", _language(context, other)))
    return CommandReply(text=context.translate("account_links.refused"), settles=True, also=(notice,))


def _account(context: CommandContext) -> LinkParty:
    name = " ".join(_UNSAFE.sub(" ", context.message.sender.name).split())[:_LONGEST_NAME]
    label = f"`{_format_account(context.account)}`"
    return LinkParty(account=context.account, label=f"{label} ({name})" if name else label, key=context.key)


def _format_account(account: PlatformAccount) -> str:
    """Return an account as platform and id."""
    return _UNSAFE.sub(" ", account.label)


def _language(context: CommandContext, party: LinkParty) -> str:
    return context.services.locales.language(party.key)


def _to(
    context: CommandContext, account: LinkParty, text: str, *, choices: tuple[MessageButton, ...] = ()
) -> OutboundMessage:
    return OutboundMessage(id=f"{context.turn.id}.2", key=account.key, text=text, choices=choices)


def _choices(language: str) -> tuple[MessageButton, ...]:
    return (
        MessageButton(label=translate("account_links.yes", language), command="/link yes"),
        MessageButton(label=translate("account_links.no", language), command="/link no"),
    )


# -- shared facts --------------------------------------------------------------------------------------


@command("share", who=Role.OWNER)
async def share(context: CommandContext) -> CommandReply:
    """Store a fact that every conversation knows from its next turn on."""
    fact = " ".join(context.args.split())
    if not fact:
        return context.private_reply("account_links.share_what")
    if len(fact) > LONGEST_FACT:
        return context.private_reply("account_links.too_long", most=LONGEST_FACT)
    keys = await context.services.documents.keys_of(context.scope, fact)
    job = remember_job(
        fact, turn=context.turn.id, scope=SHARED, origin="owner", by=context.account.name, at=context.now, keys=keys
    )
    return CommandReply(text=context.translate("account_links.shared"), is_private=True, jobs=(job,))


@command("unshare", who=Role.OWNER)
async def unshare(context: CommandContext) -> CommandReply:
    """Ask whether to erase words from the shared facts; or take the answer, which is that of a button."""
    if answer := _UNSHARE_ANSWER.fullmatch(context.args.strip()):
        return await _decide_unshare(context, *answer.groups())
    pattern = ErasurePattern.of(context.args, context.language)
    if pattern is None:
        return context.private_reply("account_links.unshare_what", least=SHORTEST)
    return await ask_erasure(context, pattern, SHARED, command="unshare")


async def _decide_unshare(context: CommandContext, word: str, name: str) -> CommandReply:
    services = context.services
    if word == "reject":
        is_done = await services.staging.reject(SHARED, name) is not None
        text = context.translate("memory.reject_done" if is_done else "approvals.settled")
        return CommandReply(text=text, is_private=True, settles=True)
    done = await services.erasure.approve(
        SHARED, name, may_all=True, key=context.key, upto=context.turn.row.seq, turn=context.turn.id
    )
    if done is None:
        return CommandReply(text=context.translate("approvals.settled"), is_private=True, settles=True)
    _, result, job = done
    text = context.translate("account_links.unshared", lines=result.remembered)
    return CommandReply(text=text, is_private=True, settles=True, advances=(job,))
