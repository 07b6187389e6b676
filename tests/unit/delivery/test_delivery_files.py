"""Files out: a part each behind the text, frozen with it; and a long answer in a group, which becomes one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.delivery.part_planner import shown_name
from gateway.events import Attachment, ChatKind, MessageButton
from gateway.i18n import translate
from gateway.i18n.formats import format_file_size
from gateway.ports.journal import TurnLease
from tests.fakes.memory_channel import FILING, KEYED, RINGING, ChannelFault, ChatMessage, MemoryPlatform
from tests.fakes.turns import ANN
from tests.unit.delivery.conftest import DeliveryGateway, OpensGateway
from tests.unit.delivery.test_delivery_crash import crashing, deaths, mortal
from tests.unit.delivery.test_delivery_previews import shown

MARK = translate("delivery.may_repeat")
POINTER = translate("delivery.next_message")
LONG = "# The plan\n\n" + " ".join(f"w{n:03}" for n in range(100))


def file(
    name: str = "plan.pdf", data: bytes = b"%PDF", *, gateway: DeliveryGateway | None = None, size: int = -1
) -> Attachment:
    """Return an attachment; with *gateway* its bytes are kept there."""
    blob = f"people/ann/{name}"
    if gateway is not None:
        gateway.platform.blobs[blob] = data
    return Attachment(kind="document", name=name, size=len(data) if size < 0 else size, blob=blob)


def chat(gateway: DeliveryGateway) -> list[ChatMessage]:
    """Return what stands in Ann's chat."""
    return gateway.platform.chats[ANN.chat]


async def test_files_follow_the_text_in_their_order(opens: OpensGateway) -> None:
    """Text first, then a message per file with its bytes; all answer the same message and are for the same eyes."""
    gateway = await opens(FILING)
    files = (file("a.png", b"\x89PNG", gateway=gateway), file("b.txt", b"", gateway=gateway))
    await gateway.say("Here they are.", attachments=files, reply_to="7", visible_to="ann")
    await gateway.settled()
    assert [(posted.text, posted.file) for posted in chat(gateway)] == [
        ("Here they are.", None), ("[a.png]", b"\x89PNG"), ("[b.txt]", b""),
    ]  # fmt: skip
    assert {(posted.reply_to, posted.visible_to) for posted in chat(gateway)} == {("7", "ann")}


async def test_a_message_without_words_is_only_its_files(opens: OpensGateway) -> None:
    """No empty text goes before a file."""
    gateway = await opens(FILING)
    await gateway.say(" \n", attachments=(file(gateway=gateway),))
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["[plan.pdf]"]


@pytest.mark.parametrize(
    ("limit", "size", "line"),
    [
        (0, 4, translate("delivery.no_files", name="**plan**.pdf")),
        (9_000_000, 12_345_678, translate("delivery.file_large", name="**plan**.pdf", size="12.3 MB", limit="9 MB")),
    ],
    ids=["no files", "too large"],
)
async def test_a_file_that_cannot_be_sent_is_named(opens: OpensGateway, limit: int, size: int, line: str) -> None:
    """In its place stands which file is missing and why, its name as it is; what follows is sent."""
    gateway = await opens(replace(RINGING, file_limit=limit, text_limit=200))
    gateway.capabilities = gateway.channel.capabilities
    await gateway.say("words", attachments=(file("**plan**.pdf", size=size), file("b", b"B", gateway=gateway)))
    await gateway.settled()
    texts = gateway.platform.texts(ANN)
    assert texts[:2] == ["words", line]
    assert len(texts) == 3


@pytest.mark.parametrize("fault", [None, ChannelFault.REFUSED, ChannelFault.GONE], ids=["lost", "refused", "no right"])
async def test_a_file_that_is_lost_or_refused_costs_one_line(opens: OpensGateway, fault: ChannelFault | None) -> None:
    """The line stands where the file would, and neither the file behind it nor the next answer is lost with it.

    A platform may refuse a file that the bot has no right to send with the code of a place that is gone.
    """
    gateway = await opens(FILING)
    lost, second = file("gone.pdf", gateway=gateway), file("there.pdf", gateway=gateway)
    if fault is None:
        gateway.platform.blobs.pop(lost.blob)
    else:
        gateway.platform.fail(fault)
    await gateway.say("", attachments=(lost, second))
    await gateway.settled()
    sentence = "delivery.file_lost" if fault is None else "delivery.file_refused"
    assert gateway.platform.texts(ANN) == [translate(sentence, name="gone.pdf"), "[there.pdf]"]
    assert (await gateway.store.journal.depth())["dead"] == 0


async def test_a_chat_that_is_gone_takes_no_line_either(opens: OpensGateway) -> None:
    """Blocked: the file and what follows are dead-lettered at once, after one try of the line."""
    gateway = await opens(FILING)
    gateway.platform.fail(ChannelFault.REFUSED, calls=2)
    await gateway.say("", attachments=(file(gateway=gateway), file("b", gateway=gateway)))
    await gateway.settled()
    assert chat(gateway) == []
    assert gateway.figure("delivery_dead") == 2
    assert len(gateway.platform.calls) == 2


@pytest.mark.parametrize("fault", [ChannelFault.LOST, ChannelFault.DROPPED, ChannelFault.BUG, ChannelFault.HANG])
@pytest.mark.parametrize("way", ["key", "history", "blind"])
async def test_doubt_about_a_file_is_doubt_about_a_text(opens: OpensGateway, fault: ChannelFault, way: str) -> None:
    """By key, by asking, or marked: a file stands once, or its repeat says so."""
    capabilities = replace(KEYED if way == "key" else RINGING, file_limit=10_000)
    gateway = await opens(capabilities, MemoryPlatform(finds=way == "history"))
    gateway.platform.fail(fault, what="send")
    await gateway.say("", attachments=(file(gateway=gateway),))
    await gateway.settled()
    if way != "blind":
        assert gateway.platform.texts(ANN) == ["[plan.pdf]"]
    else:
        first = ["[plan.pdf]"] if fault is ChannelFault.LOST else []
        assert gateway.platform.texts(ANN) == [*first, f"{MARK}\n[plan.pdf]"]


async def test_a_slow_upload_is_no_unknown_outcome(opens: OpensGateway) -> None:
    """What takes a minute and a half to upload is waited for: no doubt, no mark."""
    gateway = await opens(FILING, MemoryPlatform(finds=False))
    gateway.platform.latency = 90
    await gateway.say("", attachments=(file(gateway=gateway),))
    await gateway.settled()
    assert gateway.platform.texts(ANN) == ["[plan.pdf]"]


async def test_the_first_text_adopts_the_preview_and_no_file_does(opens: OpensGateway) -> None:
    """The preview becomes the text; the file comes below it."""
    gateway = await opens(FILING)
    lease = await gateway.turn()
    await shown(gateway, lease)
    await commit_with_files(gateway, lease, "The answer")
    assert gateway.platform.texts(ANN) == ["The answer", "[plan.pdf]"]
    assert [call.what for call in gateway.platform.calls] == ["send", "edit", "send"]


async def test_a_preview_above_an_answer_of_files_points_at_them(opens: OpensGateway) -> None:
    """The words that were shown are not the answer: they become the line that points below."""
    gateway = await opens(FILING)
    lease = await gateway.turn()
    await shown(gateway, lease)
    await commit_with_files(gateway, lease, "")
    assert gateway.platform.texts(ANN) == [POINTER, "[plan.pdf]"]


async def test_a_late_answer_with_a_file_rings_by_the_file(opens: OpensGateway) -> None:
    """The file is a new message, so that the text may take the preview's place."""
    gateway = await opens(FILING)
    lease = await gateway.turn()
    await shown(gateway, lease)
    await asyncio.sleep(61)
    await commit_with_files(gateway, lease, "The answer")
    assert gateway.platform.texts(ANN) == ["The answer", "[plan.pdf]"]


async def commit_with_files(gateway: DeliveryGateway, lease: TurnLease, text: str) -> None:
    """End the turn with *text* and one file, and wait until both are there."""
    await gateway.commit(lease, text, attachments=(file(gateway=gateway),))
    await gateway.settled()


# -- a long answer in a group --------------------------------------------------------------------


async def test_a_long_answer_in_a_group_is_its_beginning_and_a_file(opens: OpensGateway) -> None:
    """The beginning says where the rest is; the file is the whole Markdown, byte for byte; files of its own follow."""
    gateway = await opens(FILING)
    await gateway.say(LONG, chat_kind=ChatKind.GROUP, attachments=(file(gateway=gateway),))
    await gateway.settled()
    beginning, whole, own = chat(gateway)
    words, _, line = beginning.text.rpartition("\n\n")
    assert line == translate("delivery.in_the_file")
    assert LONG.startswith(words)
    assert 50 < len(beginning.text) <= FILING.text_limit
    assert (whole.text, whole.file) == ("[answer.md]", LONG.encode())
    assert own.text == "[plan.pdf]"


async def test_a_file_with_addresses_that_must_not_be_links_is_plain(opens: OpensGateway) -> None:
    """A program that shows Markdown would fetch its pictures; with allowed addresses alone the file stays Markdown."""
    text = f"{LONG}\n\nRun `os.path` and see ![a cat](https://evil.example/p.png)"
    gateway = await opens(FILING)
    await gateway.say(text, chat_kind=ChatKind.GROUP, links=())
    await gateway.say(text, chat_kind=ChatKind.GROUP, links=("evil.example/p.png",))
    await gateway.settled()
    _, plain, _, whole = chat(gateway)
    shown = (plain.file or b"").decode()
    assert plain.text == "[answer.txt]"
    assert shown.endswith("Run os.path and see a cat (https[:]//evil[.]example/p[.]png)")
    assert (whole.text, whole.file) == ("[answer.md]", text.encode())


async def test_a_beginning_closes_its_code_before_it_names_the_file(opens: OpensGateway) -> None:
    """Cut in a code fence, the line does not become code."""
    gateway = await opens(FILING)
    await gateway.say("```py\n" + "x = 1\n" * 100 + "```", chat_kind=ChatKind.GROUP)
    await gateway.settled()
    text = chat(gateway)[0].text
    assert text.endswith(f"x = 1\n```\n\n{translate('delivery.in_the_file')}")


@pytest.mark.parametrize(
    "fields",
    [{"chat_kind": ChatKind.DIRECT}, {"chat_kind": ChatKind.GROUP, "visible_to": "ann"}],
    ids=["direct", "private"],
)
async def test_where_one_person_reads_a_long_answer_is_parts_as_ever(
    opens: OpensGateway, fields: dict[str, Any]
) -> None:
    """Nobody else has to scroll past it."""
    gateway = await opens(FILING)
    await gateway.say(LONG, **fields)
    await gateway.settled()
    assert len(chat(gateway)) > 3
    assert "".join(gateway.platform.texts(ANN)).replace("\n", "").startswith("# The plan")


@pytest.mark.parametrize("limit", [0, 400], ids=["no files", "larger than a file may be"])
async def test_where_the_whole_cannot_be_a_file_it_is_parts(opens: OpensGateway, limit: int) -> None:
    """No answer is shortened whose rest cannot be had."""
    gateway = await opens(replace(FILING, file_limit=limit))
    await gateway.say(LONG, chat_kind=ChatKind.GROUP)
    await gateway.settled()
    assert " ".join(gateway.platform.texts(ANN)).split() == LONG.split()


async def test_a_question_is_parts_however_long(opens: OpensGateway) -> None:
    """Its buttons stand below its last words: a file could fail, and leave them below the beginning."""
    gateway = await opens(replace(FILING, choices=4))
    await gateway.say(LONG, chat_kind=ChatKind.GROUP, choices=(MessageButton("Yes", "/memory approve r1"),))
    await gateway.settled()
    assert [posted.file for posted in chat(gateway)] == [None] * len(chat(gateway))
    assert " ".join(gateway.platform.texts(ANN)).split() == LONG.split()


async def test_three_parts_are_not_too_long_for_a_group(opens: OpensGateway) -> None:
    """The bound is the channel's `group_parts`."""
    text = LONG[:280]
    gateway = await opens(FILING)
    await gateway.say(text, chat_kind=ChatKind.GROUP)
    await gateway.settled()
    assert len(chat(gateway)) == 3
    gateway = await opens(replace(FILING, group_parts=2))
    await gateway.say(text, chat_kind=ChatKind.GROUP)
    await gateway.settled()
    assert len(chat(gateway)) == 2


async def test_a_kill_between_beginning_and_file_changes_nothing(opens: OpensGateway) -> None:
    """Both are frozen before the first leaves, so that an upgrade that would decide otherwise changes nothing."""
    gateway = await opens(FILING)
    await gateway.say(LONG, chat_kind=ChatKind.GROUP)
    await gateway.platform.until(lambda: len(chat(gateway)) == 1)
    gateway.capabilities = replace(FILING, group_parts=40)
    await gateway.restart()
    await gateway.settled()
    assert [posted.file for posted in chat(gateway)] == [None, LONG.encode()]


async def test_the_preview_of_a_long_answer_becomes_its_beginning(opens: OpensGateway) -> None:
    """Previews never carry files; the beginning is put where they stood."""
    gateway = await opens(FILING)
    lease = await gateway.turn()
    await shown(gateway, lease, LONG)
    assert [posted.file for posted in chat(gateway)] == [None]
    await gateway.commit(lease, LONG, chat_kind=ChatKind.GROUP)
    await gateway.settled()
    beginning, whole = chat(gateway)
    assert beginning.text.endswith(translate("delivery.in_the_file"))
    assert whole.file == LONG.encode()


def test_names_and_sizes_are_one_short_line() -> None:
    """A name cannot break out of its line, and a size is read at a glance."""
    assert shown_name(file("a\nb\x00\x1b[2J  c" + "d" * 100)).startswith("a b[2J cddd")
    assert len(shown_name(file("d" * 100))) == 64
    assert [format_file_size(size) for size in (0, 999, 1_000, 1_550_000, 10_000_000, 2_000_000_000)] == [
        "0 B", "999 B", "1 kB", "1.6 MB", "10 MB", "2 GB",
    ]  # fmt: skip


@pytest.mark.parametrize("finds", [True, False], ids=["history", "blind"])
async def test_no_death_doubles_or_loses_a_file(opens: OpensGateway, finds: bool) -> None:
    """Whichever call the process dies at, beginning, whole and own file each stand in order, at most once unmarked."""
    for death in deaths():
        gateway = await opens(FILING, MemoryPlatform(finds=finds), starts=False)
        own = file(gateway=gateway)
        gateway.wrap = lambda outbox, death=death: crashing(outbox, death)  # type: ignore[misc]
        healthy = gateway.platform.call
        mortal(gateway.platform, death)
        await gateway.start()
        await gateway.say(LONG, chat_kind=ChatKind.GROUP, attachments=(own,))
        settling = asyncio.create_task(gateway.settled())
        dying = asyncio.create_task(death.happened.wait())
        await asyncio.wait({settling, dying}, return_when=asyncio.FIRST_COMPLETED)
        settling.cancel()
        dying.cancel()
        await asyncio.wait({settling, dying})
        gateway.platform.call = healthy  # type: ignore[method-assign]
        gateway.wrap = lambda outbox: outbox
        await gateway.restart()
        await gateway.settled()
        stood = [posted for posted in chat(gateway) if not posted.is_marked]
        files = [posted.file for posted in chat(gateway)]
        assert list(dict.fromkeys(files)) == [None, LONG.encode(), b"%PDF"]
        assert len({posted.part for posted in stood}) == len(stood)
        assert len(files) == 3 or not finds
        if not death.happened.is_set():
            assert death.at > 4
            return
    pytest.fail("the story has more calls than points")
