"""What people write in Slack reaches the house, over the real library and a real socket."""

from __future__ import annotations

from tests.fakes.slack import slack
from tests.fakes.slack_server import ANN, BOB, BOT_USER, DM, ROOM


async def test_a_direct_message_is_one_session() -> None:
    """Key, id, sender and name arrive; it is acknowledged."""
    async with slack() as up:
        ts = up.server.say(DM, ANN, "good evening &amp; more")
        (heard,) = await up.house.wait_deliveries(1)
        assert str(heard.key) == f"slack:{DM}"
        assert (heard.message_id, heard.text, heard.sender.name) == (ts, "good evening & more", "Ann")
        await up.server.until(lambda: len(up.server.acks) == 1)


async def test_a_mention_is_one_message() -> None:
    """It comes as `message` and as `app_mention`; both are the same to the journal."""
    async with slack() as up:
        ts = up.server.say(ROOM, BOB, f"<@{BOT_USER}> hello")
        await up.server.until(lambda: len(up.server.acks) == 2)
        first, second = up.house.deliveries
        assert first.logical_key == second.logical_key == f"{ROOM}/{ts}/{ts}"
        assert first.is_addressed
        assert second.is_addressed
        assert len(up.house.accepted) == 1
