"""HTTP routes of the list of conversations: read, rename, pin, delete, restore, search.

A session key is made of the visitor's name and the id in the path, so that no request reaches another person's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from channels.kit.webhook import read_body
from channels.web.adapter import FIRST, WebChannel, WebVisitor
from channels.web.slots import SlotsTaken
from gateway.errors import StoreUnavailable
from gateway.events import SessionKey
from gateway.i18n import translate
from gateway.ports.conversations import LONGEST_TITLE, ConversationInfo, ConversationStore

LONGEST_CHANGE = 4_096  # bytes
LONGEST_QUERY = 200  # characters
MOST_HITS = 30
_CHANGES: Mapping[str, type[object]] = {"title": str, "pinned": bool, "deleted": bool}


async def list_conversations(channel: WebChannel, visitor: WebVisitor, _: Request) -> Response:
    """Return the visitor's conversations, the most recently used first."""
    if channel.conversations is None:
        return JSONResponse({"conversations": []})
    found = await channel.conversations.list_conversations(_chat(channel, visitor))
    return JSONResponse({"conversations": [_entry(each) for each in found]}, headers={"Cache-Control": "no-store"})


async def change_conversation(channel: WebChannel, visitor: WebVisitor, request: Request) -> Response:
    """Rename, pin, delete or restore one of the visitor's conversations; the body has the one thing to change."""
    key, store = channel.key_of(visitor, request.path_params["id"]), channel.conversations
    if key is None or store is None:
        return JSONResponse({}, 404)
    change = await _read_change(request)
    if change is None:
        return JSONResponse({}, 400)
    if all(each.key != key for each in await store.list_conversations(_chat(channel, visitor))):
        return JSONResponse({}, 404)
    try:
        await _apply(store, key, *change)
    except StoreUnavailable:
        return JSONResponse({"line": translate("frames.later", channel.language(visitor))}, 503)
    channel.tell_list_changed(visitor.who)
    return Response(status_code=204)


async def search_conversations(channel: WebChannel, visitor: WebVisitor, request: Request) -> Response:
    """Return the visitor's messages that contain each word of `q`."""
    query = request.query_params.get("q", "")
    if len(query) > LONGEST_QUERY or channel.conversations is None:
        return JSONResponse({}, 400)
    try:
        async with channel.searches.hold(visitor.who):
            found = await channel.conversations.search(_chat(channel, visitor), query, limit=MOST_HITS)
    except SlotsTaken:
        return JSONResponse({}, 429)
    hits = [
        {"conversation": _id(each.key), "turn": each.turn, "role": each.role, "text": each.text, "at": _time(each.at)}
        for each in found.hits
    ]
    return JSONResponse({"hits": hits, "partial": found.is_partial}, headers={"Cache-Control": "no-store"})


def _chat(channel: WebChannel, visitor: WebVisitor) -> SessionKey:
    return SessionKey(channel.name, visitor.who)


def _id(key: SessionKey) -> str:
    return key.thread or FIRST


def _time(at: datetime) -> str:
    return at.isoformat()


def _entry(info: ConversationInfo) -> Mapping[str, object]:
    return {
        "id": _id(info.key),
        "title": info.title,
        "pinned": info.is_pinned,
        "at": _time(info.used_at),
        "deleted": info.deleted_at is not None,
    }


async def _read_change(request: Request) -> tuple[str, Any] | None:
    """Return the name and value of the one thing to change; None for anything else."""
    body = await read_body(request, limit=LONGEST_CHANGE)
    try:
        ((name, value),) = json.loads(body or b"").items()
    except (ValueError, AttributeError, RecursionError):
        return None
    is_long = isinstance(value, str) and len(value) > LONGEST_TITLE
    return (name, value) if type(value) is _CHANGES.get(name) and not is_long else None


async def _apply(store: ConversationStore, key: SessionKey, name: str, value: Any) -> None:
    if name == "title":
        await store.rename(key, value)
    elif name == "pinned":
        await store.pin(key, is_pinned=value)
    elif value:
        await store.delete(key)
    else:
        await store.restore(key)
