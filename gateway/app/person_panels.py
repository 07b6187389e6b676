"""Memory and reminders of a person, read for the page's panels."""

from __future__ import annotations

from collections.abc import Sequence

from agent.chat_profiles import ChatProfiles
from agent.commands.memory_lists import format_source
from agent.llm.offline_model import is_offline
from agent.memory.search.scope_recall import ScopeRecall
from agent.reminders.reminder import reminders_in
from gateway.app.chat_settings import build_scope_guess
from gateway.app.context import AppContext
from gateway.app.memory import MemoryServices
from gateway.app.recall import search_limitation
from gateway.events import SessionKey
from gateway.i18n import translate
from gateway.i18n.formats import format_moment
from gateway.ports.person_panels import MOST_LINES, LineSource, ModelOffer, ReminderEntry


class GatewayPersonPanels:
    """Implements `PersonPanels` with the services of `/memory`, `/reminders` and `/model`."""

    def __init__(
        self, context: AppContext, memory: MemoryServices, profiles: ChatProfiles, recall: ScopeRecall
    ) -> None:
        self._memory = memory
        self._recall = recall
        self._vectors = context.settings.tools.vector_memory
        self._jobs = context.store.jobs
        self._locales = context.locales
        self._profiles = profiles
        self._scopes = build_scope_guess(context.settings.memory.isolation, context.store.links, context.platforms)

    async def remembered_lines(self, key: SessionKey) -> Sequence[str]:
        """Return the remembered lines without headings and bullets, pending writes included."""
        async with self._memory.scope_lock.hold_shared(lambda: self._scope(key)) as scope:
            await self._memory.jobs.settle(scope)
            texts = await self._memory.service.displayed_documents(scope)
        lines = [_plain(line) for text in texts.values() for line in text.splitlines() if not line.startswith("#")]
        return list(dict.fromkeys(filter(None, lines)))[:MOST_LINES]

    def search_limitation(self, key: SessionKey) -> str:
        """Return the sentence about a search by words alone, in the chat's language; "" if it is by meaning too."""
        sentence = search_limitation(self._recall, self._vectors)
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
        found = [each for each in reminders_in(await self._jobs.pending_in(self._scope(key))) if not each.is_fired]
        language = self._locales.language(key)
        return [
            ReminderEntry(
                id=each.id,
                key=each.key,
                text=each.text,
                at=each.at,
                when=f"{format_moment(each.due, each.zone, language)} {each.zone}",
                repeat=each.repeat,
                is_paused=bool(each.paused),
            )
            for each in sorted(found, key=lambda each: each.due)
        ]

    def models(self, key: SessionKey) -> ModelOffer:
        """Return the model that answers in the chat, and those that it can choose."""
        profile = self._profiles.of(key)
        name, offered = profile.active.name, list(self._profiles.models.models.offered)
        effort = profile.effort if profile.has_chosen_effort else ""
        return ModelOffer(name, offered, is_offline(name), chosen_effort=effort)

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


def _plain(line: str) -> str:
    text = line.strip()
    return text[2:].strip() if text[:2] in ("- ", "* ") else text
