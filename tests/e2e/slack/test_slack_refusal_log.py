"""A morning of silences in a workspace: `parlour why slack` explains each, and nothing was said that should not be."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from channels.kit.background import ChatRateLimits
from gateway import cli
from gateway.errors import UserError
from gateway.installation import operator_command
from gateway.ports.access import OPERATOR, DecisionActor
from tests.fakes.held_model import HeldModel
from tests.fakes.inprocess_gateway import InProcessGateway
from tests.fakes.slack_gateway import CALL, open_gateway, variables
from tests.fakes.slack_server import ANN, BOB, BOT_USER, DM, EVE, ROOM, TEAM, FakeSlackChat, SlackServer, slack_server

MAL, BAD, FAR, NEW, QUIET = "U0MAL", "U0BAD", "U0FAR", "C0NEW", "C0QUIET"
SETTINGS: Mapping[str, Any] = {
    "owners": [f"slack:{ANN}"],
    "channels": {"slack": {"allow_from": [ANN, f"chat:{ROOM}"], "reaction": ""}},
    "chats": {f"slack:{QUIET}": {"group_policy": "off"}},
    "caps": {"person_turns_per_10_min": 1},
}


@asynccontextmanager
async def workspace() -> AsyncIterator[SlackServer]:
    """Serve a workspace with a guest (Eve), somebody from another one (Far), and people nobody knows (Mal, Bad)."""
    async with slack_server() as server:
        server.users[EVE] |= {"is_ultra_restricted": True}
        server.users[FAR] = {"id": FAR, "team_id": "T0FAR", "is_stranger": True, "profile": {"display_name": "Far"}}
        for user in (MAL, BAD):
            server.users[user] = {"id": user, "team_id": TEAM, "profile": {"display_name": user[2:].title()}}
        server.places["D0MAL"] = FakeSlackChat("D0MAL", "im", {MAL, BOT_USER})
        server.places[NEW] = FakeSlackChat(NEW, "channel", {MAL}, name="newcomers")
        server.places[QUIET] = FakeSlackChat(QUIET, "channel", {BOB, BOT_USER})
        server.places[ROOM].members |= {FAR, BAD}
        yield server


def settle(home: Path) -> None:
    """Write what the operator decided."""
    home.mkdir(mode=0o700)
    (home / "parlour.yaml").write_text(json.dumps(SETTINGS), "utf-8")


@asynccontextmanager
async def gateway(server: SlackServer, home: Path, model: Any) -> AsyncIterator[InProcessGateway]:
    """Run the gateway, which writes as fast as the workspace takes it."""
    settle(home)
    environment = {"PARLOUR_CHANNELS__SLACK__ALLOW_FROM": f"{ANN},chat:{ROOM}"}
    async with open_gateway(server, home=home, model=model, environment=environment) as app:
        app.app.channels["slack"]._outbound.posts = ChatRateLimits(1_000, lambda _: 0.001)  # type: ignore[attr-defined]
        yield app


async def parlour(server: SlackServer, home: Path, *words: str) -> str:
    """Run a command beside the running gateway; return what it printed, or the line of its mistake."""
    environment = dict.fromkeys(name for name in os.environ if name.startswith("PARLOUR_"))
    run = partial(CliRunner().invoke, cli.app, words, env=environment | variables(server) | {"PARLOUR_HOME": str(home)})
    result = await asyncio.to_thread(run)
    return str(result.exception) if isinstance(result.exception, UserError) else result.output


async def the_morning(server: SlackServer, app: InProcessGateway) -> None:
    """Let everything happen that is answered by silence, and twice what is answered."""
    await app.app.access_control.block(f"slack:{BAD}", DecisionActor(by=OPERATOR, where="", id="b1"))
    server.say(DM, ANN, "good morning")
    await server.until(lambda: len(server.shown(DM)) == 1)
    thread = server.say(ROOM, BOB, f"{CALL} good morning")
    await server.until(lambda: bool(server.shown(ROOM, thread)))
    server.say("D0MAL", MAL, "let me in")
    server.say("D0MAL", MAL, "please")
    server.say(ROOM, EVE, f"{CALL} guests ask")
    server.say(ROOM, FAR, f"{CALL} far ones ask", team="T0FAR", user_team="T0FAR")
    server.say(ROOM, BOB, "between you and me")
    server.say(ROOM, "U0BEEP", f"{CALL} beep", bot_id="B0OTHER", subtype="bot_message")
    server.say(QUIET, BOB, f"{CALL} in here?")
    server.say(ROOM, BAD, f"{CALL} let me back")
    server.say(ROOM, BOB, f"{CALL} and another one")
    server.event({"type": "message", "channel": ROOM, "ts": "x", "user": BOB, "text": "garbled"})
    server.invite(NEW, MAL)
    await server.until(lambda: not server.pending)
    server.say(NEW, MAL, f"{CALL} hello there")
    await server.until(lambda: not server.pending)
    await app.idle()


ALLOW = operator_command("people allow slack:")
# (where, who, reason, how often) and the lines to paste.
EXPECTED: Mapping[tuple[str, str, str, int], list[str]] = {
    ("D0MAL", MAL, "stranger", 2): [f"{ALLOW}{MAL}", f"{ALLOW}team:{TEAM}"],
    (ROOM, EVE, "guest", 1): [f"{ALLOW}{EVE}"],
    (ROOM, FAR, "guest", 1): [f"{ALLOW}{FAR}"],
    (ROOM, BOB, "not-addressed", 1): ["PARLOUR_CHANNELS__SLACK__GROUP_POLICY=open"],
    (ROOM, "U0BEEP", "bot", 1): [],
    (QUIET, BOB, "groups-off", 1): [f'in parlour.yaml, below chats and "slack:{QUIET}": group_policy: mention'],
    (ROOM, BAD, "blocked", 1): [f"{ALLOW}{BAD}"],
    (NEW, MAL, "place-pending", 1): [f"{ALLOW}chat:{NEW}"],
    ("", "", "quarantined", 1): [operator_command("quarantine list")],
}
SAID = ("let me in", "please", "guests", "far ones", "between", "beep", "in here", "back", "another one", "garbled")


async def test_each_refusal_of_a_morning_is_explained(tmp_path: Path) -> None:
    """To show 4: each silence has its line with who, why, how often and what to paste; no word of what was said."""
    home = tmp_path / "home"
    model = HeldModel(held=False)
    async with workspace() as server, gateway(server, home, model) as app:
        await the_morning(server, app)
        nothing_else_was_said(server)
        asked_to_hear, *lines = [
            json.loads(line)
            for line in (await parlour(server, home, "why", "slack", "--json")).splitlines()
            if line.startswith("{")
        ]
        assert asked_to_hear["running"] is True
        assert asked_to_hear["hears"] == {"slack": True}
        found = {(each["chat"], each["sender"], each["reason"], each["times"]): each["paste"] for each in lines}
        (waits,) = found.pop((ROOM, BOB, "person-turns", 1))
        assert waits.startswith("PARLOUR_CAPS__PERSON_TURNS_PER_10_MIN=2 ")
        assert found == EXPECTED
        printed = await parlour(server, home, "why", "slack")
        for each in lines:
            (line,) = [line for line in printed.splitlines() if each["words"] in line and f"  {each['sender']}" in line]
            assert f"({each['reason']}" in line
        assert not [word for word in SAID if f"{word}\n" in printed or f" {word} " in printed]
        await the_ways_to_ask(server, home)
    assert len(model.prompts) == 2


def nothing_else_was_said(server: SlackServer) -> None:
    """Two answers, a code, two questions to the owner, the one notice of a cap, a line each to Eve and Far: no more."""
    ours = {
        name: [each["text"] for each in place.messages if each["user"] == BOT_USER]
        for name, place in server.places.items()
    }
    answer, person, place = ours.pop(DM)
    assert answer.endswith("good morning")
    assert "is not approved yet" in person
    assert "added me to `newcomers`" in place
    (code,) = ours.pop("D0MAL")
    assert "Your code is" in code
    answer, notice = ours.pop(ROOM)
    assert answer.endswith("good morning")
    assert "ten minutes" in notice
    assert not any(ours.values())
    whispered = {name: [each["user"] for each in place.whispers] for name, place in server.places.items()}
    assert sorted(whispered.pop(ROOM)) == sorted((EVE, FAR))
    assert not any(whispered.values())


async def the_ways_to_ask(server: SlackServer, home: Path) -> None:
    """By person, by place, of a channel that is none; in figures, and what of it waits for the owner."""
    of_bob = await parlour(server, home, "why", "slack", BOB)
    assert of_bob.count(f"  {BOB} (Bob): ") == 3
    assert MAL not in of_bob
    assert (await parlour(server, home, "why", "slack", NEW)).count("Z  slack:") == 1
    assert "no message of slack U0NONE was rejected by this gateway since its start" in await parlour(
        server, home, "why", "slack", "U0NONE"
    )
    assert "no channel is called slck; channels: console, pocket, slack, web" in await parlour(
        server, home, "why", "slck"
    )
    status = await parlour(server, home, "status")
    assert f"1 person and 1 chat wait for approval: `{operator_command('people pending')}`" in status
    assert "7 messages of 4 people on slack were rejected" in status
    doctor = await parlour(server, home, "doctor", "--offline")
    assert "WARN  waits: 1 person and 1 chat" in doctor
    assert "OK    unheard: 7 messages of 4 people on slack" in doctor
    waiting = await parlour(server, home, "people", "pending")
    assert re.search(rf"slack:{MAL} \(Mal\), since .*, until ", waiting)
    assert f"slack:chat:{NEW} (newcomers), added by Mal, since " in waiting
