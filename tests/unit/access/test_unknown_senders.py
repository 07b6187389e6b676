"""Strangers: one line a day, a code in a direct message, and nothing left of what they said."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.admission import RejectionReason
from gateway.events import InboundKind, MessagePart, SessionKey
from tests.fakes.access_scene import OWNER, AccessScene
from tests.fakes.clock import VirtualClock
from tests.fakes.store import open_inline_store

GROUP = SessionKey("telegram", "-100")


@pytest.fixture
async def scene(clock: VirtualClock) -> AsyncIterator[AccessScene]:
    """Return admission with an owner who can be asked."""
    store = await open_inline_store(clock=clock.now)
    yield AccessScene(store, clock.now)
    await store.close()


async def test_a_name_is_no_link_and_calls_nobody(scene: AccessScene) -> None:
    """What a stranger calls themselves reaches the owner as code: no link, no mention, one line."""
    await scene.knock("66")
    (asked,) = await scene.told(OWNER)
    assert asked.text.startswith("`Mal x http://evil.example all` (`66`) wrote to me")
    assert "\n" not in asked.text


async def test_one_line_a_day_whatever_they_write(scene: AccessScene, clock: VirtualClock) -> None:
    """Ten messages in a minute, in private and in a group, are answered once; the next day once more."""
    for _ in range(5):
        await scene.knock("66")
        await scene.in_group("66")
    assert len(await scene.said_to("66")) == 1
    assert await scene.told(GROUP) == []
    clock.set_wall(timedelta(hours=23))
    await scene.knock("66")
    assert len(await scene.said_to("66")) == 1
    clock.set_wall(timedelta(hours=2))
    await scene.knock("66")
    assert len(await scene.said_to("66")) == 2


async def test_the_day_survives_a_restart(scene: AccessScene, clock: VirtualClock) -> None:
    """A gateway that starts again greets no stranger twice, and knows who waits."""
    await scene.knock("66")
    again = AccessScene(scene.store, clock.now)  # nothing but the store is carried over
    await again.knock("66")
    assert len(await again.said_to("66")) == 1
    assert [each.who for each in again.pairing.pending_requests()] == ["66"]


@pytest.mark.parametrize(
    "reason",
    [
        RejectionReason.BLOCKED,
        RejectionReason.BOT,
        RejectionReason.SELF,
        RejectionReason.NOBODY,
        RejectionReason.GROUPS_OFF,
        RejectionReason.NOT_ADDRESSED,
    ],
)
async def test_who_is_told_nothing(scene: AccessScene, reason: RejectionReason) -> None:
    """Somebody blocked, a bot, and whoever did not talk to us hear nothing at all."""
    await scene.knock("66", reason=reason)
    await scene.in_group("66", reason=reason)
    assert await scene.said_to("66") == []
    assert await scene.told(GROUP) == []


async def test_what_is_no_word_to_us_is_answered_by_nothing(scene: AccessScene) -> None:
    """An edit, a deletion, talk beside us in a group, and what is older than a day call for no line."""
    await scene.knock("66", revision="2")
    await scene.knock("66", kind=InboundKind.DELETION)
    await scene.in_group("66", is_addressed=False)
    await scene.knock("66", sent_at=scene._now() - timedelta(days=2))
    assert await scene.said_to("66") == []
    assert await scene.told(GROUP) == []


async def test_three_wait_and_no_more(scene: AccessScene, clock: VirtualClock) -> None:
    """A fourth stranger hears nothing while three codes are good, and has not spent their line of the day."""
    for sender in ("61", "62", "63", "64"):
        await scene.knock(sender)
    assert len(scene.pairing.pending_requests()) == 3
    assert await scene.said_to("64") == []
    clock.set_wall(timedelta(minutes=61))
    await scene.knock("64")
    assert [each.who for each in scene.pairing.pending_requests()] == ["64"]
    assert await scene.code_of("64")


async def test_a_shared_chat_is_not_flooded(scene: AccessScene) -> None:
    """Of many strangers who call us in one group three a day are told something, each seen by them alone."""
    for number in range(10):
        await scene.in_group(f"7{number}")
    told = await scene.told(GROUP)
    assert [each.visible_to for each in told] == ["70", "71", "72"]
    assert all("direct message" in each.text for each in told)
    await scene.in_group("80", "-200")
    assert len(await scene.told(SessionKey("telegram", "-200"))) == 1


async def test_many_accounts_do_not_make_us_shout(clock: VirtualClock) -> None:
    """A hundred lines a day are the most that one channel says to strangers."""
    store = await open_inline_store(clock=clock.now)
    scene = AccessScene(store, clock.now, pairs=False)
    for number in range(120):
        await scene.knock(f"9{number}")
    depth = await store.journal.depth()
    assert depth["undelivered"] == 100
    await store.close()


async def test_groups_use_up_nothing_of_direct_messages(clock: VirtualClock) -> None:
    """Forty groups of strangers end the day's lines for groups; who writes directly is told all the same."""
    store = await open_inline_store(clock=clock.now)
    scene = AccessScene(store, clock.now, pairs=False)
    for number in range(120):
        await scene.in_group(f"9{number}", f"-{number // 3}")
    assert (await store.journal.depth())["undelivered"] == 100
    assert scene.strangers.unanswered == {"telegram": 20}
    await scene.knock("66")
    assert len(await scene.said_to("66")) == 1
    await store.close()


async def test_who_was_sent_to_a_direct_message_is_answered_there(scene: AccessScene) -> None:
    """The line in a group says to write directly; whoever does gets their code, and both only once a day."""
    for _ in range(2):
        await scene.in_group("66")
        await scene.knock("66")
    assert len(await scene.told(GROUP)) == 1
    assert await scene.code_of("66")


async def test_a_press_or_a_slash_command_is_answered_on_the_spot(scene: AccessScene) -> None:
    """What cannot wait for an outbox gets its line at once, and it was the line of the day all the same."""
    line = await scene.in_group("66", message_id="", kind=InboundKind.BUTTON, event_ids=("e1",))
    assert "direct message" in line
    assert await scene.in_group("66", message_id="", kind=InboundKind.BUTTON, event_ids=("e2",)) == ""
    assert await scene.told(GROUP) == []


async def test_without_pairing_there_is_no_code(clock: VirtualClock) -> None:
    """Where pairing is off a stranger is told who can let them in, and nobody waits."""
    store = await open_inline_store(clock=clock.now)
    scene = AccessScene(store, clock.now, pairs=False)
    await scene.knock("66")
    (text,) = await scene.said_to("66")
    assert "the owner of this bot" in text
    assert "code" not in text
    assert (list(scene.pairing.pending_requests()), await scene.told(OWNER)) == ([], [])
    await store.close()


async def test_a_bot_that_nobody_owns_says_nothing(clock: VirtualClock) -> None:
    """While nobody could let them in strangers are told nothing; with pairing switched on the operator can."""
    store = await open_inline_store(clock=clock.now)
    await AccessScene(store, clock.now, pairs=False, owned=False).knock("66")
    assert (await store.journal.depth())["undelivered"] == 0
    scene = AccessScene(store, clock.now, owned=False, owner=False)
    await scene.knock("66")
    assert await scene.code_of("66")
    await store.close()


async def test_being_added_is_no_word_of_whoever_did_it(scene: AccessScene) -> None:
    """Telegram's channel greets when it is added; where it is not let in that is nothing, not a line in the place."""
    assert await scene.in_group("66", message_id="", text="/start") == ""
    assert await scene.told(GROUP) == []


async def test_an_owner_out_of_reach_leaves_the_code(clock: VirtualClock) -> None:
    """Where no owner has a direct chat the stranger still has a code to pass on."""
    store = await open_inline_store(clock=clock.now)
    scene = AccessScene(store, clock.now, owner=False)
    await scene.knock("66")
    assert await scene.code_of("66")
    assert await scene.told(OWNER) == []
    assert len(scene.pairing.pending_requests()) == 1
    await store.close()


async def test_nothing_of_a_stranger_is_stored(tmp_path: Path, clock: VirtualClock) -> None:
    """No inbox row, session or record, no word of theirs, and no code in the notes: only its hash."""
    store = await open_inline_store(tmp_path / "journal.db", clock=clock.now)
    scene = AccessScene(store, clock.now)
    await scene.knock("66")
    code = (await scene.code_of("66")).replace("-", "")
    await store.close()
    with sqlite3.connect(tmp_path / "journal.db") as database:
        for table in ("inbox", "session", "record", "dedupe", "job", "usage"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table  # noqa: S608
        notes = repr(database.execute("SELECT name, value FROM access_note").fetchall())
        assert "secret" not in "\n".join(database.iterdump())
    assert code not in notes.replace("-", "")


async def test_a_line_that_a_stranger_does_not_take_is_no_alert(scene: AccessScene) -> None:
    """Who writes and then blocks the bot cannot have its owner told of trouble; a question that is lost can."""
    _, mark = await scene.store.alerts.given_up("")
    await scene.knock("66")
    for key in (SessionKey("telegram", "66"), OWNER):
        delivery = await scene.store.outbox.next(key)
        assert delivery is not None
        part = MessagePart(id=f"{delivery.message.id}.1", key=key, payload="", plain=delivery.message.text)
        await scene.store.outbox.freeze(delivery.message, [part])
        await scene.store.outbox.dead_letter(part, "blocked by the user")
    letters, _ = await scene.store.alerts.given_up(mark)
    assert [each.chat for each in letters] == [str(OWNER)]
