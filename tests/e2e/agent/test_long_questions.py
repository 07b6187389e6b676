"""Questions about calls with long arguments: shown as a file where the chat takes files, otherwise not asked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agent.tools.tool import ToolContext, ToolKind, tool
from agent.tools.tool_questions import LONGEST_ATTACHED, LONGEST_SHOWN
from gateway.events import Role
from tests.e2e.agent.test_tool_questions import OPEN, OutsideWorld, decide, waiting
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_files import InProcessFileChannel, InProcessFilePlugin, PlatformFiles, SentFile
from tests.fakes.inprocess_gateway import InProcessGateway, gateway


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
