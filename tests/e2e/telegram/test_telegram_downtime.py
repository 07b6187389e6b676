"""Down for a while: the rows of the table in docs/telegram.md that begin with "down", with everything at once.

Before it goes down Ann was answered and Carl's message is stored, not answered. While it is down Ann edits what was
answered, Ann and Bob write (Ann in private and in the team's group), and Carl is taken off `allow_from`.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import time_machine

from tests.fakes.telegram_gateway import TEAM, EchoModel, mention, open_gateway
from tests.fakes.telegram_server import TelegramServer, telegram_now

ADMITTED = f"42,43,44,chat:{TEAM}"
WITHOUT_CARL = f"42,43,chat:{TEAM}"


async def live_until_killed(server: TelegramServer, folder: Path) -> Path:
    """Answer Ann, take Carl's message in, and be killed while it waits; return what is left of the home."""
    model = EchoModel()
    async with open_gateway(server, model, ALLOW_FROM=ADMITTED, REACTION="") as up:
        hello = server.say("hello")
        await server.until(lambda: len(server.posts) == 1)
        await up.idle()
        model.go_on.clear()
        server.say("Carl waits", chat=44, sender=44)
        await server.until(lambda: not server.updates)
        copy = up.kill(folder / "home")
        model.go_on.set()  # what this one goes on to say is another life's
        await up.idle()
    del server.posts[1:]
    server.edit(hello, "hello there")
    return copy


def talk(server: TelegramServer) -> None:
    """Let people write while nobody listens."""
    server.say("Ann's first")
    server.say("Bob's first", chat=43, sender=43)
    server.say("Ann's second")
    server.say("Bob's second", chat=43, sender=43)
    server.say("@parlour_bot Ann in the team", chat=TEAM, sender=42, **mention("@parlour_bot"))
    server.say("@parlour_bot Bob in the team", chat=TEAM, sender=43, **mention("@parlour_bot"))
    server.say("Carl again", chat=44, sender=44)


# Posts of each chat in the end, the answer from before included; Carl's is one line that he may no longer write.
EXPECTED = {
    # Telegram kept it: one answer each.
    timedelta(minutes=9): {42: 1 + 2, 43: 2, TEAM: 2, 44: 1},
    # One turn per chat and sender: one answer to all of it.
    timedelta(hours=3): {42: 1 + 1, 43: 1, TEAM: 2, 44: 1},
    # Telegram has forgotten what was said; what was stored is too old to answer, and its chat is told in one line.
    timedelta(hours=25): {42: 1, 44: 1},
}


@pytest.mark.parametrize("down", EXPECTED, ids=["ten-minutes", "three-hours", "twenty-five-hours"])
async def test_what_the_table_says_of_being_down_is_what_happens(down: timedelta, tmp_path: Path) -> None:
    """Nothing Telegram still has is lost, nothing is said twice; edited answers and who was taken off get no answer."""
    async with telegram_now() as server:
        with time_machine.travel(datetime.now(UTC) - down, tick=True):
            copy = await live_until_killed(server, tmp_path)
            talk(server)
        model = EchoModel()
        async with open_gateway(server, model, home=copy, ALLOW_FROM=WITHOUT_CARL, REACTION="") as up:
            expected = sum(EXPECTED[down].values())
            await server.until(lambda: len(server.posts) >= expected and not server.ready({}))
            await up.idle()
        shown = Counter(post.chat for post in server.posts)
        assert shown == EXPECTED[down]
        assert not any("Carl" in asked or "hello" in asked for asked in model.asked)
        assert "no longer" in server.shown(44)[0]
