"""What we send stands in Slack once, in order, or fails as what it is: over the real library and real HTTP."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gateway.errors import OutcomeUnknown, RetryLater, SendFailed, SendRefused
from gateway.events import OutboundKind, SessionKey
from gateway.i18n import translate
from gateway.ports.channel import ChatActivity
from tests.fakes.conditions import eventually
from tests.fakes.slack import slack
from tests.fakes.slack_server import ANN, BOB, BOT_USER, DM, ROOM, SlackFault


async def test_an_answer_stands_in_its_thread() -> None:
    """Formatted, with nothing unfurled, without a call for anybody, and with its send key."""
    async with slack() as up:
        ts = up.server.say(ROOM, ANN, f"<@{BOT_USER}> hi")
        (part,) = up.render(f"{ROOM}/{ts}", "It is **late** https://example.org @channel")
        receipt = await up.channel.send(part)
        (posted,) = (m for m in up.server.places[ROOM].messages if m["user"] == BOT_USER)
        assert (posted["ts"], posted["thread_ts"]) == (receipt.message_id, ts)
        assert posted["text"] == "It is *late* https://example.org @channel"
        assert posted["preview"] is False
        (call,) = up.server.called("chat.postMessage")
        assert (call["link_names"], call["parse"]) == (False, "none")
        assert call["metadata"]["event_payload"] == {"part": part.id}


async def test_our_own_words_are_not_heard() -> None:
    """What we post and edit comes back as events; they are acknowledged and go nowhere."""
    async with slack() as up:
        (part,) = up.render(DM, "hello")
        receipt = await up.channel.send(part)
        await up.channel.edit(receipt.message_id, part)
        await up.server.until(lambda: len(up.server.acks) == 2)
        assert up.services.deliveries == []


async def test_previews_leave_room_for_answers() -> None:
    """Once the workspace's edits are used up previews wait, and an answer's own edit goes through."""
    async with slack() as up:
        (part,) = up.render(DM, "so far", row=0, kind=OutboundKind.PREVIEW)
        receipt = await up.channel.send(part)
        for _ in range(20):
            await up.channel.edit(receipt.message_id, part)
        edits = up.channel._outbound.preview_edits
        edits._full_at += edits._interval  # whatever time passed since gave back less than this
        with pytest.raises(RetryLater) as wait:
            await up.channel.edit(receipt.message_id, part)
        assert timedelta(0) < wait.value.delay < timedelta(seconds=3)
        (answer,) = up.render(DM, "all of it")
        await up.channel.edit(receipt.message_id, answer)
        assert up.server.shown(DM) == ["all of it"]


FAULTS = [
    (SlackFault(status=429, error="ratelimited", retry_after=7), RetryLater),
    (SlackFault(error="ratelimited", retry_after=7), RetryLater),
    (SlackFault(status=503), OutcomeUnknown),
    (SlackFault(error="internal_error", does=True), OutcomeUnknown),
    (SlackFault(error="fatal_error"), OutcomeUnknown),
    (SlackFault(does=True, drops=True), OutcomeUnknown),
    (SlackFault(error="channel_not_found"), SendRefused),
    (SlackFault(error="is_archived"), SendRefused),
    (SlackFault(error="msg_too_long"), SendRefused),
    (SlackFault(error="token_revoked"), RetryLater),
]


@pytest.mark.parametrize(("fault", "raised"), FAULTS, ids=lambda value: getattr(value, "error", "") or "")
async def test_a_failure_is_named_after_what_to_do(fault: SlackFault, raised: type[SendFailed]) -> None:
    """Retry-After to the second; what may have happened is unknown; what never will is refused; asked once."""
    async with slack() as up:
        up.server.faults["chat.postMessage"] = [fault]
        (part,) = up.render(DM, "hello")
        with pytest.raises(raised) as error:
            await up.channel.send(part)
        assert type(error.value) is raised or issubclass(type(error.value), raised)
        if fault.retry_after:
            assert isinstance(error.value, RetryLater)
            assert error.value.delay == timedelta(seconds=7)
        assert len(up.server.called("chat.postMessage")) == 1


@pytest.mark.parametrize("fault", [SlackFault(does=True, drops=True), SlackFault(error="internal_error", does=True)])
@pytest.mark.parametrize("place", ["top", "thread"])
async def test_posted_but_the_reply_was_lost(fault: SlackFault, place: str) -> None:
    """Its key is read back: what stands is found, what does not is certainly not there."""
    async with slack() as up:
        ts = up.server.say(ROOM, ANN, "hi", quiet=True)
        key = ROOM if place == "top" else f"{ROOM}/{ts}"
        (first,) = up.render(key, "once", reply_to=ts)
        (second,) = up.render(key, "not sent", row=2, reply_to=ts)
        up.server.faults["chat.postMessage"] = [fault]
        with pytest.raises(OutcomeUnknown):
            await up.channel.send(first)
        for n in range(150):
            up.server.say(ROOM, BOB, f"noise {n}", thread=ts if place == "thread" else "", quiet=True)
        found = await up.channel.find(first)
        assert found is not None
        assert up.server._message(ROOM, found.message_id)["text"] == "once"
        assert await up.channel.find(second) is None


@pytest.mark.parametrize("scope", ["channels:history", "metadata.message:read"])
async def test_without_the_scopes_nothing_is_certain(scope: str) -> None:
    """A key that cannot be read back leaves the outcome unknown, so that the resend is marked."""
    async with slack() as up:
        up.server.scopes -= {scope, "groups:history"}
        await up.channel._identify(anew=True)
        (part,) = up.render(ROOM, "hello")
        with pytest.raises(OutcomeUnknown, match=scope):
            await up.channel.find(part)


async def test_a_private_answer_is_seen_by_one() -> None:
    """It is ephemeral, in the thread, and in no history."""
    async with slack() as up:
        ts = up.server.say(ROOM, ANN, "hi", quiet=True)
        (part,) = up.render(f"{ROOM}/{ts}", "for you", visible_to=ANN)
        await up.channel.send(part)
        assert [(w["user"], w["text"]) for w in up.server.places[ROOM].whispers] == [(ANN, "for you")]
        assert up.server.shown(ROOM, ts) == []
        with pytest.raises(OutcomeUnknown):
            await up.channel.find(part)


async def test_where_slack_refuses_a_private_answer_nobody_else_reads_it() -> None:
    """One line says where to ask; the answer itself is refused for good."""
    async with slack() as up:
        up.server.places[ROOM].members.discard(ANN)
        parts = up.render(ROOM, "secret " * 1_000, visible_to=ANN)
        for part in parts:
            with pytest.raises(SendRefused):
                await up.channel.send(part)
        assert len(parts) > 1
        assert up.server.shown(ROOM) == [translate("slack.write_privately")]


async def test_a_status_shows_in_threads_and_ends() -> None:
    """Elsewhere there is nothing to show it with; a refusal is no failure and is not asked for again."""
    async with slack() as up:
        ts = up.server.say(ROOM, ANN, "hi", quiet=True)
        key = SessionKey("slack", f"{ROOM}/{ts}")
        await up.channel.show(ChatActivity(key=key, on=True))
        assert up.server.statuses == {(ROOM, ts): translate("slack.thinking")}
        await up.channel.show(ChatActivity(key=key, on=False))
        assert up.server.statuses == {(ROOM, ts): ""}
        await up.channel.show(ChatActivity(key=SessionKey("slack", DM), on=True))
        up.server.scopes.discard("assistant:write")
        for _ in range(3):
            await up.channel.show(ChatActivity(key=key, on=True))
        assert len(up.server.called("assistant.threads.setStatus")) == 3


async def test_reactions_can_be_off_or_refused() -> None:
    """Without the scope it is asked for once; without the setting never."""
    async with slack() as up:
        up.server.scopes.discard("reactions:write")
        up.server.say(DM, ANN, "hi")
        await up.server.until(lambda: len(up.server.called("reactions.add")) == 1)
        await eventually(lambda: "reactions.add" in up.channel._reactions._refused)
        up.server.say(DM, ANN, "again")
        await up.server.until(lambda: len(up.server.acks) == 2)
        assert len(up.server.called("reactions.add")) == 1
    async with slack(reaction="") as up:
        up.server.say(DM, ANN, "hi")
        await up.server.until(lambda: len(up.server.acks) == 1)
        assert up.server.called("reactions.add") == []
