"""Hearing Telegram over the wire: the real library polls a real server, and nothing is confirmed that is not stored."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from channels.telegram import inbound
from channels.telegram.inbound import POLL_SECONDS
from gateway.admission import RejectionReason
from gateway.errors import SettingsError, StoreUnavailable
from gateway.events import ChatKind, InboundKind, InboundMessage
from gateway.i18n import LANGUAGES, translate
from gateway.logs import configure_logs
from gateway.ports.channel import IntakeResult, IntakeVerdict, PlatformEvent
from gateway.quarantine import Quarantine, list_events
from tests.fakes.meter import FakeMeter
from tests.fakes.telegram_channel import TelegramConnection, open_line
from tests.fakes.telegram_server import BOT, TelegramFault, TelegramServer, open_telegram
from tests.fakes.web_services import FakePageServices

GROUP = -1001234567890
MENTION: dict[str, Any] = {"entities": [{"type": "mention", "offset": 0, "length": 12}]}


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    """Give a Telegram."""
    async with open_telegram() as server:
        yield server


@pytest.fixture
async def line(server: TelegramServer) -> AsyncIterator[TelegramConnection]:
    """Give a channel that listens to it."""
    async with open_line(server) as line:
        yield line


class QuarantiningServices(FakePageServices):
    """A gateway with the gateway's own quarantine."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.quarantine = Quarantine(folder, unclean_stops=0, meter=FakeMeter(), now=partial(datetime.now, UTC))

    async def handle(self, event: PlatformEvent, work: Callable[[], Awaitable[None]]) -> None:
        """Handle it as the gateway does."""
        await self.quarantine.handle(event, work)


async def test_what_breaks_us_down_is_set_aside_at_the_third_try(server: TelegramServer, tmp_path: Path) -> None:
    """A message that a bug of ours cannot take is quarantined, and does not stop those behind it for ever."""
    services = QuarantiningServices(tmp_path / "quarantine")
    async with open_line(server, services):
        services.is_broken = True
        server.say("poison")
        await services.wait_deliveries(3)
        services.is_broken = False
        server.say("next")
        await server.until(lambda: not server.updates)
    assert [heard.text for heard in services.accepted] == ["next"]
    (kept,) = list_events(tmp_path / "quarantine")
    assert kept.reason == "it failed 3 times: RuntimeError"


async def test_two_unclean_stops_make_it_ask_for_one_at_a_time(server: TelegramServer) -> None:
    """While the gateway is cautious an update is fetched when the one before it is stored, and all of them come."""
    services = FakePageServices(is_cautious=True)
    for text in ("one", "two", "three"):
        server.say(text)
    async with open_line(server, services):
        await server.until(lambda: not server.updates)
    assert [heard.text for heard in services.deliveries] == ["one", "two", "three"]
    assert {asked["limit"] for name, asked in server.calls if name == "getUpdates"} == {1}


async def wait_long_poll(server: TelegramServer) -> None:
    """Return when a poll waits for the next update."""
    await server.until(lambda: any(asked.get("timeout") for name, asked in server.calls if name == "getUpdates"))


async def test_one_poll_confirms_and_waits(line: TelegramConnection) -> None:
    """A message costs one poll: the one that waits for the next message confirms it at once."""
    await wait_long_poll(line.server)
    for n in range(3):
        line.server.say(f"message {n}")
        await line.server.until(lambda: not line.server.updates)
    first, *polls = [asked for name, asked in line.server.calls if name == "getUpdates"]
    assert first["timeout"] == 0  # a channel that starts in a quiet hour is ready at once
    assert [asked.get("offset") for asked in polls] == [None, *(ident + 1 for ident in line.server.confirmed)]
    assert {asked["timeout"] for asked in polls} == {POLL_SECONDS}
    assert len(polls) == 4


async def test_a_confirmation_that_is_lost_confirms_nothing_later(server: TelegramServer) -> None:
    """A poll that broke confirms nothing when Telegram is back after a quiet week, with ids that restarted below."""
    time = [server.now()]
    server.now = lambda: time[0]
    async with open_line(server) as line:
        await wait_long_poll(server)
        later: list[int] = []

        def restart(method: str, when: str) -> None:
            if (method, when) == ("getUpdates", "before") and not later:
                time[0] += 8 * 24 * 3600
                server.updates.clear()  # nothing is kept for longer than a day
                later.append(server.push({"message": server.message(42, 42, text="after")}))

        server.fail("getUpdates", TelegramFault("drop"))
        server.on_call = restart
        high = server.push({"message": server.message(42, 42, text="before")})
        await line.services.wait_deliveries(2)
        await server.until(lambda: not server.updates)
    assert later[0] < high
    assert [heard.text for heard in line.services.accepted] == ["before", "after"]


async def test_ids_that_begin_anew_below_are_heard(server: TelegramServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a quiet week update ids restart anywhere; an offset of last week confirms nothing unheard."""
    monkeypatch.setattr(inbound, "POLL_SECONDS", 0.01)
    time = [server.now()]
    server.now = lambda: time[0]
    async with open_line(server) as line:
        high = server.push({"message": server.message(42, 42, text="before")})
        await server.until(lambda: not server.updates)
        await server.until(lambda: server.calls[-1][1].get("offset") is None)
        time[0] += 8 * 24 * 3600
        low = server.push({"message": server.message(42, 42, text="after")})
        assert low < high
        await line.services.wait_deliveries(2)
        await server.until(lambda: not server.updates)
    assert [heard.text for heard in line.services.accepted] == ["before", "after"]


async def test_a_hundred_and_more_wait_in_order(line: TelegramConnection) -> None:
    """More than one batch is heard in order, none twice."""
    for number in range(230):
        line.server.say(str(number))
    await line.server.until(lambda: not line.server.updates)
    assert [heard.text for heard in line.services.deliveries] == [str(number) for number in range(230)]


async def test_only_what_names_us_is_addressed(server: TelegramServer) -> None:
    """In a group: a mention, an answer to us, our command. Not other names or talk; other bots' commands are none."""
    server.privacy = False
    command: list[dict[str, Any]] = [{"type": "bot_command", "offset": 0}]
    ours = {"message_id": 5, "from": BOT, "chat": {"id": GROUP, "type": "supergroup"}, "date": 1, "text": "It is six."}
    said: list[tuple[str, dict[str, Any], bool]] = [
        ("just talk", {}, False),
        ("@parlour_bot hello", MENTION, True),
        ("@PARLOUR_BOT hello", MENTION, True),
        ("@someone_els hello", MENTION, False),
        ("@parlour_bot in code", {"entities": [{"type": "code", "offset": 0, "length": 12}]}, False),
        ("sure?", {"reply_to_message": ours}, True),
        ("/new@parlour_bot", {"entities": [command[0] | {"length": 16}]}, True),
        ("/stop", {"entities": [command[0] | {"length": 5}]}, True),
        ("/ban", {"entities": [command[0] | {"length": 4}]}, False),
    ]
    async with open_line(server) as line:
        server.say("/new@otherbot", chat=GROUP, entities=[command[0] | {"length": 13}])
        for text, fields, _ in said:
            server.say(text, chat=GROUP, **fields)
        heard = await line.services.wait_deliveries(len(said))
    assert [(each.text, each.is_addressed) for each in heard] == [(text, want) for text, _, want in said]
    assert {each.chat_kind for each in heard} == {ChatKind.GROUP}
    assert heard[5].reply_to == "5"
    assert heard[5].quoted == "It is six."


async def test_a_topic_is_a_session_of_its_own(line: TelegramConnection) -> None:
    """A topic is `<chat>/<topic>`, the General topic the chat itself, and its creation is nothing to answer."""
    created = {"message_id": 7, "from": BOT, "chat": {"id": GROUP}, "date": 1, "forum_topic_created": {"name": "Ops"}}
    topic: dict[str, Any] = {"is_topic_message": True, "message_thread_id": 7, "reply_to_message": created}
    line.server.say("@parlour_bot in the topic", chat=GROUP, **MENTION, **topic)
    line.server.say("@parlour_bot in general", chat=GROUP, **MENTION)
    line.server.say("@parlour_bot in a reply thread", chat=GROUP, **MENTION, message_thread_id=3)
    heard = await line.services.wait_deliveries(3)
    assert [each.key.chat for each in heard] == [f"{GROUP}/7", str(GROUP), str(GROUP)]
    assert (heard[0].reply_to, heard[0].quoted) == ("", "")


async def test_an_album_is_addressed_as_a_whole(line: TelegramConnection) -> None:
    """The parts of an album share it, and one caption that names us speaks for all."""
    line.server.privacy = False
    photo: dict[str, Any] = {
        "photo": [{"file_id": "small", "width": 90, "height": 9}, {"file_id": "big", "width": 900, "file_size": 7}]
    }
    caption: dict[str, Any] = {"caption": "@parlour_bot look", "caption_entities": MENTION["entities"]}
    for fields in (caption, {}, {}):
        line.server.say(None, chat=GROUP, media_group_id="album-1", **photo, **fields)
    line.server.say(None, chat=GROUP, media_group_id="album-2", **photo)
    heard = await line.services.wait_deliveries(4)
    assert [each.album for each in heard] == ["album-1"] * 3 + ["album-2"]
    assert [each.is_addressed for each in heard] == [True, True, True, False]
    assert [(file.kind, file.url, file.size) for file in heard[1].attachments] == [("image", "telegram-file:big", 7)]


async def test_being_added_is_the_one_who_added_us_saying_start(line: TelegramConnection) -> None:
    """Being added to a group goes through admission like a message of the one who did it, and only once."""
    person = {"id": 42, "is_bot": False, "first_name": "Ann"}
    change = {"chat": {"id": GROUP, "type": "supergroup", "title": "t"}, "from": person, "date": 1_763_769_600}
    states = [("left", "member"), ("member", "administrator"), ("member", "left")]
    for old, new in states:
        members = {"old_chat_member": {"status": old}, "new_chat_member": {"status": new}}
        line.server.push({"my_chat_member": change | members})
    await line.server.until(lambda: not line.server.updates)
    (heard,) = line.services.deliveries
    assert (heard.text, heard.sender.id, heard.key.chat, heard.message_id) == ("/start", "42", str(GROUP), "")


async def test_a_button_is_answered_when_it_is_stored(line: TelegramConnection) -> None:
    """A pressed button is its value and an event id; its clock stops once we have it."""
    line.server.chat(42)
    query = {"id": "777", "from": {"id": 42, "is_bot": False, "first_name": "Ann"}, "chat_instance": "1", "data": "yes"}
    line.server.push({"callback_query": query | {"message": line.server.message(42, 42, text="Sure?")}})
    await line.server.until(lambda: line.server.answered == ["777"])
    (heard,) = line.services.deliveries
    assert (heard.kind, heard.text, heard.event_ids) == (InboundKind.BUTTON, "yes", ("button/777",))


async def test_what_cannot_be_read_costs_nobody_anything(line: TelegramConnection) -> None:
    """Updates of odd shapes are set aside, unknown kinds passed over; the messages beside them arrive."""
    odd: list[dict[str, Any]] = [
        {"message": {}},
        {"message": {"message_id": "x", "chat": {"id": "y", "type": "private"}, "date": [], "text": "t"}},
        {"message": None},
        {"edited_message": {"chat": {"type": "private", "id": 1}}},
        {"my_chat_member": {"chat": 5}},
        {"message": line.server.message(42, 42, new_chat_title="service")},
    ]
    line.server.say("was here")
    for update in odd:
        line.server.push(update)
    line.server.say("still here")
    await line.server.until(lambda: not line.server.updates)
    assert [heard.text for heard in line.services.deliveries] == ["was here", "still here"]
    assert len(line.services.quarantined) == 4


async def test_a_second_poller_is_told_once(server: TelegramServer) -> None:
    """Telegram's 409: one clear line, no fight, and hearing again when the other one has gone."""
    out = io.StringIO()
    configure_logs(form="json", stream=out)
    async with open_line(server) as line:
        server.fail(
            "getUpdates", *(TelegramFault("status", 409, description="Conflict: terminated by other") for _ in range(3))
        )
        server.steal_poll()
        await server.until(lambda: not server.faults["getUpdates"])
        server.say("alone again")
        await line.services.wait_deliveries(1)
        await server.until(lambda: not server.updates)
    assert out.getvalue().count("telegram.conflict") == 1
    assert "@BotFather" in out.getvalue()


@pytest.mark.parametrize("status", [401, 404])
async def test_a_refused_token_is_a_mistake_of_the_settings(server: TelegramServer, status: int) -> None:
    """The channel ends with a line that says how to mend it, and does not storm; the token is not in it."""
    server.fail("getMe", TelegramFault("status", status, description="Unauthorized" if status == 401 else "Not Found"))
    with pytest.raises(SettingsError, match="copy it again from @BotFather") as caught:
        async with open_line(server):
            pass
    assert server.token not in str(caught.value)
    assert caught.value.__cause__ is None
    assert [name for name, _ in server.calls] == ["getMe"]


async def test_a_bad_hour_is_waited_out(line: TelegramConnection) -> None:
    """5xx, cut connections, garbage and a request to wait: the channel polls on, and hears what was said meanwhile."""
    faults = [
        TelegramFault("status", 502),
        TelegramFault("drop"),
        TelegramFault("garbage"),
        TelegramFault("lost"),
        TelegramFault("status", 429, retry_after=1),
    ]
    line.server.fail("getUpdates", *faults)
    line.server.say("said in between")
    await line.server.until(lambda: not line.server.faults["getUpdates"])
    line.server.say("said afterwards")
    await line.server.until(lambda: not line.server.updates)
    assert [heard.text for heard in line.services.accepted] == ["said in between", "said afterwards"]
    assert line.channel.is_ready()


async def test_no_log_line_has_the_token_or_words(server: TelegramServer) -> None:
    """At the lowest level, through every failure: neither the token nor what people said."""
    out = io.StringIO()
    configure_logs(level="debug", form="json", stream=out)
    server.fail("getMe", TelegramFault("drop"), TelegramFault("garbage"))
    server.fail(
        "getUpdates",
        TelegramFault("status", 502),
        TelegramFault("drop"),
        TelegramFault("garbage"),
        TelegramFault("status", 409),
    )
    async with open_line(server) as line:
        server.say("my secret words")
        server.push({"message": {"chat": "my secret words"}})
        await server.until(lambda: not server.updates)
        line.services.is_broken = True
        server.say("my secret words")
        await line.services.wait_deliveries(4)
        await asyncio.sleep(0)
    logging.getLogger("telegram").debug("")
    logged = out.getvalue()
    assert "telegram.connected" in logged
    assert server.token.partition(":")[2] not in logged
    assert "secret words" not in logged


async def test_the_menu_is_put_once(server: TelegramServer) -> None:
    """Eight commands at most behind the slash, each with a line; nothing is sent that stands there already.

    Whose app speaks a language of ours reads it in that.
    """
    lists = 1 + len(LANGUAGES)
    async with open_line(server):
        await server.until(lambda: server.menu_sets == lists)
    assert {"new", "stop", "help", "status"} <= {each["command"] for each in server.menus[""]}
    assert len(server.menus[""]) == 8
    new = {code: [each for each in menu if each["command"] == "new"] for code, menu in server.menus.items()}
    shown = {code: each["description"] for code, (each,) in new.items()}
    assert shown == {"": translate("commands.help_new")} | {
        each: translate("commands.help_new", each) for each in LANGUAGES
    }
    async with open_line(server):
        await server.until(lambda: [name for name, _ in server.calls].count("getMyCommands") == 2 * lists)
    assert server.menu_sets == lists


async def test_an_album_is_whole_though_the_store_fails_in_between(server: TelegramServer) -> None:
    """The photos before the mention are kept until each is stored: the mention comes again, and so do they."""

    class FailingServices(FakePageServices):
        left = 2

        async def receive(self, message: InboundMessage, **options: Any) -> IntakeResult:
            if not message.is_addressed:
                return IntakeResult(verdict=IntakeVerdict.REJECTED, reason=RejectionReason.NOT_ADDRESSED)
            self.left -= 1
            if not self.left:
                raise StoreUnavailable("for a moment")
            return await super().receive(message, **options)

    services = FailingServices()
    server.privacy = False
    server.chat(GROUP, "supergroup")
    photo = {"photo": [{"file_id": "A", "width": 9, "height": 9}], "media_group_id": "al"}
    mention = {"caption": "@parlour_bot these?", "caption_entities": MENTION["entities"]}
    async with open_line(server, services):
        for fields in (photo, photo, photo, {**photo, **mention}):
            server.say(None, chat=GROUP, **fields)
        await server.until(lambda: not server.updates)
    assert [message.message_id for message in services.accepted] == ["1", "2", "3", "4"]
