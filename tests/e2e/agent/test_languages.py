"""Whose language: every sentence of ours is the chat's own, whoever else writes to the same gateway."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.errors import ModelRefused
from gateway.events import SessionKey
from gateway.i18n import translate
from tests.fakes.held_model import HeldScriptModel, calls, users
from tests.fakes.inprocess_gateway import OPEN, PLAIN, InProcessGateway, gateway
from tests.fakes.staged_changes import staged

TYPED = ("/start", "/frobnicate", "/remember", "/help")


class RefusingModel(HeldScriptModel):
    """A model that takes no request."""

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Refuse."""
        raise ModelRefused("not like this")


async def choose(parlour: InProcessGateway, chat: str, language: str, **facts: Any) -> str:
    """Choose a language in a chat and return the answer."""
    return await parlour.channel.ask(chat, f"/language {language}", **facts)


async def test_each_of_two_people_is_spoken_to_in_their_own_language() -> None:
    """Answers of commands, refusals, unknown words and buttons' labels: German to one, Spanish to the other."""
    async with gateway(model=HeldScriptModel()) as parlour:
        assert await choose(parlour, "ann", "Deutsch") == translate("commands.language_set", "de")
        assert await choose(parlour, "bea", "es", sender="bea") == translate("commands.language_set", "es")
        for chat, language in (("ann", "de"), ("bea", "es"), ("cem", "en")):
            told = {text: await parlour.channel.ask(chat, text, sender=chat) for text in TYPED}
            assert told["/start"] == translate("commands.start", language)
            assert told["/frobnicate"] == translate("commands.unknown", language, name="frobnicate")
            assert told["/remember"] == translate("memory.remember_what", language)
            assert translate("commands.help_stop", language) in told["/help"]


async def test_a_failure_is_told_in_the_language_of_who_reads_it() -> None:
    """What went wrong is said to each in their own words."""
    async with gateway(model=RefusingModel()) as parlour:
        await choose(parlour, "ann", "de")
        text = await parlour.channel.ask("ann", "hello")
        assert text.startswith(translate("failures.refused", "de"))
        other = await parlour.channel.ask("bea", "hello", sender="bea")
        assert other.startswith(translate("failures.refused", "en"))


async def test_a_shared_chat_has_a_language_of_its_own_that_its_admins_choose() -> None:
    """A member is refused, an admin chooses; what people have in their direct chats stays theirs."""
    async with gateway(model=HeldScriptModel(), policy=OPEN) as parlour:
        await choose(parlour, "ann", "de")
        refused = await choose(parlour, "g", "es", group=True)
        assert refused == translate("commands.only_admin", "en", command="language")
        assert await choose(parlour, "g", "es", sender="bob", group=True, is_admin=True) == translate(
            "commands.language_set", "es"
        )
        assert await parlour.channel.ask("g", "/queue", group=True) == translate("commands.queue_empty", "es")
        assert await parlour.channel.ask("g/7", "/queue", group=True) == translate("commands.queue_empty", "es")
        assert await parlour.channel.ask("ann", "/queue") == translate("commands.queue_empty", "de")


async def test_the_operators_word_is_below_the_chats_own_and_above_the_usual() -> None:
    """PARLOUR_LANGUAGE, then `chats`, then what was chosen; `default` takes a choice back."""
    environment = {"PARLOUR_LANGUAGE": "es-MX", "PARLOUR_CHATS": '{"pocket:vip": {"language": "zh"}}'}
    async with gateway(model=HeldScriptModel(), environment=environment) as parlour:
        assert await parlour.channel.ask("ann", "/stop") == translate("commands.nothing_to_stop", "es")
        assert await parlour.channel.ask("vip", "/stop", sender="vip") == translate("commands.nothing_to_stop", "zh")
        await choose(parlour, "vip", "english", sender="vip")
        assert await parlour.channel.ask("vip", "/stop", sender="vip") == translate("commands.nothing_to_stop", "en")
        assert await choose(parlour, "vip", "default", sender="vip") == translate("commands.language_set", "zh")
        assert "klingon" in await choose(parlour, "vip", "klingon", sender="vip")
        assert await parlour.channel.ask("vip", "/stop", sender="vip") == translate("commands.nothing_to_stop", "zh")


async def test_a_choice_outlives_a_restart_and_a_crash(tmp_path: Path) -> None:
    """The next process knows it before anybody has spoken: what delivery adds to an old answer is in it, too."""
    home = tmp_path / "home"
    async with gateway(home=home, model=HeldScriptModel()) as parlour:
        await choose(parlour, "a-chat-not-named-after-ann", "de")
        await parlour.idle()
        killed = parlour.kill(tmp_path / "killed")
    for place in (home, killed):
        async with gateway(home=place, model=HeldScriptModel()) as parlour:
            key = SessionKey("pocket", "a-chat-not-named-after-ann")
            assert parlour.app.commands.locales.language(key) == "de"
            assert await parlour.channel.ask(key.chat, "/stop") == translate("commands.nothing_to_stop", "de")


async def test_what_is_asked_beside_the_turns_is_in_the_chats_language() -> None:
    """A question about memory and its buttons come from a job, and are still said to somebody."""
    async with gateway(model=HeldScriptModel()) as parlour:
        await choose(parlour, "ann", "de")
        await staged(parlour, "people/pocket%3aann", "pocket:ann")
        await parlour.idle()
        asked = parlour.channel.texts["ann"][-1]
        assert "Soll ich" in asked
        assert f"{translate('approvals.yes', 'de')}: `/memory approve" in asked
        assert f"{translate('approvals.no', 'de')}: `/memory reject" in asked


async def test_what_delivery_adds_is_in_the_chats_language() -> None:
    """A file that a chat cannot take is replaced by a line of our own."""

    @tool("Send a file.", kind=ToolKind.LOOK)
    async def note(context: ToolContext) -> str:
        await context.send("note.md", "words")
        parlour.channel.capabilities = PLAIN  # the channel learns meanwhile that it may not
        return "done"

    model = HeldScriptModel(calls(("note", "{}")), "Here.")
    async with gateway(model=model, tools=[note], capabilities=replace(PLAIN, file_limit=1_000_000)) as parlour:
        await choose(parlour, "ann", "es")
        await parlour.channel.ask("ann", "write it down")
        await parlour.idle()
        assert translate("delivery.no_files", "es", name="note.md") in parlour.channel.texts["ann"]


async def test_the_language_changes_no_byte_of_the_prompt() -> None:
    """The model answers in the language it is written to; a choice of ours is no reason for a new snapshot."""
    model = HeldScriptModel()
    async with gateway(model=model) as parlour:
        await parlour.channel.ask("ann", "one")
        await choose(parlour, "ann", "zh")
        await parlour.channel.ask("ann", "two")
        first, second = model.asked
        assert second.messages[: len(first.messages)] == first.messages
        assert users(second)[-1] == "two"


async def test_words_of_the_offline_model_are_the_chats() -> None:
    """Without a model, what it says instead is in the language of the chat."""
    async with gateway() as parlour:
        await choose(parlour, "ann", "de")
        assert await parlour.channel.ask("ann", "remember that I like tea") == translate(
            "offline.remembered", "de", fact="I like tea"
        )


async def test_an_old_message_and_a_full_chat_are_told_in_the_chats_language() -> None:
    """Lines that no turn says: what expired, and what was not taken."""
    environment = {"PARLOUR_AGENT__QUEUED_PER_CHAT": "1"}
    model = HeldScriptModel(held=[1])
    async with gateway(model=model, environment=environment) as parlour:
        await choose(parlour, "ann", "es")
        old = datetime.now(UTC) - timedelta(days=2)
        assert await parlour.channel.ask("ann", "long ago", sent_at=old) == translate("queue.expired", "es")
        await parlour.channel.say("ann", "one")
        await model.called(1)
        told = [await parlour.channel.say("ann", f"more {n}") for n in range(3)]
        done, _ = await asyncio.wait([each for _, each in told], return_when=asyncio.FIRST_COMPLETED)
        assert done
        assert translate("queue.full", "es", limit=1) in parlour.channel.texts["ann"]
        model.go(1)
        await parlour.idle()


@pytest.mark.parametrize("name", ["Berlin", "europe/berlin", "BERLIN"])
async def test_a_city_is_a_time_zone(name: str) -> None:
    """Nobody has to know how IANA writes it; what is told then is told by the clocks there."""
    async with gateway(model=HeldScriptModel(), environment={"PARLOUR_TIMEZONE": "UTC"}) as parlour:
        assert await parlour.channel.ask("c", f"/timezone {name}") == translate(
            "commands.timezone_set", zone="Europe/Berlin"
        )
        assert parlour.app.commands.locales.zone("people/pocket%3aann") == "Europe/Berlin"


async def test_a_misspelt_zone_gets_a_suggestion_and_changes_nothing() -> None:
    """The nearest are named, in the language of the chat; nothing is guessed."""
    async with gateway(model=HeldScriptModel(), environment={"PARLOUR_TIMEZONE": "UTC"}) as parlour:
        await choose(parlour, "c", "de")
        assert await parlour.channel.ask("c", "/timezone Brelin") == translate(
            "commands.timezone_near", "de", zone="Brelin", near="Europe/Berlin"
        )
        assert await parlour.channel.ask("c", "/timezone") == translate("commands.timezone", "de", zone="UTC")
        await parlour.channel.ask("c", "/timezone Kolkata")
        assert await parlour.channel.ask("c", "/timezone default") == translate(
            "commands.timezone_set", "de", zone="UTC"
        )
