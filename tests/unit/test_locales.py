"""Which language and which clock a chat has: what was chosen, decided, of a profile, usual; in that order."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gateway.chat_locales import ChatLocales
from gateway.events import ChatKind, InboundMessage, PlatformAccount, Sender, SessionKey
from gateway.ports.access import ChatOverride, MessageContext
from gateway.store.records import SqlPreferences
from tests.fakes.turns import START

DM, ROOM, THREAD = SessionKey("slack", "D1"), SessionKey("slack", "C1"), SessionKey("slack", "C1/1.2")
OTHER = SessionKey("telegram", "42")


class StoredChoices(SqlPreferences):
    """Choices in memory."""

    def __init__(self) -> None:
        self.chosen: dict[str, dict[str, str]] = {}
        self.writes = 0

    def preferences(self, subject: str) -> Mapping[str, str]:
        """Return them."""
        return self.chosen.get(subject, {})

    async def prefer(self, subject: str, name: str, value: str) -> None:
        """Keep one."""
        self.writes += 1
        self.chosen.setdefault(subject, {})[name] = value

    def choosers(self) -> Mapping[SessionKey, str]:
        """Nobody from before."""
        return {}


def locales(choices: StoredChoices, decided: Mapping[str, str] | None = None) -> ChatLocales:
    """Return locales where `decided` holds for a place: a key, or ``guild:<id>``."""
    return ChatLocales(
        choices,
        language="en",
        zone="UTC",
        overrides=partial(_override, decided or {}),
        scopes=lambda key: (f"people/{key.chat}", f"chats/{key.parent}"),
        chat=lambda scope: SessionKey.parse(scope.removeprefix("chats/")) if scope.startswith("chats/") else None,
        known_scopes={},
    )


def _override(decided: Mapping[str, str], key: SessionKey, guild: str) -> ChatOverride:
    setting = decided.get(str(key), decided.get(str(key.parent), decided.get(f"guild:{guild}", "")))
    return ChatOverride(language=setting.partition(" ")[0], timezone=setting.partition(" ")[2])


def context_of(message: InboundMessage, decided: Mapping[str, str] | None = None) -> MessageContext:
    """Return what is derived of a message where `decided` holds."""
    is_direct, key = message.chat_kind is ChatKind.DIRECT, message.key
    return MessageContext(
        account=PlatformAccount(kind=key.channel, id=message.sender.id),
        person=message.sender.id,
        scope=f"people/{message.sender.id}" if is_direct else f"chats/{key.parent}",
        overrides=_override(decided or {}, key, message.guild),
        parent_overrides=_override(decided or {}, key.parent, message.guild),
    )


def message(key: SessionKey, *, zone: str = "", guild: str = "", group: bool = False) -> InboundMessage:
    """Return what Ann said."""
    kind = ChatKind.GROUP if group else ChatKind.DIRECT
    sender = Sender(id="ann", timezone=zone)
    return InboundMessage(key=key, message_id="1", sender=sender, text="hi", sent_at=START, chat_kind=kind, guild=guild)


async def observe(here: ChatLocales, said: InboundMessage) -> str:
    """Take a message in, with what is derived of it."""
    return await here.observe_language(said, context_of(said))


async def test_a_direct_chat_is_known_by_who_spoke_there() -> None:
    """A key that names nobody leads to its person once they spoke; before that it is guessed, and never wrongly."""
    choices = StoredChoices()
    choices.chosen = {"people/ann": {"language": "de"}, "people/42": {"language": "es"}}
    here = locales(choices)
    assert here.language(DM) == "en"
    assert await observe(here, message(DM)) == "de"
    assert here.language(DM) == "de"
    assert here.language(OTHER) == "es"  # a Telegram direct chat has its person's id
    assert here.language(THREAD) == "en"


async def test_what_was_decided_for_a_server_counts_once_the_server_is_known() -> None:
    """A chat's key does not say which server it is in; a message does, for its threads too."""
    here = locales(StoredChoices(), {"guild:7": "zh Asia/Shanghai"})
    assert here.language(ROOM) == "en"
    await observe(here, message(ROOM, guild="7", group=True))
    assert (here.language(ROOM), here.language(THREAD)) == ("zh", "zh")
    assert (here.clock(ROOM), here.zone("chats/slack:C1")) == ("Asia/Shanghai", "Asia/Shanghai")


async def test_the_clock_is_chosen_then_decided_then_the_profiles_then_the_usual() -> None:
    """Each says something only where those before it say nothing, and of a profile only direct chats hear."""
    choices = StoredChoices()
    here = locales(choices, {str(OTHER): "en Asia/Tokyo"})
    assert here.clock(DM) == "UTC"
    await observe(here, message(DM, zone="Asia/Kolkata"))
    assert (here.clock(DM), here.zone("people/ann")) == ("Asia/Kolkata", "Asia/Kolkata")
    await observe(here, message(OTHER))
    assert here.zone("people/ann") == "Asia/Tokyo"
    await choices.prefer("people/ann", "timezone", "Europe/Berlin")
    assert (here.clock(DM), here.zone("people/ann")) == ("Europe/Berlin", "Europe/Berlin")
    await observe(here, message(ROOM, zone="Asia/Kolkata", group=True))
    assert here.zone("chats/slack:C1") == "UTC"


async def test_a_profile_is_written_when_it_is_news_and_is_a_zone() -> None:
    """A message costs no write; a look-up that failed, or nonsense, takes nothing away."""
    choices = StoredChoices()
    here = locales(choices)
    for zone in ("Asia/Kolkata", "Asia/Kolkata", "", "Mars/Olympus"):
        await observe(here, message(DM, zone=zone))
    assert choices.writes == 1
    assert here.zone("people/ann") == "Asia/Kolkata"


async def test_what_is_observed_is_what_is_looked_up_after() -> None:
    """A turn takes language and zone at once; whoever asks for one of them after it gets the same."""
    choices = StoredChoices()
    decided = {"guild:7": "zh Asia/Shanghai", str(THREAD): "de Europe/Berlin"}
    here = locales(choices, decided)
    await choices.prefer("people/ann", "language", "es")
    for each, scope in (
        (message(DM), "people/ann"),
        (message(ROOM, guild="7", group=True), "chats/slack:C1"),
        (message(THREAD, guild="7", group=True), "chats/slack:C1"),
    ):
        context = context_of(each, decided)
        assert context.scope == scope
        seen = here.observe(each, context)
        assert (seen.language, seen.zone) == (here.language(each.key), here.zone(scope))
    assert (seen.language, seen.zone) == ("de", "Asia/Shanghai")  # a scope's clock is that of its chat, not a thread's


async def test_a_browser_s_profile_gives_way_to_every_choice() -> None:
    """The first supported language and a real zone are stored once; a choice, and the operator's language, win."""
    choices = StoredChoices()
    them, key, scope = locales(choices), SessionKey("web", "ann"), "people/ann"
    assert not them.has_profile(scope)
    await them.note_profile(scope, languages=["fr", "de-AT", "es"], zone="Mars/Base")
    assert (them.language(key), them.zone(scope)) == ("de", "UTC")
    assert not them.has_profile(scope)
    await them.note_profile(scope, languages=["es"], zone="Europe/Vienna")
    assert (them.language(key), them.zone(scope)) == ("de", "Europe/Vienna")
    assert them.has_profile(scope)
    writes = choices.writes
    await them.note_profile(scope, languages=["es"], zone="Asia/Tokyo")
    assert choices.writes == writes
    assert them.page_language(key, ["es"]) == "de"  # not this browser's, but the first one's
    await choices.prefer(scope, "language", "zh")
    await choices.prefer(scope, "timezone", "Asia/Tokyo")
    assert (them.language(key), them.zone(scope)) == ("zh", "Asia/Tokyo")


def test_a_page_is_in_the_browser_s_language_where_none_is_known() -> None:
    """The first supported one, before a login too; else the default, and always that which the operator set."""
    them, closed = locales(StoredChoices()), SessionKey("web", "*")
    assert them.page_language(closed, ["fr", "de-AT", "es"]) == "de"
    assert them.page_language(closed, ["fr"]) == them.page_language(closed, []) == "en"
    assert locales(StoredChoices(), {"web:*": "es"}).page_language(closed, ["de"]) == "es"
