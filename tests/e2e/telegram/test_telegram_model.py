"""/model and /effort on Telegram: a button for each choice, pressed by who may."""

from __future__ import annotations

import json

from tests.e2e.telegram.test_telegram_buttons import BEN, asked
from tests.fakes.telegram_gateway import TEAM, EchoModel, mention, open_gateway
from tests.fakes.telegram_server import telegram_now

MODELS = {
    "PARLOUR_LLM__MODEL": "parrot",
    "PARLOUR_LLM__MODELS": json.dumps({"small": "offline", "large": "offline:large"}),
}


async def test_an_admin_presses_a_model_and_a_member_is_told_who_may() -> None:
    """The press is answered at once, also while the slow model thinks; the next question goes to the new one."""
    model = EchoModel()
    async with telegram_now() as server:
        server.chat(TEAM).admins = {42}
        async with open_gateway(server, model, None, ALLOW_FROM=f"42,{BEN}", **MODELS) as parlour:
            typed = [{"type": "bot_command", "offset": 0, "length": len("/model@parlour_bot")}]
            server.say("/model@parlour_bot", chat=TEAM, sender=BEN, entities=typed)
            post = await asked(server, TEAM)
            assert post.buttons == [["small", "large"]]
            server.buttons.press(post, "/model small", sender=BEN)
            await server.until(lambda: bool(server.buttons.alerts))
            assert server.buttons.alerts[0][1].startswith("Only an admin of this chat")
            model.go_on.clear()
            server.say("@parlour_bot think long", chat=TEAM, sender=BEN, **mention("@parlour_bot think long"))
            await model.thinks.wait()
            server.buttons.press(post, "/model small", sender=42)
            await server.until(lambda: any("uses small (offline) from the next" in each for each in server.shown(TEAM)))
            model.go_on.set()
            await server.until(lambda: any("think long" in each for each in server.shown(TEAM)))
            server.say("@parlour_bot hello", chat=TEAM, sender=BEN, **mention("@parlour_bot hello"))
            await server.until(lambda: any("No language model" in each for each in server.shown(TEAM)))
            await parlour.idle()
            audit = [(each.what, each.outcome) for each in await parlour.app.store.access.audit(limit=10)]
    assert model.asked == ["@parlour_bot think long"]
    assert audit == [("model", "done"), ("model", "refused")]


async def test_each_effort_is_a_button() -> None:
    """All but the one that holds; behind a choice also the way back, and the press counts from the next turn on."""
    async with telegram_now() as server, open_gateway(server, EchoModel(), None, ALLOW_FROM="42", **MODELS) as parlour:
        typed = [{"type": "bot_command", "offset": 0, "length": len("/effort")}]
        server.say("/effort", chat=42, sender=42, entities=typed)
        post = await asked(server, 42)
        assert post.buttons == [["none", "low"], ["medium", "high"]]
        server.buttons.press(post, "/effort low", sender=42)
        await server.until(lambda: any("have the effort low" in each for each in server.shown(42)))
        server.say("/effort", chat=42, sender=42, entities=typed)
        await server.until(lambda: any("Effort of answers here: low" in each for each in server.shown(42)))
        await parlour.idle()
        assert parlour.app.store.people.preferences("telegram:42")["effort"] == "low"
