"""Build the services of turns and of commands, people's logins at services, and the replayer of stored turns.

`/oauth/callback/NAME` is where the authorization server of a server sends a browser back to, at any gateway: the
attempt is a row. Its page has no text of another server. `/oauth/client/NAME.json` is the metadata of the client there.
"""

from __future__ import annotations

import asyncio
import html
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from agent.attachments import speech
from agent.attachments.attachment_loader import AttachmentLoader, ImageInliner
from agent.attachments.document_reader import SandboxedReader
from agent.attachments.speech import LitellmTranscriber, SpeechModel
from agent.commands.command import CommandServices, QueueService, UsageService
from agent.files.file_workspace import ReceivedFiles
from agent.files.outgoing_files import OutgoingFiles
from agent.files.turn_files import FileServices
from agent.llm.openai_model import picture_price
from agent.mcp.logins import CallbackResult, LoginServer, LoginVault, PersonLogins
from agent.mcp.oauth import OAuthClient
from agent.mcp.servers import STATE
from agent.memory.prompt.prompt_snapshot import ScopeMemory
from agent.tools.tool_questions import StandingDecisions
from agent.turns.agent_loop import AgentLoop
from agent.turns.prompt_assembly import AutoRecall, PromptAssembler
from agent.turns.recorded_turn import UncountedToolCalls, UnrecordedCalls
from agent.turns.turn_replay import TurnReplayer
from agent.turns.turn_tools import CallReviewer, TurnMemoryTools
from agent.workers.spoken_answers import SpokenAnswers
from agent.workers.turn_services import RetryingJournal, TurnServices
from gateway.access.refusal_log import OtherRefusal, SilenceReason
from gateway.app.chat_settings import build_settings_view, build_vision_check
from gateway.app.models import ModelServices, build_media_model
from gateway.app.recall import search_limitation
from gateway.channel import ChannelAttachmentFetcher, ChannelHistory
from gateway.errors import StoreUnavailable, UserError
from gateway.events import PlatformAccount, Role
from gateway.health.gateway_checks import read_status
from gateway.i18n import translate
from gateway.installation import program_version
from gateway.net import clock_ahead, clock_line, time_servers
from gateway.operations import call_from_chat
from gateway.settings import Settings
from gateway.settings.channel_blocks import PAGE
from gateway.web.server import browser_address

if TYPE_CHECKING:
    from agent.tools.tool import Tool
    from gateway.app.runtime import Runtime

log = structlog.get_logger(__name__)

_CLOCK_INTERVAL = timedelta(minutes=10)


def build_replayer(app: Runtime) -> TurnReplayer:
    """Build the replayer of stored turns."""
    memory, unrecorded = app.memory, UnrecordedCalls()
    models = ModelServices(app.settings, app.plugins, unrecorded, unrecorded, now=app.now)

    return TurnReplayer(
        loop=app.turn_services.loop,
        reviewer=CallReviewer(
            outgoing=_build_outgoing(app),
            jobs=app.store.jobs,
            caps=UncountedToolCalls(),
            now=app.now,
        ),
        sessions=memory.sessions,
        memory=ScopeMemory(memory.documents),
        files=app.store.files,
        profiles=app.profiles,
        context_of=app.context_of,
        role_of=app.judge.role,
        locales=app.locales,
        window=app.settings.agents.defaults.memory_window,
        open_model=models.build_single,
    )


def _build_outgoing(app: Runtime) -> OutgoingFiles:
    return OutgoingFiles(
        app.memory.workspaces,
        ReceivedFiles(app.store.transcripts),
        app.blobs,
        most=app.settings.files.max_mb * 1_000_000,
        limit=app.configured_channels.file_limit,
        redact=app.redactor.redact,
    )


def build_command_services(app: Runtime) -> CommandServices:
    """Build the services of the commands of the chat."""
    settings, store, memory, turns = app.settings, app.store, app.memory, app.turns

    async def status() -> Mapping[str, Any]:
        found = await read_status(app, for_chat=True)
        # The reply would have to be stored: the turn is tried again when the store answers.
        cause = found["store"].get("cause", "") or next(iter(found["unknown"].values()), "")
        if cause:
            raise StoreUnavailable(cause)
        return {
            **found,
            "version": program_version(),
            "uptime_seconds": time.monotonic() - app.started_at,
            "workers": settings.agent.workers,
            "busy": len(turns),
            "search_limitation": search_limitation(app),
        }

    return CommandServices(
        queue=QueueService(journal=store.journal, outbox=store.outbox, records=store.records, turns=turns, now=app.now),
        documents=memory.service,
        editor=memory.editor,
        staging=memory.staging,
        erasure=memory.erasure,
        dreams=memory.dreams,
        privacy=app.privacy,
        workspaces=memory.workspaces,
        search=app.recall,
        sessions=memory.sessions,
        runner=app.background,
        archives_first=settings.memory.new_waits,
        memory_window=settings.agents.defaults.memory_window,
        call_operation=partial(call_from_chat, app),
        links=memory.linking,
        profiles=app.profiles,
        locales=app.locales,
        preferences=store.people,
        list_settings=build_settings_view(app),
        usage=UsageService(store=store.usage, caps=app.caps, day_zone=settings.timezone),
        jobs=store.jobs,
        tasks=app.task_services,
        interrupt_task=app.interrupt_task,
        approvals=app.approvals,
        decisions=StandingDecisions(store.jobs),
        mcp=app.mcp,
        find_direct_chat=app.owner_chats.find_direct,
        find_direct_chats=app.owner_chats.find_all_direct,
        status=status,
    )


def build_turn_services(app: Runtime) -> TurnServices:
    """Build the services of turns."""
    settings, store, memory = app.settings, app.store, app.memory
    journal = RetryingJournal(store.journal)
    clock = ClockCheck(time_servers(settings.channels.values(), settings.llm.api_base), settings.proxy_address, app.now)
    attachments = _build_attachment_loader(app)
    assembler = PromptAssembler(
        ScopeMemory(memory.documents),
        files=attachments,
        history=ChannelHistory(app.channels, admits=app.judge.may_be_read),
        auto_recall=AutoRecall(app.recall) if settings.memory.auto_recall else None,
        approvals=app.approvals,
        outbox=store.outbox,
    )

    received = ReceivedFiles(app.store.transcripts)
    outgoing = _build_outgoing(app)
    return TurnServices(
        journal=journal,
        previews=app.dispatcher,
        conversations=memory.conversations,
        assembler=assembler,
        loop=AgentLoop(
            max_calls=settings.agent.max_tool_calls,
            steer=settings.agent.overlap == "steer",
            merges=settings.agent.merge == "burst",
            store=journal,
            redact=app.redactor.redact,
            assembler=assembler,
            images=ImageInliner(app.blobs),
            see=attachments.see,
            search=app.recall,
            files=FileServices(memory.workspaces, received, app.blobs, SandboxedReader()),
            outgoing=outgoing,
            pages=app.pages,
            jobs=store.jobs,
            tasks=app.task_services,
            reviewer=CallReviewer(outgoing=outgoing, jobs=store.jobs, caps=app.caps, now=app.now),
            memory_tools=TurnMemoryTools(app.home.path, memory.editor, memory.erasure, memory.archive),
            now=app.now,
        ),
        router=app.router,
        commands=app.commands,
        memory_jobs=memory.jobs,
        search=app.recall,
        context_of=app.context_of,
        current_admission=partial(app.judge.current_admission, notes_rejection=True),
        find_owner=app.owner_chats,
        spoken_answers=app.spoken_answers,
        locales=app.locales,
        profiles=app.profiles,
        caps=app.caps,
        reminders=app.reminders,
        tasks=app.task_services,
        on_expired=lambda message: app.refusals.note(message, OtherRefusal(reason=SilenceReason.EXPIRED), app.now()),
        meter=app.meter,
        now=app.now,
        links=store.links,
        redactor=app.redactor,
        scope_lock=memory.scope_lock,
        isolation=settings.memory.isolation,
        page_address=_page_address(settings),
        clock_ahead=clock.ahead,
    )


def _page_address(settings: Settings) -> str:
    """Return the address of the page that has the console, the public one if there is one; "" without a page."""
    names = [name for name, block in settings.channels.items() if block.enabled and block.kind == PAGE]
    if not names:
        return ""
    web = settings.web
    base = web.public_url or browser_address(web.host, web.published_port or web.port)
    return f"{base.rstrip('/')}/" if PAGE in names else f"{base.rstrip('/')}/{names[0]}/"


def _build_attachment_loader(app: Runtime) -> AttachmentLoader:
    files = app.settings.files
    return AttachmentLoader(
        ChannelAttachmentFetcher(app.channels, most_mb=files.max_mb),
        app.blobs,
        text_chars=files.text_chars,
        sees=build_vision_check(app),
        transcriber=_build_transcriber(app),
    )


def _build_transcriber(app: Runtime) -> LitellmTranscriber | None:
    llm = app.settings.llm
    if not llm.transcription_model:
        return None
    # The chat model's address and key are sent to its own provider alone.
    entry = llm.entry(llm.transcription_model)
    return LitellmTranscriber(
        build_media_model(app, entry, purpose=speech.TRANSCRIPTION, seconds=speech.TRANSCRIPTION_SECONDS)
    )


def build_spoken_answers(app: Runtime) -> SpokenAnswers | None:
    """Build what reads answers out; None without a speech model."""
    settings, store = app.settings.speech, app.store
    if not settings.model:
        return None
    entry = settings.entry(app.settings.llm)
    model = build_media_model(app, entry, purpose=speech.PURPOSE, seconds=speech.SECONDS, most_bytes=speech.MOST_BYTES)
    return SpokenAnswers(
        model=SpeechModel(
            model,
            voice=settings.voice,
            max_seconds=settings.max_seconds,
            usd_per_million_characters=settings.usd_per_million_characters,
        ),
        who=Role(settings.who),
        max_characters=settings.max_characters,
        limit=app.configured_channels.file_limit,
        redact=app.redactor.redact,
        context_of=app.context_of,
        current_admission=app.judge.current_admission,
        caps=app.caps,
        outbox=store.outbox,
        records=store.records,
        journal=store.journal,
        blobs=app.blobs,
        files=store.files,
        transcripts=store.transcripts,
        now=app.now,
    )


class ClockCheck:
    """Compares this machine's clock with a platform's when a message looks a day old, at most every ten minutes."""

    def __init__(self, servers: Sequence[str], proxy: str, now: Callable[[], datetime]) -> None:
        self._servers = servers
        self._proxy = proxy
        self._now = now
        self._lock = asyncio.Lock()
        self._ahead = timedelta(0)
        self._checked_at: float | None = None

    async def ahead(self) -> timedelta:
        """Return by how much this machine's clock is ahead, if that is more than a day; otherwise zero."""
        async with self._lock:
            at = asyncio.get_running_loop().time()
            if self._checked_at is None or at - self._checked_at >= _CLOCK_INTERVAL.total_seconds():
                self._ahead = await clock_ahead(self._servers, self._now(), proxy=self._proxy)
                self._checked_at = at
                if self._ahead:
                    log.error("clock.ahead", mend=clock_line(self._ahead))
        return self._ahead


def build_draw_tool(app: Runtime) -> list[Tool]:
    """Return the tool `draw` if a picture model is set."""
    settings = app.settings.tools.draw
    if not settings.model:
        return []
    from agent.tools import draw_tool
    from agent.web.web_tools import WebPages

    entry, pages = settings.entry(app.settings.llm), WebPages(proxy=app.settings.proxy_address)
    usd = settings.usd_per_picture
    model = draw_tool.PictureModel(
        build_media_model(
            app, entry, purpose=draw_tool.PURPOSE, seconds=draw_tool.SECONDS, most_bytes=draw_tool.MOST_BYTES
        ),
        size=settings.size,
        quality=settings.quality,
        usd=picture_price(entry.model, settings.size, settings.quality) if usd is None else usd,
        fetch=pages.fetch_bytes,
    )
    return [draw_tool.build_draw_tool(model)]


_LONGEST_PARAMETER = 8_000  # characters
_STATUS = {CallbackResult.DONE: 200, CallbackResult.DENIED: 200}
_PAGE = """<!doctype html>
<html lang="{language}"><head><meta charset="utf-8"><title>Parlour</title>
<meta name="viewport" content="width=device-width, initial-scale=1"></head>
<body><p>{text}</p>{rest}</body></html>
"""


def build_logins(app: Runtime) -> PersonLogins:
    """Build the logins of people at MCP servers."""
    state, links = app.store.state(STATE), app.store.links
    key = app.settings.tools.login_key

    def accounts(account: str) -> list[str]:
        person = links.person(PlatformAccount.from_name(account))
        return [each.account.name for each in links.accounts(person)] or [account]

    def find_server(name: str) -> LoginServer | None:
        return app.mcp.login_server(name)  # which is built from these logins

    return PersonLogins(
        state,
        LoginVault(
            state,
            app.home.secrets,
            key.get_secret_value() if key else "",
            is_shared=app.settings.store.shared,
        ),
        OAuthClient(proxy=app.settings.proxy_address),
        server=find_server,
        accounts=accounts,
        address=lambda: (app.settings.web.public_url or app.web.url).rstrip("/"),
        now=app.now,
    )


def login_routes(app: Runtime) -> list[Route]:
    """Return the routes of a sign-in."""

    async def callback(request: Request) -> Response:
        given = request.query_params
        state, code, error = (given.get(name, "") for name in ("state", "code", "error"))
        if any(len(value) > _LONGEST_PARAMETER for value in given.values()) or not state:
            return _page(CallbackResult.UNKNOWN, app.settings.language)
        try:
            result, language, server, confirmation = await app.logins.take_callback(
                request.path_params["name"], state=state, code=code, issuer=given.get("iss"), error=error
            )
        except (StoreUnavailable, UserError) as wrong:
            log.warning("login.callback_failed", reason=str(wrong))
            return _page(CallbackResult.FAILED, app.settings.language)
        return _page(result, language or app.settings.language, server=server, confirmation=confirmation)

    async def client(request: Request) -> Response:
        logins, name = app.logins, request.path_params["name"]
        if name not in [each.name for each in app.mcp.servers]:
            return JSONResponse({"error": "no server has this name"}, 404)
        return JSONResponse(
            {
                "client_id": logins.document(name),
                "client_name": "Parlour",
                "redirect_uris": [logins.redirect(name)],
                "grant_types": ["authorization_code", "refresh_token"],
                "response_types": ["code"],
                "token_endpoint_auth_method": "none",
            }
        )

    return [
        Route("/oauth/callback/{name}", callback, methods=["GET"]),
        Route("/oauth/client/{name}.json", client, methods=["GET"]),
    ]


def _page(result: CallbackResult, language: str, *, server: str = "", confirmation: str = "") -> Response:
    """Return the page after a sign-in; it has no text of another server."""
    rest = ""
    if result is CallbackResult.DONE:
        warning = html.escape(translate("logins.page_warning", language))
        rest = f"<p><code>/login {html.escape(server)} {html.escape(confirmation)}</code></p><p>{warning}</p>"
    text = html.escape(translate(result, language, server=server or "?"))
    return HTMLResponse(_PAGE.format(language=html.escape(language), text=text, rest=rest), _STATUS.get(result, 400))
