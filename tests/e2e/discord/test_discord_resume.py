"""A session of the gateway goes on in another process: what happened in between comes to it, without an IDENTIFY."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from channels.discord.gateway_client import INTENTS, ResumableSession
from gateway.events import InboundMessage
from gateway.supervisor import Supervisor
from tests.fakes.discord_harness import gateway_of
from tests.fakes.discord_records import ADMIN_ROLE, ANN, BEN, BOT, BOT_ROLE, EVA, GENERAL, GUILD
from tests.fakes.discord_server import DiscordServer
from tests.fakes.web_services import FakePageServices

CALL = f"<@{BOT}>"
SESSION = f"discord:{BOT}/0"


@asynccontextmanager
async def gateway(services: FakePageServices, discord: DiscordServer, **fields: object) -> AsyncIterator[Supervisor]:
    """Run a gateway that has the connection; it is connected when the block begins, and hands over when it ends."""
    async with gateway_of(services, discord, SESSION, shards=1, **fields) as (supervisor, _, _):
        await discord.until(lambda: discord.gateway.line)
        yield supervisor


def events(services: FakePageServices) -> list[InboundMessage]:
    """Return the different messages, edits and deletions that came, in order."""
    return list({(each.kind, each.message_id, each.revision): each for each in services.deliveries}.values())


def texts(services: FakePageServices, first: int = 0) -> list[str]:
    """Return what they say from the *first* on, a deletion its kind."""
    return [each.text.rpartition("@Parlour ")[2] or each.kind for each in events(services)[first:]]


async def stored(services: FakePageServices, count: int) -> None:
    """Return when *count* of `events` came."""
    while len(events(services)) < count:
        await services.wait_deliveries(len(services.deliveries) + 1)


async def test_another_gateway_goes_on_with_the_session(discord: DiscordServer, services: FakePageServices) -> None:
    """An edit, a deletion and a first direct message come to it, which no history would show; each once."""
    async with gateway(services, discord):
        edited, deleted = (discord.say(GENERAL, ANN, f"{CALL} {text}") for text in ("draft", "mistake"))
        await stored(services, 2)
    discord.edit(edited, f"{CALL} final")
    discord.delete(deleted)
    discord.say(discord.direct(EVA), EVA, "hello, we have not met")
    discord.say(GENERAL, BEN, f"<@&{BOT_ROLE}> a message")  # to the bot's own role, which the guild tells
    discord.requests.clear()
    async with gateway(services, discord):
        await stored(services, 6)
        discord.say(GENERAL, ANN, f"{CALL} live")
        await stored(services, 7)
    assert sorted(texts(services, 2)) == ["a message", "deletion", "final", "hello, we have not met", "live"]
    assert [each.is_addressed for each in events(services) if "a message" in each.text] == [True]
    assert (discord.gateway.identified, discord.gateway.resumed) == (1, 1)
    assert len([each for each in discord.requests if each.kind == "guilds"]) == 1


async def test_a_session_that_discord_forgot_is_begun_anew(discord: DiscordServer, services: FakePageServices) -> None:
    """Messages are read back, edits too; a deletion, and a first direct message until the next one, are not seen."""
    async with gateway(services, discord):
        edited, deleted = (discord.say(GENERAL, ANN, f"{CALL} {text}") for text in ("draft", "mistake"))
        await stored(services, 2)
    discord.gateway.sessions.clear()
    services.state.notes["account"] = discord.snowflake()
    discord.edit(edited, f"{CALL} final")
    discord.delete(deleted)
    discord.say(discord.direct(EVA), EVA, "hello, we have not met")
    discord.say(GENERAL, BEN, f"{CALL} a message")
    async with gateway(services, discord):
        await stored(services, 4)
        discord.say(discord.direct(EVA), EVA, "are you there?")
        await stored(services, 6)
    assert discord.gateway.identified == 2
    assert sorted(texts(services, 2)) == ["a message", "are you there?", "final", "hello, we have not met"]


async def test_an_event_that_was_not_stored_comes_again(discord: DiscordServer, services: FakePageServices) -> None:
    """The session goes on behind the last event that was processed, not behind the last that was received."""
    async with gateway(services, discord):
        discord.say(GENERAL, ANN, f"{CALL} one")
        await stored(services, 1)
        sequence, services.is_down = len(discord.gateway.sessions[0].sent), True
        deleted = discord.say(discord.direct(EVA), EVA, "hello, we have not met")
        discord.delete(deleted)
        await services.wait_deliveries(2)
    assert json.loads(services.state.notes["session"])[1]["sequence"] <= sequence
    services.is_down = False
    services.deliveries.clear()
    async with gateway(services, discord):
        await stored(services, 2)
    assert texts(services)[-2:] == ["hello, we have not met", "deletion"]
    assert discord.gateway.identified == 1


async def test_rights_are_those_of_the_moment(discord: DiscordServer, services: FakePageServices) -> None:
    """A server is read when it is needed, again if it changed meanwhile, and then follows what Discord reports."""
    discord.members[BEN]["roles"] = [ADMIN_ROLE]
    async with gateway(services, discord):
        discord.say(GENERAL, BEN, f"{CALL} one")
        await stored(services, 1)
    assert services.accepted[0].sender.is_admin

    def revoke(when: str, method: str, kind: str) -> bool:
        if (when, kind) == ("after", "guilds"):
            discord.on_request = lambda *_: False
            discord.grant(ADMIN_ROLE, 0)
        return False

    discord.on_request = revoke
    async with gateway(services, discord):
        discord.say(GENERAL, BEN, f"{CALL} two")
        await stored(services, 2)
        discord.grant(ADMIN_ROLE, 1 << 5)
        discord.say(GENERAL, BEN, f"{CALL} three")
        await stored(services, 3)
    assert [each.sender.is_admin for each in services.accepted] == [True, False, True]


async def test_a_server_that_cannot_be_read_is_no_obstacle(discord: DiscordServer, services: FakePageServices) -> None:
    """Its messages come, without an admin; a failure that passes is repeated first."""
    discord.members[BEN]["roles"] = [ADMIN_ROLE]
    async with gateway(services, discord):
        discord.say(GENERAL, BEN, f"{CALL} one")
        await stored(services, 1)
    discord.fail("GET", "guilds", "403 50001")
    async with gateway(services, discord):
        discord.say(GENERAL, BEN, f"{CALL} two")
        await stored(services, 2)
    assert [each.sender.is_admin for each in services.accepted] == [True, False]


async def test_a_server_that_is_not_announced_is_read(discord: DiscordServer, services: FakePageServices) -> None:
    """A new session begins with their ids alone: a message that comes before the rest has its sender's rights."""
    discord.members[BEN]["roles"] = [ADMIN_ROLE]
    discord.gateway.has_outage = True
    async with gateway(services, discord):
        discord.say(GENERAL, BEN, f"{CALL} one")
        await stored(services, 1)
    assert [each.sender.is_admin for each in services.accepted] == [True]
    assert not services.quarantined


async def test_a_session_that_breaks_its_process_is_not_resumed_again(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """A frame that ends the library's client costs one attempt; then a new session begins."""
    async with gateway(services, discord):
        discord.say(GENERAL, ANN, f"{CALL} one")
        await stored(services, 1)
    discord.gateway.sessions[0].sent.append("[]")  # type: ignore[arg-type]  # no event
    async with gateway(services, discord):
        discord.say(GENERAL, ANN, f"{CALL} two")
        await stored(services, 2)
    assert (discord.gateway.resumed, discord.gateway.identified) == (1, 2)


@pytest.mark.parametrize("where", ["global", "guild"])
async def test_commands_stay_registered(discord: DiscordServer, services: FakePageServices, where: str) -> None:
    """The next version may have others: they are compared, although no session lists the servers."""
    for number in (1, 2):
        async with gateway(services, discord, commands=where):
            await discord.until(lambda: discord.interactions.registrations == number)  # noqa: B023 - waited for right here
        services.state.notes["commands"] = json.dumps({"" if where == "global" else GUILD: "of another version"})
    assert {place for place, commands in discord.interactions.registered.items() if commands} <= {"", GUILD}
    assert (discord.gateway.identified, discord.interactions.registrations) == (1, 2)


@pytest.mark.parametrize("note", ["", "x", "[]", "{}", '["2026-01-01T00:00:00+00:00", {"id": "s"}]', '["x", {}]'])
def test_a_note_of_another_version_is_not_resumed(note: str) -> None:
    """Nor is a session with other intents, or one that Discord has forgotten by now."""
    now, session = datetime.now(UTC), ResumableSession("s", 1, "wss://gateway-us-east1-b.discord.gg")
    assert ResumableSession.from_note(session.to_note(now - timedelta(minutes=4)), now) == session
    assert ResumableSession.from_note(session.to_note(now - timedelta(minutes=6)), now) is None
    assert ResumableSession.from_note(replace(session, intents=INTENTS.value ^ 1).to_note(now), now) is None
    assert ResumableSession.from_note(note, now) is None


@pytest.mark.parametrize(
    ("url", "is_at_discord"),
    [
        ("wss://gateway-us-east1-b.discord.gg", True),
        ("ws://gateway-us-east1-b.discord.gg", False),
        ("wss://discord.gg.example.org", False),
        ("wss://user@example.org/.discord.gg", False),
        ("nonsense", False),
    ],
)
def test_the_token_is_sent_to_discord_alone(url: str, is_at_discord: bool) -> None:
    """The address of a resume comes from the database."""
    assert ResumableSession("s", 1, url).is_at_discord is is_at_discord
