"""HTTP routes of the panels: the list of conversations, the remembered lines with their sources, reminders, models.

A session key is made of the visitor's name and the id in the path, so that no request reaches another person's.
Conversations are renamed, pinned, deleted, restored and searched here. The page changes everything else with the
commands that people type, so that rights, order and the audit are those of the commands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from channels.kit.background import SlotsTaken
from channels.kit.bodies import read_body
from channels.web.adapter import FIRST, WebChannel, WebVisitor
from gateway.channel import ConversationStore, PersonPanels
from gateway.errors import StoreUnavailable
from gateway.events import SessionKey
from gateway.i18n import translate
from gateway.ports.channel import LONGEST_TITLE, ConversationInfo

LONGEST_CHANGE = 4_096  # bytes
LONGEST_QUERY = 200  # characters
MOST_HITS = 30
_CHANGES: Mapping[str, type[object]] = {"title": str, "pinned": bool, "deleted": bool}
MOST_LANGUAGES = 20
LONGEST_ZONE = 64  # characters
LONGEST_LINE = 4_000  # characters of a remembered line that is asked about
_FRESH = {"Cache-Control": "no-store"}


async def list_conversations(channel: WebChannel, visitor: WebVisitor, _: Request) -> Response:
    """Return the visitor's conversations, the most recently used first."""
    if channel.conversations is None:
        return JSONResponse({"conversations": []})
    found = await channel.conversations.list_conversations(_chat(channel, visitor))
    return JSONResponse({"conversations": [_entry(each) for each in found]}, headers={"Cache-Control": "no-store"})


async def latest_conversation(channel: WebChannel, visitor: WebVisitor) -> str:
    """Return the id of the visitor's conversation that was used last."""
    if channel.conversations is None:
        return FIRST
    found = await channel.conversations.list_conversations(_chat(channel, visitor))
    return next((_id(each.key) for each in found if each.deleted_at is None), FIRST)


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


async def note_locale(channel: WebChannel, visitor: WebVisitor, request: Request) -> Response:
    """Store the languages and the time zone of the visitor's browser; return the language of the page from now on."""
    try:
        told = json.loads(await read_body(request, limit=LONGEST_CHANGE) or b"")
        languages, zone = told["languages"], told["zone"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return JSONResponse({}, 400)
    is_list = isinstance(languages, list) and all(isinstance(each, str) for each in languages)
    if not is_list or not isinstance(zone, str) or len(zone) > LONGEST_ZONE or channel.panels is None:
        return JSONResponse({}, 400)
    key = _chat(channel, visitor)
    try:
        await channel.panels.note_locale(key, languages=languages[:MOST_LANGUAGES], zone=zone)
    except StoreUnavailable:
        return JSONResponse({}, 503)
    return JSONResponse({"language": channel.language(visitor)})


async def list_remembered_lines(panels: PersonPanels, key: SessionKey) -> JSONResponse:
    """Return the lines that the bot remembers about the visitor, with a note if search lacks a model."""
    lines = list(await panels.remembered_lines(key))
    return JSONResponse({"lines": lines, "note": panels.search_limitation(key)}, headers=_FRESH)


async def show_line_source(channel: WebChannel, visitor: WebVisitor, request: Request) -> JSONResponse:
    """Return where the remembered line `line` comes from, one question of a visitor at a time."""
    line = request.query_params.get("line", "")
    if channel.panels is None:
        return JSONResponse({}, 404)
    if not line or len(line) > LONGEST_LINE:
        return JSONResponse({}, 400)
    try:
        async with channel.searches.hold(visitor.who):
            source = await channel.panels.line_source(SessionKey(channel.name, visitor.who), line)
    except SlotsTaken:
        return JSONResponse({}, 429)
    return JSONResponse({}, 404) if source is None else JSONResponse(asdict(source), headers=_FRESH)


async def list_reminders(panels: PersonPanels, key: SessionKey) -> JSONResponse:
    """Return the visitor's reminders, the next one first."""
    found = [
        asdict(each) | {"key": str(each.key), "conversation": _id(each.key)} for each in await panels.reminders(key)
    ]
    return JSONResponse({"reminders": found}, headers=_FRESH)


async def list_models(panels: PersonPanels, key: SessionKey) -> JSONResponse:
    """Return the model that answers the visitor, and those that they can choose."""
    return JSONResponse(asdict(panels.models(key)), headers=_FRESH)
