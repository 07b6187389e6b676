"""Operator commands for chats: the list, and the effective settings with their origins."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from agent.chat_profiles import stored_guild
from gateway.app.operation_group import OperationGroup, operation
from gateway.app.turn_operations import chat_of
from gateway.control import Line
from gateway.errors import UserError


class ChatOperations(OperationGroup):
    """The operations `chats list` and `chats settings`."""

    @operation("chats list")
    async def list_chats(self, _: Line) -> AsyncIterator[Line]:
        """Yield one line per chat with a session, the most recently used first, with the number of its sessions."""
        chats: dict[str, dict[str, object]] = {}
        counts: dict[str, int] = {}
        for row in await self._app.store.records.sessions():
            name = str(row.key.parent)
            chats.setdefault(name, {"chat": name, "is_shared": row.scope.startswith("chats/")})
            counts[name] = counts.get(name, 0) + 1
        for name, line in chats.items():
            yield {**line, "sessions": counts[name]}

    @operation("chats settings")
    async def list_settings(self, arguments: Line) -> AsyncIterator[Line]:
        """Yield one line per setting of a chat: its value, its origin, and the line that sets it for this chat."""
        key = chat_of(arguments)
        if key is None:
            raise UserError("name the chat, such as telegram:42; `chats list` lists them")
        scopes = {row.key: row.scope for row in await self._app.store.records.sessions()}
        guild = stored_guild(self._app.store.people, key)
        for each in self._app.commands.chats.list_settings(key, guild, scopes.get(key, "")):
            yield {
                "name": each.name,
                "value": each.value,
                "origin": each.said_by,
                "paste": f"chats: {{{json.dumps(str(key))}: {{{_yaml(each.name, each.value)}}}}}",
            }


def _yaml(name: str, value: str) -> str:
    """Return the entry of a setting in flow style, which JSON's texts are valid in."""
    section, _, field = name.rpartition(".")
    if name == "tools":
        return "tools: {deny: [NAME]}"
    if name == "soul":
        return 'soul: "You are …"'
    plain = value if value.isdecimal() or value in ("true", "false") else json.dumps(value, ensure_ascii=False)
    return f"{section}: {{{field}: {plain}}}" if section else f"{name}: {plain}"
