"""The base of the groups of operations: the gateway, the caller, and lookups of turns, chats and memory scopes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gateway.errors import UserError
from gateway.events import SessionKey
from gateway.ports.access import ACTING, OPERATOR, DecisionActor, actor_outside

if TYPE_CHECKING:
    from agent.base.scopes import ScopeNames
    from gateway.app.runtime import Runtime
    from gateway.store.inspection import TurnTrace

_CALL_NUMBER = re.compile(r"\.\d+\Z")


class OperationGroup:
    """The operations of one subsystem, over an open gateway."""

    def __init__(self, app: Runtime) -> None:
        self._app = app

    async def find_trace(self, reference: str) -> TurnTrace:
        """Return the turn of *reference*, which may be that of one of its calls (`t….1`). Raises UserError."""
        reference = _CALL_NUMBER.sub("", reference)
        trace = await self._app.store.journal.trace(reference) if reference else None
        if trace is None:
            raise no_such_turn(reference)
        return trace

    def may_read(self, scope: str) -> bool:
        """Return True if the caller may read what was said in *scope*.

        That is true at the command line, in shared chats, and for the visitor's own person. The console admits a
        visitor to the chat before it calls.
        """
        acting = ACTING.get()
        if acting is None or scope.startswith("chats/"):
            return True
        channel, _, who = acting.by.partition(":")
        account = self._app.roster.account(channel, who)
        return bool(scope) and scope == f"people/{self._app.store.links.person(account)}"

    async def names(self) -> ScopeNames:
        """Return the current memory scopes by name."""
        from agent.base.scopes import ScopeNames, find_scopes

        store = self._app.store
        sessions = await store.records.sessions()
        scopes = await find_scopes(
            self._app.home.path,
            sessions=sessions,
            documents=store.documents,
            history=store.history,
            files=store.files,
        )
        return ScopeNames(
            scopes,
            sessions=sessions,
            person=store.links.person,
            kind=self._app.platform,
            has_teams=self._app.platforms.has_teams,
        )

    async def find_scope(self, *, scope: str = "", person: str = "", chat: str = "") -> str:
        """Return the memory scope that a name means; at most one is given. Raises UserError."""
        from agent.base.scopes import ScopeSelector

        return (await self.names()).find(ScopeSelector(scope=scope, person=person, chat=chat))


def caller() -> DecisionActor:
    """Return the caller of the running operation as the actor of its one decision.

    That is the operator at the command line, or an owner at the page's console or in a chat.
    """
    return ACTING.get() or actor_outside(OPERATOR)


def no_such_turn(reference: str) -> UserError:
    """Return the error for a reference that names no turn, or none that the caller may see: both have one text."""
    return UserError(
        f"no turn starts with {_CALL_NUMBER.sub('', reference)!r}, or the journal has removed it by age; the reference"
        " is at the end of the notice that users saw"
    )


def parse_chat(text: str) -> SessionKey:
    """Return the chat that an argument names. Raises UserError."""
    try:
        return SessionKey.parse(text)
    except ValueError as error:
        raise UserError(f"{error}; `parlour sessions list` lists the chats") from None


def format_time(stamp: str) -> str:
    """Return a time of a line as a terminal shows it."""
    return f"{stamp[:10]} {stamp[11:19]}Z"
