"""Standing decisions: a yes or a no that holds for further calls of a person in a direct chat, until it ends."""

from __future__ import annotations

import json
import re
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.llm.scripted_model import ScriptEntry
from agent.tools.tool import AskRule, ToolContext, ToolKind, tool
from agent.tools.tool_questions import DURATION, STANDING_DECISION
from gateway.events import SessionKey
from gateway.ports.journal import Job
from tests.e2e.agent.test_tool_questions import decide, read_page, waiting
from tests.fakes.account_linking import link, unlink
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_gateway import OPEN, InProcessGateway, gateway
from tests.fakes.staged_changes import erase

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
