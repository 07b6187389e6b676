"""HTTP routes of the page: its files, uploads and downloads, login, conversations, panels, and the WebSocket.

The server has checked Host and Origin before anything here runs (gateway/web/origin_guard.py). Routes of panels only
read: a button sends the command that a person could type, so rights, order and audit have one place.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import html
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from channels.kit.background import SlotsTaken
from channels.kit.bodies import LARGEST, UploadHeader, UploadRefusalReason, UploadRefused, read_body, type_of
from channels.web.adapter import FIRST, WebChannel, WebVisitor
from channels.web.conversation_documents import read_conversation, to_json, to_markdown
from channels.web.files import DownloadResponse
from channels.web.frame_codec import safe_file_name
from channels.web.logins import LOGIN_LIFE, LoginOutcome
from channels.web.push import MOST_BROWSERS, BadSubscription, PushBrowser, TooManyBrowsers
from channels.web.shared_links import LIFETIMES, LONGEST_SHARED, MOST_LINKS, SHARED_HEADERS, to_html
from gateway.channel import ConversationStore, PersonPanels
from gateway.errors import StoreUnavailable, UserError
from gateway.events import SessionKey
from gateway.i18n import FALLBACK, HELP, LANGUAGES, command_names, load_catalogue, own_name, translate
from gateway.installation import operator_command
from gateway.net.addresses import network_of
from gateway.ports.channel import LONGEST_TITLE, ConversationInfo
from gateway.text import render_plain

log = structlog.get_logger(__name__)

_Handler: TypeAlias = Callable[[WebChannel, WebVisitor, Request], Awaitable[Response]]

LONGEST_BODY = 4_096  # bytes of a login
_DRAIN_SECONDS = 10.0  # for the rest of a body that is not taken
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}
# Nothing from elsewhere, nothing inline, and no text becomes markup but through DOMPurify. An image may also be one
# that this tab itself has just sent (blob:).
_POLICY = (
    "default-src 'self'; img-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; require-trusted-types-for 'script'; trusted-types dompurify worker"
)

# In place of the web server's own, which allows nothing.
_RECORDING_POLICY = "camera=(), geolocation=(), microphone=(self)"


_FOREVER = "private, max-age=31536000, immutable"
_VERSIONED = re.compile(r"(?:([0-9a-f]{16})/)?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PageAsset:
    """A file of the page, in memory."""

    body: bytes
    media_type: str

    @property
    def tag(self) -> str:
        """The ETag."""
        return f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'


def routes(channel: WebChannel, *, prefix: str = "") -> list[BaseRoute]:
    """Return the routes of *channel*, all below *prefix*."""
    return [
        Route(f"{prefix}/", _bound(_page, channel), methods=["GET"]),
        Route(f"{prefix}/assets/{{name:path}}", _asset, methods=["GET"]),
        Route(f"{prefix}/files/{{token}}", _for_visitor(_file, channel), methods=["GET"]),
        # The server's own bound is for everything else; beyond ours the page is told a line.
        Route(f"{prefix}/files", _for_visitor(_upload, channel), methods=["POST"], max_body_size=2 * LARGEST),
        Route(f"{prefix}/session", _for_visitor(_session, channel), methods=["GET"]),
        Route(f"{prefix}/conversations", _for_visitor(list_conversations, channel), methods=["GET"]),
        Route(f"{prefix}/conversations/{{id}}", _for_visitor(change_conversation, channel), methods=["POST"]),
        Route(f"{prefix}/conversations/{{id}}/export", _for_visitor(export_conversation, channel), methods=["GET"]),
        Route(f"{prefix}/conversations/{{id}}/links", _for_visitor(list_links, channel), methods=["GET"]),
        Route(f"{prefix}/conversations/{{id}}/links", _for_visitor(create_link, channel), methods=["POST"]),
        Route(f"{prefix}/links/{{link}}/withdraw", _for_visitor(withdraw_link, channel), methods=["POST"]),
        Route(f"{prefix}/share/{{token}}", _bound(show_shared, channel), methods=["GET"]),
        Route(f"{prefix}/locale", _for_visitor(note_locale, channel), methods=["POST"]),
        Route(f"{prefix}/memory", _for_visitor(_for_panel(list_remembered_lines), channel), methods=["GET"]),
        Route(f"{prefix}/memory/source", _for_visitor(show_line_source, channel), methods=["GET"]),
        Route(f"{prefix}/models", _for_visitor(_for_panel(list_models), channel), methods=["GET"]),
        Route(f"{prefix}/turns/{{turn}}", _for_visitor(show_turn, channel), methods=["GET"]),
        Route(f"{prefix}/services", _for_visitor(_for_panel(list_services), channel), methods=["GET"]),
        Route(f"{prefix}/tasks", _for_visitor(_for_panel(list_tasks), channel), methods=["GET"]),
        Route(f"{prefix}/reminders", _for_visitor(_for_panel(list_reminders), channel), methods=["GET"]),
        Route(f"{prefix}/reminders/runs", _for_visitor(list_reminder_runs, channel), methods=["GET"]),
        Route(f"{prefix}/search", _for_visitor(search_conversations, channel), methods=["GET"]),
        Route(f"{prefix}/push", _for_visitor(list_push_browsers, channel), methods=["GET"]),
        Route(f"{prefix}/push", _for_visitor(add_push_browser, channel), methods=["POST"]),
        Route(f"{prefix}/push/{{id}}", _for_visitor(remove_push_browser, channel), methods=["POST"]),
        Route(f"{prefix}/worker.js", _worker, methods=["GET"]),
        Route(f"{prefix}/login", _bound(_login, channel), methods=["POST"]),
        Route(f"{prefix}/logout", _bound(_logout, channel), methods=["POST"]),
        WebSocketRoute(f"{prefix}/ws", partial(_socket, channel)),
    ]


def _bound(
    handler: Callable[[WebChannel, Request], Awaitable[Response]], channel: WebChannel
) -> Callable[[Request], Awaitable[Response]]:
    return partial(handler, channel)


def _for_visitor(handler: _Handler, channel: WebChannel) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        visitor = await channel.visitor(request)
        return JSONResponse({}, 401) if visitor is None else await handler(channel, visitor, request)

    return answer


def _for_panel(show: Callable[[PersonPanels, SessionKey], Awaitable[Response]]) -> _Handler:
    async def answer(channel: WebChannel, visitor: WebVisitor, _: Request) -> Response:
        if channel.panels is None:
            return JSONResponse({}, 404)
        return await show(channel.panels, SessionKey(channel.name, visitor.who))

    return answer


async def _page(channel: WebChannel, request: Request) -> Response:
    """Serve the page in the language of the visitor's chat, or the browser's."""
    language = channel.page_language(await channel.visitor(request), request)
    headers = {"Content-Security-Policy": _POLICY, "Vary": "Cookie, Accept-Language"}
    if channel.can_record:
        headers["Permissions-Policy"] = _RECORDING_POLICY
    return _answer(request, page(language, has_tasks=channel.panels is not None and channel.panels.has_tasks), headers)


async def _asset(request: Request) -> Response:
    """Serve a file of the page; below the version that `page` names, a browser need not ask for it again."""
    found = _VERSIONED.fullmatch(request.path_params["name"])
    version, name = found.groups() if found is not None else ("", "")
    asset = assets().get(name)
    if asset is None:
        return Response(status_code=404)
    return _answer(request, asset, {"Cache-Control": _FOREVER} if version == assets_version() else {})


async def _worker(request: Request) -> Response:
    """Serve the service worker. Its path decides its scope: the page."""
    return _answer(
        request, assets()["worker.js"], {"Content-Security-Policy": "default-src 'none'; connect-src 'self'"}
    )


def _answer(request: Request, asset: PageAsset, headers: dict[str, str]) -> Response:
    is_small = asset.media_type != "image/png" and "gzip" in request.headers.get("accept-encoding", "")
    tag = f'{asset.tag[:-1]}-gzip"' if is_small else asset.tag
    vary = ", ".join(filter(None, (headers.get("Vary"), "Accept-Encoding")))
    headers = {"Cache-Control": "no-cache", **headers, "ETag": tag, "Vary": vary}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if is_small:
        headers["Content-Encoding"] = "gzip"
    return Response(_compressed(asset) if is_small else asset.body, media_type=asset.media_type, headers=headers)


@cache
def _compressed(asset: PageAsset) -> bytes:
    """Return the body as gzip; it is the same for all visitors, so its size tells nothing of one."""
    return gzip.compress(asset.body, mtime=0)


async def _file(channel: WebChannel, visitor: WebVisitor, request: Request) -> Response:
    """Hand out a file that the visitor was shown."""
    find = partial(channel.download, visitor, request.path_params["token"])
    busy = translate("web.download_busy", channel.language(visitor))
    return DownloadResponse(channel.downloads, visitor.who, find, busy)


async def _upload(channel: WebChannel, visitor: WebVisitor, request: Request) -> Response:
    """Store a file until a message names it. The visitor is checked before the body is read."""
    language = channel.language(visitor)
    if channel.uploads is None:
        return JSONResponse({"line": translate("web.upload_failed", language)}, 404)
    name = safe_file_name(unquote(request.headers.get("x-file-name", "")))
    is_recording = request.headers.get("x-recording") == "1"
    head = UploadHeader(visitor.who, name, type_of(request.headers.get("content-type", "")), is_recording)
    body = request.stream()
    announced = int(request.headers.get("content-length", LARGEST))  # the server has seen that it is a number
    if announced > LARGEST:
        return await _refuse_upload(body, UploadRefusalReason.LARGE, language)
    try:
        token, size = await channel.uploads.take(head, body, announced=announced)
    except UploadRefused as refused:
        return await _refuse_upload(body, refused.why, language)
    except SlotsTaken:
        return await _refuse_upload(body, UploadRefusalReason.BUSY, language)
    except ClientDisconnect:
        return Response(status_code=400)
    except OSError:
        log.warning("web.upload_failed", channel=channel.name)
        return JSONResponse({"line": translate("web.upload_failed", language)}, 507)
    return JSONResponse({"token": token, "name": name, "size": size})


async def _refuse_upload(body: AsyncIterator[bytes], why: UploadRefusalReason, language: str) -> Response:
    # A browser that is answered before it has sent everything shows its own error and not our line.
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in body:
                pass
    status = {
        UploadRefusalReason.LARGE: 413,
        UploadRefusalReason.EMPTY: 400,
        UploadRefusalReason.FULL: 507,
        UploadRefusalReason.YOURS: 507,
        UploadRefusalReason.BUSY: 429,
    }[why]
    return JSONResponse({"line": translate(f"web.upload_{why.value}", language)}, status)


async def _session(channel: WebChannel, visitor: WebVisitor, _: Request) -> Response:
    commands = list(channel.allowed_commands(visitor))
    is_owner = channel.is_owner(visitor)
    key = SessionKey(channel.name, visitor.who)
    return JSONResponse(
        {
            "who": visitor.who,
            # Names the login to its own browser: what this stores of it is erased once another one is there.
            "login": visitor.login.digest[:16] if visitor.login is not None else "",
            "until": visitor.login.until.isoformat() if visitor.login is not None else "",
            "is_owner": is_owner,
            "needs_model": is_owner and channel.panels is not None and channel.panels.models(key).is_offline,
            "can_leave": visitor.login is not None,
            "can_record": channel.can_record,
            "commands": commands,
            "latest": await latest_conversation(channel, visitor),
            "needs_locale": channel.panels is not None and not channel.panels.has_locale(key),
        }
    )


async def _login(channel: WebChannel, request: Request) -> Response:
    language = channel.page_language(None, request)
    code = await _typed_code(request)
    if code is None:
        return JSONResponse({"line": translate("web.login_bad", language)}, 400)
    address = _state(request, "address", "")
    outcome, token = await channel.logins.enter(code, address)
    if outcome is not LoginOutcome.WELCOME:
        log.warning("web.login_refused", channel=channel.name, address=address, outcome=outcome.value)
        status = 429 if outcome is LoginOutcome.LOCKED else 401
        return JSONResponse({"line": translate(f"web.login_{outcome.value}", language)}, status)
    await _leave(channel, request)  # or its other windows stayed whoever it was
    login = await channel.logins.find(token)
    log.info("web.login", channel=channel.name, address=address, who=login.who if login else "")
    entered = None if login is None else WebVisitor(login.who, login)
    language = channel.page_language(entered, request)
    answer = Response(status_code=204, headers={"Content-Language": language})
    answer.set_cookie(
        channel.cookie,
        token,
        max_age=int(LOGIN_LIFE.total_seconds()),
        path=_cookie_path(request),
        httponly=True,
        samesite="strict",
        secure=_state(request, "is_secure", default=False),
    )
    return answer


def _state(request: Request, name: str, default: Any) -> Any:
    """Return a field of the resolved request (gateway/web/server.py)."""
    return getattr(request.state, name, default)


def _cookie_path(request: Request) -> str:
    """Return our base path as the browser sees it, so that other sites on the host do not get the cookie."""
    return f"{quote(_state(request, 'base', ''))}/"


async def _typed_code(request: Request) -> str | None:
    body = await read_body(request, limit=LONGEST_BODY)
    try:
        code = json.loads(body or b"")["code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return code if isinstance(code, str) else None


async def _logout(channel: WebChannel, request: Request) -> Response:
    await _leave(channel, request)
    answer = Response(status_code=204)
    answer.delete_cookie(channel.cookie, path=_cookie_path(request), httponly=True, samesite="strict")
    return answer


async def _leave(channel: WebChannel, request: Request) -> None:
    """End the login that the browser came with, if it has one."""
    visitor = await channel.visitor(request)
    if visitor is not None and visitor.login is not None:
        await channel.close_windows(visitor.login)


async def _socket(channel: WebChannel, socket: WebSocket) -> None:
    visitor = await channel.visitor(socket)
    if not channel.is_ready() or visitor is None:
        await socket.send_denial_response(Response(status_code=401 if visitor is None else 503))
        return
    key = channel.key_of(visitor, socket.query_params.get("conversation", FIRST))
    if key is None:
        await socket.send_denial_response(Response(status_code=404))
        return
    await channel.serve(socket, visitor, key)


@cache
def assets() -> dict[str, PageAsset]:
    """Return the page's files by name; nothing else can be asked for."""
    folder = Path(str(files("channels.web") / "page"))
    found = [each for each in folder.rglob("*") if each.suffix in _TYPES]
    return {each.relative_to(folder).as_posix(): PageAsset(each.read_bytes(), _TYPES[each.suffix]) for each in found}


@cache
def assets_version() -> str:
    """Return a text that is different once one of the files is."""
    return hashlib.sha256("".join(each.tag for each in assets().values()).encode()).hexdigest()[:16]


@cache
def page(language: str, *, has_tasks: bool = False) -> PageAsset:
    """Return the page with its words filled in; without tasks, their button is hidden."""
    text = (files("channels.web") / "page" / "index.html").read_text(encoding="utf-8")
    text = text.replace('="assets/', f'="assets/{assets_version()}/')
    text = text.replace("{{tasks_off}}", "" if has_tasks else "hidden")
    words = {
        key.removeprefix("web."): translate(key, language) for key in load_catalogue(FALLBACK) if key.startswith("web.")
    }
    words |= {"may_repeat": translate("delivery.may_repeat", language), "language": language}
    words["login_command"] = operator_command("web login")
    for name, sentence in words.items():
        text = text.replace("{{" + name + "}}", html.escape(sentence))
    commands = [[name, render_plain(translate(f"{HELP}{name}", language))] for name in command_names()]
    languages = [[code, own_name(code)] for code in LANGUAGES]
    # In a script element only "</" and "<!--" could end it early.
    return PageAsset(
        text.replace(
            "{{*}}", json.dumps({**words, "commands": commands, "languages": languages}).replace("<", "\\u003c")
        ).encode(),
        "text/html",
    )


LONGEST_CHANGE = 4_096  # bytes
LONGEST_QUERY = 200  # characters
MOST_HITS = 30
_CHANGES: Mapping[str, type[object]] = {"title": str, "pinned": bool, "deleted": bool}
MOST_LANGUAGES = 20
LONGEST_ZONE = 64  # characters
LONGEST_TOKEN = 64  # characters of a link's token
LAST_TURNS = 10  # in which the last message of a conversation is looked for
LONGEST_TURN = 64  # characters of a turn's id
LONGEST_LINE = 4_000  # characters of a remembered line that is asked about
_FRESH = {"Cache-Control": "no-store"}


async def list_conversations(channel: WebChannel, visitor: WebVisitor, _: Request) -> Response:
    """Return the visitor's conversations, the most recently used first."""
    if channel.conversations is None:
        return JSONResponse({"conversations": []})
    chat = _chat(channel, visitor)
    found = await channel.conversations.list_conversations(chat)
    # What a browser stores of conversations is dropped once another erasure is named.
    erased = "" if channel.panels is None else await channel.panels.last_erasure(chat)
    facts = {"conversations": [_entry(each) for each in found], "erased": erased}
    return JSONResponse(facts, headers={"Cache-Control": "no-store"})


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


async def export_conversation(channel: WebChannel, visitor: WebVisitor, request: Request) -> Response:
    """Return one of the visitor's conversations as a file: Markdown, or JSON if `format` is json."""
    key = channel.key_of(visitor, request.path_params["id"])
    kind = request.query_params.get("format", "md")
    found = await _own_conversation(channel, visitor.who, key)
    if key is None or found is None or kind not in ("md", "json"):
        return JSONResponse({}, 404)
    language = channel.language(visitor)
    title = found.title or translate("web.first_conversation", language)
    try:
        async with channel.searches.hold(visitor.who), channel.documents.hold(""):
            read = await read_conversation(channel.sessions, key, title)
            text = (
                await asyncio.to_thread(to_json, read)
                if kind == "json"
                else await asyncio.to_thread(to_markdown, read, language)
            )
    except SlotsTaken:
        return JSONResponse({"line": translate("web.download_busy", language)}, 429)
    name = safe_file_name(f"{title}.{kind}")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}", **_FRESH}
    return Response(text, media_type="application/json" if kind == "json" else "text/markdown", headers=headers)


async def _own_conversation(channel: WebChannel, who: str, key: SessionKey | None) -> ConversationInfo | None:
    """Return one of a person's conversations that are not deleted."""
    if channel.conversations is None or key is None:
        return None
    known = await channel.conversations.list_conversations(SessionKey(channel.name, who))
    return next((each for each in known if each.key == key and each.deleted_at is None), None)


async def list_links(channel: WebChannel, visitor: WebVisitor, request: Request) -> Response:
    """Return the valid links to one of the visitor's conversations, the newest first."""
    found = await channel.links.of_person(visitor.who)
    links = [
        {"id": each.id, "at": _time(each.at), "until": _time(each.until)}
        for each in found
        if each.conversation == request.path_params["id"]
    ]
    return JSONResponse({"links": links}, headers=_FRESH)


async def create_link(channel: WebChannel, visitor: WebVisitor, request: Request) -> Response:
    """Make a link to one of the visitor's conversations as it is now, valid for `days`; return its address."""
    name = request.path_params["id"]
    found = await _own_conversation(channel, visitor.who, channel.key_of(visitor, name))
    try:
        days = json.loads(await read_body(request, limit=LONGEST_CHANGE) or b"")["days"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return JSONResponse({}, 400)
    if type(days) is not int or days not in LIFETIMES:
        return JSONResponse({}, 400)
    page = None if found is None else await channel.sessions.displayed_page(found.key, turns=LAST_TURNS)
    turns = [] if page is None else [each.turn for each in page.lines if each.state == "done" and not each.is_press]
    if not turns:
        return JSONResponse({}, 404)
    try:
        link, token = await channel.links.create(visitor.who, name, turns[-1], days)
    except UserError:
        line = translate("web.share_full", channel.language(visitor), most=MOST_LINKS)
        return JSONResponse({"line": line}, 409)
    return JSONResponse({"address": f"share/{token}", "id": link.id, "until": _time(link.until)}, headers=_FRESH)


async def withdraw_link(channel: WebChannel, visitor: WebVisitor, request: Request) -> Response:
    """Make one of the visitor's links invalid."""
    is_gone = await channel.links.withdraw(visitor.who, request.path_params["link"])
    return Response(status_code=204 if is_gone else 404)


async def show_shared(channel: WebChannel, request: Request) -> Response:
    """Show the conversation of a link, without a login; a network may read a few at once, then one every moment.

    An unknown, withdrawn or expired link and one whose conversation or person's access is gone are the same 404.
    """
    if channel.reader_paces.of(network_of(_state(request, "address", ""))).try_acquire():
        return _link_answer("Too many requests\n", 429)
    token = request.path_params["token"]
    link = await channel.links.find(token) if len(token) <= LONGEST_TOKEN else None
    if link is None or channel.has_lost_access(link.who):
        return _link_answer("Not found\n", 404)
    person = WebVisitor(link.who)
    found = await _own_conversation(channel, link.who, channel.key_of(person, link.conversation))
    if found is None:
        return _link_answer("Not found\n", 404)
    language = channel.language(person)
    title = found.title or translate("web.first_conversation", language)
    try:
        async with channel.readers.hold(""):
            read = await read_conversation(channel.sessions, found.key, title, until=link.turn, longest=LONGEST_SHARED)
            text = await asyncio.to_thread(to_html, read, link.until, language)
    except SlotsTaken:
        return _link_answer("Busy\n", 503)
    return _link_answer(text, 200, "text/html") if read.lines else _link_answer("Not found\n", 404)


def _link_answer(text: str, status: int, media_type: str = "text/plain") -> Response:
    return Response(text, status, headers=SHARED_HEADERS, media_type=media_type)


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


async def show_turn(channel: WebChannel, visitor: WebVisitor, request: Request) -> JSONResponse:
    """Return the details of a turn of the visitor's own `conversation`, one request of a visitor at a time."""
    key = channel.key_of(visitor, request.query_params.get("conversation", FIRST))
    turn = request.path_params["turn"]
    if channel.panels is None or key is None or len(turn) > LONGEST_TURN:
        return JSONResponse({}, 404)
    try:
        async with channel.searches.hold(visitor.who):
            found = await channel.panels.turn_details(key, turn)
    except SlotsTaken:
        return JSONResponse({}, 429)
    return JSONResponse({}, 404) if found is None else JSONResponse(asdict(found), headers=_FRESH)


async def list_reminders(panels: PersonPanels, key: SessionKey) -> JSONResponse:
    """Return the visitor's reminders, the next one first."""
    found = [
        asdict(each) | {"key": str(each.key), "conversation": _id(each.key)} for each in await panels.reminders(key)
    ]
    return JSONResponse({"reminders": found}, headers=_FRESH)


async def list_reminder_runs(channel: WebChannel, visitor: WebVisitor, request: Request) -> JSONResponse:
    """Return the newest runs of the visitor's reminder `id`, one question of a visitor at a time."""
    if channel.panels is None:
        return JSONResponse({}, 404)
    try:
        async with channel.searches.hold(visitor.who):
            key = SessionKey(channel.name, visitor.who)
            found = await channel.panels.reminder_runs(key, request.query_params.get("id", ""))
    except SlotsTaken:
        return JSONResponse({}, 429)
    if found is None:
        return JSONResponse({}, 404)
    return JSONResponse({"runs": [asdict(each) for each in found]}, headers=_FRESH)


async def list_tasks(panels: PersonPanels, key: SessionKey) -> JSONResponse:
    """Return the visitor's background tasks, those that wait or run first."""
    return JSONResponse({"tasks": [asdict(each) for each in await panels.tasks(key)]}, headers=_FRESH)


async def list_services(panels: PersonPanels, key: SessionKey) -> JSONResponse:
    """Return the services that people sign in to, with the visitor's logins."""
    return JSONResponse({"services": [asdict(each) for each in await panels.services(key)]}, headers=_FRESH)


async def list_models(panels: PersonPanels, key: SessionKey) -> JSONResponse:
    """Return the model that answers the visitor, and those that they can choose."""
    return JSONResponse(asdict(panels.models(key)), headers=_FRESH)


async def list_push_browsers(channel: WebChannel, visitor: WebVisitor, _: Request) -> JSONResponse:
    """Return the visitor's browsers that show notifications, and the key that another one subscribes with."""
    if channel.push is None:
        return JSONResponse({}, 404)
    try:
        key, found = await channel.push.key(), await channel.push.browsers(visitor.who)
    except StoreUnavailable:
        return JSONResponse({}, 503)
    except UserError as error:
        log.warning("web.push_off", reason=str(error))
        return JSONResponse({"key": "", "browsers": []}, headers=_FRESH)
    return JSONResponse({"key": key.public, "browsers": [_browser(each) for each in found]}, headers=_FRESH)


async def add_push_browser(channel: WebChannel, visitor: WebVisitor, request: Request) -> JSONResponse:
    """Add the browser that the body describes to the visitor's, or change it; return its id."""
    try:
        facts = json.loads(await read_body(request, limit=LONGEST_CHANGE) or b"")
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or channel.push is None:
        return JSONResponse({}, 400 if channel.push is not None else 404)
    try:
        added = await channel.push.add(visitor.who, facts, visitor.login.digest if visitor.login else "")
    except TooManyBrowsers:
        line = translate("web.push_full", channel.language(visitor), most=MOST_BROWSERS)
        return JSONResponse({"line": line}, 409)
    except BadSubscription as error:
        log.info("web.push_refused", reason=str(error))
        return JSONResponse({"line": translate("web.push_bad", channel.language(visitor))}, 400)
    except (StoreUnavailable, UserError):
        return JSONResponse({"line": translate("frames.later", channel.language(visitor))}, 503)
    return JSONResponse({"id": added.id})


async def remove_push_browser(channel: WebChannel, visitor: WebVisitor, request: Request) -> Response:
    """Withdraw one of the visitor's browsers; another person's is not among them."""
    if channel.push is None:
        return JSONResponse({}, 404)
    try:
        await channel.push.remove(visitor.who, {request.path_params["id"]})
    except StoreUnavailable:
        return JSONResponse({"line": translate("frames.later", channel.language(visitor))}, 503)
    return Response(status_code=204)


def _browser(browser: PushBrowser) -> Mapping[str, object]:
    return {"id": browser.id, "name": browser.name, "at": browser.at, "shows_text": browser.shows_text}
