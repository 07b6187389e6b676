"""What the operator can ask about who may write and who decides: people, owners, the audit."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from agent.memory.account_links.account_linker import LINK
from agent.memory.scope_names import ScopeSelector
from gateway.access import codes
from gateway.access.refusal_reasons import explain_refusal
from gateway.app.memory_operations import MemoryOperations
from gateway.control import Line, Operation
from gateway.errors import UserError
from gateway.operations import plain
from gateway.ports import Job
from gateway.ports.access import OPERATOR, AccessChange, AccessDecision, AuditEntry, DecisionActor, DecisionOutcome
from gateway.ports.pairing import Outcome, PairingDecision, PairingLocked, PairingRequest

if TYPE_CHECKING:
    from gateway.app.app import GatewayApp

_MOST = 1_000  # lines of the audit at once
_LINKED_WITHIN = 10.0  # seconds that a command waits for the move; it goes on without it
_LOOK = 0.05

_MENDS: Mapping[DecisionOutcome, str] = {
    DecisionOutcome.SET_OWNER: "{whom} stands in PARLOUR_OWNERS: take it out there first, and restart",
    DecisionOutcome.OWNER: "{whom} is an owner: `parlour owner remove {whom}` comes first",
    DecisionOutcome.BLOCKED_AS: "{whom} is the same person as {other}, who is blocked: `parlour people allow {other}`",
    DecisionOutcome.NOBODY: "{whom!r} is no id; write channel:user_id, or channel:chat:ID, guild:ID, team:ID, role:ID",
    DecisionOutcome.ONLY_LET_IN: "people, chats and guilds can be blocked; a role or team is admitted by its entry",
    DecisionOutcome.ELSEWHERE: "{whom!r} names no channel that admits people; write channel:user_id, one of: {other}",
    DecisionOutcome.UNLISTED: "nothing was decided about {whom}; `parlour people list` shows who may write",
    DecisionOutcome.BY_SETTING: "{whom} is in the settings (PARLOUR_OWNERS, allow_from): remove it there, or block it",
}


class AccessOperations:
    """The operations `people list|allow|block|remove|link|audit` and `owner …`."""

    def __init__(self, app: GatewayApp) -> None:
        self._app = app
        self._started_at = datetime.now(UTC)

    def by_name(self) -> Mapping[str, Operation]:
        """Return them by name."""
        return {
            "people list": self.list_people,
            "people allow": self.allow,
            "people block": self.block,
            "people remove": self.remove,
            "people link": self.link,
            "people audit": self.audit,
            "owner claim": self.claim,
            "owner list": self.list_owners,
            "owner remove": self.disown,
            "people pending": self.pending,
            "people approve": self.approve,
            "people deny": self.deny,
            "why": self.why,
        }

    async def list_people(self, arguments: Line) -> AsyncIterator[Line]:
        """A line for everybody and every place with a standing; of one channel block, if one is given."""
        channel = str(arguments.get("channel", ""))
        lines = [each for each in self._app.people.roster.list_access() if channel in ("", each.channel)]
        if channel and not lines and channel not in self._app.kinds:
            known = ", ".join(sorted(self._app.kinds))
            raise UserError(f"there is no channel called {channel}; there are: {known}")
        for each in lines:
            yield plain(each)

    async def allow(self, arguments: Line) -> AsyncIterator[Line]:
        """Let somebody or a place in."""
        yield _ruled(await self._app.people.decisions.allow(_who(arguments), operator()))

    async def block(self, arguments: Line) -> AsyncIterator[Line]:
        """Shut somebody or a place out."""
        yield _ruled(await self._app.people.decisions.block(_who(arguments), operator()))

    async def remove(self, arguments: Line) -> AsyncIterator[Line]:
        """Take a decision back."""
        yield _ruled(await self._app.people.decisions.remove(_who(arguments), operator()))

    async def link(self, arguments: Line) -> AsyncIterator[Line]:
        """Make two accounts one person. The operator decides, who may read both memories anyway; nobody is asked.

        The rest is as with `/link`: the person who has been here longer survives, and `/unlink` takes it apart again.
        """
        wanted = [str(each) for each in arguments.get("accounts", ())]
        if self._app.settings.memory.isolation == "shared":
            raise UserError("one memory serves everybody here (memory.isolation: shared): nothing is to be linked")
        names, links = await MemoryOperations(self._app).names(), self._app.store.links
        scopes = [await asyncio.to_thread(names.find, ScopeSelector(person=each)) for each in wanted]
        accounts = [scope.rpartition("/")[2] for scope in scopes]
        if links.person(accounts[0]) == links.person(accounts[1]):
            raise UserError(f"{wanted[0]} and {wanted[1]} are one person already")
        now, decider = datetime.now(UTC), operator()
        line = AuditEntry(id=decider.id, at=now, by=OPERATOR, where="", what="link", whom=" ".join(wanted))
        await self._app.store.access.change(AccessChange(line=line))
        job = Job(id=f"link:{decider.id}", kind=LINK, scope="", payload={"accounts": accounts}, due_at=now)
        await self._app.store.jobs.put(job)
        if not self._app.channels:  # nobody else does the job now
            await self._link_now(job)
        is_done = await self._is_linked(accounts)
        yield {"accounts": wanted, "person": links.person(accounts[0]) if is_done else "", "done": is_done}

    async def audit(self, arguments: Line) -> AsyncIterator[Line]:
        """The newest decisions; of one "channel:user_id", if one is given."""
        limit = min(int(arguments.get("limit", 50)), _MOST)
        for each in await self._app.store.access.audit(limit=limit, about=str(arguments.get("about", ""))):
            yield plain(each)

    async def claim(self, _: Line) -> AsyncIterator[Line]:
        """A code that makes whoever sends it the owner, while there is none."""
        issued = await self._app.people.claims.issue()
        if issued is None:
            owners = ", ".join(str(each) for each in self._app.people.roster.owners())
            raise UserError(f"there is an owner already: {owners}; `parlour owner list` says by what")
        doors = [name for name, policy in self._app.people.roster.policies.items() if not policy.is_local]
        yield {**plain(issued), "channels": sorted(doors), "running": bool(self._app.channels)}

    async def list_owners(self, _: Line) -> AsyncIterator[Line]:
        """A line per owner."""
        for each in self._app.people.roster.owners():
            yield plain(each)

    async def disown(self, arguments: Line) -> AsyncIterator[Line]:
        """Take back an ownership that was claimed by a code."""
        decided = await self._app.people.decisions.disown(_who(arguments), operator())
        if decided.ruling is DecisionOutcome.UNLISTED:  # blocked or let in they may be
            raise UserError(f"{decided.whom} is no owner; `parlour owner list` shows who is")
        yield _ruled(decided)

    async def why(self, arguments: Line) -> AsyncIterator[Line]:
        """Yield first what can be known at all, then a line per refusal of the channel and person or chat."""
        channel, ident = str(arguments.get("channel", "")), str(arguments.get("id", ""))
        kinds = self._app.kinds
        if channel and channel not in kinds:
            raise UserError(f"there is no channel called {channel}; there are: {', '.join(sorted(kinds))}")
        hears = self._app.readiness()
        yield {
            "running": bool(self._app.channels),
            "since": plain(self._started_at),
            "hears": {name: state for name, state in hears.items() if channel in ("", name)},
            "refused_by": {name: str(line) for name, line in self._app.supervisor.refusals().items()},
        }
        for refused in self._app.refusals.recent(channel, ident):
            explained = explain_refusal(refused)
            yield {**plain(refused), "words": explained.words, "paste": list(explained.paste)}

    async def pending(self, _: Line) -> AsyncIterator[Line]:
        """Yield a line per person and place that waits."""
        for waiting in self._app.people.pairing.pending_requests():
            yield plain(waiting)

    async def approve(self, arguments: Line) -> AsyncIterator[Line]:
        """Let in whoever has this code, or is named channel:id."""
        yield await self._decide(arguments, is_yes=True)

    async def deny(self, arguments: Line) -> AsyncIterator[Line]:
        """Say no to whoever is named channel:id, or by the code."""
        yield await self._decide(arguments, is_yes=False)

    async def _decide(self, arguments: Line, *, is_yes: bool) -> Line:
        wanted = str(arguments.get("who", "")).strip()
        pairing = self._app.people.pairing
        decider = DecisionActor(by=OPERATOR, where="", id=f"c{secrets.token_hex(8)}")
        found = next((each for each in pairing.pending_requests() if wanted in (_name(each), each.ref)), None)
        outcome: Outcome
        if found is not None:
            outcome = await pairing.by_ref(found.ref, decider, is_yes=is_yes)
        elif codes.parse_code(wanted):
            outcome = await pairing.by_code(wanted, decider, is_yes=is_yes)
        else:
            raise UserError(f"nobody called {wanted!r} waits; `parlour people pending` shows who does")
        if isinstance(outcome, PairingLocked):
            raise UserError(
                f"too many wrong codes: none is looked at for {outcome.minutes} minutes; `parlour people pending`"
                " shows who waits, and channel:id decides without a code"
            )
        if not isinstance(outcome, PairingDecision):
            raise UserError("nobody waits under that code: it was decided, its hour is over, or it is misspelt")
        return {"who": _name(outcome.waiting), "name": outcome.waiting.name, "yes": outcome.is_yes}

    async def _link_now(self, job: Job) -> None:
        for _ in range(round(_LINKED_WITHIN / _LOOK)):
            if await self._app.linker.link(job) is None:
                await self._app.store.jobs.finish(job)
                return
            await asyncio.sleep(_LOOK)

    async def _is_linked(self, accounts: list[str]) -> bool:
        links = self._app.store.links
        for _ in range(round(_LINKED_WITHIN / _LOOK)):
            if links.person(accounts[0]) == links.person(accounts[1]):
                return True
            await asyncio.sleep(_LOOK)
        return False


def _who(arguments: Line) -> str:
    return str(arguments.get("who", ""))


def operator() -> DecisionActor:
    """Return the operator as who decides, with an audit line of its own."""
    return DecisionActor(by=OPERATOR, where="", id=f"o{secrets.token_hex(8)}")


def _ruled(decided: AccessDecision) -> Line:
    if decided.ruling is DecisionOutcome.NOBODY and decided.other:
        raise UserError(f"{decided.whom}: {decided.other}")
    if decided.ruling in _MENDS:
        raise UserError(_MENDS[decided.ruling].format(whom=decided.whom, other=decided.other))
    return {"whom": decided.whom, "ruling": decided.ruling.value}


def _name(waiting: PairingRequest) -> str:
    return f"{waiting.channel}:{waiting.who}"
