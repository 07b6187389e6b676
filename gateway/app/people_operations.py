"""Operator commands for people: access, pairing, owners, quotas, the reasons of silence, and the data of one person."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agent.chat_profiles import stored_guild
from agent.memory.account_links.account_linker import LINK
from agent.memory.erasure.erase_service import has_downloads
from agent.memory.erasure.scope_eraser import PEOPLE
from agent.memory.scope_names import ScopeSelector
from agent.memory.stored_sessions import StoredSessions
from agent.tools.call_record import CallOutcome, ToolCallRecord, call_records, sender_of
from agent.tools.rights import QuestionReason, RefusalRule
from agent.tools.tool_questions import LONGEST_SHOWN, MOST_QUESTIONS
from gateway.access.note_store import parse_code
from gateway.access.refusal_log import explain_refusal
from gateway.app.access import accounts_of
from gateway.app.memory_operations import MemoryOperations
from gateway.app.operation_group import OperationGroup, by_owner, operation, plain, target_file
from gateway.control import Line
from gateway.errors import UserError
from gateway.events import PlatformAccount, SessionKey
from gateway.ports import Job
from gateway.ports.access import (
    ACTING,
    NO_QUOTA,
    OPERATOR,
    AccessChange,
    DecisionActor,
    PersonAccess,
)
from gateway.ports.caps import CappedSender
from gateway.ports.pairing import Outcome, PairingDecision, PairingLocked, PairingRequest
from gateway.web_console.console_routes import AuditRule

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime

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


REMAINS = (
    "their messages on the platforms",
    "what the model's provider stores",
    "earlier backups, until you delete them",
    "what others said about them, and summaries of groups that mention them: `/forget NAME --purge` there",
    "messages quoted from groups where they never wrote to the bot: they are stored by name only, with the message that"
    " mentioned the bot; `/forget NAME --purge` there removes them",
    "usage totals without a name, and ids of handled messages for up to 30 days, so that none is answered twice",
    "their entries in PARLOUR_OWNERS and allow_from: remove them, or the person can write again",
    "decisions about them (`parlour people list`), and for a year the audit lines with their id",
)
_KIND = re.compile(r"[a-z][a-z0-9-]*\Z")
DOWNLOADED = "files that `parlour chat` saved in downloads/: delete them yourself"
_MOST = 1_000  # lines of the audit at once
_LINKED_WITHIN = 10.0  # seconds that a command waits for the move, which finishes without it
_POLL = 0.05
_MOST_CAP = 10**12
_USD = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?\Z")
_DEFAULT = "default"


class PeopleOperations(OperationGroup):
    """The operations `people …`, `owner …` and `why`."""

    def __init__(self, app: Runtime) -> None:
        super().__init__(app)
        self._started_at = datetime.now(UTC)

    @operation("people list", by_owner())
    async def list_people(self, channel: str = "") -> AsyncIterator[Line]:
        """Yield one line per account, chat or guild with an access entry, of one channel if `channel` is given."""
        lines = [each for each in self._app.access.roster.list_access() if channel in ("", each.channel)]
        if channel and not lines:
            self._app.platforms.require(channel)
        for each in lines:
            yield plain(each)

    @operation("people allow", by_owner(audit=AuditRule.OPERATION))
    async def allow(self, who: str = "") -> AsyncIterator[Line]:
        """Admit a person, chat, guild, team or role."""
        yield plain(await self._app.access.decisions.allow(who, operator()))

    @operation("people block", by_owner(audit=AuditRule.OPERATION))
    async def block(self, who: str = "") -> AsyncIterator[Line]:
        """Block a person, chat or guild."""
        yield plain(await self._app.access.decisions.block(who, operator()))

    @operation("people remove", by_owner(audit=AuditRule.OPERATION))
    async def remove(self, who: str = "") -> AsyncIterator[Line]:
        """Remove a decision made by an owner or the operator."""
        yield plain(await self._app.access.decisions.remove(who, operator()))

    @operation("people link")
    async def link(self, account: str = "", other: str = "") -> AsyncIterator[Line]:
        """Link two accounts to one person, without a confirmation: the operator may read both memories.

        As with `/link`, the older person remains, and `/unlink` separates the accounts again.
        """
        typed = [account, other]
        if self._app.settings.memory.isolation == "shared":
            raise UserError("all people share one memory here (memory.isolation: shared), so there is nothing to link")
        names, links = await MemoryOperations(self._app).names(), self._app.store.links
        scopes = [names.find(ScopeSelector(person=each)) for each in typed]
        linked = [PlatformAccount.from_name(scope.rpartition("/")[2]) for scope in scopes]
        if links.person(linked[0]) == links.person(linked[1]):
            raise UserError(f"{typed[0]} and {typed[1]} are already one person")
        now, decider = self._app.store.journal.now(), operator()
        await self._app.store.access.change(AccessChange(line=decider.to_entry("link", " ".join(typed), now)))
        payload = {"accounts": [each.name for each in linked]}
        job = Job(id=f"link:{decider.id}", kind=LINK, scope="", payload=payload, due_at=now)
        await self._app.store.jobs.put(job)
        if not self._app.channels:  # no job runner is at work in this process
            await self._link_now(job)
        is_done = await self._is_linked(linked)
        yield {"accounts": typed, "person": links.person(linked[0]) if is_done else "", "done": is_done}

    @operation("people audit", by_owner())
    async def audit(self, limit: int = 50, about: str = "") -> AsyncIterator[Line]:
        """Yield the newest audit entries, of one "channel:user_id" if *about* is given."""
        for each in await self._app.store.access.audit(limit=min(limit, _MOST), about=about):
            yield plain(each)

    @operation("owner claim")
    async def claim(self) -> AsyncIterator[Line]:
        """Yield a code whose sender becomes the owner. Raises UserError when an owner exists."""
        issued = await self._app.access.claims.issue()
        if issued is None:
            owners = ", ".join(str(each) for each in self._app.access.roster.owners())
            raise UserError(f"an owner already exists: {owners}; `parlour owner list` shows how they became one")
        channels = [name for name, policy in self._app.access.roster.policies.items() if not policy.is_local]
        yield {**plain(issued), "channels": sorted(channels), "running": bool(self._app.channels)}

    @operation("owner list")
    async def list_owners(self) -> AsyncIterator[Line]:
        """Yield one line per owner."""
        for each in self._app.access.roster.owners():
            yield plain(each)

    @operation("owner add", by_owner(audit=AuditRule.OPERATION))
    async def make_owner(self, who: str = "") -> AsyncIterator[Line]:
        """Make a person an owner."""
        yield plain(await self._app.access.decisions.make_owner(who, operator()))

    @operation("owner remove", by_owner(audit=AuditRule.OPERATION))
    async def disown(self, who: str = "") -> AsyncIterator[Line]:
        """Remove an owner whom no setting names."""
        yield plain(await self._app.access.decisions.disown(who, operator()))

    @operation("why")
    async def why(self, channel: str = "", id_: str = "") -> AsyncIterator[Line]:
        """Yield the state of the channels, one line per recent rejection, then one per tool call that was refused.

        *id_* is a person or chat of the channel.
        """
        if channel:
            self._app.platforms.require(channel)
        yield {
            "running": bool(self._app.channels),
            "since": plain(self._started_at),
            "hears": {name: state for name, state in self._app.supervisor.states().items() if channel in ("", name)},
            "refused_by": {name: str(line) for name, line in self._app.supervisor.refusals().items()},
        }
        for refusal in self._app.refusals.recent(channel, id_):
            explanation = explain_refusal(refusal)
            yield {**plain(refusal), "words": explanation.words, "paste": list(explanation.paste)}
        for call in await find_refused_calls(self._app.memory.sessions, channel, id_):
            yield self._refused_call_line(call)

    def _refused_call_line(self, call: RefusedCall) -> Line:
        line = {name: value for name, value in plain(call).items() if name not in ("key", "rule")}
        chat = {"channel": call.key.channel, "chat": call.key.parent.chat}
        return {**chat, **line, "reason": call.rule, "paste": self._tool_settings(call)}

    def _tool_settings(self, call: RefusedCall) -> list[str]:
        """Return the setting that would have let the call run, if one refused it."""
        if call.rule == RefusalRule.ROLE:
            return [f"in parlour.yaml: tools: {{rights: {{{call.tool}: {{who: member}}}}}}"]
        if call.rule == RefusalRule.WHERE:
            return [f"in parlour.yaml: tools: {{rights: {{{call.tool}: {{where: [direct, shared]}}}}}}"]
        if call.rule != RefusalRule.CHAT:
            return []
        guild = stored_guild(self._app.store.people, call.key)
        settings = self._app.commands.list_settings(call.key, guild, "")
        place = next(each.said_by for each in settings if each.name == "tools")
        return [f'in parlour.yaml, below chats and "{place}": allow {call.tool} in tools']

    @operation("people pending", by_owner())
    async def pending(self) -> AsyncIterator[Line]:
        """Yield one line per pairing request."""
        for waiting in self._app.access.pairing.pending_requests():
            yield plain(waiting)

    @operation("people approve", by_owner(audit=AuditRule.OPERATION))
    async def approve(self, who: str = "") -> AsyncIterator[Line]:
        """Approve the pairing request with this code, or of this channel:id."""
        yield await self._decide(who.strip(), is_yes=True)

    @operation("people deny", by_owner(audit=AuditRule.OPERATION))
    async def deny(self, who: str = "") -> AsyncIterator[Line]:
        """Deny the pairing request with this code, or of this channel:id."""
        yield await self._decide(who.strip(), is_yes=False)

    async def _decide(self, request: str, *, is_yes: bool) -> Line:
        pairing = self._app.access.pairing
        decider = operator()
        match = next((each for each in pairing.pending_requests() if request in (_name(each), each.ref)), None)
        outcome: Outcome
        if match is not None:
            outcome = await pairing.by_ref(match.ref, decider, is_yes=is_yes)
        elif parse_code(request):
            outcome = await pairing.by_code(request, decider, is_yes=is_yes)
        else:
            raise UserError(f"no request of {request!r} is pending; `parlour people pending` lists all requests")
        if isinstance(outcome, PairingLocked):
            raise UserError(
                f"too many wrong codes: codes are not accepted for {outcome.minutes} minutes; use channel:id instead"
                " (`parlour people pending` lists the requests)"
            )
        if not isinstance(outcome, PairingDecision):
            raise UserError("no request has that code: it was already decided, expired after an hour, or is mistyped")
        return {"who": _name(outcome.waiting), "name": outcome.waiting.name, "yes": outcome.is_yes}

    async def _link_now(self, job: Job) -> None:
        for _ in range(round(_LINKED_WITHIN / _POLL)):
            if await self._app.memory.linker.link(job) is None:
                await self._app.store.jobs.finish(job)
                return
            await asyncio.sleep(_POLL)

    async def _is_linked(self, accounts: list[PlatformAccount]) -> bool:
        links = self._app.store.links
        for _ in range(round(_LINKED_WITHIN / _POLL)):
            if links.person(accounts[0]) == links.person(accounts[1]):
                return True
            await asyncio.sleep(_POLL)
        return False

    # -- quotas ------------------------------------------------------------------------------------

    @operation("people show", by_owner())
    async def show(self, who: str = "") -> AsyncIterator[Line]:
        """Yield the access of the person of account *who*, their quota, and use and limit of each of their caps."""
        yield await self._describe(self._app.access.decisions.find_person(who))

    @operation("people quota", by_owner(audit=AuditRule.OPERATION))
    async def set_quota(
        self, who: str = "", turns: object = None, tokens: object = None, usd: object = None
    ) -> AsyncIterator[Line]:
        """Set *turns*, *tokens* and *usd* of the person of account *who*, and yield them as `people show` does.

        Each is a number (0 = no cap) or "default"; a missing one stays. Raises UserError for anything else.
        """
        caps = {"turns": turns, "tokens": tokens, "usd": usd}
        given = {name: _limit(name, value) for name, value in caps.items() if value is not None}
        if not given:
            raise UserError("say turns, tokens or usd: a number, 0 for no cap, or default")
        person = self._app.access.decisions.find_person(who)
        decision = await self._app.access.decisions.set_quota(who, replace(person.quota, **given), operator())
        yield {**await self._describe(self._app.access.decisions.find_person(who)), "ruling": decision.ruling.value}

    @operation("people quotas", by_owner())
    async def list_quotas(self) -> AsyncIterator[Line]:
        """Yield a line per person with a quota: the account that it was set for, turns, tokens and dollars."""
        for whom, quota in self._app.access.decisions.list_quotas().items():
            yield {"whom": whom, **plain(quota)}

    async def _describe(self, person: PersonAccess) -> Line:
        accounts = await self._accounts_with_teams(person)
        sender = CappedSender(account=accounts[0], accounts=accounts, is_named=person.is_named)
        caps = await self._app.usage.caps.allowances(None, sender)
        return {
            "whom": person.whom,
            "role": "owner" if person.is_owner else "member",
            "is_named": person.is_named,
            "blocked_as": person.blocked_as,
            "accounts": [str(each) for each in accounts],
            "quota": None if person.quota == NO_QUOTA else plain(person.quota),
            "caps": [plain(each) for each in caps],
        }

    async def _accounts_with_teams(self, person: PersonAccess) -> tuple[PlatformAccount, ...]:
        """Return all accounts of the person with their teams, which decisions leave out and counts do not."""
        user = person.accounts[0]
        linked = tuple(each.account for each in self._app.store.links.accounts_of_user(user))
        if linked or not self._app.platforms.traits(person.whom.partition(":")[0]).has_teams:
            return linked or (user,)
        names = await MemoryOperations(self._app).names()
        try:
            scope = names.find(ScopeSelector(person=str(user)))
        except UserError:  # nothing is remembered, so the team is not known
            return (user,)
        return (PlatformAccount.from_name(scope.rpartition("/")[2]),)

    # -- the data of one person --------------------------------------------------------------------

    @operation("people export")
    async def export(self, person: str = "", file: str = "") -> AsyncIterator[Line]:
        """Write all data of a person into a zip file. The client makes the path absolute."""
        target = target_file(file)
        await self._app.session_files.flush()  # a scope is there once something of it is in a file
        wish = ScopeSelector(person=person)
        scope = (await MemoryOperations(self._app).names()).find(wish)
        await self._app.memory.jobs.settle(scope)
        try:
            language = self._app.commands.preferences.preferences(scope).get("language", self._app.settings.language)
            exports = self._app.commands.privacy.exports
            packed = await exports.write(scope, scope.rpartition("/")[2], target, language=language)
        except FileExistsError:
            raise UserError(f"{target} already exists; name another file") from None
        except OSError as error:
            raise UserError(f"{target} cannot be written: {error.strerror or error}") from error
        yield {"file": str(target), "scope": scope, "files": packed.files}

    @operation("people look")
    async def look(self, person: str = "") -> AsyncIterator[Line]:
        """Yield whether any data of a person is stored. Raises UserError for a malformed account."""
        account = self._account(person)
        yield {"person": account.label, "is_known": await self._is_known(account)}

    @operation("people forget")
    async def forget(self, person: str = "") -> AsyncIterator[Line]:
        """Erase a person everywhere; yield one line with what was erased and what remains. Idempotent.

        Raises UserError for an account without any stored data, which is most likely misspelt.
        """
        account = self._account(person)
        is_known = await self._is_known(account)
        if is_known:
            await self._note(account)
        try:
            erased = await self._app.commands.erasure.scope_eraser.erase_person(account)
        except OSError as error:
            raise UserError(f"not everything was deleted ({error.strerror or error}); run it again") from error
        if not is_known:
            if not erased.chats:
                raise UserError(
                    f"nothing is stored about {account.label}; `parlour memory` and `parlour people list` list people."
                    " In groups, `/forget NAME --purge` removes quoted messages of a person by name"
                )
            await self._note(account)
        kinds = {PlatformAccount.from_name(each.removeprefix(PEOPLE)).kind for each in erased.scopes}
        saves_files = not self._app.commands.erasure.saving_platforms.isdisjoint(kinds)
        stays = saves_files and await asyncio.to_thread(has_downloads, self._app.home.path)
        remains = [*REMAINS, DOWNLOADED] if stays else list(REMAINS)
        yield {"person": erased.person, "scopes": list(erased.scopes), "chats": list(erased.chats), "remains": remains}

    async def _is_known(self, account: PlatformAccount) -> bool:
        """Return True if data of *account* is stored, or was before it was erased."""
        scopes = (await MemoryOperations(self._app).names()).all()
        if any(f"{PEOPLE}{each}" in scopes for each in (account.name, self._app.store.links.person(account))):
            return True
        accounts = self._accounts(account)
        named = {(each.channel, each.who) for each in self._app.access.decisions.list_access()}
        named |= {(each.channel, each.who) for each in self._app.access.pairing.pending_requests()}
        if any(self._app.access.roster.account(channel, who) in accounts for channel, who in named):
            return True
        return bool(await self._app.store.access.audit(about=account.label, limit=1))

    async def _note(self, account: PlatformAccount) -> None:
        """Record in the audit that *account* is to be erased, and drop its pairing requests."""
        accounts = self._accounts(account)
        await self._app.access.decisions.note_forgetting(account.label, accounts, operator())
        users = [
            (name, each.id) for name, kind in self._app.platforms.items() for each in accounts if each.kind == kind
        ]
        await self._app.access.pairing.forget(users)

    def _accounts(self, account: PlatformAccount) -> set[PlatformAccount]:
        return {account.user, *accounts_of(self._app.store.links, account)}

    def _account(self, name: str) -> PlatformAccount:
        """Return the account that is meant. Raises UserError for a text that names none."""
        account = PlatformAccount.from_input(name, has_teams=self._app.platforms.has_teams)
        if not _KIND.match(account.kind) or not account.id:
            raise UserError(f"{name!r} is not an account; write kind:id, such as telegram:42 or slack:T0TEAM:U0USER")
        return account


def operator() -> DecisionActor:
    """Return the caller of the running operation as the actor of a decision, with a new audit id.

    That is the operator at the command line, or an owner at the page's console.
    """
    acting = ACTING.get()
    return DecisionActor(by=acting or OPERATOR, where="", id=f"o{secrets.token_hex(8)}")


def _name(request: PairingRequest) -> str:
    return f"{request.channel}:{request.who}"


def _limit(name: str, value: object) -> Any:
    """Return a cap as it was given; None = default."""
    text = str(value).strip().lower()
    if text == _DEFAULT:
        return None
    if name == "usd":
        if not _USD.match(text):
            raise UserError("usd is a number of dollars such as 2.50, 0 for no cap, or default")
        return float(text)
    if not (text.isascii() and text.isdecimal() and int(text) <= _MOST_CAP):
        raise UserError(f"{name} is a number up to {_MOST_CAP}, 0 for no cap, or default")
    return int(text)
