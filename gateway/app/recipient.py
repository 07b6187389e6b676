"""Whom a text of ours is for: a job must land in the scope that the chat's own messages have."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from agent.memory.scopes import quote
from gateway.errors import UserError
from gateway.events import ChatKind, Sender, SessionKey
from gateway.ports import SessionRow

# Where the id of a direct chat is the person's own; elsewhere only a message tells who is behind a chat.
_CHAT_IS_PERSON = frozenset({"telegram", "web", "console", "pocket"})


def resolve_recipient(key: SessionKey, kind: str, sessions: Sequence[SessionRow]) -> tuple[ChatKind, Sender]:
    """Return what kind of chat *key* is and who is behind it; raise UserError when nothing tells.

    What was said there decides; a thread is its parent chat's.
    """
    scopes = {row.key: row.scope for row in sessions if row.scope}
    scope = scopes.get(key) or next((scopes[known] for known in scopes if known.parent == key.parent), "")
    area, _, name = scope.partition("/")
    if area == "chats":
        return ChatKind.GROUP, Sender(id=key.chat)
    if area == "people":
        *team, person = unquote(name).partition(":")[2].rsplit(":", 1)
        return ChatKind.DIRECT, Sender(id=person, team="".join(team))
    if kind in _CHAT_IS_PERSON and not key.thread and not key.chat.startswith("-"):
        return ChatKind.DIRECT, Sender(id=key.chat)
    raise UserError(f"nobody wrote in {key} yet, so I cannot tell whose memory is meant; write there once first")


def is_private(key: SessionKey, sessions: Sequence[SessionRow]) -> bool:
    """Say whether *key* is a private thread: one whose scope was its own when somebody wrote there."""
    own = f"chats/{quote(str(key))}"
    return bool(key.thread) and any(row.key == key and row.scope == own for row in sessions)
