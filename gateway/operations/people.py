"""Operations on people: access, pairing, owners, quotas, the reasons of silence, and the data of one person."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gateway.control import Line
from gateway.control.registry import (
    AuditRule,
    Call,
    CommandConfirmation,
    Show,
    argument,
    operation,
    option,
    plain,
    rows,
)
from gateway.errors import UserError
from gateway.events import PlatformAccount, Role
from gateway.installation import operator_command, with_operator_commands
from gateway.operations.group import OperationGroup, caller, format_time
from gateway.ports.access import NO_QUOTA, AccessChange, CapKind, CappedSender, PersonAccess
from gateway.ports.journal import Job
from gateway.settings.chat_settings import PROFILES

if TYPE_CHECKING:
    from agent.tools.call_record import RefusedCall

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
DOWNLOADED = "files that `parlour chat` saved in downloads/: delete them yourself"
_KIND = re.compile(r"[a-z][a-z0-9-]*\Z")
_MOST = 1_000  # lines of the audit at once
_LINKED_WITHIN = 10.0  # seconds that a command waits for the move, which finishes without it
_POLL = 0.05
_MOST_CAP = 10**12
_USD = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?\Z")
_DEFAULT = "default"

Subject = Annotated[str, argument("channel:user_id, or channel:chat:ID, guild:ID, team:ID, role:ID.")]
User = Annotated[str, argument("As channel:user_id.")]
Request = Annotated[str, argument("The code, or channel:id, such as telegram:42 or slack:chat:C0TEAM.")]
Account = Annotated[str, argument("As kind:id, such as telegram:42 or slack:T0TEAM:U0USER.")]


# -- rows of a terminal ------------------------------------------------------------------------------


def _decision_rows(*, text: str, same: str = "") -> Show:
    texts = {"done": text, "same": same}
    return rows(lambda line: texts[line["ruling"]].format(whom=line["whom"]))


def _access_row(line: Line) -> str:
    ways = {"setting": "by the settings", "code": "by a claim code"}
    how = ways.get(line["came_by"], f"by {line['by']}")
    since = f" since {line['at'][:10]}" if line["at"] else ""
    name = f"  ({line['name']})" if line["name"] else ""
    return f"{line['channel']}:{line['who']}".ljust(32) + f"  {line['standing']:8}{how}{since}{name}"


def _nobody(arguments: Line) -> str:
    where = f" on {arguments['channel']}" if arguments["channel"] else ""
    return (
        f"no account of a platform may write{where} yet: use `parlour owner claim` or `parlour people allow`;"
        " `parlour web logins` lists the users of the page"
    )


def _link_rows(lines: Sequence[Line], arguments: Line) -> Iterable[str]:
    result = "are now one person" if lines[0]["done"] else "will become one person when their current turns finish"
    return [f"{arguments['account']} and {arguments['other']} {result}"]


def _audit_row(line: Line) -> str:
    whom = f" {line['whom']}" if line["whom"] else ""
    where = f" in {line['where']}" if line["where"] else ""
    return f"{line['at'][:19]}Z  {line['by']}{where}: {line['what']}{whom}: {line['outcome']}"


def _no_decisions(arguments: Line) -> str:
    about = arguments["about"]
    return f"there are no decisions by or about {about}" if about else "there are no decisions yet"


def claim_row(line: Line) -> str:
    """Return a claim code and the instruction how to use it."""
    where = " or ".join(line["channels"]) or "a channel, once one is configured"
    when = "" if line["running"] else "; start the gateway first"
    until = f"{line['until'][11:16]} UTC"
    hint = f"Send only this code to the bot in a direct message on {where}. It works once, until {until}{when}."
    return f"{line['code']}\n{hint}"


def _requests(lines: Sequence[Line], arguments: Line) -> Iterable[str]:
    yield from rows(_request_row, empty="no requests are pending")(lines, arguments)
    if lines:
        yield f"decide with: {operator_command('people approve|deny CHANNEL:ID')}"


def _request_row(line: Line) -> str:
    name = f" ({line['name']})" if line["name"] else ""
    by = f", added by {line['by_name'] or line['by']}" if line["by"] else ""
    until = f", until {format_time(line['until'])}" if line["until"] else ""
    return f"{line['channel']}:{line['who']}{name}{by}, since {format_time(line['at'])}{until}"


def _pairing_row(line: Line) -> str:
    name = f" ({line['name']})" if line["name"] else ""
    return f"{line['who']}{name} {'may write now' if line['yes'] else 'is not admitted'}"


def _quota_row(line: Line) -> str:
    if "caps" not in line:
        return f"{line['whom'].ljust(32)}  {_quota(line)}"
    quota = f"quota {_quota(line['quota'])}" if line["quota"] else "no quota of their own"
    texts = [f"{line['whom']}  {line['role']}: {quota}"]
    for each in line["caps"]:
        until = f", more at {format_time(each['until'])}" if each["until"] else ""
        used, limit = (CapKind(each["cap"]).format_amount(each[name]) for name in ("used", "limit"))
        texts.append(f"  {each['cap']}: {used} of {limit}{until}")
    return "\n".join(texts)


def _quota(line: Line) -> str:
    caps = {"turns": "messages in ten minutes", "tokens": "tokens a day", "usd": "US dollars a day"}
    return ", ".join(f"{line[name] or 'unlimited'} {words}" for name, words in caps.items() if line[name] is not None)


def silence_rows(lines: Sequence[Line], arguments: Line) -> Iterable[str]:
    """Yield the rejections and refused calls, then what their list does not show."""
    header, *refusals = lines
    for line in refusals:
        yield from _refusal_rows(line)
    subject = " ".join(filter(None, (arguments["channel"], arguments["id"])))
    yield from _state_rows(header, is_empty=all("tool" in each for each in refusals), subject=subject)


def _refusal_rows(line: Line) -> Iterable[str]:
    where = f"{line['channel']}:{line['chat']}" if line["chat"] else line["channel"]
    who = f"  {line['sender']}" if line["sender"] else ""
    name = f" ({line['name']})" if line["name"] else ""
    times = f", {line['times']} times since {format_time(line['first_at'])}" if line["times"] > 1 else ""
    verb = "asked a person first" if line["reason"] == "asked" else "did not run"
    tool = f"{line['tool']} {verb}: " if "tool" in line else ""
    yield f"{format_time(line['last_at'])}  {where}{who}{name}: {tool}{line['words']} ({line['reason']}{times})"
    for paste in line["paste"]:
        yield f"    {paste}"


def _state_rows(header: Line, *, is_empty: bool, subject: str) -> Iterable[str]:
    """Yield the state that the list of rejections does not show: its start, and channels without a connection."""
    if not header["running"]:
        yield "no gateway runs here; rejections are kept in the memory of a running gateway"
        return
    if is_empty:
        about = f" of {subject}" if subject else ""
        yield f"no message{about} was rejected by this gateway since its start at {format_time(header['since'])}"
    for name, is_connected in header["hears"].items():
        if is_connected is not True:
            state = "has not reached its platform yet" if is_connected is None else "is not connected to its platform"
            reason = header["refused_by"].get(name, f"see `{operator_command('doctor')}`")
            yield f"{name} {state}, so it receives no messages: {reason}"


def _confirm_forgetting(call: Call, arguments: Line) -> CommandConfirmation:
    (known,) = call("people look", arguments)
    what = "No memory of their own is stored, but everything they said in groups"
    what = "Everything" if known["is_known"] else what
    return CommandConfirmation(f"{what} of {arguments['person']} will be deleted permanently. Continue?")


def _forget_rows(lines: Sequence[Line], arguments: Line) -> Iterable[str]:
    (line,) = lines
    chats = len(line["chats"])
    yield f"{arguments['person']} is forgotten: their own memory, and what they said in {chats} shared chats."
    yield "What remains, and where:"
    yield from (with_operator_commands(f"- {each}") for each in line["remains"])


# -- operations --------------------------------------------------------------------------------------


class PeopleOperations(OperationGroup):
    """The operations `people …`, `owner …` and `why`."""

    @operation("people list", Role.OWNER, show=rows(_access_row, empty=_nobody))
    async def list_people(self, channel: Annotated[str, argument("Only this channel.")] = "") -> AsyncIterator[Line]:
        """List access entries: members and blocked people, with the decision behind each."""
        lines = [each for each in self._app.roster.list_access() if channel in ("", each.channel)]
        if channel and not lines:
            self._app.platforms.require(channel)
        for each in lines:
            yield plain(each)

    @operation(
        "people allow",
        Role.OWNER,
        {"who"},
        audit=AuditRule.OPERATION,
        makes_home=True,
        show=_decision_rows(text="{whom} may write, starting with the next message", same="{whom} may already write"),
    )
    async def allow(self, who: Subject, here: str = "") -> AsyncIterator[Line]:
        """Admit a person, chat, guild, team or role at once, and lift a block."""
        yield plain(await self._app.access_control.allow(who, caller(), here=here))

    @operation(
        "people block",
        Role.OWNER,
        {"who"},
        audit=AuditRule.OPERATION,
        makes_home=True,
        show=_decision_rows(text="{whom} is blocked", same="{whom} is already blocked"),
    )
    async def block(self, who: Subject, here: str = "") -> AsyncIterator[Line]:
        """Block a person, chat or guild, whatever the settings say."""
        yield plain(await self._app.access_control.block(who, caller(), here=here))

    @operation(
        "people remove",
        Role.OWNER,
        audit=AuditRule.OPERATION,
        show=_decision_rows(text="the decision about {whom} is removed; the settings apply again"),
    )
    async def remove(self, who: Subject) -> AsyncIterator[Line]:
        """Remove a decision, so that the settings apply again."""
        yield plain(await self._app.access_control.remove(who, caller()))

    @operation("people link", makes_home=True, show=_link_rows)
    async def link(
        self, account: Account, other: Annotated[str, argument("Another account of the same person.")]
    ) -> AsyncIterator[Line]:
        """Link two accounts to one person with one memory. The person is not asked; `/unlink` separates them again.

        The operator may read both memories. As with `/link`, the older person remains.
        """
        from agent.memory.account_links.account_linker import LINK

        typed = [account, other]
        if self._app.settings.memory.isolation == "shared":
            raise UserError("all people share one memory here (memory.isolation: shared), so there is nothing to link")
        links = self._app.store.links
        scopes = [await self.find_scope(person=each) for each in typed]
        linked = [PlatformAccount.from_name(scope.rpartition("/")[2]) for scope in scopes]
        if links.person(linked[0]) == links.person(linked[1]):
            raise UserError(f"{typed[0]} and {typed[1]} are already one person")
        now, decider = self._app.store.journal.now(), caller()
        await self._app.store.access.change(AccessChange(line=decider.to_entry("link", " ".join(typed), now)))
        payload = {"accounts": [each.name for each in linked]}
        job = Job(id=f"link:{decider.id}", kind=LINK, scope="", payload=payload, due_at=now)
        await self._app.store.jobs.put(job)
        if not self._app.channels:  # no job runner is at work in this process
            await self._link_now(job)
        is_done = await self._is_linked(linked)
        yield {"accounts": typed, "person": links.person(linked[0]) if is_done else "", "done": is_done}

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

    @operation("people audit", Role.OWNER, show=rows(_audit_row, empty=_no_decisions))
    async def audit(
        self,
        about: Annotated[str, argument("Only decisions by or about this channel:user_id.")] = "",
        limit: Annotated[int, option("How many of the newest to show.", least=1, most=_MOST)] = 50,
    ) -> AsyncIterator[Line]:
        """List decisions about people and shared chats, with actor, time and place. They are kept for a year."""
        for each in await self._app.store.access.audit(limit=min(limit, _MOST), about=about):
            yield plain(each)

    # -- owners ------------------------------------------------------------------------------------

    @operation("owner claim", makes_home=True, show=rows(claim_row))
    async def claim(self) -> AsyncIterator[Line]:
        """Print a code that makes its sender the owner. It works once, for 15 minutes, while no owner exists."""
        issued = await self._app.owner_claims.issue()
        if issued is None:
            owners = ", ".join(str(each) for each in self._app.roster.owners())
            raise UserError(f"an owner already exists: {owners}; `parlour owner list` shows how they became one")
        channels = [name for name, policy in self._app.roster.policies.items() if not policy.is_local]
        yield {**plain(issued), "channels": sorted(channels), "running": bool(self._app.channels)}

    @operation(
        "owner list",
        show=rows(_access_row, empty="no owner is set, except on this machine's page: use `parlour owner claim`"),
    )
    async def list_owners(self) -> AsyncIterator[Line]:
        """List the owners."""
        for each in self._app.roster.owners():
            yield plain(each)

    @operation(
        "owner add",
        Role.OWNER,
        audit=AuditRule.OPERATION,
        makes_home=True,
        show=_decision_rows(
            text="{whom} is an owner, starting with the next message", same="{whom} is already an owner"
        ),
    )
    async def make_owner(self, who: User) -> AsyncIterator[Line]:
        """Make a person an owner: they decide who may write, and everything else."""
        yield plain(await self._app.access_control.make_owner(who, caller()))

    @operation(
        "owner remove", Role.OWNER, audit=AuditRule.OPERATION, show=_decision_rows(text="{whom} is no longer an owner")
    )
    async def disown(self, who: User) -> AsyncIterator[Line]:
        """Remove an owner who is not in the settings."""
        yield plain(await self._app.access_control.disown(who, caller()))

    # -- pairing -----------------------------------------------------------------------------------

    @operation("people pending", Role.OWNER, show=_requests)
    async def pending(self) -> AsyncIterator[Line]:
        """List pairing requests: people who asked for access, and chats that the bot was added to."""
        for waiting in self._app.pairing.pending_requests():
            yield plain(waiting)

    @operation("people approve", Role.OWNER, audit=AuditRule.OPERATION, show=rows(_pairing_row))
    async def approve(self, who: Request) -> AsyncIterator[Line]:
        """Approve a pairing request."""
        yield await self._decide(who, is_yes=True)

    @operation("people deny", Role.OWNER, audit=AuditRule.OPERATION, show=rows(_pairing_row))
    async def deny(self, who: Request) -> AsyncIterator[Line]:
        """Deny a pairing request. Its sender is not notified."""
        yield await self._decide(who, is_yes=False)

    async def _decide(self, who: str, *, is_yes: bool) -> Line:
        decision = await self._app.pairing.decide(who.strip(), caller(), is_yes=is_yes)
        waiting = decision.waiting
        return {"who": f"{waiting.channel}:{waiting.who}", "name": waiting.name, "yes": decision.is_yes}

    # -- silence -----------------------------------------------------------------------------------

    @operation("why", show=silence_rows)
    async def why(
        self,
        channel: Annotated[str, argument("The channel.")] = "",
        id_: Annotated[str, argument("The id of a user or chat.", metavar="ID")] = "",
    ) -> AsyncIterator[Line]:
        """Explain silence: rejected messages and refused tool calls, the reason, and the setting that would change it.

        Yields the state of the channels, one line per recent rejection, then one per tool call that was refused.
        """
        from agent.tools.call_record import find_refused_calls
        from gateway.access.refusal_log import explain_refusal

        if channel:
            self._app.platforms.require(channel)
        yield {
            "running": bool(self._app.channels),
            "since": plain(self._app.since),
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
        from agent.tools.rights import RefusalRule
        from agent.turns.chat_profiles import stored_guild

        if call.rule == RefusalRule.ROLE:
            return [f"in parlour.yaml: tools: {{rights: {{{call.tool}: {{who: member}}}}}}"]
        if call.rule == RefusalRule.WHERE:
            return [f"in parlour.yaml: tools: {{rights: {{{call.tool}: {{where: [direct, shared]}}}}}}"]
        if call.rule != RefusalRule.CHAT:
            return []
        guild = stored_guild(self._app.store.people, call.key)
        settings = self._app.commands.list_settings(call.key, guild, "")
        place = next(each.said_by for each in settings if each.name == "tools")
        if place.startswith(f"{PROFILES}."):
            return [f"in parlour.yaml, below {place}: allow {call.tool} in tools, or choose another profile with /as"]
        return [f'in parlour.yaml, below chats and "{place}": allow {call.tool} in tools']

    # -- quotas ------------------------------------------------------------------------------------

    @operation(
        "people quota",
        Role.OWNER,
        {"who", "turns", "tokens", "usd"},
        audit=AuditRule.OPERATION,
        makes_home=True,
        show=rows(_quota_row, empty="no person has a quota of their own"),
    )
    async def quota(
        self,
        who: Annotated[str, argument("channel:user_id; without one, list all quotas.")] = "",
        turns: Annotated[object, option("Messages in ten minutes: a number, 0, or default.", metavar="N")] = "",
        tokens: Annotated[object, option("Tokens a day: a number, 0, or default.", metavar="N")] = "",
        usd: Annotated[object, option("US dollars a day: a number, 0, or default.", metavar="N")] = "",
        here: str = "",
        team: str = "",
    ) -> AsyncIterator[Line]:
        """Show or set the caps of one person, over those of chats and settings. 0 = unlimited, default removes one.

        Without a person, yields a line per quota: the account that it was set for, and its caps. With one, yields their
        access, their quota, and use and limit of each of their caps. Raises UserError for other caps.
        """
        decisions = self._app.access_control
        caps = {"turns": turns, "tokens": tokens, "usd": usd}
        given = {name: _limit(name, value) for name, value in caps.items() if value != ""}
        if not who:
            if given:
                raise UserError("name the person: `parlour people quota CHANNEL:USER_ID --tokens N`")
            for whom, quota in decisions.list_quotas().items():
                yield {"whom": whom, **plain(quota)}
            return
        person = decisions.find_person(who, here=here)
        if not given:
            yield await self._describe(person, team)
            return
        decision = await decisions.set_quota(person.whom, replace(person.quota, **given), caller())
        yield {**await self._describe(decisions.find_person(person.whom), team), "ruling": decision.ruling.value}

    async def _describe(self, person: PersonAccess, team: str) -> Line:
        accounts = await self._accounts_with_teams(person, team)
        sender = CappedSender(account=accounts[0], accounts=accounts, is_named=person.is_named)
        caps = await self._app.caps.allowances(None, sender)
        return {
            "whom": person.whom,
            "role": "owner" if person.is_owner else "member",
            "is_named": person.is_named,
            "blocked_as": person.blocked_as,
            "accounts": [str(each) for each in accounts],
            "quota": None if person.quota == NO_QUOTA else plain(person.quota),
            "caps": [plain(each) for each in caps],
        }

    async def _accounts_with_teams(self, person: PersonAccess, team: str) -> tuple[PlatformAccount, ...]:
        """Return all accounts of the person with their teams, which decisions leave out and counts do not.

        Of a person who is neither linked nor remembered it is *team*, which an owner's chat has in common with them.
        """
        user = person.accounts[0]
        linked = tuple(each.account for each in self._app.store.links.accounts_of_user(user))
        if linked or not self._app.platforms.traits(person.whom.partition(":")[0]).has_teams:
            return linked or (user,)
        try:
            scope = await self.find_scope(person=str(user))
        except UserError:  # nothing is remembered, so the team is not known
            return (replace(user, team=team),)
        return (PlatformAccount.from_name(scope.rpartition("/")[2]),)

    # -- the data of one person --------------------------------------------------------------------

    @operation(
        "people export", show=rows(lambda line: f"{line['file']} holds {line['files']} files of {line['scope']}")
    )
    async def export(
        self, person: Account, file: Annotated[Path, argument("The .zip file to write; it must not exist yet.")]
    ) -> AsyncIterator[Line]:
        """Write all data of a person into a zip file: memory, conversations, files and usage."""
        await self._app.session_files.flush()  # a scope is there once something of it is in a file
        scope = await self.find_scope(person=person)
        await self._app.memory.jobs.settle(scope)
        try:
            language = self._app.store.people.preferences(scope).get("language", self._app.settings.language)
            packed = await self._app.privacy.exports.write(scope, scope.rpartition("/")[2], file, language=language)
        except FileExistsError:
            raise UserError(f"{file} already exists; name another file") from None
        except OSError as error:
            raise UserError(f"{file} cannot be written: {error.strerror or error}") from error
        yield {"file": str(file), "scope": scope, "files": packed.files}

    @operation("people look")
    async def look(self, person: str) -> AsyncIterator[Line]:
        """Yield whether any data of a person is stored. Raises UserError for a malformed account."""
        account = self._account(person)
        yield {"person": account.label, "is_known": await self._is_known(account)}

    @operation("people forget", show=_forget_rows, confirm=_confirm_forgetting)
    async def forget(self, person: Account) -> AsyncIterator[Line]:
        """Erase a person everywhere: memory, conversations, files, preferences, and their messages in groups.

        Yields one line with what was erased and what remains. Idempotent. Raises UserError for an account without any
        stored data, which is most likely misspelt.
        """
        from agent.memory.erasure.erase_service import has_downloads
        from agent.memory.erasure.scope_eraser import PEOPLE

        account, erasure = self._account(person), self._app.memory.erasure
        is_known = await self._is_known(account)
        if is_known:
            await self._record_erasure(account)
        try:
            erased = await erasure.scope_eraser.erase_person(account)
        except OSError as error:
            raise UserError(f"not everything was deleted ({error.strerror or error}); run it again") from error
        if not is_known:
            if not erased.chats:
                raise UserError(
                    f"nothing is stored about {account.label}; `parlour memory` and `parlour people list` list people."
                    " In groups, `/forget NAME --purge` removes quoted messages of a person by name"
                )
            await self._record_erasure(account)
        kinds = {PlatformAccount.from_name(each.removeprefix(PEOPLE)).kind for each in erased.scopes}
        saves_files = not erasure.saving_platforms.isdisjoint(kinds)
        stays = saves_files and await asyncio.to_thread(has_downloads, self._app.home.path)
        remains = [*REMAINS, DOWNLOADED] if stays else list(REMAINS)
        yield {"person": erased.person, "scopes": list(erased.scopes), "chats": list(erased.chats), "remains": remains}

    async def _is_known(self, account: PlatformAccount) -> bool:
        """Return True if data of *account* is stored, or was before it was erased."""
        scopes = (await self.names()).all()
        if any(f"people/{each}" in scopes for each in (account.name, self._app.store.links.person(account))):
            return True
        roster, accounts = self._app.roster, self._accounts(account)
        named = {(each.channel, each.who) for each in roster.list_access()}
        named |= {(each.channel, each.who) for each in self._app.pairing.pending_requests()}
        if any(roster.account(channel, who) in accounts for channel, who in named):
            return True
        return bool(await self._app.store.access.audit(about=account.label, limit=1))

    async def _record_erasure(self, account: PlatformAccount) -> None:
        """Record in the audit that *account* is to be erased, and drop its pairing requests."""
        accounts = self._accounts(account)
        await self._app.access_control.note_forgetting(account.label, accounts, caller())
        users = [
            (name, each.id) for name, kind in self._app.platforms.items() for each in accounts if each.kind == kind
        ]
        await self._app.pairing.forget(users)

    def _accounts(self, account: PlatformAccount) -> set[PlatformAccount]:
        links = self._app.store.links
        return {account.user, *(each.account.user for each in links.accounts(links.person(account)))}

    def _account(self, name: str) -> PlatformAccount:
        """Return the account that is meant. Raises UserError for a text that names none."""
        account = PlatformAccount.from_input(name, has_teams=self._app.platforms.has_teams)
        if not _KIND.match(account.kind) or not account.id:
            raise UserError(f"{name!r} is not an account; write kind:id, such as telegram:42 or slack:T0TEAM:U0USER")
        return account


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
