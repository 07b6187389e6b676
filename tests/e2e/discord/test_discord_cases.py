"""Cases on Discord: what the model gets, and what people see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gateway.i18n import translate
from tests.e2e.discord.test_gateway_discord import CALL, open_gateway
from tests.fakes.discord_records import ANN, BEN, BOT, GENERAL, TEAM_ROLE
from tests.fakes.discord_server import DiscordServer
from tests.fakes.platform_cases import PICTURE, SEES, CaseModel, load_case
from tests.fakes.sample_files import png_of
from tests.fakes.slack_gateway import transcripts


@asynccontextmanager
async def run_case(discord: DiscordServer, case: dict[str, Any], *, answers: int = 1) -> AsyncIterator[CaseModel]:
    """Run a gateway, let what the case holds arrive one after the other, and wait until all is done."""
    model, named = CaseModel(), dict[str, str]()
    for method, kind, what in case.get("fail", ()):
        discord.fail(method, kind, what)
    async with open_gateway(discord, model=model, more=SEES) as up:
        for message in case["messages"]:
            fields = dict(message)
            where, user = fields.pop("where"), fields.pop("user")
            place = discord.direct(user) if where == "dm" else where
            name, reply = fields.pop("as", ""), fields.pop("reply", "")
            if reply:
                fields["reply_to"] = named[reply]
            named[name] = discord.say(place, user, fields.pop("content"), **fields)
        await discord.until(lambda: len(posts(discord)) >= answers)
        await up.idle()
        yield model
        await discord.until(
            lambda: sum(on for *_, on in discord.reactions) == sum(not on for *_, on in discord.reactions)
        )


def posts(discord: DiscordServer) -> list[str]:
    """Return what the bot's messages say, wherever they stand."""
    return [text for channel in discord.messages for text in discord.chat(channel)]


@pytest.mark.parametrize("code", ["400 50083", "400 160005", "403 50013", "403 50001", "404 10003"])
async def test_a_thread_that_takes_no_message_is_answered_in_its_channel(discord: DiscordServer, code: str) -> None:
    """Below its question, once; and no reaction stays."""
    thread = discord.open_thread(GENERAL, "plans")
    case = {"fail": [["POST", "messages", code]], "messages": [{"where": thread, "user": ANN, "content": f"{CALL} hi"}]}
    async with run_case(discord, case):
        assert discord.chat(GENERAL) == ["> Ann: @Parlour hi\n\nAnswer 1."]
        assert discord.chat(thread) == []


async def test_a_channel_that_takes_no_message_costs_a_line_to_the_asker(discord: DiscordServer) -> None:
    """One line in the direct chat, and no reaction stays."""
    async with run_case(discord, load_case("23_discord_thread_locked")):
        assert discord.chat(discord.direct(ANN)) == [translate("delivery.place_gone")]


# -- what the model gets -------------------------------------------------------------------------


def keep_pictures(discord: DiscordServer, case: dict[str, Any]) -> dict[str, Any]:
    """Return *case* with files that the server has."""
    for message in case["messages"]:
        for part in (message, *(each["message"] for each in message.get("message_snapshots", ()))):
            part["attachments"] = [
                discord.cdn.keep(each["filename"], png_of(8, 8), content_type=each["content_type"])
                for each in part.get("attachments", ())
            ]
    return case


SNAPSHOTS: dict[str, tuple[dict[str, Any], str]] = {
    "embed": (
        {"embeds": [{"title": "Build 7", "description": "red", "fields": [{"name": "CPU", "value": "99"}]}]},
        "Build 7\n  red\n  CPU: 99",
    ),
    "sticker": ({"sticker_items": [{"id": "1", "name": "Wave", "format_type": 1}]}, "(sticker: Wave)"),
    "poll": (
        {"poll": {"question": {"text": "Tea?"}, "answers": [{"poll_media": {"text": "Yes"}}]}},
        "(a poll: Tea? Yes)",
    ),
    "components": ({"components": [{"type": 17, "components": [{"type": 10, "content": "in a box"}]}]}, "in a box"),
}


HERE = "[the message that is answered here, by"
CI = {"author": {"id": "3001", "username": "CI", "bot": True}}
ANSWERED: dict[str, tuple[dict[str, Any], str]] = {
    "embed": ({**CI, "embeds": [{"title": "Build 7", "description": "red"}]}, f"{HERE} CI]\n> Build 7\n>   red\n"),
    "picture of an embed": (
        {**CI, "embeds": [{"image": {"url": "https://x.example/i.png"}}]},
        f"{HERE} CI]\n> (image)\n",
    ),
    "unknown kind": ({"hologram": {"size": 3}}, f"{HERE} Ben]\n> (content of a kind that cannot be read)\n"),
}


QUESTION = {"where": GENERAL, "user": ANN, "content": f"{CALL} what is this?", "reply": "it"}
NAMED = f"{CALL} move it from <#{GENERAL}> to <#77> for <@&{TEAM_ROLE}>"


def answer_to(content: dict[str, Any]) -> dict[str, Any]:
    """Return the case of Ann's answer to a message."""
    return {"messages": [{"where": GENERAL, "user": BEN, "content": "", **content, "as": "it"}, QUESTION]}


def forward_of(content: dict[str, Any]) -> dict[str, Any]:
    """Return the case of a forward."""
    case = load_case("20_discord_forward_of_a_picture")
    case["messages"][0]["message_snapshots"] = [{"message": {"content": "", **content}}]
    return case


FORWARD = {**load_case("20b_discord_forward_of_text_and_picture")["messages"][0], "where": GENERAL}
READ: dict[str, tuple[Any, ...]] = {
    "a picture that is answered": (load_case("22_discord_reply_to_picture"), f"{HERE} Ben]\n> (image)", PICTURE),
    "a forwarded picture": (load_case("20_discord_forward_of_a_picture"), ", Ann, forwarded]", PICTURE),
    "forwarded words and a picture": (
        load_case("20b_discord_forward_of_text_and_picture"),
        ", Ann, forwarded] the forwarded words",
        PICTURE,
    ),
    "a forward that is answered": (answer_to(FORWARD), f"{HERE} Ann]\n> the forwarded words (image)", PICTURE),
    "a sticker": (load_case("21_discord_sticker_only"), "] (sticker: Wave)"),
    "a poll": (load_case("21b_discord_poll"), "] (a poll: Where to eat? Pizza / Thai)"),
    "channels and roles": (
        {"messages": [{"where": GENERAL, "user": ANN, "content": NAMED}]},
        f"move it from #general to #77 for @role_{TEAM_ROLE}",
    ),
    **{f"{name}, answered": (answer_to(content), said) for name, (content, said) in ANSWERED.items()},
    **{
        f"a forward of: {name}": (forward_of(content), f", Ann, forwarded] {said}")
        for name, (content, said) in SNAPSHOTS.items()
    },
}


@pytest.mark.parametrize("name", READ)
async def test_what_is_sent_or_answered_reaches_the_model(discord: DiscordServer, name: str) -> None:
    """Files as files, other content in words, ids as names, and whose they are; only an answer quotes."""
    case, *expected = READ[name]
    async with run_case(discord, keep_pictures(discord, deepcopy(case))) as model:
        (prompt,) = model.prompts
    for each in expected:
        assert each in prompt
    assert (HERE in prompt) is (HERE in "".join(expected))


async def test_a_thread_below_another_bots_card_is_shown_it(discord: DiscordServer) -> None:
    """Its author is no person that the channel admits: the card is what is answered, and untrusted."""
    discord.users["3001"] = CI["author"]
    card = discord.say(GENERAL, BEN, "", **CI, embeds=[{"title": "Build 7"}])
    thread = discord.open_thread(GENERAL, "red", ident=card)
    async with run_case(discord, {"messages": [{"where": thread, "user": ANN, "content": f"{CALL} why?"}]}) as model:
        (prompt,) = model.prompts
    assert "[the message that is answered here, by CI]\n> Build 7\n" in prompt


async def test_an_answer_that_starts_a_thread_is_shown_in_it(discord: DiscordServer, tmp_path: Path) -> None:
    """A thread is a conversation of its own: the bot's answer, below which it begins, is quoted once, and is clean."""
    model = CaseModel()
    more = {"PARLOUR_CHANNELS__DISCORD__REPLY_IN": "channel"}
    async with open_gateway(discord, model=model, home=tmp_path, more=more) as up:
        discord.say(GENERAL, ANN, f"{CALL} hi")
        await discord.until(lambda: len(posts(discord)) == 1)
        await up.idle()
        (answer,) = [each for each in discord.messages[GENERAL] if each["author"]["id"] == BOT]
        thread = discord.open_thread(GENERAL, "more", ident=answer["id"])
        for n, text in enumerate(("shorter", "shorter still"), 2):
            discord.say(thread, ANN, f"{CALL} {text}")
            await discord.until(lambda n=n: len(posts(discord)) == n)  # type: ignore[misc]
            await up.idle()
    quote = "[the message that is answered here, by Parlour]\n> Answer 1.\n"
    assert [quote in each for each in model.prompts] == [False, True, False]
    assert "quoted_origin" not in transcripts(tmp_path)


async def test_nothing_to_read_gets_a_line_and_no_turn(discord: DiscordServer) -> None:
    """A message of a kind that we do not know."""
    case = {"messages": [{"where": "dm", "user": ANN, "content": ""}] * 2}
    async with run_case(discord, case) as model:
        assert posts(discord) == [translate("files.unreadable")]
    assert model.prompts == []
