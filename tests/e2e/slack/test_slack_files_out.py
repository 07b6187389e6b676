"""Files that we send stand in the chat once: Slack's three steps, each of which can be the last that is heard of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.errors import FileUnavailable, OutcomeUnknown, RetryLater, SendFailed, SendRefused
from gateway.events import Attachment, MessagePart, SessionKey
from gateway.i18n import translate
from tests.fakes.conditions import eventually
from tests.fakes.slack import TURN, RunningSlack, build, slack
from tests.fakes.slack_server import ANN, BOT_TOKEN, BOT_USER, DM, ROOM, SlackFault

WORDS = "# The whole answer\n" + "word " * 2_000


def file_part(place: str, *, row: int = 1, caption: str = "", visible_to: str = "", blob: str = "") -> MessagePart:
    """Return a part that is a file: an answer's own text, or the bytes of *blob*."""
    file = Attachment(kind="document", name="answer.md", size=len(WORDS), caption=caption, blob=blob)
    key = SessionKey("slack", place)
    return MessagePart(id=f"{TURN}.{row}.2", key=key, payload="", plain=WORDS, visible_to=visible_to, file=file)


def list_bot_messages(up: RunningSlack, place: str = DM) -> list[tuple[str, list[str]]]:
    """Return our messages of a place: text, and the names of their files."""
    return [
        (message["text"], [file["name"] for file in message.get("files", ())])
        for message in up.server.places[place].messages
        if message["user"] == BOT_USER
    ]


async def test_a_file_stands_in_its_thread_with_its_caption() -> None:
    """Bytes as they were, one file a message, in the thread, and the caption without markup."""
    async with slack() as up:
        assert up.channel.capabilities.file_limit == 100_000_000
        ts = up.server.say(ROOM, ANN, "hi", quiet=True)
        blob = await up.services.blobs.put("chats/x", b"\x00\x01" * 5_000)
        part = file_part(f"{ROOM}/{ts}", caption="the **picture** <!channel>", blob=blob)
        receipt = await up.channel.send(part)
        (message,) = (m for m in up.server.places[ROOM].messages if m["user"] == BOT_USER)
        assert (message["thread_ts"], message["text"]) == (ts, "`the **picture** &lt;!channel&gt;`")
        (file,) = message["files"]
        assert up.server.files[file["id"]].data == b"\x00\x01" * 5_000
        assert receipt.message_id == file["id"]
        await up.server.until(lambda: len(up.server.acks) == 1)
        assert up.services.deliveries == []


async def test_a_picture_is_described_for_those_who_cannot_see_it() -> None:
    """The caption is the picture's alternative text, as it stands; other files have none."""
    async with slack() as up:
        part = file_part(DM, caption="a *red* fox")
        assert part.file is not None
        await up.channel.send(part)
        await up.channel.send(replace(part, id=f"{TURN}.2.2", file=replace(part.file, kind="image")))
        assert [file.alt for file in up.server.files.values()] == ["", "a *red* fox"]


async def test_an_address_in_a_caption_is_not_fetched() -> None:
    """Attacks 73 and 74: a file's comment has no switch for previews, so an address is code; nobody is called."""
    async with slack() as up:
        await up.channel.send(file_part(DM, caption="see [here](https://evil.example/?q=secret) <!here>"))
        ((text, _),) = list_bot_messages(up)
        assert text == "`see [here](https://evil.example/?q=secret) &lt;!here&gt;`"


@pytest.mark.parametrize(
    ("caption", "shown"),
    [
        ("a red fox, 3 < 4", "a red fox, 3 &lt; 4"),
        ("a *red* fox", "`a *red* fox`"),
        ("snake_case_", "`snake_case_`"),
        ("~gone~", "`~gone~`"),
        ("> quoted", "`&gt; quoted`"),
        ("the word :boom:", "`the word :boom:`"),
        ("a ```` fence `code`\n*b*", "`a ˋˋˋˋ fence ˋcodeˋ *b*`"),
    ],
)
async def test_a_caption_is_no_markup(caption: str, shown: str) -> None:
    """A prompt is its person's words: Slack shows the signs that it would act on."""
    async with slack() as up:
        await up.channel.send(file_part(DM, caption=caption))
        assert list_bot_messages(up) == [(shown, ["answer.md"])]


# What fails on the way, and whether the part stands then; a plain number is the upload's status.
STEPS: list[tuple[str, SlackFault | int, bool]] = [
    ("files.getUploadURLExternal", SlackFault(does=True, drops=True), False),
    ("files.getUploadURLExternal", SlackFault(status=503), False),
    ("upload", 500, False),
    ("files.completeUploadExternal", SlackFault(status=503), False),
    ("files.completeUploadExternal", SlackFault(status=502, does=True), True),
    ("files.completeUploadExternal", SlackFault(does=True, drops=True), True),
    ("files.completeUploadExternal", SlackFault(error="internal_error", does=True), True),
]


@pytest.mark.parametrize(("step", "fault", "stands"), STEPS)
@pytest.mark.parametrize("place", [DM, "thread"])
async def test_a_step_whose_outcome_is_unknown_is_asked_for(
    step: str, fault: SlackFault | int, stands: bool, place: str
) -> None:
    """The file's id was stored before it could be seen: a new process knows, and nothing is shown twice."""
    async with slack() as up:
        thread = up.server.say(ROOM, ANN, "hi", quiet=True)
        part = file_part(f"{ROOM}/{thread}" if place == "thread" else DM)
        if isinstance(fault, SlackFault):
            up.server.faults[step] = [fault]
        else:
            up.server.upload_faults = [fault]
        with pytest.raises(OutcomeUnknown):
            await up.channel.send(part)
        again = build(up.server, up.services)
        found = await again.find(part)
        assert (found is not None) is stands
        if found is None:
            await again.send(part)
        await again.close()
        assert len(list_bot_messages(up, part.key.parent.chat)) == 1
        assert len(up.server.called("files.getUploadURLExternal")) == (1 if stands else 2)


async def test_slack_may_take_a_moment_to_say_where_a_file_stands() -> None:
    """The file is known and its place is not yet: asked again in a moment; after a minute nobody can tell."""
    async with slack() as up:
        part = file_part(DM)
        up.server.faults["files.completeUploadExternal"] = [SlackFault(does=True, drops=True)]
        with pytest.raises(OutcomeUnknown):
            await up.channel.send(part)
        up.server.shares_after = 2
        for _ in range(2):
            with pytest.raises(RetryLater):
                await up.channel.find(part)
        assert await up.channel.find(part) is not None
        known = up.channel._files._uploads
        assert known is not None
        known[part.id] = (known[part.id][0], "2026-01-01T00:00:00+00:00")
        up.server.shares_after = 1
        with pytest.raises(OutcomeUnknown):
            await up.channel.find(part)


async def test_without_files_read_the_chat_itself_is_read() -> None:
    """files.info needs a scope; the history shows the file as well, and without either nobody can tell."""
    async with slack() as up:
        part = file_part(DM)
        other = file_part(DM, row=2)
        up.server.faults["files.completeUploadExternal"] = [SlackFault(does=True, drops=True), SlackFault(status=503)]
        for each in (part, other):
            with pytest.raises(OutcomeUnknown):
                await up.channel.send(each)
        up.server.scopes -= {"files:read", "metadata.message:read"}
        await up.channel._identify(anew=True)
        assert await up.channel.find(part) is not None
        assert await up.channel.find(other) is None
        up.server.scopes -= {"im:history"}
        await up.channel._identify(anew=True)
        with pytest.raises(OutcomeUnknown, match="im:history"):
            await up.channel.find(part)


async def test_a_repeat_says_so() -> None:
    """What may be there twice is marked in its comment."""
    async with slack() as up:
        await up.channel.send(file_part(DM, caption="all of it"), may_be_duplicate=True)
        assert list_bot_messages(up) == [(f"_{translate('delivery.may_repeat')}_\nall of it", ["answer.md"])]


FAULTS: list[tuple[str, SlackFault, type[SendFailed]]] = [
    ("files.getUploadURLExternal", SlackFault(status=429, error="ratelimited", retry_after=7), RetryLater),
    ("files.completeUploadExternal", SlackFault(status=429, error="ratelimited", retry_after=7), RetryLater),
    ("files.completeUploadExternal", SlackFault(error="is_archived"), SendRefused),
    ("files.completeUploadExternal", SlackFault(error="channel_not_found"), SendRefused),
]


@pytest.mark.parametrize(("step", "fault", "raised"), FAULTS)
async def test_a_failure_of_a_file_is_named_after_what_to_do(
    step: str, fault: SlackFault, raised: type[SendFailed]
) -> None:
    """As for words: a limit is waited for, what never will be is refused, and each step is asked once."""
    async with slack() as up:
        up.server.faults[step] = [fault]
        with pytest.raises(raised):
            await up.channel.send(file_part(DM))
        assert len(up.server.called(step)) == 1
        assert list_bot_messages(up) == []


async def test_without_files_write_a_line_says_so() -> None:
    """Known at the start, nobody is promised a file; found out late, one line stands in its place, once."""
    async with slack() as up:
        up.server.scopes.discard("files:write")
        part = file_part(DM)
        line = translate("slack.no_files", name="answer.md")
        up.server.faults["chat.postMessage"] = [SlackFault(does=True, drops=True)]
        with pytest.raises(OutcomeUnknown):
            await up.channel.send(part)
        assert up.channel.capabilities.file_limit == 0
        assert await up.channel.find(part) is not None
        assert list_bot_messages(up) == [(line, [])]
        again = build(up.server, up.services)
        await again._identify()
        assert again.capabilities.file_limit == 0
        await again.close()


async def test_a_private_file_is_shown_to_nobody() -> None:
    """Slack has no files for one person alone in a channel: refused for good, and that person is told where to ask."""
    async with slack() as up:
        with pytest.raises(SendRefused):
            await up.channel.send(file_part(ROOM, visible_to=ANN))
        assert list_bot_messages(up, ROOM) == []
        assert [(w["user"], w["text"]) for w in up.server.places[ROOM].whispers] == [
            (ANN, translate("slack.write_privately"))
        ]
        await up.channel.send(file_part(DM, visible_to=ANN))
        await eventually(lambda: len(list_bot_messages(up)) == 1)


async def test_what_cannot_be_sent_is_refused_before_slack_is_asked() -> None:
    """Bytes that are lost, and none at all."""
    async with slack() as up:
        with pytest.raises(FileUnavailable):
            await up.channel.send(file_part(DM, blob="chats/x/" + "0" * 64))
        with pytest.raises(SendRefused):
            await up.channel.send(file_part(DM, blob=await up.services.blobs.put("c", b"")))
        assert up.server.called("files.getUploadURLExternal") == []
        assert BOT_TOKEN not in str(up.services.state.notes)
