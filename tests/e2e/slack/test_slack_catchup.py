"""What Slack no longer delivers is read from its history: in order, once, and no further back than the mark."""

from __future__ import annotations

import json

from gateway.errors import StoreUnavailable
from tests.fakes.conditions import eventually
from tests.fakes.slack import running, slack
from tests.fakes.slack_server import ANN, BOB, BOT_USER, DM, ROOM, SlackFault, slack_server
from tests.fakes.web_services import FakePageServices

CALL = f"<@{BOT_USER}>"


async def test_what_was_said_while_down_is_read_after_the_restart() -> None:
    """Direct messages, a channel and a thread in use; nothing from before, nothing of ours, nothing twice."""
    services = FakePageServices()
    async with slack_server() as server:
        server.say(DM, ANN, "long ago", quiet=True)
        root = server.say(ROOM, BOB, "a thread", quiet=True)
        async with running(server, services) as up:
            server.say(DM, ANN, "first")
            server.say(ROOM, ANN, f"{CALL} hello")
            server.say(ROOM, BOB, f"{CALL} you too", thread=root)
            await server.until(lambda: len(server.acks) == 5)
            (part,) = up.render(DM, "an answer")
            await up.channel.send(part)
        for n in range(150):
            server.say(DM, ANN, f"while down {n}", quiet=True)
        server.say(ROOM, ANN, "talk", quiet=True)
        server.say(ROOM, BOB, "in the thread", thread=root, quiet=True)
        services.accepted.clear()
        services.deliveries.clear()
        async with running(server, services):
            private = [heard.text for heard in services.accepted if heard.key.chat == DM]
            shared = {(heard.key.parent.chat, heard.text): heard for heard in services.accepted if heard.key.chat != DM}
        assert private == [f"while down {n}" for n in range(150)]
        assert set(shared) == {(ROOM, "talk"), (ROOM, "in the thread")}
        assert shared[ROOM, "in the thread"].key.thread == root
        assert shared[ROOM, "in the thread"].is_addressed
        assert not shared[ROOM, "talk"].is_addressed
        services.deliveries.clear()
        async with running(server, services):
            assert services.deliveries == []


async def test_a_message_that_was_missed_holds_the_mark_back() -> None:
    """Slack gave up on it, a later one was taken: it is read all the same."""
    services = FakePageServices()
    async with slack_server() as server:
        server.ack_within = 0.02
        async with running(server, services):
            services.is_down = True
            server.say(DM, ANN, "missed")
            await server.until(lambda: len(server.given_up) == 1)
            services.is_down = False
            server.say(DM, ANN, "taken")
            await server.until(lambda: len(server.acks) == 1)
        async with running(server, services):
            assert [heard.text for heard in services.accepted] == ["taken", "missed"]


async def test_what_slack_gave_up_on_is_read_once_it_can_be_stored() -> None:
    """The journal was down for longer than Slack tries: read from history as soon as it is back, without a restart."""
    async with slack() as up:
        up.server.say(DM, ANN, "before")
        await up.server.until(lambda: len(up.server.acks) == 1)
        up.channel._catch_up.every, up.channel._catch_up.given_up_after = 0.02, 0.1
        up.channel._catch_up.request()
        up.server.ack_within, up.services.is_down = 0.02, True
        up.server.say(DM, ANN, "while the disk was full")
        await up.server.until(lambda: len(up.server.given_up) == 1)
        up.services.is_down = False
        await eventually(lambda: len(up.services.accepted) == 2)
        passes = up.channel._catch_up.passes
        up.server.say(DM, ANN, "after")
        await up.server.until(lambda: len(up.server.acks) == 2)
        assert [heard.text for heard in up.services.accepted] == ["before", "while the disk was full", "after"]
        assert up.channel._catch_up.passes <= passes + 1  # and then there is nothing to read


async def test_a_refused_or_limited_history_is_no_failure() -> None:
    """Without the scope nothing is read, a limit is waited for, and live messages come as always."""
    services = FakePageServices()
    async with slack_server() as server:
        async with running(server, services):
            server.say(DM, ANN, "first")
            await server.until(lambda: len(server.acks) == 1)
        server.say(DM, ANN, "unread", quiet=True)
        server.scopes.discard("im:history")
        async with running(server, services):
            server.say(DM, ANN, "live")
            await server.until(lambda: len(server.acks) == 2)
        assert [heard.text for heard in services.accepted] == ["first", "live"]


async def test_the_marks_wait_for_a_store_that_is_down() -> None:
    """A new place is stored at once, before anything can kill us; a mark that cannot be stored is an older mark."""
    async with slack() as up:
        first = up.server.say(DM, ANN, "first")
        await up.server.until(lambda: len(up.server.acks) == 1)
        assert json.loads(up.services.state.notes["marks"]) == {DM: first}

        async def save(name: str, value: str | None, *, within: float = 0.0) -> None:
            raise StoreUnavailable("the disk is full")

        keeps, up.services.state.save = up.services.state.save, save  # type: ignore[method-assign]
        second = up.server.say(DM, ANN, "second")
        up.server.say(ROOM, ANN, "a new place")
        await up.server.until(lambda: len(up.server.acks) == 3)
        await up.channel._catch_up._save()
        up.services.state.save = keeps  # type: ignore[method-assign]
        assert json.loads(up.services.state.notes["marks"]) == {DM: first}
        await up.channel._catch_up._save()
        assert json.loads(up.services.state.notes["marks"])[DM] == second


async def test_a_silence_is_followed_by_a_reading_a_refresh_is_not() -> None:
    """After a real gap the places are read; a connection that is only renewed costs no call."""
    async with slack() as up:
        up.server.say(DM, ANN, "before")
        await up.server.until(lambda: len(up.server.acks) == 1)
        await up.server.refresh()
        await up.server.until(lambda: up.server.connections == 2)
        await eventually(up.channel.is_ready)
        assert up.channel._catch_up.passes == 1
        up.server.faults["apps.connections.open"] = [SlackFault(status=503)] * 4
        up.server.say(DM, ANN, "in the gap", quiet=True)
        await up.server.cut()
        await up.server.until(lambda: up.server.connections == 3)
        await eventually(lambda: up.channel._catch_up.passes == 2)
        assert [heard.text for heard in up.services.accepted] == ["before", "in the gap"]
