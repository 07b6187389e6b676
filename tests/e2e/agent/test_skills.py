"""Skills in chats: the line in the prompt, the call, `/skill`, `/skills`, and a folder that changes meanwhile."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.llm.chat_model import ChatRequest
from gateway.events import SessionKey
from gateway.health.doctor import collect_findings
from gateway.ports.setup import FindingLevel
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_gateway import OPEN, gateway
from tests.fakes.openai_server import ScriptedAnswer, ScriptedToolCall, open_server
from tests.fakes.skill_folders import skill_text, write_skill

READ = calls(("skill", '{"name": "invoices"}'))


def tool_names(request: ChatRequest) -> list[str]:
    """Return the names of the tools that the model is offered."""
    return [each["function"]["name"] for each in request.tools]


def _answer(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
    """Read the skill where the person asks for an invoice and it is offered."""
    offered = [each["function"]["name"] for each in body.get("tools", ())]
    if body["messages"][-1]["role"] == "user" and "skill" in offered:
        call = ScriptedToolCall(name="skill", arguments='{"name": "invoices"}', id=f"c{n}")
        return ScriptedAnswer(text="", calls=(call,))
    return ScriptedAnswer(text=f"answer {n}")


async def _bodies(home: Path, *, is_denied: bool = False) -> list[bytes]:
    """Return the request bodies of two turns."""
    async with open_server(_answer) as server:
        environment = {
            "PARLOUR_LLM__MODEL": "openai/m",
            "PARLOUR_LLM__API_BASE": server.base,
            "PARLOUR_LLM__API_KEY": "test-key",
        }
        if is_denied:
            environment["PARLOUR_CHATS"] = json.dumps({"pocket:c": {"tools": {"deny": ["skill"]}}})
        async with gateway(home=home, environment=environment) as parlour:
            await parlour.channel.ask("c", "an invoice", number="1")
            await parlour.channel.ask("c", "another", number="2")
    return [body for body in server.bodies if b'"messages"' in body]


def _start(body: bytes) -> Mapping[str, Any]:
    found = json.loads(body)
    return {"system": found["messages"][0], "tools": found["tools"]}


async def test_each_request_begins_with_the_one_before(tmp_path: Path) -> None:
    """With skills the prefix holds over calls and turns; without them, and where denied, it is what it was."""
    write_skill(tmp_path / "with" / "skills", "invoices")
    write_skill(tmp_path / "denied" / "skills", "invoices")
    (tmp_path / "empty" / "skills").mkdir(parents=True)
    bodies = await _bodies(tmp_path / "with")
    assert len(bodies) == 4
    starts = [_start(body) for body in bodies]
    assert all(start == starts[0] for start in starts)
    assert "- invoices: Writes invoices." in starts[0]["system"]["content"]
    for earlier, later in itertools.pairwise(bodies):
        before, after = json.loads(earlier)["messages"], json.loads(later)["messages"]
        assert after[: len(before)] == before
    plain = await _bodies(tmp_path / "without")
    for same in (await _bodies(tmp_path / "empty"), await _bodies(tmp_path / "denied", is_denied=True)):
        assert [_start(body) for body in same] == [_start(body) for body in plain]
    assert "skill" not in plain[0].decode()


async def test_a_changed_skill_is_in_the_next_prompt(tmp_path: Path) -> None:
    """A conversation goes on with it: the same messages behind a new snapshot, whose line has the skill's digest."""
    folder = tmp_path / "skills"
    model = HeldScriptModel("no skill", "one", READ, "two", "gone")
    async with gateway(home=tmp_path, model=model) as parlour:
        library = parlour.app.profiles.skills
        await parlour.channel.ask("c", "hello")
        write_skill(folder, "invoices")
        await library.reload()
        await parlour.channel.ask("c", "and now?")
        assert "- invoices: Writes invoices." in str(model.asked[1].messages[0]["content"])
        assert model.asked[1].messages[1:-1] == [
            *model.asked[0].messages[1:],
            {"role": "assistant", "content": "no skill"},
        ]
        write_skill(folder, "invoices", f"{skill_text('invoices')}\nThe rate is 90.".encode())
        await library.reload()
        await parlour.channel.ask("c", "write one")
        assert "The rate is 90." in results(model.asked[3])[-1]
        (folder / "invoices" / "SKILL.md").unlink()
        await library.reload()
        assert await parlour.channel.ask("c", "and now?") == "gone"
        assert "skill" not in tool_names(model.asked[4])
        await parlour.idle()
        turns = await parlour.app.memory.sessions.recent_turns(SessionKey("pocket", "c"), limit=10)
    digests = [line["tools"].get("skill invoices") for turn in turns for line in turn if line.get("kind") == "snapshot"]
    assert digests[0] is digests[3] is None
    assert len({*digests}) == 3
    assert len(digests) == 4


async def test_a_chat_may_be_without_skills(tmp_path: Path) -> None:
    """`deny` takes lines and tool from its prompt alone; a call that is made all the same is refused."""
    write_skill(tmp_path / "skills", "invoices")
    environment = {"PARLOUR_CHATS": json.dumps({"pocket:closed": {"tools": {"deny": ["skill"]}}})}
    model = HeldScriptModel("in here", READ, "I cannot.")
    async with gateway(home=tmp_path, model=model, environment=environment) as parlour:
        await parlour.channel.ask("open", "hello")
        await parlour.channel.ask("closed", "an invoice")
        assert await parlour.channel.ask("closed", "/skills") == "The tool that reads skills is off in this chat."
        assert await parlour.channel.ask("closed", "/skill invoices x") == (
            "The tool that reads skills is off in this chat."
        )
        assert "`invoices` Writes invoices." in await parlour.channel.ask("open", "/skills")
    assert "skill" in tool_names(model.asked[0])
    assert "skill" not in tool_names(model.asked[1])
    assert "invoices" not in str(model.asked[1].messages[0]["content"])
    assert "there is no tool called 'skill'" in results(model.asked[2])[-1]


async def test_an_operator_may_keep_skills_for_admins(tmp_path: Path) -> None:
    """`tools.rights.skill` holds at the call, and for the call that `/skill` begins with."""
    write_skill(tmp_path / "skills", "invoices")
    environment = {"PARLOUR_TOOLS__RIGHTS__SKILL__WHO": "admin"}
    model = HeldScriptModel(READ, "no", "no", READ, "yes")
    async with gateway(home=tmp_path, model=model, environment=environment, policy=OPEN) as parlour:
        await parlour.channel.ask("g", "an invoice", group=True, sender="ann")
        await parlour.channel.ask("g", "/skill invoices for Bob", group=True, sender="ann")
        await parlour.channel.ask("g", "an invoice", group=True, sender="bob", is_admin=True)
    assert "only an admin" in results(model.asked[1])[-1]
    assert "only an admin" in results(model.asked[2])[-1]
    assert "Do it well." in results(model.asked[4])[-1]


async def test_the_command_begins_with_the_skill(tmp_path: Path) -> None:
    """Whatever the model would have done, it reads the skill first, once, also after a kill in the middle."""
    folder = write_skill(tmp_path / "home" / "skills", "invoices")
    (folder / "references").mkdir()
    (folder / "references" / "prices.md").write_text("ten each")
    model = HeldScriptModel("Here it is.", held=(1,))
    async with gateway(home=tmp_path / "home", model=model) as parlour:
        await parlour.channel.say("c", "/skill invoices for Bob, 3 hours", number="1")
        request = await model.called(1)
        assert [each["role"] for each in request.messages[1:]] == ["user", "assistant", "tool"]
        assert str(request.messages[1]["content"]).endswith("/skill invoices for Bob, 3 hours")
        assert "- references/prices.md" in results(request)[0]
        killed = parlour.kill(tmp_path / "killed")
        model.go(1)
        await parlour.idle()
        assert parlour.channel.texts["c"] == ["Here it is."]
    again = HeldScriptModel("Here it is.")
    async with gateway(home=killed, model=again) as parlour:
        await parlour.idle()
        assert parlour.channel.texts["c"] == ["Here it is."]
        assert len(results(again.asked[0])) == 1
        assert await parlour.channel.ask("c", "/retry")
        await parlour.idle()
        assert str(again.asked[1].messages[-1]["content"]).endswith("/skill invoices for Bob, 3 hours")


async def test_the_commands_name_what_there_is(tmp_path: Path) -> None:
    """Unknown names, none at all, and what an owner reads of folders that cannot be used; nothing asks the model."""
    model = HeldScriptModel()
    async with gateway(home=tmp_path, model=model) as parlour:
        ask = parlour.channel.ask
        assert await ask("c", "/skills") == "The bot's operator has not added skills yet; each is a folder."
        write_skill(tmp_path / "skills", "invoices")
        write_skill(tmp_path / "skills", "letters", b"broken")
        await parlour.app.profiles.skills.reload()
        listed = await ask("c", "/skill")
        assert "- `invoices` Writes invoices." in listed
        assert "letters" not in listed
        assert "Folders that cannot be used as skills: 1." in listed
        in_group = await ask("g", "/skills", group=True)
        assert "cannot be used" not in in_group
        unknown = await ask("c", "/skill **x**`y` do it")
        assert unknown == "I don't know the skill `**x**'y`. Available: `invoices`."
    assert model.asked == []


async def test_members_of_a_group_see_the_list_alone(tmp_path: Path) -> None:
    """A list is for the one who asks; the answer with a skill is for all."""
    write_skill(tmp_path / "skills", "invoices")
    async with gateway(home=tmp_path, model=HeldScriptModel("done"), policy=replace(OPEN)) as parlour:
        await parlour.channel.ask("g", "/skills", group=True, sender="ann")
        await parlour.channel.ask("g", "/skill invoices x", group=True, sender="ann")
        assert [each.visible_to for each in parlour.channel.posts["g"]] == ["ann", ""]


async def test_the_doctor_names_bad_skills_and_what_mends_them(tmp_path: Path) -> None:
    """Of a gateway that does not run, too, and in a folder of the operator's choice."""
    write_skill(tmp_path / "elsewhere", "invoices")
    write_skill(tmp_path / "elsewhere", "letters", b"broken")
    variables = {"PARLOUR_HOME": str(tmp_path / "home"), "PARLOUR_TOOLS__SKILLS": str(tmp_path / "elsewhere")}
    found = [each async for each in collect_findings(variables, is_offline=True, asks_model=False)]
    lines = {each.id: (each.level, each.text) for each in found if each.name == "skills"}
    assert lines["skills"] == (FindingLevel.OK, "invoices")
    level, text = lines["skills.letters"]
    assert level is FindingLevel.WARN
    assert text == ("letters: has no front matter; begin it with a line ---, then name: and description:, then ---")
