"""The time zone of a Slack profile is that of the person's direct chats, until they choose one themselves."""

from __future__ import annotations

from gateway.i18n import translate
from tests.fakes.held_model import HeldModel
from tests.fakes.slack_gateway import CALL, open_gateway
from tests.fakes.slack_server import ANN, BOT_USER, DM, ROOM, slack_server

UTC = {"PARLOUR_TIMEZONE": "UTC"}


async def test_the_zone_of_a_profile_is_the_clock_of_the_direct_chat_alone() -> None:
    """A direct message carries the sender's local time; the channel goes by its own clock, whoever speaks."""
    model = HeldModel(held=False)
    async with slack_server() as server:
        server.users[ANN]["tz"] = "Asia/Kolkata"
        async with open_gateway(server, model=model, environment=UTC) as parlour:
            server.say(DM, ANN, "what time is it")
            server.say(ROOM, ANN, f"{CALL} and here?")
            await server.until(lambda: len(model.prompts) == 2)
            await parlour.idle()
            alone = next(prompt for prompt in model.prompts if "what time" in prompt)
            shared = next(prompt for prompt in model.prompts if "and here" in prompt)
            assert " IST, Ann]" in alone
            assert " UTC, Ann]" in shared


async def test_a_choice_goes_before_the_profile_and_nonsense_changes_nothing() -> None:
    """Who chose a zone keeps it whatever the profile says, also over a restart of the look-up; an unknown is none."""
    model = HeldModel(held=False)
    async with slack_server() as server:
        server.users[ANN]["tz"] = "Mars/Olympus"
        async with open_gateway(server, model=model, environment=UTC) as parlour:
            server.say(DM, ANN, "!timezone")
            await server.until(
                lambda: translate("commands.timezone", zone="UTC").split("`")[0] in list_bot_texts(server)
            )
            server.say(DM, ANN, "!timezone Berlin")
            await server.until(
                lambda: translate("commands.timezone_set", zone="Europe/Berlin") in list_bot_texts(server)
            )
            server.users[ANN]["tz"] = "Asia/Kolkata"
            parlour.app.channels["slack"]._inbound.members.profiles.forget(ANN)  # type: ignore[attr-defined]
            server.say(DM, ANN, "!language de")
            await server.until(lambda: translate("commands.language_set", "de") in list_bot_texts(server))
            server.say(DM, ANN, "!timezone")
            await server.until(lambda: "Europe/Berlin. " in list_bot_texts(server).rpartition("Zeitzone")[2])


def list_bot_texts(server: object) -> str:
    """Return everything the bot said in the direct chat."""
    return "\n".join(each["text"] for each in server.places[DM].messages if each["user"] == BOT_USER)  # type: ignore[attr-defined]
