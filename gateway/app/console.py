"""The console of the page, its owners and admins among the page's users, and the data of the page's panels."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from agent.base.scopes import chat_scope
from agent.base.transcript_lines import decode_lines, parse_time
from agent.commands.logins import login_words
from agent.commands.memory_lists import format_source
from agent.reminders.reminder import Reminder, chat_titles, reminders_in
from agent.tasks.task import tasks_in
from agent.tasks.task_jobs import state_words
from agent.tools.call_record import call_steps, reasoning_of
from agent.tools.offline_model import is_offline
from agent.turns.chat_profiles import stored_guild
from gateway.app.chat_settings import build_scope_guess
from gateway.app.recall import search_limitation
from gateway.control.registry import console_operations
from gateway.events import ChatKind, InboundKind, InboundMessage, Role, Sender, SessionKey
from gateway.i18n import translate
from gateway.i18n.formats import format_moment, format_spent, format_usage
from gateway.ports.access import AccessChange, actor_outside
from gateway.ports.channel import (
    MOST_LINES,
    LineSource,
    ModelOffer,
    ReminderEntry,
    RunEntry,
    ServiceEntry,
    TaskEntry,
    TurnDetails,
)
from gateway.ports.journal import InboxRow
from gateway.settings.channel_blocks import PAGE
from gateway.web_console import WebConsole

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from channels.web.adapter import WebChannel
    from gateway.app.runtime import Runtime

_MOST_CHATS = 200  # in which one person's rights are looked up
_LOOKUPS = 8  # at once
_MOST_RUNS = 20  # of one reminder
_CLOCK_TOLERANCE = timedelta(minutes=1)  # between the clocks of a turn's message, its calls and its record


def build_console(app: Runtime) -> WebConsole | None:
    """Return the console of the page; None where no page is enabled."""
    page = next(iter(app.chat_pages), None)
    if page is None:
        return None
    visitors = PageVisitors(page, app)
    prefix = "" if page.name == PAGE else f"/{page.name}"
    return WebConsole(visitors, app.operations, console_operations(), prefix=prefix)


def is_console_owner(app: Runtime, channel: str, who: str) -> bool:
    """Return True if the console is at the page *channel*, and its user *who* is an owner, by any of their accounts."""
    return any(page.name == channel for page in app.chat_pages[:1]) and _is_owner(app, channel, who)


def _is_owner(app: Runtime, channel: str, who: str) -> bool:
    roster = app.roster
    return roster.is_owner(channel, who) or roster.is_owner_of(roster.linked_accounts(roster.account(channel, who)))


@dataclass(slots=True, eq=False)
class PageVisitors:
    """The people who are logged in to the page, by their names there, as the console sees them.

    An admin administers a shared chat by an account of its platform that they linked to their user of the page. With
    one memory for all people (memory.isolation: shared) only owners are admitted, because a chat has no data apart.
    """

    page: WebChannel
    app: Runtime

    async def find(self, connection: HTTPConnection) -> str | None:
        """Return the user who makes a request; None if they have to log in."""
        visitor = await self.page.visitor(connection)
        return None if visitor is None else visitor.who

    def account(self, who: str) -> str:
        """Return *who* as the audit names them."""
        return f"{self.page.name}:{who}"

    def is_owner(self, who: str) -> bool:
        """Return True if the user *who* of the page is an owner, also by another of their accounts."""
        return _is_owner(self.app, self.page.name, who)

    async def is_admin(self, who: str, chat: str) -> bool:
        """Return True if *who* administers the shared chat *chat* now; its platform is asked, as for a command."""
        try:
            key = SessionKey.parse(chat)
        except ValueError:
            return False
        return await self._is_shared_chat(key) and await self._administers(who, key)

    async def list_administered_chats(self, who: str) -> Sequence[str]:
        """Return the shared chats that *who* administers now, the most recently used first."""
        chats = (await self._shared_chats())[:_MOST_CHATS]
        slots = asyncio.Semaphore(_LOOKUPS)

        async def administers(key: SessionKey) -> bool:
            async with slots:
                return await self._administers(who, key)

        found = await asyncio.gather(*map(administers, chats))
        return [str(key) for key, is_theirs in zip(chats, found, strict=True) if is_theirs]

    async def record_call(self, who: str, what: str, whom: str) -> None:
        """Write an audit entry about a call that is going to run."""
        line = actor_outside(self.account(who)).to_entry(what, whom, self.app.now())
        await self.app.store.access.change(AccessChange(line=line))

    async def _is_shared_chat(self, key: SessionKey) -> bool:
        """Return True if *key* is a shared chat with sessions, and no thread of one."""
        if self.app.settings.memory.isolation == "shared" or key != key.parent:
            return False
        return await self.app.store.records.has_session(key, chat_scope(key))

    async def _shared_chats(self) -> list[SessionKey]:
        """Return the shared chats that have sessions, the most recently used first."""
        if self.app.settings.memory.isolation == "shared":
            return []
        rows = await self.app.store.records.sessions()
        found = (row.key.parent for row in rows if row.scope == chat_scope(row.key.parent))
        return list(dict.fromkeys(found))

    async def _administers(self, who: str, key: SessionKey) -> bool:
        roster, links = self.app.roster, self.app.store.links
        page = roster.account(self.page.name, who)
        kind = self.app.platform(key.channel)
        for each in links.accounts_of_user(page):
            account = each.account
            if account.kind != kind or account == page:
                continue
            message = InboundMessage(
                key=key,
                message_id="rights",
                sender=Sender(id=account.id, team=account.team),
                text="",
                sent_at=self.app.now(),
                kind=InboundKind.COMMAND,
                chat_kind=ChatKind.GROUP,
                guild=stored_guild(self.app.store.people, key),
                is_addressed=True,
            )
            row = InboxRow(seq=0, message=message, accepted_at=self.app.now())
            admitted = await self.app.judge.current_admission(row)
            if admitted is not None and admitted.role in (Role.ADMIN, Role.OWNER):
                return True
        return False


class GatewayPersonPanels:
    """Implements `PersonPanels` with the services of `/memory`, `/reminders`, `/tasks` and `/model`."""

    def __init__(self, app: Runtime) -> None:
        self._app = app
        self._memory = app.memory
        self._locales = app.locales
        self._scopes = build_scope_guess(app.settings.memory.isolation, app.store.links, app.platforms)

    async def remembered_lines(self, key: SessionKey) -> Sequence[str]:
        """Return the remembered lines without headings and bullets, pending writes included."""
        async with self._memory.scope_lock.hold_shared(lambda: self._scope(key)) as scope:
            await self._memory.jobs.settle(scope)
            texts = await self._memory.service.displayed_documents(scope)
        lines = [_plain(line) for text in texts.values() for line in text.splitlines() if not line.startswith("#")]
        return list(dict.fromkeys(filter(None, lines)))[:MOST_LINES]

    async def last_erasure(self, key: SessionKey) -> str:
        """Return the name of the last erasure of words from the person's memory, "" for none."""
        return await self._memory.documents.epoch(self._scope(key))

    def search_limitation(self, key: SessionKey) -> str:
        """Return the sentence about a search by words alone, in the chat's language; "" if it is by meaning too."""
        sentence = search_limitation(self._app)
        return translate(sentence, self._locales.language(key)) if sentence else ""

    async def line_source(self, key: SessionKey, line: str) -> LineSource | None:
        """Return the source of a remembered line, None for an unknown line."""
        async with self._memory.scope_lock.hold_shared(lambda: self._scope(key)) as scope:
            await self._memory.jobs.settle(scope)
            origins = await self._memory.service.why(scope, line, limit=MOST_LINES)
        found = next((each for each in origins if _plain(each.line) == line), None)
        if found is None:
            return None
        zone, language = self._locales.zone(scope), self._locales.language(key)
        text = format_source(found, zone=zone, language=language, is_shared=False)
        return LineSource(text, found.change.short)

    async def reminders(self, key: SessionKey) -> Sequence[ReminderEntry]:
        """Return the reminders that are not over, the next one first."""
        found = [
            each for each in reminders_in(await self._app.store.jobs.pending_in(self._scope(key))) if not each.is_fired
        ]
        language = self._locales.language(key)
        account = self._app.roster.account(key.channel, key.parent.chat)
        accounts = [account, *self._app.roster.linked_accounts(account)]
        chats = [chat for chat, _ in await self._app.owner_chats.find_all_direct(self._scope(key), accounts)]
        return [
            ReminderEntry(
                id=each.id,
                key=each.key,
                text=each.text,
                at=each.at,
                when=f"{format_moment(each.due, each.zone, language)} {each.zone}",
                repeat=each.repeat,
                is_paused=bool(each.paused),
                chats=_chat_choices(each, chats),
                chat=str(each.key if each.target is None else each.target.key),
            )
            for each in sorted(found, key=lambda each: each.due)
        ]

    async def reminder_runs(self, key: SessionKey, reminder: str) -> Sequence[RunEntry] | None:
        """Return the newest runs of the reminder of this id, None for an unknown one."""
        scope = self._scope(key)
        known = reminders_in(await self._app.store.jobs.pending_in(scope))
        found = next((each for each in known if each.id == reminder), None)
        if found is None:
            return None
        language = self._locales.language(key)
        return [
            RunEntry(
                when=format_moment(each.at, found.zone, language),
                state=translate(f"promises.state_{each.state}", language),
                spent=format_spent(each.tokens, each.known_cost, each.unpriced_calls, language),
            )
            for each in await self._app.reminders.runs(found, limit=_MOST_RUNS)
        ]

    @property
    def has_tasks(self) -> bool:
        """True if background tasks are switched on."""
        return self._app.settings.tools.tasks.enabled

    async def tasks(self, key: SessionKey) -> Sequence[TaskEntry]:
        """Return the background tasks, those that wait or run first."""
        scope = self._scope(key)
        found = tasks_in(await self._app.store.jobs.pending_in(scope))
        language, zone, now = self._locales.language(key), self._locales.zone(scope), self._app.now()
        return [
            TaskEntry(
                id=each.id, text=each.goal, state=state_words(each, now, zone, language), is_over=each.state.is_over
            )
            for each in found
        ]

    async def services(self, key: SessionKey) -> Sequence[ServiceEntry]:
        """Return the services that people sign in to, with the person's logins."""
        servers = self._app.mcp.login_names
        if not servers:
            return ()
        account = self._app.roster.account(key.channel, key.parent.chat).name
        zone, language = self._locales.zone(self._scope(key)), self._locales.language(key)
        logins = {each.server: each for each in await self._app.logins.of_person(account)}
        return [
            ServiceEntry(name=each, state=login_words(each, logins.get(each), zone, language), is_in=each in logins)
            for each in servers
        ]

    async def turn_details(self, key: SessionKey, turn: str) -> TurnDetails | None:
        """Return the models, tokens and cost of a turn of the conversation *key*, None for an unknown turn."""
        store = self._app.store
        scope = await store.records.scope_of(key)
        stored = None if scope is None else await store.transcripts.find(scope, key, turn)
        if scope is None or stored is None:
            return None
        lines = await asyncio.to_thread(decode_lines, stored.body)
        times = [parse_time(line.get("seen") or line.get("timestamp")) for line in lines if line.get("role") == "user"]
        asked_at = next(filter(None, reversed(times)), None)
        since = (asked_at or stored.at) - _CLOCK_TOLERANCE
        rows = await store.usage.models_of_turn(turn, since=since, until=stored.at + _CLOCK_TOLERANCE)
        tokens_in, tokens_out, tokens_cached = (
            sum(row[name] for row in rows) for name in ("tokens_in", "tokens_out", "tokens_cached")
        )
        return TurnDetails(
            models=[row["model"] for row in rows],
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            tokens_cached=tokens_cached,
            cost=str(format_usage(rows, self._locales.language(key))["cost"]) if rows else "",
            seconds=0.0 if asked_at is None else max((stored.at - asked_at).total_seconds(), 0.0),
            steps=tuple(call_steps(lines, self._locales.zone(scope), self._locales.language(key))),
            reasoning=reasoning_of(lines),
        )

    def models(self, key: SessionKey) -> ModelOffer:
        """Return the model that answers in the chat, and the models and profiles that it can choose."""
        profile = self._app.profiles.of(key)
        name, offered = profile.active.name, list(self._app.models.catalog.offered)
        effort = profile.effort if profile.has_chosen_effort else ""
        return ModelOffer(
            name,
            offered,
            is_offline(name),
            chosen_effort=effort,
            profile=profile.name,
            profiles=self._app.profiles.offered,
            has_chosen_profile=profile.has_chosen_name,
        )

    def has_locale(self, key: SessionKey) -> bool:
        """Return True if language and time zone of the person are known, or one scope is everybody's."""
        scope = self._scope(key)
        return not scope or self._locales.has_profile(scope)

    def page_language(self, key: SessionKey, languages: Sequence[str]) -> str:
        """Return the language of the page for a browser that prefers *languages*; a choice or setting wins over it."""
        return self._locales.page_language(key, languages)

    async def note_locale(self, key: SessionKey, *, languages: Sequence[str], zone: str) -> None:
        """Store what the person's browser says, unless they chose a language or zone. Raises StoreUnavailable."""
        if scope := self._scope(key):
            await self._locales.note_profile(scope, languages=languages, zone=zone)

    def _scope(self, key: SessionKey) -> str:
        return self._scopes(key)[0]


def _chat_choices(reminder: Reminder, chats: Sequence[SessionKey]) -> dict[str, str]:
    """Return the titles of the chats in which *reminder* can come, by key; one of a shared chat comes there alone."""
    if reminder.chat_kind is not ChatKind.DIRECT:
        return {}
    current = [] if reminder.target is None else [reminder.target.key]
    return {str(each): title for each, title in chat_titles((reminder.key, *chats, *current)).items()}


def _plain(line: str) -> str:
    text = line.strip()
    return text[2:].strip() if text[:2] in ("- ", "* ") else text
