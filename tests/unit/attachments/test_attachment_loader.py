"""Whatever comes as a file, under whatever name: a fact, a line, a prompt, and the turn goes on."""

from __future__ import annotations

import asyncio
import json

from hypothesis import given, settings
from hypothesis import strategies as some

from agent.attachments.attachment_loader import MOST_FILES, MOST_PICTURES, AttachmentLoader
from agent.base.file_facts import fact_of, facts_for_display
from agent.base.transcript_lines import decode, encode, message, to_messages
from agent.llm.media_model import UsageAttribution
from gateway.channel import ChannelAttachmentFetcher
from gateway.errors import FileUnavailable
from gateway.events import Attachment, PlatformAccount, SessionKey
from tests.fakes import sample_files
from tests.fakes.turns import START
from tests.fakes.web_services import FakeBlobs

KEY = SessionKey("web", "1")
PURSE = UsageAttribution("t1", PlatformAccount(kind="telegram", id="7"), str(KEY))
MAGIC = [b"", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"PK\x03\x04", b"%PDF-1.4\n", b"<html>", b"OggS"]
MAGIC += [b"RIFF0000WEBP", b"\xff\xfe", b"\xef\xbb\xbf", b"BM"]
KINDS = ["image", "voice", "audio", "video", "document", "end", "snapshot"]


class BytesPlatform(ChannelAttachmentFetcher):
    """A platform that gives what it is told to, and notes how much is held at once."""

    def __init__(self, data: bytes | Exception) -> None:
        self.data = data
        self.fetched = 0

    async def fetch(self, key: SessionKey, attachment: Attachment) -> bytes:
        """Give it."""
        self.fetched += 1
        if isinstance(self.data, Exception):
            raise self.data
        return self.data


class FullBlobs(FakeBlobs):
    """A disk without room."""

    async def put(self, scope: str, data: bytes, *, is_medium: bool = False) -> str:
        """Refuse."""
        raise OSError(28, "No space left on device")


async def sees(_: SessionKey) -> bool:
    """A model that does."""
    return True


def taker(files: BytesPlatform, blobs: FakeBlobs | None = None) -> AttachmentLoader:
    """Return an intake in front of *files*."""
    return AttachmentLoader(files, blobs or FakeBlobs(), text_chars=200, sees=sees)


@settings(max_examples=15)
@given(
    some.sampled_from(MAGIC),
    some.binary(max_size=300),
    some.text(max_size=40),
    some.sampled_from(KINDS),
    some.text(max_size=20),
)
def test_any_bytes_under_any_name_are_a_line(start: bytes, rest: bytes, name: str, kind: str, media_type: str) -> None:
    """The line survives its file, the prompt is one message, and it is short, whatever was sent."""
    attachment = Attachment(kind=kind, name=name, size=len(rest), media_type=media_type, caption=name)
    facts = asyncio.run(taker(BytesPlatform(start + rest)).load("people/ann", KEY, [attachment], PURSE))
    line = message(0, "t1", "user", "look", START, files=list(facts))
    data = encode(line)
    assert data.count(b"\n") == 1
    assert b'"kind":"end"' not in data
    assert decode(data) == json.loads(data) == line
    (said,) = to_messages(line)
    assert said["role"] == "user"
    assert len(facts_for_display(facts).splitlines()) == 1
    assert len(str(said["content"])) < 2_000


async def test_a_failure_is_a_phrase() -> None:
    """What the platform says, a full disk, a reference into another scope: each is in the fact."""
    note = Attachment(kind="document", name="a.txt", size=3)
    assert (await taker(BytesPlatform(FileUnavailable("gone"))).load("s", KEY, [note], PURSE))[0]["failed"] == "gone"
    full = await taker(BytesPlatform(b"abc"), FullBlobs()).load("s", KEY, [note], PURSE)
    assert full == ({**fact_of(note), "failed": "it could not be stored"},)
    blobs = FakeBlobs()
    bobs = Attachment(kind="document", name="a.txt", size=3, blob=await blobs.put("people/bob", b"secret"))
    files = BytesPlatform(b"abc")
    (fact,) = await taker(files, blobs).load("people/ann", KEY, [bobs], PURSE)
    assert (fact["failed"], "text" in fact, files.fetched) == ("it is not kept here any more", False, 0)


async def test_what_one_message_may_bring_is_bounded() -> None:
    """Of many files the first twenty are fetched, of many pictures the first ten shown; each of the others says so."""
    files = BytesPlatform(sample_files.picture(8, 8, form="PNG"))
    photos = [Attachment(kind="image", name=f"{n}.png", size=9) for n in range(25)]
    facts = await taker(files).load("s", KEY, photos, PURSE)
    assert files.fetched == MOST_FILES
    assert [n for n, fact in enumerate(facts) if "seen" in fact] == list(range(MOST_PICTURES))
    assert all("not looked at" in fact["failed"] for fact in facts[MOST_PICTURES:])
    assert [fact["name"] for fact in facts] == [photo.name for photo in photos]


async def test_a_chats_slow_files_delay_nobody_else() -> None:
    """A chat holds two of the places, however many files it sends and however slowly they come."""
    other = SessionKey("web", "2")
    slow = asyncio.Event()
    waiting: list[str] = []

    class SlowPlatform(ChannelAttachmentFetcher):
        async def fetch(self, key: SessionKey, attachment: Attachment) -> bytes:
            if key == KEY:
                waiting.append(attachment.name)
                await slow.wait()
            return b"hello"

    files = AttachmentLoader(SlowPlatform({}, most_mb=1), FakeBlobs(), text_chars=200, sees=sees)
    notes = [Attachment(kind="document", name=f"{n}.txt", size=5) for n in range(10)]
    flood = asyncio.create_task(files.load("s", KEY, notes, PURSE))
    (fact,) = await files.load("s", other, notes[:1], PURSE)
    assert fact["text"] == "hello"
    assert len(waiting) <= 2
    slow.set()
    assert len(await flood) == 10
