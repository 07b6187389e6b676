"""Strangers, redeliveries, broken and crowded connections: over the wire, with the real slack_sdk and bolt."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fakes.held_model import HeldModel
from tests.fakes.slack import slack
from tests.fakes.slack_gateway import CALL, open_gateway, transcripts
from tests.fakes.slack_server import ANN, DM, EVE, ROOM, FakeSlackChat, slack_server

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc000"
    "0003010100c9fe92ef0000000049454e44ae426082"
)


async def test_a_stranger_costs_nothing_and_leaves_nothing() -> None:
    """Nanobot bugs 1 and 2: `allow_from` is effective, in direct messages too: no turn, no file, no row, no session."""
    model = HeldModel(held=False)
    async with slack_server() as server, open_gateway(server, model=model) as parlour:
        server.places["D0EVE"] = FakeSlackChat("D0EVE", "im", {EVE, "U0PARLOUR"})
        picture = server.attach("cat.png", PNG, "image/png")
        server.say("D0EVE", EVE, "run `rm -rf /` for me", files=[picture])
        server.say("D0EVE", EVE, "")
        server.say(ROOM, EVE, f"{CALL} and here")
        server.slash("D0EVE", EVE, "/parlour", "status")
        changed = server.say("D0EVE", EVE, "first", quiet=True)
        server.edit("D0EVE", changed, "second")
        await server.until(lambda: len(server.acks) == 6)
        await parlour.idle()
        assert model.prompts == []
        assert server.shown("D0EVE") == server.shown(ROOM) == []
        assert (server.downloads, server.reactions, server.statuses) == ([], set(), {})
        assert transcripts(parlour.home) == ""
        assert not any(b"rm -rf" in path.read_bytes() for path in parlour.home.rglob("*") if path.is_file())
        assert (await parlour.app.store.journal.depth())["queued"] == 0
        assert await parlour.app.store.records.sessions() == ()
        assert {refused.sender for refused in parlour.app.refusals.recent("slack")} == {EVE}


async def test_the_same_event_twice_is_one_answer(tmp_path: Path) -> None:
    """Nanobot bug 3: stored before it is acknowledged, and recognized when it comes again, after a restart too."""
    model = HeldModel(held=False)
    async with slack_server() as server:
        event = {"type": "message", "channel": DM, "channel_type": "im", "user": ANN, "text": "hi", "ts": "1.000001"}
        event["ts"] = server.say(DM, ANN, "hi", quiet=True)
        async with open_gateway(server, home=tmp_path / "a", model=model) as parlour:
            for _ in range(2):
                server.event(event, event_id="Ev0SAME")
            await server.until(lambda: server.acks == ["Ev0SAME"] * 2)
            await server.until(lambda: len(server.shown(DM)) == 1)
            await parlour.idle()
            home = parlour.kill(tmp_path / "b")
        async with open_gateway(server, home=home, model=model) as parlour:
            server.event(event, event_id="Ev0SAME")
            server.event(event, event_id="Ev0OTHER")
            await server.until(lambda: len(server.acks) == 4)
            await parlour.idle()
        assert len(model.prompts) == 1
        assert len(server.shown(DM)) == 1


async def test_a_crowd_of_connections_is_not_made_worse() -> None:
    """Told that there are too many, it waits a random moment before it comes again, and comes once."""
    async with slack() as up:
        assert up.channel._socket is not None
        up.channel._socket._client.crowded = (0.2, 0.3)
        loop = asyncio.get_running_loop()
        told_at = loop.time()
        await up.server.refresh("too_many_websockets")
        await up.server.until(lambda: len(up.server.called("apps.connections.open")) == 2)
        assert loop.time() - told_at >= 0.2
        await up.server.until(lambda: up.server.connections == 2)
        up.server.say(DM, ANN, "after")
        await up.server.until(lambda: len(up.server.acks) == 1)
        assert len(up.server.called("apps.connections.open")) == 2
