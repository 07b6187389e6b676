"""Cases on Telegram: what the model gets, and what people see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.i18n import translate
from tests.fakes.platform_cases import PICTURE, SEES, CaseModel, load_case
from tests.fakes.sample_files import png_of
from tests.fakes.slack_gateway import transcripts
from tests.fakes.telegram_gateway import TEAM, open_gateway
from tests.fakes.telegram_server import TelegramFault, TelegramServer


@asynccontextmanager
async def run_case(
    server: TelegramServer, case: dict[str, Any], *, home: Path | None = None
) -> AsyncIterator[CaseModel]:
    """Run a gateway, let what the case holds arrive one after the other, and wait until all is done."""
    model = CaseModel()
    team = server.chat(TEAM)
    team.topics = set(case.get("topics", ()))
    server.privacy = False
    for ident in ("AgAC1", "AgAC4"):
        server.files.keep(png_of(8, 8), ident)
    for method, refusals in case.get("fail", {}).items():
        server.fail(method, *(TelegramFault("status", status, description=text) for status, text in refusals))
    async with open_gateway(server, model, home, **SEES, **case.get("env", {})) as up:
        for update in case["updates"]:
            message = {**update["message"], "date": server.now()}
            place = server.chat(int(message["chat"]["id"]))
            place.known.add(int(message["message_id"]))
            place.last_id = max(place.last_id, int(message["message_id"]))
            if case.get("hold"):
                model.go_on.clear()
            server.push({"message": message})
            await server.until(lambda: not server.updates)
            if case.get("hold"):
                await model.asked.wait()
                team.topics = set(case["after"]["topics"])
                model.go_on.set()
            await up.idle()
        await up.idle()
        yield model
        await up.idle()
        await server.until(lambda: not has_reaction(server))


def has_reaction(server: TelegramServer) -> bool:
    """Return True if a message carries the bot's reaction."""
    last = {(each["chat_id"], each["message_id"]): each.get("reaction") for each in server.reactions}
    return any(last.values())


async def test_the_answer_of_a_topic_that_was_deleted_is_in_the_group(server: TelegramServer) -> None:
    """Below its question, once; and no reaction stays."""
    async with run_case(server, load_case("04_telegram_topic_deleted")):
        assert server.shown(TEAM) == ["Ann: @parlour_bot hi\n\nAnswer 1."]


async def test_where_topics_were_switched_off_the_answer_is_in_the_private_chat(server: TelegramServer) -> None:
    """Below its question, once."""
    async with run_case(server, load_case("04c_telegram_private_topics_switched_off")):
        assert server.shown(42) == ["Ann: hello\n\nAnswer 1."]


@pytest.mark.parametrize(
    "reason",
    [
        "Bad Request: not enough rights to send text messages to the chat",
        "Bad Request: CHAT_WRITE_FORBIDDEN",
        "Bad Request: TOPIC_CLOSED",
        "Bad Request: have no rights to send a message",
    ],
)
async def test_a_group_that_takes_no_message_costs_a_line_to_the_asker(server: TelegramServer, reason: str) -> None:
    """One line in their private chat, and no reaction stays."""
    case = load_case("08_telegram_not_enough_rights_eyes_stay")
    server.chat(42)
    case["fail"] = {"sendMessage": [[400, reason]]}
    async with run_case(server, case):
        assert server.shown(42) == [translate("delivery.place_gone")]
        assert server.shown(TEAM) == []


async def test_an_asker_who_cannot_be_written_to_has_no_reaction_left(server: TelegramServer) -> None:
    """The group takes nothing and the person has no chat with the bot: given up, without a sign that it works."""
    case = load_case("08_telegram_not_enough_rights_eyes_stay")
    refusal = case["fail"]["sendMessage"][0]
    case["fail"] = {"sendMessage": [refusal, [403, "Forbidden: bot can't initiate conversation with a user"]]}
    async with run_case(server, case):
        assert server.posts == []


# -- what the model gets -------------------------------------------------------------------------


USER = {"id": 42, "is_bot": False, "first_name": "Ann"}
ANSWERED: dict[str, tuple[dict[str, Any], str]] = {
    "sticker": ({"sticker": {"file_id": "AgAC1", "emoji": "😺"}}, "(image sticker.webp"),
    "voice": ({"voice": {"file_id": "AgAC1", "duration": 1}}, "(voice voice.ogg"),
    "poll": ({"poll": {"question": "Where?", "options": [{"text": "Here"}, {"text": "There"}]}}, "> (a poll: Where?"),
    "task": (
        {"checklist": {"title": "Trip", "tasks": [{"id": 1, "text": "buy"}, {"id": 2, "text": "pack"}]}, "task": 2},
        "> (a checklist: Trip)\n>   - [ ] pack",
    ),
    "location": ({"location": {"latitude": 1, "longitude": 2}}, "> (a location: 1.00000, 2.00000)"),
    "contact": ({"contact": {"first_name": "Zoe", "phone_number": "+1"}}, "> (a contact: Zoe, +1)"),
    "bots own file": (
        {"from": {"id": 123456789, "is_bot": True, "first_name": "Parlour"}, "document": {"file_id": "AgAC1"}},
        "of the quoted message",
    ),
    "caption": ({"photo": [{"file_id": "AgAC1", "width": 9, "height": 9}], "caption": "the cat"}, "> the cat (image)"),
    "unknown kind": ({"hologram": {"size": 3}}, "> (content of a kind that cannot be read)"),
}


KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "checklist": (
        load_case("03_telegram_checklist")["updates"][0]["message"],
        "(a checklist: Trip)\n  - [ ] buy tickets",
    ),
    "paid media": (load_case("03b_telegram_paid_media")["updates"][0]["message"], "(paid media for 5 stars: preview)"),
    "story": (load_case("03b_telegram_story")["updates"][0]["message"], "(a story of News)"),
    "game": ({"game": {"title": "Chess", "description": "a board"}}, "(a game: Chess, a board)"),
    "invoice": (
        {"invoice": {"title": "Tea", "description": "a cup", "currency": "EUR", "total_amount": 350}},
        "(an invoice: Tea, a cup, 350 EUR",
    ),
    "gift": (
        {"gift": {"gift": {"sticker": {"emoji": "🎁"}, "star_count": 15}, "text": "for you"}},
        "(a gift 🎁 of 15 stars",
    ),
    "unique gift": ({"unique_gift": {"gift": {"base_name": "Bear", "number": 7}}}, "(a gift: Bear #7)"),
    "giveaway": (
        {"giveaway": {"chats": [{"title": "News"}], "winner_count": 3}},
        "(a giveaway for 3 winners, of News)",
    ),
    "winners": ({"giveaway_winners": {"winner_count": 1, "winners": [USER]}}, "(a giveaway ended with 1 winners: Ann)"),
    "tasks done": (
        {
            "checklist_tasks_done": {
                "checklist_message": {"checklist": {"title": "Trip", "tasks": [{"id": 1, "text": "buy tickets"}]}},
                "marked_as_done_task_ids": [1],
            }
        },
        "(in the checklist Trip marked as done: buy tickets)",
    ),
    "tasks added": ({"checklist_tasks_added": {"tasks": [{"id": 3, "text": "pack"}]}}, "- [ ] pack"),
    "dice": ({"dice": {"emoji": "🎲", "value": 4}}, "(🎲 4)"),
    "venue": (
        {"venue": {"title": "Cafe", "address": "Main St", "location": {}}, "location": {"latitude": 1, "longitude": 2}},
        "(a place: Cafe, Main St)",
    ),
    "paid media with a caption": (
        {"paid_media": {"star_count": 5, "paid_media": [{"type": "preview"}]}, "caption": "look"},
        "look\n  (paid media",
    ),
    "sticker": ({"sticker": {"file_id": "AgAC1", "emoji": "😺"}}, ": 😺"),
    "live photo": (
        {"live_photo": {"file_id": "B", "photo": [{"file_id": "AgAC1", "width": 9, "height": 9}]}},
        "(image photo.jpg",
    ),
    "gift upgrade": ({"gift_upgrade_sent": {"gift": {"sticker": {"emoji": "🎁"}}}}, "(a gift 🎁)"),
    "video note": ({"video_note": {"file_id": "AgAC1", "length": 9, "duration": 1}}, "(video video-note.mp4"),
    "animation": ({"animation": {"file_id": "AgAC1", "duration": 1, "width": 9, "height": 9}}, "(video animation.mp4"),
}


async def test_an_unknown_kind_gets_a_line_now_and_then_and_no_turn(server: TelegramServer) -> None:
    """Something of a later Bot API, twice: one line; service messages: none."""
    case = private({"hologram": {"size": 3}})
    case["updates"] += private({"hologram": {"size": 4}, "message_id": 2})["updates"]
    case["updates"] += private({"pinned_message": {"message_id": 1}, "message_id": 3})["updates"]
    async with run_case(server, case) as model:
        await server.until(lambda: bool(server.posts))
        assert server.shown(42) == [translate("files.unreadable")]
    assert model.prompts == []


FORWARDS: dict[str, tuple[dict[str, Any], str]] = {
    "user": (
        load_case("05_telegram_forward_is_shown_as_own_words")["updates"][0]["message"],
        ", Ann, forwarded from Zoe]",
    ),
    "hidden": (
        {"text": "x", "forward_origin": {"type": "hidden_user", "sender_user_name": "Q"}},
        ", Ann, forwarded from Q]",
    ),
    "channel": (
        {"text": "x", "forward_origin": {"type": "channel", "chat": {"title": "Bees"}}},
        ", Ann, forwarded from Bees]",
    ),
    "inline bot": ({"text": "x", "via_bot": {"id": 5, "username": "gif"}}, ", Ann, forwarded from the inline bot gif]"),
    "own": ({"text": "x", "forward_origin": {"type": "user", "sender_user": USER}}, ", Ann] "),
}


CHAT = {"id": 42, "type": "private", "first_name": "Ann"}


def private(content: dict[str, Any]) -> dict[str, Any]:
    """Return the case of a message of Ann's to the bot."""
    return {"updates": [{"message": {"message_id": 1, "from": USER, "chat": CHAT, **content}}]}


def answer_to(content: dict[str, Any]) -> dict[str, Any]:
    """Return the case of Ann's answer to a message of *content*, or to one task of it."""
    picked = {"reply_to_checklist_task_id": content["task"]} if "task" in content else {}
    answered = {"message_id": 1, "from": USER, "chat": CHAT, "date": 1, **content}
    return private({"message_id": 2, "text": "this?", **picked, "reply_to_message": answered})


STORY = {"text": "what is this?", "reply_to_story": {"chat": {"title": "News"}, "id": 3}}
READ: dict[str, tuple[Any, ...]] = {
    "a picture that is answered in a group": (
        load_case("01_telegram_reply_to_photo_in_group"),
        "[the message that is answered here, by Ben]\n> (image)",
        "of the quoted message",
        PICTURE,
    ),
    "a picture that is answered directly": (
        load_case("01b_telegram_reply_to_photo_direct"),
        "[the message that is answered here, by Ann]\n> (image)",
        PICTURE,
    ),
    "a picture of another chat": (
        load_case("01d_telegram_external_reply_with_photo"),
        "[the message that is answered here, by Zoe]",
        PICTURE,
    ),
    "a story that is answered": (private(STORY), "> (a story of News)\n", "] what is this?"),
    **{f"{name}, answered": (answer_to(content), said, "] this?") for name, (content, said) in ANSWERED.items()},
    **{name: (private(content), said) for name, (content, said) in KINDS.items()},
    **{f"a forward: {name}": (private(content), said) for name, (content, said) in FORWARDS.items()},
}


@pytest.mark.parametrize("name", READ)
async def test_what_is_sent_or_answered_reaches_the_model(server: TelegramServer, name: str) -> None:
    """A file as a file, anything else in words, and whose they are; each is answered."""
    case, *expected = READ[name]
    async with run_case(server, case) as model:
        prompt = model.prompts[-1]
        assert server.posts
    for each in expected:
        assert each in prompt
    assert prompt.count(PICTURE) <= 1


async def test_another_bots_command_is_passed_over_in_an_open_group(server: TelegramServer) -> None:
    """No call of the model and no answer; the same with our name is ours."""
    case = load_case("07_telegram_command_of_another_bot_open_group")
    async with run_case(server, case) as model:
        assert server.posts == []
    assert model.prompts == []


@pytest.mark.parametrize("mention", [0, 1, 2])
async def test_an_album_is_whole_whichever_photo_names_the_bot(server: TelegramServer, mention: int) -> None:
    """Three photos, the caption with the mention on one of them: one turn with three pictures, one answer."""
    team = {"id": TEAM, "type": "supergroup", "title": "The team"}
    photo = {
        "photo": [{"file_id": "AgAC1", "width": 9, "height": 9}],
        "media_group_id": "al",
        "chat": team,
        "from": USER,
    }
    caption = {"caption": "@parlour_bot these?", "caption_entities": [{"type": "mention", "offset": 0, "length": 12}]}
    async with run_case(server, {"updates": []}) as model:
        for n in range(3):
            message = {**photo, "message_id": n + 1, "date": server.now(), **(caption if n == mention else {})}
            server.push({"message": message})
        await server.until(lambda: bool(server.posts))
    (prompt,) = model.prompts
    assert prompt.count(PICTURE) == 3


@pytest.mark.parametrize("is_forward", [True, False])
async def test_a_forward_in_the_background_is_untrusted(
    server: TelegramServer, tmp_path: Path, is_forward: bool
) -> None:
    """An admitted person's forward is still another's words: the turn that reads it is tainted."""
    team = {"id": TEAM, "type": "supergroup", "title": "The team"}
    ben = {"id": 43, "is_bot": False, "first_name": "Ben"}
    forward = {"forward_origin": {"type": "hidden_user", "sender_user_name": "Q"}} if is_forward else {}
    question = load_case("01_telegram_reply_to_photo_in_group")["updates"][1]["message"]
    del question["reply_to_message"]
    said = {"message_id": 1, "from": ben, "chat": team, "text": "meet at six", **forward}
    async with run_case(server, {"updates": [{"message": said}, {"message": question}]}, home=tmp_path) as model:
        assert "meet at six" in model.prompts[0]
    assert ('"quoted_origin":"untrusted"' in transcripts(tmp_path).replace(" ", "")) is is_forward
