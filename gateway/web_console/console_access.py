"""The table of operations that the console offers: least role, arguments and audit rule of each.

An operation that is not in `CONSOLE_OPERATIONS` cannot be reached from a browser, whatever the role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.control import Line


class ConsoleRole(StrEnum):
    """Role of a visitor of the console."""

    OWNER = "owner"  # everything that the console offers
    ADMIN = "admin"  # of shared chats: the operations that name one of these chats
    NOBODY = "nobody"


class AuditRule(StrEnum):
    """Origin of the audit entry of a call."""

    CALL = "call"  # before it runs
    OPERATION = "operation"  # it is a decision, which the operation notes itself, under the visitor's name
    NONE = "none"  # figures and names alone, which a page reads every few seconds


@dataclass(frozen=True, slots=True)
class ConsoleOperation:
    """How an operation may be called from a browser."""

    role: ConsoleRole  # ADMIN: admins too, if the argument `chat` is one of their chats
    arguments: frozenset[str]  # all others are refused
    audit: AuditRule = AuditRule.NONE
    subject: str = ""  # the argument that the audit names


def _owner(*arguments: str, audit: AuditRule = AuditRule.NONE, subject: str = "") -> ConsoleOperation:
    return ConsoleOperation(ConsoleRole.OWNER, frozenset(arguments), audit, subject)


def _admin(*arguments: str, audit: AuditRule = AuditRule.NONE, subject: str = "chat") -> ConsoleOperation:
    return ConsoleOperation(ConsoleRole.ADMIN, frozenset({"chat", *arguments}), audit, subject)


_DECIDES = AuditRule.OPERATION

CONSOLE_OPERATIONS: Mapping[str, ConsoleOperation] = {
    "status": _owner(),
    "people list": _owner("channel"),
    "people pending": _owner(),
    "people approve": _owner("who", audit=_DECIDES),
    "people deny": _owner("who", audit=_DECIDES),
    "people allow": _owner("who", audit=_DECIDES),
    "people block": _owner("who", audit=_DECIDES),
    "people remove": _owner("who", audit=_DECIDES),
    "people show": _owner("who"),
    "people quota": _owner("who", "turns", "tokens", audit=_DECIDES),
    "people quotas": _owner(),
    "people audit": _owner("limit", "about"),
    "owner add": _owner("who", audit=_DECIDES),
    "owner remove": _owner("who", audit=_DECIDES),
    "chats list": _owner(),
    "chats settings": _admin(),
    "memory show": _admin(audit=AuditRule.CALL),
    "memory log": _admin("limit"),
    "memory diff": _admin("sha", audit=AuditRule.CALL),
    "turns find": _admin("person", "since", "until", "limit"),
    "turns show": _admin("reference", audit=AuditRule.CALL, subject="reference"),
    "turns prompt": _admin("reference", audit=AuditRule.CALL, subject="reference"),
    "usage": _owner("by", "since"),
    "doctor": _owner("offline"),
    "backups list": _owner(),
    "backups create": _owner(audit=AuditRule.CALL),
    "backups verify": _owner("name", audit=AuditRule.CALL, subject="name"),
    "chats preview": _owner("chat", "name", "value"),
    "chats change": _owner("chat", "name", "value", audit=AuditRule.CALL, subject="chat"),
    "logs": _owner("after", "level", "component", "about"),
    "setup status": _owner(),
    "setup model": _owner("model", "api_base", "api_key", audit=AuditRule.CALL, subject="model"),
    "setup platform": _owner("platform", "answers", audit=AuditRule.CALL, subject="platform"),
    "setup restart": _owner(audit=AuditRule.CALL),
}


class ConsoleVisitors(Protocol):
    """The people who are logged in to the page, by account, as the console sees them."""

    def is_owner(self, who: str) -> bool:
        """Return True if the user *who* of the page is an owner, also by another of their accounts."""

    async def is_admin(self, who: str, chat: str) -> bool:
        """Return True if the user *who* of the page administers the shared chat *chat* now, by a linked account."""

    async def list_administered_chats(self, who: str) -> Sequence[str]:
        """Return the shared chats that *who* administers now, the most recently used first."""

    def account(self, who: str) -> str:
        """Return *who* as the audit names them: ``web:ann``."""

    async def note(self, who: str, what: str, whom: str) -> None:
        """Write an audit entry about a call that is going to run."""


async def may_call(visitors: ConsoleVisitors, who: str, operation: ConsoleOperation, arguments: Line) -> bool:
    """Return True if the user *who* of the page may call *operation* with *arguments* now."""
    if visitors.is_owner(who):
        return True
    chat = arguments.get("chat")
    return operation.role is ConsoleRole.ADMIN and isinstance(chat, str) and await visitors.is_admin(who, chat)
