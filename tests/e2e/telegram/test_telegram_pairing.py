"""Letting people in on Telegram, over the wire: an owner who never wrote, forged presses, a moved group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.events import SessionKey
from tests.e2e.telegram.test_telegram_buttons import asked
from tests.fakes.telegram_gateway import EchoModel, open_gateway
from tests.fakes.telegram_server import telegram_now

OWNER, STRANGER = 42, 666
SETTINGS: Mapping[str, Any] = {"ALLOW_FROM": "", "PARLOUR_OWNERS": f"telegram:{OWNER}"}


async def test_an_owner_who_never_wrote_is_asked_all_the_same() -> None:
    """On Telegram an owner's chat is their id: whoever pressed Start once can be asked."""
    async with telegram_now() as server, open_gateway(server, EchoModel(), **SETTINGS) as up:
        server.chat(OWNER)
        server.say("hello", chat=STRANGER, sender=STRANGER)
        question = await asked(server, OWNER)
        assert question.buttons == [["Yes", "No"]]
        await up.idle()


async def test_strangers_cannot_decide_about_themselves() -> None:
    """Attacks 8, 11, 12: a forged press of the owner's button, and the command with the right code, by a stranger."""
    model = EchoModel()
    async with telegram_now() as server, open_gateway(server, model, **SETTINGS) as up:
        server.say("hello", sender=OWNER)
        await server.until(lambda: bool(server.shown(OWNER)))
        server.say("let me in", chat=STRANGER, sender=STRANGER)
        question = await asked(server, OWNER)
        await server.until(lambda: bool(server.shown(STRANGER)))
        (waiting,) = up.app.pairing.pending_requests()
        code = server.shown(STRANGER)[0].partition("code is ")[2][:9]
        server.buttons.press(question, f"/pair yes {waiting.ref}", sender=STRANGER)
        server.say(f"/pair {code}", chat=STRANGER, sender=STRANGER)
        server.say(f"/pair yes {waiting.ref}", chat=STRANGER, sender=STRANGER)
        await server.until(lambda: not server.updates)
        await up.idle()
        assert not up.app.store.access.members()
        assert len(server.shown(STRANGER)) == 1
        assert len(model.asked) == 1


async def test_a_group_that_became_a_supergroup_is_asked_about_anew() -> None:
    """Its new id is nobody's that an entry names: an owner is asked with two buttons, once, though it is said twice."""
    old, new = -555, -1005559999
    async with (
        telegram_now() as server,
        open_gateway(server, EchoModel(), **{**SETTINGS, "ALLOW_FROM": f"chat:{old}"}) as up,
    ):
        server.say("hello", sender=OWNER)
        await server.until(lambda: bool(server.shown(OWNER)))
        for here, words in ((old, {"migrate_to_chat_id": new}), (new, {"migrate_from_chat_id": old})):
            kind = "supergroup" if here == new else "group"
            said = {"message_id": 1, "date": server.now(), "chat": {"id": here, "type": kind, "title": "Team"}}
            server.push({"message": said | words | {"from": {"id": STRANGER, "is_bot": False, "first_name": "Mal"}}})
        question = await asked(server, OWNER)
        assert question.buttons == [["Yes", "No"]]
        server.say("again", sender=OWNER)
        await server.until(lambda: "You said: again" in server.shown(OWNER))
        assert len([text for text in server.shown(OWNER) if "Team" in text]) == 1
        assert await up.app.channels["telegram"]._members._chats.resolve_chat(SessionKey("telegram", str(old))) == new  # type: ignore[attr-defined]
