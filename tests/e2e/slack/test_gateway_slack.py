"""The whole gateway before Slack: conversations, commands, strangers, broken connections, the clock of a profile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from gateway.errors import InvalidModelReply
from gateway.i18n import translate
from tests.fakes.held_model import HeldModel
from tests.fakes.inprocess_gateway import InstantModel
from tests.fakes.slack import slack
from tests.fakes.slack_gateway import CALL, open_gateway, transcripts
from tests.fakes.slack_server import (
    ANN,
    BOB,
    BOT_USER,
    DM,
    EVE,
    ROOM,
    FakeSlackChat,
    SlackFault,
    SlackServer,
    slack_server,
)


async def test_people_are_answered_where_they_wrote() -> None:
    """In a direct message at its top level, in a channel in the message's own thread; a stranger not at all."""
    async with slack_server() as server, open_gateway(server):
        server.say(DM, ANN, "good evening")
        await server.until(lambda: len(server.shown(DM)) == 1)
        assert server.shown(DM)[0].endswith("good evening")
        times = [server.say(ROOM, who, f"{CALL} {who} asks") for who in (ANN, BOB)]
        server.say(ROOM, EVE, f"{CALL} stranger")
        server.say(ROOM, ANN, "not for you")
        await server.until(lambda: all(server.shown(ROOM, ts) for ts in times))
        assert [server.shown(ROOM, ts)[0].endswith(f"{ANN} asks") for ts in times] == [True, False]
        server.say(ROOM, ANN, "and a follow-up", thread=times[0])
        await server.until(lambda: len(server.shown(ROOM, times[0])) == 2)
        await server.until(lambda: not server.reactions)
        assert server.shown(ROOM) == []


async def test_without_history_strict_answers_into_a_placeholder() -> None:
    """`delivery.once: strict`: what cannot be read back goes by an edit, which may be repeated: one answer, no mark."""
    async with slack_server() as server:
        server.scopes -= {"im:history"}
        async with open_gateway(server, environment={"PARLOUR_DELIVERY__ONCE": "strict"}) as parlour:
            await server.until(lambda: bool(server.called("auth.test")))
            server.faults["chat.update"] = [SlackFault(does=True, drops=True)]
            server.say(DM, ANN, "once")
            await server.until(lambda: any("once" in shown for shown in server.shown(DM)))
            await parlour.idle()
        (answer,) = server.shown(DM)
        assert answer.endswith("once")
        assert translate("delivery.may_repeat") not in answer
        assert len(server.called("chat.update")) == 2


async def test_a_long_answer_arrives_whole_over_a_broken_line() -> None:
    """20,000 characters with code; one part's reply is lost, one is refused for a moment: each part once, in order."""

    class LongAnswerModel(InstantModel):
        async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
            reply = await super().complete(request)
            text = "\n\n".join(f"part{n} " + "word " * 50 for n in range(60)) + "\n\n```\n" + "line\n" * 800 + "```"
            return ChatReply(text=text, tool_calls=(), model=self.name, tokens=reply.tokens, cost=0.0)

    async with slack_server() as server, open_gateway(server, model=LongAnswerModel()) as parlour:
        lost, limited = SlackFault(does=True, drops=True), SlackFault(status=429, error="ratelimited", retry_after=1)
        server.faults["chat.postMessage"] = [lost, limited]
        server.say(DM, ANN, "at length")
        await server.until(lambda: len(server.shown(DM)) >= 5)
        await parlour.idle()
        words = " ".join(server.shown(DM)).replace("```", " ").split()
        assert [word for word in words if word.startswith("part")] == [f"part{n}" for n in range(60)]
        assert words.count("line") == 800
        assert all(shown.count("```") % 2 == 0 for shown in server.shown(DM))


@pytest.mark.parametrize("streaming", ["native", "edit"])
async def test_a_stopped_answer_keeps_its_words(streaming: str) -> None:
    """In a channel's thread, by Slack's own stream or by edits: the words stay, marked as stopped, and 👀 goes."""
    words, here = "Once upon a time there was a kettle that wanted to be", translate("delivery.stopped_here")
    model = HeldModel(f"{words} a teapot.", first=len(words) + 1)
    settings = {"PARLOUR_CHANNELS__SLACK__STREAMING": streaming}
    async with slack_server() as server, open_gateway(server, model=model, environment=settings) as parlour:
        ts = server.say(ROOM, ANN, f"{CALL} a tale")
        await server.until(lambda: bool(server.shown(ROOM, ts)))
        server.say(ROOM, ANN, f"{CALL} !stop", thread=ts)
        await server.until(lambda: server.shown(ROOM, ts) == [f"{words}\n\n{here}"])
        await parlour.idle()
        assert server.shown(ROOM, ts) == [f"{words}\n\n{here}"]
        await server.until(lambda: not server.reactions)
        model.go_on.set()


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


class FailingModel(InstantModel):
    """Answers nothing that can be read."""

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Fail."""
        raise InvalidModelReply("no")


def whispers(server: SlackServer) -> list[str]:
    """Return what Ann alone was shown in the channel."""
    return [each["text"] for each in server.places[ROOM].whispers if each["user"] == ANN]


async def test_hints_name_what_works_where_they_are_read() -> None:
    """In a thread and in a direct message `!new`, at the top of a channel `/parlour new`: never a bare slash."""
    async with slack_server() as server, open_gateway(server):
        server.say(ROOM, ANN, f"{CALL} /nwe")
        await server.until(lambda: len(whispers(server)) == 1)
        server.slash(ROOM, ANN, "/parlour", "nwe")
        await server.until(lambda: len(whispers(server)) == 2)
        server.say(DM, ANN, "!start")
        await server.until(lambda: len(server.shown(DM)) == 1)
        server.say(DM, ANN, "!help")
        await server.until(lambda: len(server.shown(DM)) == 2)
        assert whispers(server) == [
            "Unknown command: !nwe. Did you mean !new?",
            "Unknown command: /parlour nwe. Did you mean /parlour new?",
        ]
        start, help_ = server.shown(DM)
        assert "`!help`" in start
        assert "`!stop`" in help_
        assert "`!search the address of the dentist`" in help_
        assert not any(f"/{name}" in start + help_ for name in ("help", "new", "stop", "search", "retry"))


async def test_a_failure_says_how_to_try_again_there() -> None:
    """The line below a failed question names `!retry`, and that works in its thread."""
    async with slack_server() as server, open_gateway(server, model=FailingModel()):
        ts = server.say(ROOM, ANN, f"{CALL} hello")
        await server.until(lambda: len(server.shown(ROOM, ts)) == 1)
        assert "!retry tries your last message again" in server.shown(ROOM, ts)[0]
        server.say(ROOM, ANN, "!retry", thread=ts)
        await server.until(lambda: len(server.shown(ROOM, ts)) >= 2)


def by_slash(server: SlackServer) -> None:
    """Let Ann use the slash command."""
    server.slash(ROOM, ANN, "/parlour", "stop")


def by_mention(server: SlackServer) -> None:
    """Let Ann mention us at the top of the channel."""
    server.say(ROOM, ANN, f"{CALL} stop")


@pytest.mark.parametrize("stop", [by_slash, by_mention])
async def test_stop_at_the_top_of_a_channel_finds_the_askers_turn(stop: Callable[[SlackServer], None]) -> None:
    """Ann's turn stands in its thread: it stops, she alone is told, and Bob's goes on."""
    model = HeldModel()
    async with slack_server() as server, open_gateway(server, model=model) as parlour:
        bobs = server.say(ROOM, BOB, f"{CALL} Bob asks")
        anns = server.say(ROOM, ANN, f"{CALL} Ann asks")
        await model.wait_asked(2)
        stop(server)
        await server.until(lambda: bool(whispers(server)))
        assert whispers(server) == ["Stopped."]
        model.go_on.set()
        await server.until(lambda: bool(server.shown(ROOM, bobs)))
        await parlour.idle()
        assert server.shown(ROOM, bobs)[0].endswith("Bob asks")
        assert not any("Ann asks" in each for each in server.shown(ROOM, anns))


async def test_stop_in_a_thread_is_about_that_thread() -> None:
    """In another thread there is nothing to stop, and what runs elsewhere goes on."""
    model = HeldModel()
    async with slack_server() as server, open_gateway(server, model=model) as parlour:
        other = server.say(ROOM, BOB, "talk of others")
        anns = server.say(ROOM, ANN, f"{CALL} Ann asks")
        await model.asked.wait()
        server.say(ROOM, ANN, f"{CALL} stop", thread=other)
        await server.until(lambda: bool(server.shown(ROOM, other)) or bool(whispers(server)))
        model.go_on.set()
        await server.until(lambda: bool(server.shown(ROOM, anns)))
        await parlour.idle()
        assert server.shown(ROOM, anns)[0].endswith("Ann asks")


@pytest.mark.parametrize("command", ["help", "status", "queue", "start", "nonsense"])
async def test_a_slash_command_is_answered_to_its_sender_alone(command: str) -> None:
    """Nobody saw it typed, and nobody else sees what came of it."""
    async with slack_server() as server, open_gateway(server) as parlour:
        server.slash(ROOM, ANN, "/parlour", command)
        await server.until(lambda: len(whispers(server)) == 1)
        await parlour.idle()
        assert server.shown(ROOM) == []
        assert len(server.places[ROOM].whispers) == 1


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
