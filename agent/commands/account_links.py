"""/link and /unlink: two accounts of one person, agreed to on both sides; /share and /unshare: what all may know."""

from __future__ import annotations

import re

from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import command
from agent.memory.account_links.link_offers import AlreadySamePerson, LinkLocked, LinkOffer, LinkParty, UnknownLinkCode
from agent.memory.erasure.word_eraser import ErasureRequester
from agent.memory.erasure.word_match import SHORTEST, ErasurePattern
from agent.memory.jobs.memory_jobs import LONGEST_FACT, remember_job
from agent.memory.scopes import SHARED
from gateway.events import MessageButton, OutboundMessage, PlatformAccount, Role
from gateway.i18n import translate

_LONGEST_NAME = 40
_UNSAID = re.compile(r"[\[\]`*_~<>|\\\x00-\x1f\x7f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@command("link")
async def link(context: CommandContext) -> CommandReply:
    """Give a code, take one, or answer what both have to say yes to."""
    word = context.args.strip()
    if context.turn.is_shared:
        # A code that others have read is good no more.
        burnt = bool(word) and await context.services.people.links.revoke(word)
        return CommandReply(
            text=translate("account_links.burnt" if burnt else "account_links.only_direct", context.language),
            is_private=True,
        )
    if not context.scope:
        return CommandReply(text=translate("account_links.needless", context.language))
    if word.lower() == "yes":
        return await _agree(context)
    if word.lower() == "no":
        return await _refuse(context)
    return await (_take(context, word) if word else _offer(context))


@command("unlink")
async def unlink(context: CommandContext) -> CommandReply:
    """Make an account a person of its own again; what is mixed stays with the older one."""
    if context.turn.is_shared:
        return CommandReply(text=translate("account_links.only_direct", context.language), is_private=True)
    survivor = context.services.people.links.person(context.account)
    others = [each.identity for each in context.services.people.links.accounts(survivor) if each.identity != survivor]
    if not others:
        return CommandReply(text=translate("account_links.not_linked", context.language))
    if context.account in others:
        gone = context.account
    elif len(others) == 1:
        gone = others[0]
    elif context.args.isdigit() and 0 < int(context.args) <= len(others):
        gone = others[int(context.args) - 1]
    else:
        listed = [f"{n}. `{_shown(each)}`" for n, each in enumerate(others, 1)]
        return CommandReply(text="\n".join([translate("account_links.unlink_which", context.language), *listed]))
    text = translate("account_links.unlinking", context.language, account=_shown(gone), survivor=_shown(survivor))
    return CommandReply(text=text, jobs=(await context.services.people.links.unlink_job(gone, context.turn.id),))


async def _offer(context: CommandContext) -> CommandReply:
    code = await context.services.people.links.offer(_account(context))
    lines = []
    accounts = context.services.people.links.accounts(context.services.people.links.person(context.account))
    if accounts:
        lines = [
            translate("account_links.linked", context.language),
            *(f"- `{_shown(each.identity)}`" for each in accounts),
            "",
        ]
    return CommandReply(
        text="\n".join([*lines, translate("account_links.code", context.language, code=code)]), is_secret=True
    )


async def _take(context: CommandContext, code: str) -> CommandReply:
    taken = await context.services.people.links.redeem(code, _account(context))
    match taken:
        case LinkLocked(minutes):
            return CommandReply(text=translate("account_links.locked", context.language, minutes=minutes))
        case UnknownLinkCode():
            return CommandReply(text=translate("account_links.wrong", context.language))
        case AlreadySamePerson():
            return CommandReply(text=translate("account_links.own", context.language))
        case LinkOffer():
            mine = translate(
                "account_links.question", context.language, mine=_account(context).label, other=taken.asker.label
            )
            their = context.services.chats.locales.language(taken.asker.key)
            theirs = translate("account_links.question", their, mine=taken.asker.label, other=_account(context).label)
            return CommandReply(
                text=mine,
                choices=_choices(context.language),
                also=(_to(context, taken.asker, theirs, choices=_choices(their)),),
            )


async def _agree(context: CommandContext) -> CommandReply:
    offer = await context.services.people.links.agree(context.account)
    other = offer.other(context.account) if offer is not None else None
    if offer is None or other is None:
        return CommandReply(text=translate("account_links.nothing_asked", context.language))
    if not offer.is_agreed:
        return CommandReply(
            text=translate("account_links.waits_for_other", context.language, other=other.label), settles=True
        )
    told = _to(context, other, translate("account_links.done", context.services.chats.locales.language(other.key)))
    done = translate("account_links.done", context.language)
    return CommandReply(text=done, settles=True, also=(told,), jobs=(context.services.people.links.link_job(offer),))


async def _refuse(context: CommandContext) -> CommandReply:
    offer = await context.services.people.links.refuse(context.account)
    other = offer.other(context.account) if offer is not None else None
    if other is None:
        return CommandReply(text=translate("account_links.nothing_asked", context.language))
    told = _to(
        context, other, translate("account_links.refused_by_other", context.services.chats.locales.language(other.key))
    )
    return CommandReply(text=translate("account_links.refused", context.language), settles=True, also=(told,))


def _account(context: CommandContext) -> LinkParty:
    name = " ".join(_UNSAID.sub(" ", context.message.sender.name).split())[:_LONGEST_NAME]
    shown = f"`{_shown(context.account)}`"
    return LinkParty(identity=context.account, label=f"{shown} ({name})" if name else shown, key=context.key)


def _shown(identity: str) -> str:
    """Return an account as people know it: the platform and the id there."""
    return _UNSAID.sub(" ", PlatformAccount.from_name(identity).label)


def _to(
    context: CommandContext, account: LinkParty, text: str, *, choices: tuple[MessageButton, ...] = ()
) -> OutboundMessage:
    return OutboundMessage(id=f"{context.turn.id}.2", key=account.key, text=text, choices=choices)


def _choices(language: str) -> tuple[MessageButton, ...]:
    return (
        MessageButton(label=translate("account_links.yes", language), command="/link yes"),
        MessageButton(label=translate("account_links.no", language), command="/link no"),
    )


# -- what the owner shares -----------------------------------------------------------------------------


@command("share", who=Role.OWNER)
async def share(context: CommandContext) -> CommandReply:
    """Keep a fact that everybody's conversations know from their next turn on."""
    fact = " ".join(context.args.split())
    if not fact:
        return CommandReply(text=translate("account_links.share_what", context.language), is_private=True)
    if len(fact) > LONGEST_FACT:
        return CommandReply(
            text=translate("account_links.too_long", context.language, most=LONGEST_FACT), is_private=True
        )
    job = remember_job(fact, turn=context.turn.id, scope=SHARED, origin="owner", by=context.account, at=context.now)
    return CommandReply(text=translate("account_links.shared", context.language), is_private=True, jobs=(job,))


@command("unshare", who=Role.OWNER)
async def unshare(context: CommandContext) -> CommandReply:
    """Take words out of what everybody's conversations know."""
    wanted = ErasurePattern.of(context.args)
    if wanted is None:
        return CommandReply(
            text=translate("account_links.unshare_what", context.language, least=SHORTEST), is_private=True
        )
    asker = ErasureRequester(person=context.account, sender=context.message.sender.id, may_all=True)
    gone = await context.services.memory.erasure.forget(SHARED, wanted, asker, turn=context.turn.id)
    name = "account_links.unshared" if gone.total else "account_links.nothing_shared_so"
    return CommandReply(text=translate(name, context.language, lines=gone.remembered), is_private=True)
