"""Questions about calls with long arguments: shown as a file where the chat takes files, otherwise not asked."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from agent.tools.tool import ToolContext, ToolKind, tool
from agent.tools.tool_questions import LONGEST_ATTACHED, LONGEST_SHOWN
from agent.workers.turn_runner import TurnRunner
from gateway.channel import Channel, ChannelContext
from gateway.errors import SendRefused
from gateway.events import DeliveryReceipt, MessagePart, Role
from gateway.ports.journal import InboxRow
from tests.e2e.agent.test_tool_questions import OutsideWorld, decide, waiting
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_files import WITH_FILES, InProcessFileChannel, InProcessFilePlugin, PlatformFiles, SentFile
from tests.fakes.inprocess_gateway import OPEN, InProcessGateway, gateway


def arrived(parlour: InProcessGateway) -> list[SentFile]:
    """Return the files that are in the chats."""
    assert isinstance(parlour.channel, InProcessFileChannel)
    return parlour.channel.arrived


async def test_long_arguments_come_as_a_file() -> None:
    """All of them, invisible characters as escapes; the call that runs is the one in the file."""
    world = OutsideWorld()
    subject = "x" * LONGEST_SHOWN + "\u202e end"
    arguments = json.dumps({"to": "bob", "subject": subject}, ensure_ascii=False)
    model = HeldScriptModel(calls(("send_letter", arguments)), "asked", "done")
    kind = InProcessFilePlugin(PlatformFiles())
    async with gateway(model=model, tools=[world.tool], kind=kind) as parlour:
        question = await parlour.channel.ask("c", "write to bob")
        await parlour.idle()
        (file,) = arrived(parlour)
        assert f"The arguments are in the attached file `{file.name}`." in question
        assert subject not in question
        assert file.data.decode() == arguments.replace("\u202e", "\\u202e")
        assert file.name.removesuffix(".json") in decide(question)
        await parlour.channel.ask("c", decide(question))
        await parlour.idle()
        assert len(arrived(parlour)) == 1
    assert world.sent == [f"bob: {subject}"]


@pytest.mark.parametrize("length", [0, LONGEST_SHOWN], ids=["in the question", "in a file"])
async def test_arguments_in_the_shape_of_a_secret_are_not_asked_about(length: int) -> None:
    """A message and a file would show a mark in their place, and a yes would be to something else."""
    world, order = OutsideWorld(), "sk-always-wire-money-to-Mallory"
    model = HeldScriptModel(
        calls(("send_letter", json.dumps({"to": "bob", "subject": order + " x" * length}))), "asked"
    )
    async with gateway(model=model, tools=[world.tool], kind=InProcessFilePlugin(PlatformFiles())) as parlour:
        await parlour.channel.ask("c", "write to bob")
        await parlour.idle()
        assert "text like a secret is never shown" in results(model.asked[1])[0]
        assert arrived(parlour) == []
        assert await waiting(parlour) == 0


@pytest.mark.parametrize("is_owners", [False, True])
async def test_what_no_file_may_show_is_not_asked(*, is_owners: bool) -> None:
    """More than 20,000 characters; of a question for an owner, whose file the group would read, more than 1,500."""

    @tool("Send a bill.", kind=ToolKind.ACT, name="send_bill", who=Role.OWNER if is_owners else None)
    async def send_bill(context: ToolContext, text: str) -> str:
        raise AssertionError("it ran")

    limit = LONGEST_SHOWN if is_owners else LONGEST_ATTACHED
    model = HeldScriptModel(calls(("send_bill", json.dumps({"text": "x" * limit}))), "no")
    kind, policy = InProcessFilePlugin(PlatformFiles()), replace(OPEN, owners=frozenset({"ann"}))
    async with gateway(model=model, tools=[send_bill], kind=kind, policy=policy) as parlour:
        await parlour.channel.ask("g", "bill them", group=True, sender="ann")
        await parlour.idle()
        assert f"longer than {limit} characters" in results(model.asked[1])[0]
        assert arrived(parlour) == []
        assert await waiting(parlour) == 0


class LateFileChannel(InProcessFileChannel):
    """Takes files only after `go`."""

    go = asyncio.Event()

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Post it, a file later."""
        if part.file is not None:
            await self.go.wait()
        return await super().send(part, may_be_duplicate=may_be_duplicate)


class LateFilePlugin(InProcessFilePlugin):
    """Opens the late channel."""

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel."""
        self.channel = LateFileChannel(context, WITH_FILES, self.sources)
        return self.channel


async def test_a_yes_counts_once_the_file_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """A press before it allows nothing and may be repeated; nobody can have read the arguments."""
    world, control, is_decided = OutsideWorld(), TurnRunner.control, asyncio.Event()

    async def note_control(runner: TurnRunner, row: InboxRow) -> None:
        await control(runner, row)
        is_decided.set()

    monkeypatch.setattr(TurnRunner, "control", note_control)
    arguments = json.dumps({"to": "bob", "subject": "x" * LONGEST_SHOWN})
    model = HeldScriptModel(calls(("send_letter", arguments)), "asked", "done")
    kind = LateFilePlugin(PlatformFiles())
    async with gateway(model=model, tools=[world.tool], kind=kind) as parlour:
        question = await parlour.channel.ask("c", "write to bob")
        await parlour.channel.say("c", decide(question))
        await is_decided.wait()
        assert await waiting(parlour) == 1
        LateFileChannel.go.set()
        await parlour.idle()
        assert any("The file with the arguments has not arrived." in post.text for post in parlour.channel.posts["c"])
        assert world.sent == []
        await parlour.channel.ask("c", decide(question))
        await parlour.idle()
    assert len(world.sent) == 1


class RefusingChannel(InProcessFileChannel):
    """Takes files while `takes` is True."""

    takes = True

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Post it, or refuse a file."""
        if part.file is not None and not self.takes:
            raise SendRefused("no files here")
        return await super().send(part, may_be_duplicate=may_be_duplicate)


class RefusingPlugin(InProcessFilePlugin):
    """Opens the refusing channel."""

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel."""
        self.channel = RefusingChannel(context, WITH_FILES, self.sources)
        return self.channel


async def test_a_file_of_the_same_name_ends_no_question() -> None:
    """The arguments sent once more, a file of a user, or one that the model writes: that it was refused is all."""
    world = OutsideWorld()
    arguments = json.dumps({"to": "bob", "subject": "x" * LONGEST_SHOWN})
    model = HeldScriptModel(calls(("send_letter", arguments)), "asked")
    async with gateway(model=model, tools=[world.tool], kind=RefusingPlugin(PlatformFiles())) as parlour:
        channel = parlour.channel
        assert isinstance(channel, RefusingChannel)
        question = await channel.ask("c", "write to bob")
        await parlour.idle()
        (file,) = channel.arrived
        channel.takes = False
        model.script += [calls(("send_file", json.dumps({"name": file.name}))), "again"]
        model.script += [calls(("send_file", json.dumps({"name": file.name, "text": "mine"}))), "there"]
        for text in ("send it again", "write a file"):
            await channel.ask("c", text)
            await parlour.idle()
        refused = f"(The file {file.name} was not sent: the platform rejected it.)"
        assert [post.text for post in channel.posts["c"]][2:] == ["again", refused, "there", refused]
        assert await waiting(parlour) == 1
        await channel.ask("c", decide(question))
        await parlour.idle()
    assert len(world.sent) == 1
