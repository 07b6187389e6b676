"""Which model answers a chat, with which tools and window: chosen before decided before usual, served from memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.llm.model_client import ModelClient
from agent.llm.scripted_model import ScriptedModel
from agent.skills import SkillLibrary
from agent.tools.toolbox import Toolbox
from agent.turns.chat_profiles import ActiveModel, ChatProfiles, ModelCatalog, ModelChoiceOrigin, resolve_overrides
from gateway.events import SessionKey
from gateway.settings.chat_settings import ChatOverrides, ChatSettings
from gateway.store.sql_store import SqlStore
from tests.fakes.clock import VirtualClock
from tests.fakes.llm_context import NOW, FakeUsageRecorder, SummingMeter
from tests.fakes.store import open_inline_store

CHAT = SessionKey("slack", "C042")
THREAD = SessionKey("slack", "C042/1712.34")
NO_SKILLS = SkillLibrary(Path("/nonexistent"))


def models(*offered: str) -> ModelCatalog:
    """Return three models, of which *offered* may be chosen."""
    named = {name: _client(f"openai/{name}-1") for name in ("fast", "careful", "dear")}
    return ModelCatalog(_client("openai/usual"), named, name="usual", choosable=offered or ("fast", "careful"))


def _client(name: str) -> ModelClient:
    return ModelClient(
        [ScriptedModel((), name=name)], recorder=FakeUsageRecorder(), meter=SummingMeter(), now=lambda: NOW
    )


class ModelsHere:
    """Models as chats get them, over *store*, where the operator decided *places*."""

    def __init__(self, store: SqlStore, places: dict[str, ChatSettings] | None = None) -> None:
        chats = ChatOverrides(places or {})
        self._profiles = ChatProfiles(
            models(), Toolbox.load(), store.people, chats.of, has_guilds=False, skills=NO_SKILLS
        )
        self.models, self.choose = self._profiles.models, self._profiles.choose_model

    def active_model(self, key: SessionKey) -> ActiveModel:
        """Return the model of the chat's profile."""
        return self._profiles.of(key).active


async def test_a_choice_goes_before_what_was_decided(clock: VirtualClock) -> None:
    """It holds for the chat and all of its threads, until it is taken back."""
    store = await open_inline_store(clock=clock.now)
    models_here = ModelsHere(store, {"slack:C042/1712.34": ChatSettings(model="dear")})
    assert models_here.active_model(CHAT).origin is ModelChoiceOrigin.USUAL
    assert (models_here.active_model(THREAD).name, models_here.active_model(THREAD).origin) == (
        "dear",
        ModelChoiceOrigin.DECIDED,
    )
    await models_here.choose(THREAD, "fast")
    assert {models_here.active_model(key).name for key in (CHAT, THREAD)} == {"fast"}
    assert models_here.active_model(SessionKey("slack", "C7")).name == "usual"
    await models_here.choose(CHAT, "")
    assert models_here.active_model(THREAD).name == "dear"


async def test_what_is_not_offered_cannot_be_chosen(clock: VirtualClock) -> None:
    """Not by its name either: what the operator keeps for one chat is theirs to give."""
    store = await open_inline_store(clock=clock.now)
    models_here = ModelsHere(store)
    assert models_here.models.find("dear") == ""
    assert models_here.models.find(" OpenAI/Careful-1 ") == "careful"
    with pytest.raises(ValueError, match="dear"):
        await models_here.choose(CHAT, "dear")
    # Nor does it count what somebody wrote into the journal.
    await store.people.prefer("slack:C042", "model", "dear")
    found = models_here.active_model(CHAT)
    assert (found.name, found.lost) == ("usual", "dear")


async def test_what_we_do_by_ourselves_knows_its_guild(clock: VirtualClock) -> None:
    """A guild's settings hold for a chat that nobody has written in since the start: the guild was noted."""
    store = await open_inline_store(clock=clock.now)
    chats = ChatOverrides(
        {"discord:guild:811": ChatSettings.model_validate({"memory_window": 7, "tools": {"allow": []}})}
    )
    chat = SessionKey("discord", "901/5")

    def manners() -> ChatProfiles:
        return ChatProfiles(
            models(),
            Toolbox.load(),
            store.people,
            resolve_overrides(store.people, chats.of),
            has_guilds=chats.has_guilds,
            skills=NO_SKILLS,
        )

    before = manners()
    assert before.of(chat).memory_window is None
    await before.note(chat, "811")
    after = manners()
    assert after.of(SessionKey("discord", "901")).memory_window == 7
    assert after.of(chat).toolbox.names == ()
    assert after.of(SessionKey("discord", "902")).memory_window is None
