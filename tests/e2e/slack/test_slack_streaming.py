"""Slack's own streams, where they are wanted: the words grow by appending, and the whole text stands in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.slack.outbound import stable_prefix
from gateway.errors import OutcomeUnknown, RetryLater
from gateway.events import MessagePart, OutboundKind
from tests.fakes.held_model import HeldModel
from tests.fakes.slack import RunningSlack, build, slack
from tests.fakes.slack_gateway import CALL, open_gateway
from tests.fakes.slack_server import ANN, BOT_USER, DM, ROOM, SlackFault, slack_server

NATIVE: dict[str, Any] = {"streaming": "native"}


def preview(up: RunningSlack, place: str, text: str, reply_to: str) -> MessagePart:
    """Return row 0 with *text*."""
    (part,) = up.render(place, text, row=0, kind=OutboundKind.PREVIEW, reply_to=reply_to)
    return part


async def ask_bot(up: RunningSlack) -> tuple[str, str]:
    """Let Ann call us; return the place of the answer and her message."""
    ts = up.server.say(ROOM, ANN, f"{CALL} hi")
    await up.server.until(lambda: len(up.server.acks) == 2)
    return f"{ROOM}/{ts}", ts


async def test_an_answer_streams_in_its_thread_and_is_put_right_at_the_end() -> None:
    """Begun for the one who asked, appended to, stopped, and replaced by the whole text with its key: one message."""
    async with slack(**NATIVE) as up:
        place, ts = await ask_bot(up)
        receipt = await up.channel.send(preview(up, place, "It is", ts))
        for text in ("It is", "It is late, and", "It is late, and **go", "It is late, and **good**.\n\nBye"):
            await up.channel.edit(receipt.message_id, preview(up, place, text, ts))
        (begun,) = up.server.called("chat.startStream")
        assert (begun["recipient_user_id"], begun["recipient_team_id"], begun["thread_ts"]) == (ANN, "T0HOME", ts)
        assert [call["markdown_text"] for call in up.server.called("chat.appendStream")] == [
            " late, and",
            " good.\n\nBye",
        ]
        assert up.server.called("chat.update") == []
        (answer,) = up.render(place, "It is late, and **good**.\n\nBye <!channel>", reply_to=ts)
        await up.channel.edit(receipt.message_id, answer)
        (message,) = (m for m in up.server.places[ROOM].messages if m["user"] == BOT_USER)
        assert (message["text"], message["streams"]) == ("It is late, and *good*.\n\nBye &lt;!channel&gt;", False)
        assert message["metadata"]["event_payload"] == {"part": answer.id}


async def test_words_that_change_end_the_stream_and_are_edited() -> None:
    """A stream only grows: what it cannot say is said by an edit, and so is all that follows."""
    async with slack(**NATIVE) as up:
        place, ts = await ask_bot(up)
        receipt = await up.channel.send(preview(up, place, "I think it is five", ts))
        await up.channel.edit(receipt.message_id, preview(up, place, "No: it is *six*", ts))
        await up.channel.edit(receipt.message_id, preview(up, place, "No: it is *six*, or seven", ts))
        assert up.server.shown(ROOM, ts) == ["No: it is _six_, or seven"]
        assert len(up.server.called("chat.stopStream")) == 1
        assert len(up.server.called("chat.update")) == 2


DOUBTS = [
    SlackFault(does=True, drops=True),
    SlackFault(status=503),
    SlackFault(error="message_not_in_streaming_state"),
    SlackFault(error="internal_error"),
]


@pytest.mark.parametrize("fault", DOUBTS)
async def test_on_any_doubt_the_whole_text_is_put_in(fault: SlackFault) -> None:
    """An append whose outcome is not known is neither repeated nor believed."""
    async with slack(**NATIVE) as up:
        place, ts = await ask_bot(up)
        receipt = await up.channel.send(preview(up, place, "one", ts))
        up.server.faults["chat.appendStream"] = [fault]
        await up.channel.edit(receipt.message_id, preview(up, place, "one two", ts))
        assert up.server.shown(ROOM, ts) == ["one two"]
        up.server.faults["chat.stopStream"] = [fault]
        (answer,) = up.render(place, "one two three", reply_to=ts)
        await up.channel.edit(receipt.message_id, answer)
        assert up.server.shown(ROOM, ts) == ["one two three"]


async def test_a_limit_on_streams_is_waited_for() -> None:
    """429 is no doubt: the same words later, and the stream goes on."""
    async with slack(**NATIVE) as up:
        place, ts = await ask_bot(up)
        receipt = await up.channel.send(preview(up, place, "one", ts))
        up.server.faults["chat.appendStream"] = [SlackFault(status=429, error="ratelimited", retry_after=3)]
        with pytest.raises(RetryLater):
            await up.channel.edit(receipt.message_id, preview(up, place, "one two", ts))
        await up.channel.edit(receipt.message_id, preview(up, place, "one two", ts))
        assert up.server.shown(ROOM, ts) == ["one two"]
        assert up.server.called("chat.stopStream") == []


async def test_where_slack_has_no_streams_nothing_is_lost() -> None:
    """`unknown_method` is asked once and never again; at the top level and for nobody in particular there is none."""
    async with slack(**NATIVE) as up:
        place, ts = await ask_bot(up)
        await up.channel.send(preview(up, DM, "top level", ""))
        await up.channel.send(preview(up, place, "nobody asked", ""))
        assert up.server.called("chat.startStream") == []
        up.server.knows_streams = False
        for text in ("first", "second"):
            receipt = await up.channel.send(preview(up, place, text, ts))
            await up.channel.edit(receipt.message_id, preview(up, place, f"{text} more", ts))
        assert len(up.server.called("chat.startStream")) == 1
        assert up.server.shown(ROOM, ts) == ["nobody asked", "first more", "second more"]
    async with slack(**NATIVE) as up:
        place, ts = await ask_bot(up)
        up.server.faults["chat.startStream"] = [SlackFault(error="channel_type_not_supported")]
        await up.channel.send(preview(up, place, "first", ts))
        await up.channel.send(preview(up, place, "second", ts))
        assert len(up.server.called("chat.startStream")) == 2  # this one refused, the next one not
        assert up.server.shown(ROOM, ts) == ["first", "second"]


async def test_a_stream_that_began_unheard_is_found() -> None:
    """It carries no key; it is our one message below the question that has none, and a new process ends it."""
    async with slack(**NATIVE) as up:
        place, ts = await ask_bot(up)
        (other,) = up.render(place, "another answer", row=2, reply_to=ts)
        await up.channel.send(other)
        part = preview(up, place, "It is", ts)
        assert await up.channel.find(part) is None
        up.server.faults["chat.startStream"] = [SlackFault(does=True, drops=True)]
        with pytest.raises(OutcomeUnknown):
            await up.channel.send(part)
        again = build(up.server, up.services, **NATIVE)
        found = await again.find(part)
        assert found is not None
        (answer,) = up.render(place, "It is late.", reply_to=ts)
        await again.edit(found.message_id, answer)
        await again.close()
        assert up.server.shown(ROOM, ts) == ["another answer", "It is late."]
        assert not any(m.get("streams") for m in up.server.places[ROOM].messages)


async def test_the_whole_gateway_streams_and_survives_a_kill_in_the_middle(tmp_path: Path) -> None:
    """Delivery takes the stream for the preview that it is: after a kill one answer stands, whole and ended."""
    environment = {"PARLOUR_CHANNELS__SLACK__STREAMING": "native", "PARLOUR_CHANNELS__SLACK__REACTION": ""}
    first = "A beginning that is long enough to be worth showing, "
    async with slack_server() as server:
        model = HeldModel(f"{first}and an **end**.", first=len(first))
        async with open_gateway(server, home=tmp_path / "home", model=model, environment=environment) as parlour:
            ts = server.say(ROOM, ANN, f"{CALL} tell me")
            await server.until(lambda: bool(server.shown(ROOM, ts)))
            assert server.called("chat.postMessage") == []
            home = parlour.kill(tmp_path / "copy")
            stood = next(dict(message) for message in server.places[ROOM].messages if message.get("streams"))
            model.go_on.set()
            await parlour.idle()
            assert server.shown(ROOM, ts) == ["A beginning that is long enough to be worth showing, and an *end*."]
        server.places[ROOM].messages = [*(m for m in server.places[ROOM].messages if m["user"] != BOT_USER), stood]
        model = HeldModel(f"{first}and an **end**.", held=False)
        async with open_gateway(server, home=home, model=model, environment=environment) as parlour:
            await server.until(lambda: server.shown(ROOM, ts)[0].endswith("*end*."))
            await parlour.idle()
        assert len(server.shown(ROOM, ts)) == 1
        assert not any(m.get("streams") for m in server.places[ROOM].messages)


@given(st.text(alphabet="ab *_`~[]()#>|\n<!@-"))
def test_what_is_appended_calls_nobody(text: str) -> None:
    """The words that go into a stream are a beginning of the text, and no mention."""
    kept = stable_prefix(text)
    assert text.startswith(kept.replace("<\u200b", "<"))
    assert not any(call in kept for call in ("<!", "<@", "<#"))
