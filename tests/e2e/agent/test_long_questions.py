"""Questions with long arguments come as a file or are not asked; a yes or a no may hold for further calls."""

from __future__ import annotations

import asyncio
import json
import re
import zipfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.llm.scripted_model import ScriptEntry
from agent.tools.tool import AskRule, ToolContext, ToolKind, tool
from agent.tools.tool_questions import DURATION, LONGEST_ATTACHED, LONGEST_SHOWN, STANDING_DECISION
from agent.workers.turn_runner import TurnRunner
from gateway.channel import Channel, ChannelContext
from gateway.errors import SendRefused
from gateway.events import DeliveryReceipt, MessagePart, Role, SessionKey
from gateway.ports.journal import InboxRow, Job
from tests.e2e.agent.test_tool_questions import OutsideWorld, decide, read_page, waiting
from tests.fakes.account_linking import link, unlink
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_files import WITH_FILES, InProcessFileChannel, InProcessFilePlugin, PlatformFiles, SentFile
from tests.fakes.inprocess_gateway import OPEN, InProcessGateway, gateway
from tests.fakes.staged_changes import erase


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


BOB, EVE = ('{"to": "bob"}', '{"to": "eve"}')


ID = r"g[a-z2-7]{10}"


class Letters:
    """Letters that were sent, and the tool that sends them; its calls are about their receiver."""

    def __init__(self, ask: AskRule | None = None, description: str = "Send a letter.") -> None:
        self.sent: list[str] = []

        @tool(description, kind=ToolKind.ACT, name="send_letter", ask=ask, subject=lambda to: to)
        async def send_letter(context: ToolContext, to: str) -> str:
            self.sent.append(to)
            return f"sent to {to}"

        self.tool = send_letter


def letter(arguments: str = BOB) -> ScriptEntry:
    """Return the model's call."""
    return calls(("send_letter", arguments))


async def decisions(parlour: InProcessGateway) -> list[Job]:
    """Return the stored decisions."""
    return list(await parlour.app.store.jobs.pending_of(STANDING_DECISION))


async def press(parlour: InProcessGateway, question: str, word: str, chat: str = "c", **facts: Any) -> str:
    """Press a button that decides about further calls, and wait for what it starts."""
    command, _, extra = word.partition(" ")
    assert f"{decide(question, command)} {extra}`" in question
    answer = await parlour.channel.ask(chat, f"{decide(question, command)} {extra}", **facts)
    await parlour.idle()
    return answer


async def test_a_yes_for_30_days(tmp_path: Path) -> None:
    """It covers the person, the chat, the tool and the subject, over a restart; `/tools` lists and revokes it."""
    letters, home = Letters(), tmp_path / "home"
    model = HeldScriptModel(letter(), "asked", "first")
    async with gateway(home=home, model=model, tools=[letters.tool], policy=OPEN) as parlour:
        question = await parlour.channel.ask("c", "write to bob")
        assert "**30 days**: for 30 days, `send_letter` (`bob`) also runs in this chat without asking." in question
        answer = await press(parlour, question, "allow here")
        assert answer.startswith("Allowed: `send_letter` runs now.\n`send_letter` (`bob`) runs here without asking")
        assert letters.sent == ["bob"]
        (job,) = await decisions(parlour)
        assert abs(job.due_at - parlour.app.commands.queue.now() - DURATION) < timedelta(minutes=10)
    model = HeldScriptModel(letter(), "second", letter(EVE), "asked", letter(), "asked", letter(), "asked", letter())
    async with gateway(home=home, model=model, tools=[letters.tool], policy=OPEN) as parlour:
        assert await parlour.channel.ask("c", "another one") == "second"
        assert letters.sent == ["bob", "bob"]
        assert "/tools allow" in await parlour.channel.ask("c", "one to eve")  # another subject
        assert "/tools allow" in await parlour.channel.ask("d", "one to bob")  # another chat
        listed = await parlour.channel.ask("c", "/tools")
        (name,) = set(re.findall(rf"/tools revoke ({ID})", listed))
        assert name not in await parlour.channel.ask("d", "/tools")
        assert "has no such decision" in await parlour.channel.ask("d", f"/tools revoke {name}")
        assert "I ask about `send_letter` (`bob`) again" in await parlour.channel.ask("c", f"/tools revoke {name}")
        assert "/tools allow" in await parlour.channel.ask("c", "another one")
        assert await decisions(parlour) == []
    assert letters.sent == ["bob", "bob"]


async def test_a_yes_ends_after_30_days() -> None:
    """The runner removes it when it is due; then the call asks."""
    letters = Letters()
    model = HeldScriptModel(letter(), "asked", "done", letter(), "asked")
    async with gateway(model=model, tools=[letters.tool]) as parlour:
        await press(parlour, await parlour.channel.ask("c", "write to bob"), "allow here")
        (job,) = await decisions(parlour)
        await parlour.app.store.jobs.put_off(job, timedelta(), "a test moves the time")
        while await decisions(parlour):
            await parlour.idle()
        assert "/tools allow" in await parlour.channel.ask("c", "another one")
    assert letters.sent == ["bob"]


async def test_never_refuses_without_asking() -> None:
    """The model reads it, `/tools last` says it, and a later yes takes its place."""
    letters = Letters()
    model = HeldScriptModel(letter(), "asked", letter(), "I may not.", letter(EVE), "asked", letter(), "asked", "done")
    async with gateway(model=model, tools=[letters.tool]) as parlour:
        answer = await press(parlour, await parlour.channel.ask("c", "write to bob"), "deny never")
        (name,) = re.findall(rf"/tools revoke ({ID})", answer)
        assert await parlour.channel.ask("c", "do write to bob") == "I may not."
        assert results(model.asked[3])[-1].startswith("refused: the person does not want this here")
        assert "refused: you decided so for this chat" in await parlour.channel.ask("c", "/tools last")
        question = await parlour.channel.ask("c", "write to eve")
        await parlour.channel.ask("c", f"/tools revoke {name}")
        assert await waiting(parlour) == 1
        await press(parlour, await parlour.channel.ask("c", "write to bob"), "allow here")
        (job,) = await decisions(parlour)
        assert job.payload["is_allowed"]
        await press(parlour, question, "deny never")
    assert letters.sent == ["bob"]


async def test_a_yes_does_not_cover_what_others_wrote_or_jobs_started() -> None:
    """With a page in the prompt, whoever is named, and in a turn that no message started, the call asks each time."""
    letters = Letters()
    model = HeldScriptModel(
        letter(), "asked", "done", letter(), "asked", calls(("read_page", "{}")), letter(), "asked", letter(), "asked"
    )
    async with gateway(model=model, tools=[letters.tool, read_page]) as parlour:
        await press(parlour, await parlour.channel.ask("c", "write to bob"), "allow here")
        await parlour.app.submit(SessionKey("pocket", "c"), "write to bob")
        await parlour.idle()
        assert await waiting(parlour) == 1
        question = await parlour.channel.ask("c", "read the page and write to bob")
        assert "30 days" not in question
        assert "**Never**" in question
        refused = await parlour.channel.ask("c", f"{decide(question)} here")
        assert refused.startswith("This decision is not offered for this call.")
        assert await waiting(parlour) == 2
    assert letters.sent == ["bob"]


async def test_a_group_offers_no_standing_decisions() -> None:
    """Nor does a yes of the direct chat hold there."""
    letters = Letters()
    model = HeldScriptModel(letter(), "asked", "done", letter(), "asked")
    async with gateway(model=model, tools=[letters.tool], policy=OPEN) as parlour:
        await press(parlour, await parlour.channel.ask("c", "write to bob"), "allow here")
        question = await parlour.channel.ask("g", "write to bob", group=True)
        assert not re.search("30 days|Never", question)
        for word in ("allow", "deny"):
            extra = "here" if word == "allow" else "never"
            refused = await parlour.channel.ask("g", f"{decide(question, word)} {extra}", group=True)
            assert refused.startswith("This decision is not offered")
        assert await waiting(parlour) == 1
    assert letters.sent == ["bob"]


@pytest.mark.parametrize("change", ["ask", "schema"])
async def test_a_yes_ends_when_the_tool_changes(tmp_path: Path, change: str) -> None:
    """With another schema, or when the operator makes it ask always."""
    home, letters = tmp_path / "home", Letters()
    async with gateway(home=home, model=HeldScriptModel(letter(), "asked", "done"), tools=[letters.tool]) as parlour:
        await press(parlour, await parlour.channel.ask("c", "write to bob"), "allow here")
    environment = {"PARLOUR_TOOLS__RIGHTS__ACT__ASK": "always"} if change == "ask" else {}
    changed = Letters(description="Send a letter or a bill.") if change == "schema" else letters
    model = HeldScriptModel(letter(), "asked")
    async with gateway(home=home, model=model, tools=[changed.tool], environment=environment) as parlour:
        question = await parlour.channel.ask("c", "another one")
        assert "/tools allow" in question
        assert ("30 days" in question) == (change == "schema")
    assert letters.sent == ["bob"]


async def test_export_and_erasure_include_decisions(tmp_path: Path) -> None:
    """The export has them; /forget of a word takes those about it, /forget everything all."""
    letters = Letters()
    model = HeldScriptModel(letter(), "asked", "done", letter(EVE), "asked", "done")
    async with gateway(model=model, tools=[letters.tool]) as parlour:
        await press(parlour, await parlour.channel.ask("c", "write to bob"), "allow here")
        await press(parlour, await parlour.channel.ask("c", "write to eve"), "allow here")
        exports = parlour.app.commands.privacy.exports
        await exports.write("people/pocket%3aann", "pocket%3aann", tmp_path / "e.zip")
        with zipfile.ZipFile(tmp_path / "e.zip") as archive:
            lines = archive.read("tool_decisions.jsonl").decode().splitlines()
        assert {json.loads(line)["subject"] for line in lines} == {"bob", "eve"}
        await erase(parlour.channel.ask, "c", "/forget eve")
        assert [job.payload["subject"] for job in await decisions(parlour)] == ["bob"]
        await parlour.channel.ask("c", "/forget everything yes")
        while await decisions(parlour):
            await parlour.idle()


async def test_unlinking_takes_decisions_along() -> None:
    """They move with a linked account to the common memory, stay its own there, and go with it again."""
    letters = Letters()
    model = HeldScriptModel("hello", letter(), "asked", "done", letter(), "done")
    async with gateway(model=model, tools=[letters.tool], policy=OPEN) as parlour:
        ask = parlour.channel.ask
        await ask("ann", "hello", sender="ann")
        await press(parlour, await ask("bob", "write", sender="bob"), "allow here", "bob", sender="bob")
        await link(parlour, "bob", "ann")
        assert [job.scope for job in await decisions(parlour)] == ["people/pocket%3aann"]
        assert await ask("bob", "again", sender="bob") == "done"
        await unlink(parlour, "bob")
        assert [job.scope for job in await decisions(parlour)] != ["people/pocket%3aann"]
        assert "`send_letter` (`bob`) runs here" in await ask("bob", "/tools", sender="bob")
    assert letters.sent == ["bob"] * 2
