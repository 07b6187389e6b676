"""Who a group's admins are, and where the bot was added: as Telegram says it, over the wire where it matters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from telegram.error import TimedOut

from gateway.channel import SupportsSenderLookup
from gateway.events import ChatKind, InboundMessage, Sender
from gateway.ports.channel import MembershipChange
from tests.fakes.telegram_channel import TelegramConnection, open_line
from tests.fakes.telegram_server import BOT, TelegramFault, TelegramServer, open_telegram

GROUP = -1001234567890
COMMAND: dict[str, Any] = {"entities": [{"type": "bot_command", "offset": 0, "length": 4}]}
ASK = "getChatAdministrators"


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    """Give a Telegram whose group has an admin, Ann."""
    async with open_telegram() as server:
        server.chat(GROUP).admins = {42}
        yield server


@pytest.fixture
async def line(server: TelegramServer) -> AsyncIterator[TelegramConnection]:
    """Give a channel that listens to it."""
    async with open_line(server) as line:
        yield line


async def receive_command(
    line: TelegramConnection, text: str = "/new", sender: int = 42, **fields: Any
) -> InboundMessage:
    """Let somebody say *text* in the group; return it as it was handed in."""
    count = len(line.services.deliveries)
    line.server.say(text, chat=GROUP, sender=sender, **COMMAND, **fields)
    return (await line.services.wait_deliveries(count + 1))[-1]


def asked(line: TelegramConnection) -> int:
    """Return how often Telegram was asked who the admins are."""
    return [name for name, _ in line.server.calls].count(ASK)


async def test_an_admin_is_looked_up_when_something_is_decided_and_once(line: TelegramConnection) -> None:
    """Nobody waits for it in receiving; whoever asks at once shares one look-up; a private chat needs none."""
    assert isinstance(line.channel, SupportsSenderLookup)
    ann, bob = await receive_command(line), await receive_command(line, sender=43)
    assert asked(line) == 0
    assert not ann.sender.is_admin
    senders = await asyncio.gather(*(line.channel.sender(each) for each in (ann, bob, ann)))
    assert [each.is_admin for each in senders] == [True, False, True]
    line.server.say("/new")
    private = (await line.services.wait_deliveries(3))[-1]
    assert await line.channel.sender(private) == private.sender
    assert asked(line) == 1


@pytest.mark.parametrize(
    "fault",
    [
        TelegramFault("status", 500),
        TelegramFault("status", 429, 7),
        TelegramFault("status", 403),
        TelegramFault("drop"),
        TelegramFault("garbage"),
    ],
    ids=["500", "429", "403", "cut", "garbage"],
)
async def test_who_cannot_be_looked_up_is_no_admin(line: TelegramConnection, fault: TelegramFault) -> None:
    """Fails closed, and a broken Telegram is not asked again at every command."""
    line.server.fail(ASK, fault)
    message = await receive_command(line)
    assert not (await line.channel.sender(message)).is_admin
    assert not (await line.channel.sender(message)).is_admin
    assert asked(line) == 1


async def test_a_look_up_that_hangs_makes_nobody_an_admin_and_nobody_wait(line: TelegramConnection) -> None:
    """It has a limit of its own, and meanwhile what others say is heard and confirmed."""
    line.channel._members.admins.timeout = 2  # seconds; what others say takes a moment where the machine is busy
    line.server.fail(ASK, TelegramFault("hang"))
    looking = asyncio.create_task(line.channel.sender(await receive_command(line)))
    await line.server.until(lambda: asked(line) == 1)
    await receive_command(line, "and I?", sender=43)
    await line.server.until(lambda: not line.server.updates)
    assert not looking.done()
    assert not (await looking).is_admin


@pytest.mark.parametrize("kind", ["chat_member", "my_chat_member"])
async def test_what_telegram_says_of_rights_counts_at_once(line: TelegramConnection, kind: str) -> None:
    """Ann was an admin a moment ago; a member who comes or goes changes nothing of what is known."""
    message = await receive_command(line)
    assert (await line.channel.sender(message)).is_admin
    line.server.chat(GROUP).admins = set()
    person = {"id": 42, "is_bot": False, "first_name": "Ann"}
    change = {"chat": {"id": GROUP, "type": "supergroup", "title": "t"}, "from": person, "date": 1_763_769_600}
    for old, new in (("left", "restricted"), ("administrator", "member")):
        members = {"old_chat_member": {"status": old}, "new_chat_member": {"status": new}}
        line.server.push({kind: change | members})
        await line.server.until(lambda: not line.server.updates)
        assert (await line.channel.sender(message)).is_admin is (new == "restricted")
    asking = [fields["allowed_updates"] for name, fields in line.server.calls if name == "getUpdates"]
    assert all(kind in each for each in asking)


@dataclass
class SlowTelegramApi:
    """Telegram as the library shows it, answering when it is let."""

    admins: list[int] = field(default_factory=lambda: [42])
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    fails: bool = False
    asked: int = 0

    async def get_chat_administrators(self, chat: int, *, read_timeout: float) -> Any:
        """Answer with the admins as they are when it is asked."""
        assert (chat, read_timeout) == (GROUP, 3.0)
        self.asked += 1
        found = [SimpleNamespace(user=SimpleNamespace(id=each)) for each in self.admins]
        await self.answers.wait()
        if self.fails:
            raise TimedOut
        return found


CHANGES = [
    (("left", {}), ("member", {}), "in"),
    (("kicked", {}), ("administrator", {}), "in"),
    (("left", {}), ("restricted", {"is_member": True}), "in"),
    (("restricted", {"is_member": True}), ("restricted", {"is_member": False}), "out"),
    (("member", {}), ("kicked", {}), "out"),
    (("administrator", {}), ("left", {}), "out"),
    (("member", {}), ("administrator", {}), ""),
]


@pytest.mark.parametrize(
    ("old", "new", "told"), CHANGES, ids=lambda each: each[0] if isinstance(each, tuple) else each or "neither"
)
async def test_being_added_and_taken_away_is_told_as_it_is(
    line: TelegramConnection, old: Any, new: Any, told: str
) -> None:
    """Where, its title as one line, and who did it; the same again has the same id. Other changes are nobody's news."""
    title = "The\n@team \u202e" + 80 * "x"
    change = {
        "chat": {"id": GROUP, "type": "supergroup", "title": title},
        "from": {"id": 666, "is_bot": False, "first_name": "Eve"},
        "date": 1_763_769_600,
        "old_chat_member": {"status": old[0], "user": BOT, **old[1]},
        "new_chat_member": {"status": new[0], "user": BOT, **new[1]},
    }
    for _ in range(2):
        line.server.push({"my_chat_member": change})
        await line.server.until(lambda: not line.server.updates)
    places = [
        MembershipChange(
            channel="telegram",
            id=f"place/{GROUP}/1763769600/{told}",
            chat=str(GROUP),
            title=("The team " + 80 * "x")[:40],
            by=Sender(id="666", name="Eve"),
            is_gone=told == "out",
        )
    ]
    assert line.services.places == (places * 2 if told else [])
    if told:
        assert line.services.places[0].entry == f"chat:{GROUP}"


async def test_a_place_that_is_not_kept_is_told_again(line: TelegramConnection) -> None:
    """The journal is down: Telegram is not told that we know, and brings it again. Private chats are no places."""
    person = {"id": 42, "is_bot": False, "first_name": "Ann"}
    states = {"old_chat_member": {"status": "left"}, "new_chat_member": {"status": "member"}}
    chat = {"id": GROUP, "type": "supergroup", "title": "t"}
    change = {"chat": chat, "from": person, "date": 1_763_769_600, **states}
    line.server.push({"my_chat_member": change | {"chat": {"id": 42, "type": "private", "first_name": "Ann"}}})
    await line.server.until(lambda: not line.server.updates)
    line.services.is_down = True
    line.server.push({"my_chat_member": change})
    await line.server.until(lambda: [name for name, _ in line.server.calls].count("getUpdates") > 3)
    assert line.server.updates
    line.services.is_down = False
    await line.server.until(lambda: not line.server.updates)
    assert [each.chat for each in line.services.places] == [str(GROUP)]
    (greeted,) = line.services.accepted
    assert (greeted.text, greeted.chat_kind) == ("/start", ChatKind.GROUP)
