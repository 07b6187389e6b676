"""A team let in with one entry: all of its members everywhere, and nobody who is only a guest or from elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from channels.kit.background import ChatRateLimits
from tests.e2e.slack.test_slack_buttons import asked
from tests.fakes.held_model import HeldModel
from tests.fakes.inprocess_gateway import InProcessGateway
from tests.fakes.slack_buttons import buttons
from tests.fakes.slack_gateway import CALL, open_gateway
from tests.fakes.slack_server import ANN, BOT_USER, DM, EVE, ROOM, TEAM, FakeSlackChat, SlackServer, slack_server
from tests.fakes.staged_changes import memory, scope_in, staged

FAR = "U0FAR"
ENTRY = "PARLOUR_CHANNELS__SLACK__ALLOW_FROM"
QUIET = {ENTRY: f"team:{TEAM}", "PARLOUR_CHANNELS__SLACK__REACTION": ""}


@asynccontextmanager
async def workspace() -> AsyncIterator[SlackServer]:
    """Serve a workspace with a guest, Eve, and a channel that it shares with another one."""
    async with slack_server() as server:
        server.users[EVE] |= {"is_ultra_restricted": True}
        server.users[FAR] = {"id": FAR, "team_id": "T0FAR", "is_stranger": True, "profile": {"display_name": "Far"}}
        server.places[ROOM].members.add(FAR)
        for user in (EVE, FAR):
            server.places[f"D{user[1:]}"] = FakeSlackChat(f"D{user[1:]}", "im", {user, BOT_USER})
        yield server


@asynccontextmanager
async def quick(
    server: SlackServer, model: Any, environment: Mapping[str, str] = QUIET
) -> AsyncIterator[InProcessGateway]:
    """Run the gateway; it writes as fast as the workspace takes it."""
    async with open_gateway(server, model=model, environment=environment) as parlour:
        parlour.app.channels["slack"]._outbound.posts = ChatRateLimits(1_000, lambda _: 0.001)  # type: ignore[attr-defined]
        yield parlour


def answers(server: SlackServer) -> list[str]:
    """Return every answer in the workspace."""
    said = [each["text"] for place in server.places.values() for each in place.messages if each["user"] == BOT_USER]
    return [text for text in said if text.startswith("answer to: ")]


async def test_a_team_of_forty_is_let_in_with_one_entry() -> None:
    """Each of the forty is answered in the channel and directly; a guest and a stranger of elsewhere are not."""
    model = HeldModel(held=False)
    async with workspace() as server, quick(server, model) as parlour:
        server.ack_within = 60.0  # 84 events at once on a machine that does other things: who is let in is the question
        team = [ANN, *server.hire(39)]
        for user in (EVE, *team[:20], FAR, *team[20:]):
            away: dict[str, Any] = {"team": "T0FAR", "user_team": "T0FAR"} if user == FAR else {}
            server.say(ROOM, user, f"{CALL} all of you, {user}", **away)
            server.say(DM if user == ANN else f"D{user[1:]}", user, f"alone, {user}", **away)
        await server.until(lambda: len(answers(server)) == 80)
        await parlour.idle()
        assert not server.given_up
        assert len(answers(server)) == 80
        for user in team:
            assert sum(text.endswith(user) for text in answers(server)) == 2
        assert {each.sender for each in parlour.app.refusals.recent("slack")} == {EVE, FAR}
        assert {each.reason for each in parlour.app.refusals.recent("slack")} == {"guest"}
        sessions = [str(each.key) for each in await parlour.app.store.records.sessions()]
    assert len(model.prompts) == 80
    assert not [text for text in model.prompts if EVE in text or FAR in text]
    assert not [key for key in sessions if key.endswith(("D0EVE", "D0FAR"))]


async def test_no_way_in_is_open_to_guests_and_strangers() -> None:
    """Not by a slash command, a press, an edit or what was said before; named by their own id they are heard."""
    model = HeldModel(held=False)
    async with workspace() as server, quick(server, model) as parlour:
        thread = server.say(ROOM, ANN, f"{CALL} hello")
        await server.until(lambda: bool(server.shown(ROOM, thread)))
        scope = await scope_in(parlour, f"slack:{ROOM}/{thread}")
        await staged(parlour, scope, f"slack:{ROOM}/{thread}")
        question = await asked(server, ROOM)
        for user in (EVE, FAR):
            tried = [server.slash(ROOM, user, "/parlour", "status"), server.press(ROOM, user, question, "Yes")]
            server.edit(ROOM, server.say(ROOM, user, "quite", quiet=True), f"{CALL} quite so")
            server.say(ROOM, user, "in your ear", quiet=True, thread=thread)
            await server.until(lambda tried=tried: set(tried) <= set(server.acks))  # type: ignore[misc]
        server.say(ROOM, ANN, "among us", quiet=True, thread=thread)
        asking = len(model.prompts)
        server.say(ROOM, ANN, f"{CALL} what now?", thread=thread)
        await server.until(lambda: len(model.prompts) == asking + 1)
        await parlour.idle()
        assert buttons(question)
        assert memory(parlour, scope) == ""
        assert len(model.prompts) == 2
        assert "ear" not in model.prompts[-1]
        assert {each.sender for each in parlour.app.refusals.recent("slack")} == {EVE, FAR}
    named = {**QUIET, ENTRY: f"team:{TEAM},{EVE},{FAR}"}
    async with workspace() as server, quick(server, HeldModel(held=False), named) as parlour:
        for user in (EVE, FAR):
            server.say(ROOM, user, f"{CALL} all of you, {user}")
            server.say(f"D{user[1:]}", user, f"alone, {user}")
        await server.until(lambda: len(answers(server)) == 4)
        assert parlour.app.refusals.recent("slack") == ()
