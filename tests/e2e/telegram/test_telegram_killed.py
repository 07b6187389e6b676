"""Killed at every call that an answer makes to Telegram: the table in docs/telegram.md is what happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.i18n import translate
from tests.fakes.gateway import free_port
from tests.fakes.kill_snapshots import KillSnapshot, KillSnapshots
from tests.fakes.telegram_gateway import TEAM, EchoModel, mention, open_gateway
from tests.fakes.telegram_server import TelegramPost, TelegramServer, open_telegram, telegram_now

WORDS = "hello, and tell me something that is long enough for a draft"
ANSWER = f"You said: {WORDS}"
MARK = translate("delivery.may_repeat")
MARKED = f"{ANSWER}\n\n{MARK}"
READ = "I have read it."
LONG = "\n\n".join(f"Paragraph {n} " + "word " * 60 for n in range(50))
BEGINNING, FILE = "Paragraph 0", "[answer.md]"


@dataclass(frozen=True)
class KillCase:
    """One way of a message, and what stands in its chat in the end: killed before or after which call."""

    ask: Callable[[TelegramServer], object]
    answer: Callable[[str], str]
    expected: Mapping[str, list[str]]
    settings: Mapping[str, str] = field(default_factory=dict)


def ask_for_text(server: TelegramServer) -> None:
    """Ask in private."""
    server.say(WORDS)


def ask_with_a_file(server: TelegramServer) -> None:
    """Send a document."""
    ident = server.files.keep(b"the words of the file")
    server.say(None, document={"file_id": ident, "file_name": "a.txt", "mime_type": "text/plain", "file_size": 21})


def ask_in_the_team(server: TelegramServer) -> None:
    """Ask for something long in a group."""
    server.say("@parlour_bot tell us", chat=TEAM, sender=43, **mention("@parlour_bot"))


HOOK = {"MODE": "webhook", "WEBHOOK_SECRET": "a-secret-that-is-hard-to-guess"}
WAYS = {
    "a text": KillCase(
        ask_for_text,
        lambda text: f"You said: {text}",
        {
            "after getUpdates 1": [ANSWER],  # handed out, not stored
            "before getUpdates 2": [ANSWER],  # stored, not confirmed
            "after confirmation 1": [ANSWER],  # confirmed, not answered
            "before sendMessageDraft 1": [ANSWER],
            "after sendMessageDraft 1": [ANSWER],
            "before sendMessage 1": [MARKED],  # we were about to: nobody can tell whether it left
            "after sendMessage 1": [ANSWER, MARKED],  # it did, and we never heard
            "before setMessageReaction 1": [ANSWER],
            "after setMessageReaction 1": [ANSWER],
            "before setMessageReaction 2": [ANSWER],  # the answer is delivered: nothing more is due for it
            "after setMessageReaction 2": [ANSWER],
            "at the end": [ANSWER],
        },
    ),
    "a file in": KillCase(
        ask_with_a_file,
        lambda _: READ,
        {
            "before getFile 1": [READ],
            "before download 1": [READ],  # the address is known
            "after download 1": [READ],  # the bytes left, and were not kept
            "before sendMessage 1": [f"{READ}\n\n{MARK}"],
            "at the end": [READ],
        },
    ),
    "a file out": KillCase(
        ask_in_the_team,
        lambda _: LONG,
        {
            "before sendDocument 1": [BEGINNING, f"{FILE} {MARK}"],
            "after sendDocument 1": [BEGINNING, FILE, f"{FILE} {MARK}"],
            "at the end": [BEGINNING, FILE],
        },
    ),
    "a webhook": KillCase(
        ask_for_text,
        lambda text: f"You said: {text}",
        {
            "before webhook 1": [ANSWER],  # Telegram calls: nothing is stored
            "after webhook 1": [ANSWER],  # stored, and told so; Telegram does not hear it and calls again
            "before sendMessage 1": [MARKED],
            "at the end": [ANSWER],
        },
        HOOK,
    ),
    "strict": KillCase(
        ask_for_text,
        lambda text: f"You said: {text}",
        {
            "before sendMessage 1": [ANSWER],
            "after sendMessage 1": ["…", ANSWER],  # an empty placeholder that nobody knows of stays
            "before editMessageText 1": [ANSWER],
            "after editMessageText 1": [ANSWER],
            "at the end": [ANSWER],
        },
        {"PARLOUR_DELIVERY__ONCE": "strict"},
    ),
}


def copy_telegram(server: TelegramServer) -> TelegramServer:
    """Return Telegram as it is now."""
    there = TelegramServer()
    for attribute in ("chats", "posts", "updates", "reactions"):
        setattr(there, attribute, deepcopy(getattr(server, attribute)))
    there.files.kept = dict(server.files.kept)
    there.now = server.now
    return there


def settings_of(way: KillCase) -> dict[str, Any]:
    """Return the block's settings; a webhook has an address that is free now."""
    found: dict[str, Any] = {**way.settings}
    if "MODE" in found:
        port = free_port()
        found |= {"WEBHOOK_URL": f"http://127.0.0.1:{port}/hooks/telegram", "PARLOUR_WEB__PORT": str(port)}
    return found


@pytest.mark.parametrize("name", WAYS)
async def test_what_the_table_says_is_what_happens(name: str, tmp_path: Path) -> None:
    """At every moment of an answer's way: nothing is lost, and nothing is there twice without a mark."""
    way = WAYS[name]
    async with telegram_now() as server:
        camera = KillSnapshots(partial(copy_telegram, server), tmp_path, way.expected)
        model = EchoModel(way.answer)
        model.go_on.clear()
        server.on_call = camera.see
        async with open_gateway(server, model, **settings_of(way)) as up:
            camera.parlour = up
            way.ask(server)
            await model.thinks.wait()
            await server.until(lambda: bool(server.drafts or server.posts or server.files.kept))
            await server.until(lambda: not server.updates)
            model.go_on.set()
            await server.until(lambda: len(server.posts) >= len(way.expected["at the end"]))
            await up.idle()
            await server.until(lambda: not list_reactions(server))
            camera.take("at the end")
    assert sorted(camera.moments) == sorted(way.expected)
    if name == "a text":
        assert list_reactions(camera.moments["before setMessageReaction 2"].server)
    moments = camera.moments.items()
    stands = {at: await what_stands_after(way, moment, len(way.expected[at])) for at, moment in moments}
    assert stands == way.expected


async def what_stands_after(way: KillCase, moment: KillSnapshot[TelegramServer], posts: int) -> list[str]:
    """Start again with what was left, and return what stands in the chat when everything is quiet; no reaction does."""
    async with open_telegram(moment.server) as server:
        async with open_gateway(server, EchoModel(way.answer), home=moment.home, **settings_of(way)) as up:
            await server.until(lambda: len(server.posts) >= posts and not server.updates)
            await up.idle()
            await server.until(lambda: not list_reactions(server))
        return [described(post) for post in server.posts]


def list_reactions(server: TelegramServer) -> set[int]:
    """Return the messages on which a reaction of ours stands."""
    last = {each["message_id"]: bool(each.get("reaction")) for each in server.reactions}
    return {message for message, is_on in last.items() if is_on}


def described(post: TelegramPost) -> str:
    """Return a post in a few words: a file by its name and caption, something long by its beginning."""
    if post.file is not None:
        return f"[{post.file.name}] {post.text}".strip()
    return post.text if len(post.text) < 400 else post.text[: len(BEGINNING)]
