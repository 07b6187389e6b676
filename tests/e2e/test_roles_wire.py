"""Owners over the wire: who becomes one by a code, whom they let in and shut out, and how they name somebody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.events import PlatformAccount
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel
from tests.fakes.slack_gateway import open_gateway as open_slack_gateway
from tests.fakes.slack_server import ANN as SLACK_ANN
from tests.fakes.slack_server import BOB, DM, slack_server
from tests.fakes.telegram_gateway import TEAM, EchoModel
from tests.fakes.telegram_gateway import open_gateway as open_telegram_gateway
from tests.fakes.telegram_server import telegram_now

COMMAND: dict[str, Any] = {"entities": [{"type": "bot_command", "offset": 0, "length": 18}]}
OWNED = {"PARLOUR_OWNERS": f"slack:{SLACK_ANN}"}


async def lines(parlour: InProcessGateway) -> list[tuple[str, str, str, str]]:
    """Return the audit, the oldest first: who, where, what, outcome."""
    found = await parlour.app.store.access.audit(limit=50)
    return [(each.by, each.where, each.what, each.outcome) for each in reversed(found)]


async def test_an_owner_by_a_code_lets_people_in_and_shuts_them_out(tmp_path: Path) -> None:
    """Nobody is let in; who sends the code owns the bot, allows somebody, blocks them; the code is nowhere."""
    model = EchoModel()
    home = tmp_path / "home"
    async with telegram_now() as server, open_telegram_gateway(server, model, home, ALLOW_FROM="") as parlour:
        issued = await parlour.app.owner_claims.issue()
        assert issued is not None
        server.say("let me in", chat=43, sender=43)
        server.say(issued.code, chat=42, sender=42)
        await server.until(lambda: bool(server.shown(42)))
        assert server.shown(42)[0].startswith("You are now the owner of this bot")
        server.say("/allow 43", chat=42, sender=42)
        await server.until(lambda: len(server.shown(42)) == 2)
        server.say("and now?", chat=43, sender=43)
        await server.until(lambda: any("and now?" in text for text in server.shown(43)))
        server.say("/block 43", chat=42, sender=42)
        await server.until(lambda: len(server.shown(42)) == 3)
        shown = list(server.shown(43))
        server.say("still there?", chat=43, sender=43)
        await server.until(lambda: not server.updates)
        await parlour.idle()
        assert list(server.shown(43)) == shown
        assert model.asked == ["and now?"]
        assert [(by, what, outcome) for by, _, what, outcome in await lines(parlour)] == [
            ("code", "owner claim", "done"),
            ("telegram:42", "allow", "done"),
            ("telegram:42", "block", "done"),
        ]
        code = issued.code
    held = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert code.encode() not in held
    assert code.replace("-", "").encode() not in held


async def test_a_mention_or_an_answer_names_somebody() -> None:
    """In Slack a mention is shown as a name and still names one id; in Telegram the answer to their message does."""
    eve = "U0EVE"
    async with slack_server() as server, open_slack_gateway(server, environment=OWNED) as parlour:
        server.say(DM, SLACK_ANN, f"!allow <@{eve}>")
        await server.until(lambda: bool(server.shown(DM)))
        assert server.shown(DM)[-1] == f"`slack:{eve}` can now write to me."
        server.say(DM, SLACK_ANN, f"!block <@{eve}> <@{BOB}>")
        await server.until(lambda: len(server.shown(DM)) == 2)
        assert "names are not unique" in server.shown(DM)[-1]
        await parlour.idle()
    async with telegram_now() as platform:
        platform.chat(TEAM)
        platform.chat(42)
        async with open_telegram_gateway(platform, InstantModel(), PARLOUR_OWNERS="telegram:42") as parlour:
            theirs = platform.message(TEAM, 666, text="buy now")
            platform.say("/block@parlour_bot", chat=TEAM, sender=42, reply_to_message=theirs, **COMMAND)
            await platform.until(lambda: any("telegram:666" in post.text for post in platform.posts))
            assert parlour.app.roster.blocked_as([PlatformAccount(kind="telegram", id="666")]) == "telegram:666"
            await parlour.idle()
