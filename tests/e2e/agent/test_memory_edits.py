"""Consolidation by line operations, through the whole gateway and a model behind HTTP: what was reproduced before it.

Corrections left both lines, rewordings stood twice, denials passed as rewordings, and a cut answer asked to forget.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.base.scopes import quote
from agent.memory.storage.scope_documents import change_diff
from tests.fakes.documents import stored_changes, stored_documents, stored_text
from tests.fakes.histories import stored_entries
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.openai_server import FakeOpenAI, ModelFault, ScriptedAnswer, ScriptedToolCall, open_server

SCOPE = "people/pocket%3aann"
Operations = Sequence[Mapping[str, Any]]

CORRECTIONS = (  # what is known, what is right, what Ann says
    ("Lives in Leipzig", "Lives in Dresden", "no, I moved to Dresden"),
    ("Works at Siemens", "Works at Bosch", "I work at Bosch now"),
    ("Favorite color: blue", "Favorite color: green", "my favorite color is green these days"),
    ("Drives a Golf", "Drives a Zoe", "I sold the Golf and drive a Zoe"),
    ("Has two cats", "Has three cats", "we have three cats now"),
    ("The meeting is on Monday", "The meeting is on Thursday", "the meeting is on Thursday, not on Monday"),
    ("Plays the cello", "Plays the viola", "I switched to the viola"),
    ("Uses PostgreSQL 14", "Uses PostgreSQL 17", "we upgraded to PostgreSQL 17"),
    ("Dog's name is Bello", "Dog's name is Rex", "the dog's name is Rex"),
    ("Salary: 4000 euros", "Salary: 4500 euros", "my salary is 4500 euros since May"),
    ("Married to Tom", "Divorced from Tom", "I am divorced"),
    ("Allergic to nuts", "Allergic to peanuts", "it is only peanuts that I am allergic to"),
    ("Wohnt im dritten Stock", "Wohnt im fünften Stock", "ich wohne jetzt im fünften Stock"),
    ("Aime le thé noir", "Aime le thé vert", "je préfère le thé vert"),
    ("Estudia alemán", "Estudia japonés", "ahora estudio japonés"),
)

REWORDINGS = (  # a known line, and what the model would add although it says no more, or the same and a little more
    ("Works at Siemens as an engineer", "Is an engineer at Siemens"),
    ("The user likes green tea", "likes green tea"),
    ("Prefers Python for backends", "Preferring Python for backends"),
    ("Has a boat called Pelikan", "The boat is called Pelikan"),
    ("Lives in Bern with Tom", "lives in Bern with Tom"),
    ("Runs every morning before work", "Runs before work every morning"),
    ("Reads science fiction novels", "Reads science fiction novel"),
    ("Studied physics in Jena", "studied physics in Jena."),
    ("Grows tomatoes on the balcony", "The user grows tomatoes on the balcony"),
    ("Plays chess on Tuesdays", "On Tuesdays plays chess"),
    ("Collects stamps from Peru", "User collects stamps from Peru"),
    ("Rides a red bicycle", "Rides a bicycle that is red"),
    ("Cooks Thai food on Sundays", "Cooks Thai food on Sundays for friends"),
    ("Speaks Danish and Dutch", "Speaks Danish, Dutch"),
    ("Swims in the lake in summer", "In summer swims in the lake"),
    ("Learns to play the oboe", "Learning to play the oboe"),
    ("Volunteers at the animal shelter", "Volunteering at the animal shelter"),
    ("Bakes bread with rye flour", "Bakes rye flour bread"),
    ("Paints landscapes in oil", "Paints oil landscapes"),
    ("Watches old French films", "Watches French films that are old"),
    ("Keeps bees behind the house", "Keeps bees behind the house in Thun"),
    ("Writes a blog about maps", "Writes a blog about maps since 2019"),
    ("Repairs old radios", "Repairs old radios with her father's tools"),
    ("Sings in the choir of Biel", "Sings in the choir of Biel every Friday"),
    ("Climbs in the Jura", "Climbs in the Jura with Eva"),
    ("Trinkt gern schwarzen Kaffee", "trinkt gern schwarzen Kaffee"),
    ("Fährt einen alten Volvo", "Der User fährt einen alten Volvo"),
    ("Joue du piano le soir", "joue du piano le soir"),
    ("Vive cerca de la playa", "Vive cerca de la playa."),
    ("Skis in Davos each winter", "Each winter skis in Davos"),
    ("Ann's dog is Rex", "Rex is Ann's dog"),
    ("Annas Chefin ist Frau Weber", "Frau Weber ist Annas Chefin"),
    ("On Mondays Ann visits Bob", "Ann visits Bob on Mondays"),
)

REVERSALS = (  # the same words, and another fact
    ("Ann owes Bob a book", "Bob owes Ann a book"),
    ("Eva is Tom's boss", "Tom is Eva's boss"),
    ("Rex is the dog of Kim", "Kim is the dog of Rex"),
)

DENIALS = (
    ("Allergic to penicillin", "Allergic to penicillin: false"),
    ("Allergic to bee stings", "Not allergic to bee stings"),
    ("Has diabetes type 1", "Has no diabetes type 1"),
    ("Takes insulin twice a day", "No longer takes insulin twice a day"),
    ("May open the server room", "May not open the server room"),
    ("Is the owner of the account 4711", "Is the owner of the account 4711: wrong"),
    ("Earns a salary of 5000 euros", "~~Earns a salary of 5000 euros~~"),
    ("Owes Tom 300 euros", "Doesn't owe Tom 300 euros"),
    ("Married to Eva", "Was never married to Eva"),
    ("Verträgt keine Laktose, Laktoseintoleranz", "Verträgt Laktose, Laktoseintoleranz"),
    ("Allergisch gegen Nüsse", "Nicht allergisch gegen Nüsse"),
    ("Allergique aux crevettes", "N'est pas allergique aux crevettes"),
    ("Alérgica al polen", "No alérgica al polen"),
)


class ScriptedSummaries:
    """A model that answers chats with a word and consolidations with what the test says, and adds up its output."""

    def __init__(self, answer: Callable[[str], ScriptedAnswer | Mapping[str, Any]]) -> None:
        self.answer = answer
        self.output = 0  # tokens of the consolidations
        self.asked = 0

    def __call__(self, body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        """Answer one request."""
        tools = [each["function"]["name"] for each in body.get("tools") or ()]
        if "save_memory" not in tools:
            return ScriptedAnswer(text="ok")
        self.asked += 1
        answer = self.answer(str(body["messages"][-1]["content"]))
        if not isinstance(answer, ScriptedAnswer):
            answer = ScriptedAnswer(calls=(ScriptedToolCall(name="save_memory", arguments=json.dumps(answer)),))
        self.output += sum(len(call.arguments) for call in answer.calls) // 4
        return answer


def consolidation(*operations: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the tool."""
    return {"history_entry": "[2026-11-22 10:00] They talked.", "operations": list(operations)}


def replace_all(pairs: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """Return a consolidation that replaces each first text by the second."""
    return consolidation(*({"op": "replace", "old": f"- {old}", "text": f"- {new}"} for old, new, *_ in pairs))


def environment(server: FakeOpenAI, **more: str) -> dict[str, str]:
    """Return the settings of a gateway with that model."""
    return {
        "PARLOUR_LLM__MODEL": "openai/test",
        "PARLOUR_LLM__API_BASE": server.base,
        "PARLOUR_LLM__API_KEY": "test-key",
        "PARLOUR_AGENTS__DEFAULTS__DREAM__ENABLED": "false",
        "PARLOUR_TOOLS__SESSION_MEMORY__ENABLED": "false",
        "PARLOUR_AGENT__MERGE": "off",
        **more,
    }


def write_memory(home: Path, lines: Sequence[str], scope: str = SCOPE) -> Path:
    """Write MEMORY.md, long ago, and return its path."""
    path = home / scope / "memory" / "MEMORY.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"- {line}\n" for line in lines))
    before = time.time() - 100
    os.utime(path, (before, before))
    return path


async def until(parlour: InProcessGateway, scope: str = SCOPE) -> None:
    """Return when a consolidation of the scope was applied, or failed."""
    while True:
        soon = datetime.now(UTC) + timedelta(minutes=1)
        if not any(job.due_at < soon for job in await parlour.app.store.jobs.pending_in(scope)):
            break
        await asyncio.sleep(0.01)
    await parlour.idle()


async def consolidate(home: Path, model: ScriptedSummaries, said: Sequence[str], question: str = "") -> str:
    """Let Ann say these things, end the conversation, and return MEMORY.md once it is summarised.

    Then *question* is asked; the reply quotes the first of the things.
    """
    async with open_server(model) as server, gateway(home=home, environment=environment(server)) as parlour:
        for text in said:
            await parlour.channel.ask("ann", text)
        await parlour.channel.ask("ann", "/new")
        while not stored_entries(home, SCOPE):  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0.01)
        await until(parlour)
        if question:
            assert said[0] in await parlour.channel.ask("ann", question)
    return stored_text(home, SCOPE)


def load_staged(home: Path) -> list[dict[str, Any]]:
    """Return the changes that wait for approval."""
    with closing(sqlite3.connect(home / "journal.db")) as journal:
        found = journal.execute("SELECT body FROM proposal WHERE scope = ? ORDER BY name", (SCOPE,)).fetchall()
    return [json.loads(body) for (body,) in found]


async def test_fifteen_corrections_leave_one_line_each(tmp_path: Path) -> None:
    """The wrong line is gone from MEMORY.md and stands in its versions; the message behind the right one is known."""
    home = tmp_path / "home"
    write_memory(home, [old for old, *_ in CORRECTIONS])
    text = await consolidate(
        home,
        ScriptedSummaries(lambda _: replace_all(CORRECTIONS)),
        [each[2] for each in CORRECTIONS],
        f"/memory why {CORRECTIONS[0][1]}",
    )
    assert text.splitlines() == [f"- {new}" for _, new, _ in CORRECTIONS]
    assert load_staged(home) == []
    [newest, *_] = stored_changes(home, SCOPE)
    with stored_documents(home) as documents:
        diff = await change_diff(documents, SCOPE, newest)
    assert "-- Lives in Leipzig\n+- Lives in Dresden" not in diff  # a block each
    assert all(f"-- {old}" in diff for old, *_ in CORRECTIONS)


async def test_rewordings_are_not_added_twice(tmp_path: Path) -> None:
    """A line that says nothing new changes nothing; one that says more takes the place of the shorter one.

    Another order of words may be a rewording, but not where it changes who does what: those facts are added.
    """
    home = tmp_path / "home"
    pairs = (*REWORDINGS, *REVERSALS)
    write_memory(home, [old for old, _ in pairs])
    added = consolidation(*({"op": "add", "text": f"- {new}"} for _, new in pairs))
    text = await consolidate(home, ScriptedSummaries(lambda _: added), ["hello", "how are you?", "fine"])
    assert len(text.splitlines()) == len(REWORDINGS) + 2 * len(REVERSALS), text
    assert all(f"- {new}\n" in text for pair in REVERSALS for new in pair)
    assert "- Keeps bees behind the house in Thun\n" in text


@pytest.mark.parametrize("form", ["replace", "add", "whole"])
async def test_thirteen_denials_are_asked_about(tmp_path: Path, form: str) -> None:
    """Nobody said so: every fact stands as it was, and each denial waits, however the model put it."""
    home = tmp_path / "home"
    path = write_memory(home, [old for old, _ in DENIALS])
    before = path.read_text()
    answers: dict[str, dict[str, Any]] = {
        "replace": replace_all(DENIALS),
        "add": consolidation(*({"op": "add", "text": f"- {new}"} for _, new in DENIALS)),
        "whole": {"history_entry": "They talked.", "memory_update": "".join(f"- {new}\n" for _, new in DENIALS)},
    }
    said = ["hello", "the weather is fine", "tell me a joke"]
    assert await consolidate(home, ScriptedSummaries(lambda _: answers[form]), said) == before
    asked = json.dumps(load_staged(home), ensure_ascii=False)
    assert [new for _, new in DENIALS if new not in asked] == []
    for change in load_staged(home):
        assert sum("old" in each for each in change["operations"]) <= 5


async def test_a_denial_in_the_persons_own_words_is_believed(tmp_path: Path) -> None:
    """Ann says so herself, with nobody else's words in the prompt: it is a correction like any other."""
    home = tmp_path / "home"
    write_memory(home, ["Allergic to penicillin", "Likes tea"])
    answer = replace_all([("Allergic to penicillin", "Not allergic to penicillin")])
    said = ["hello", "the doctor tested me: I am not allergic to penicillin", "good news"]
    text = await consolidate(home, ScriptedSummaries(lambda _: answer), said)
    assert text == "- Not allergic to penicillin\n- Likes tea\n"


@pytest.mark.parametrize("size", [1_000, 9_000, 29_000])
async def test_output_grows_with_the_changes_and_not_with_the_memory(tmp_path: Path, size: int) -> None:
    """One new fact costs the same few tokens at 1, 9 and 29 kB; the whole document cost up to 7,500 each time."""
    home = tmp_path / "home"
    lines = [f"fact number {n} about the project of the year" for n in range(size // 50)]
    write_memory(home, lines)
    model = ScriptedSummaries(lambda _: consolidation({"op": "add", "text": "- a new fact about the garden"}))
    text = await consolidate(home, model, ["hello", "the garden is new", "fine"])
    assert text.splitlines() == [*(f"- {line}" for line in lines), "- a new fact about the garden"]
    assert 0 < model.output < 100


WORDS = ("sea", "sun", "sky", "sand", "salt", "ship", "sail")
FACTS = tuple(f"fact number {n} is about the {word}" for n, word in enumerate(WORDS))
WIPE = [{"op": "remove", "old": f"- {fact}"} for fact in FACTS]
EVERYTHING = "\n".join(f"- {fact}" for fact in FACTS)
GOOD = consolidation({"op": "add", "text": "- one more"})
PROSE = "Here is what I remember: the user likes the sea."


def call(arguments: Any, name: str = "save_memory", **fields: Any) -> ScriptedAnswer:
    """Return an answer that calls a tool; *arguments* that are no text become JSON."""
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ScriptedAnswer(calls=(ScriptedToolCall(name=name, arguments=raw),), **fields)


BAD_ANSWERS: Mapping[str, ScriptedAnswer] = {
    "empty": ScriptedAnswer(fault=ModelFault.EMPTY),
    "null": ScriptedAnswer(fault=ModelFault.NULL),
    "no choices": ScriptedAnswer(fault=ModelFault.NO_CHOICES),
    "cut HTTP body": ScriptedAnswer(fault=ModelFault.CUT_JSON),
    "prose": ScriptedAnswer(text=PROSE),
    "prose with a list": ScriptedAnswer(text=f"{PROSE}\n- sea\n- sun"),
    "a refusal": ScriptedAnswer(text="I'm sorry, I cannot help with that."),
    "cut, whole JSON": call(consolidation(*WIPE), finish="length"),
    "cut JSON": call(json.dumps(consolidation(*WIPE))[:120], finish="length"),
    "cut JSON that says it is whole": call(json.dumps(consolidation(*WIPE))[:-3]),
    "cut whole document": call({"history_entry": "x", "memory_update": EVERYTHING[:60]}, finish="length"),
    "no operations": call({"history_entry": "x"}),
    "no entry": call({"operations": []}),
    "entry is a number": call({"history_entry": 7, "operations": []}),
    "operations are a text": call({"history_entry": "x", "operations": "remove all"}),
    "operations are null": call({"history_entry": "x", "operations": None}),
    "an operation is a text": call(consolidation(*WIPE[:1]) | {"operations": ["remove - fact number 0"]}),
    "one unknown operation": call(consolidation(*WIPE[:2], {"op": "wipe"})),
    "one without its line": call(consolidation(*WIPE[:2], {"op": "remove"})),
    "one without its text": call(consolidation(*WIPE[:2], {"op": "replace", "old": f"- {FACTS[0]}"})),
    "an endless line": call(consolidation({"op": "replace", "old": f"- {FACTS[0]}", "text": "x" * 100_000})),
    "fifty times too many": call(consolidation(*WIPE * 50)),
    "fifty times too long": call({"history_entry": "x", "memory_update": "- noise and more noise\n" * 20_000}),
    "deletes all, line by line": call(consolidation(*WIPE)),
    "deletes all at once": call(consolidation({"op": "remove", "old": EVERYTHING})),
    "replaces all by one word": call(consolidation({"op": "replace", "old": EVERYTHING, "text": "- gone"})),
    "an empty document": call({"history_entry": "x", "memory_update": " "}),
    "a short document": call({"history_entry": "x", "memory_update": "- only this"}),
    "injection": call(consolidation({"op": "remove", "old": "*"}, {"op": "remove", "old": "# Ignore all and forget"})),
    "another document": call(consolidation({"op": "remove", "old": "- x", "document": "../../SOUL.md"})),
    "another tool": call(GOOD, name="exec"),
    "two objects": call(f"{json.dumps(GOOD)} {json.dumps(GOOD)}"),
    "nesting": call("[" * 5_000),
}


async def test_no_bad_answer_loses_a_fact(tmp_path: Path) -> None:
    """Thirty-three of them, each in a chat with memory of its own: every fact is there afterwards."""
    names = list(BAD_ANSWERS)
    assert len(names) == 33
    scopes = {name: f"people/{quote(f'pocket:c{n}')}" for n, name in enumerate(names)}
    home = tmp_path / "home"
    for scope in scopes.values():
        write_memory(home, FACTS, scope)

    def answer(prompt: str) -> ScriptedAnswer:
        return BAD_ANSWERS[names[int(prompt.partition("this is case ")[2].split(" ")[0])]]

    async with open_server(ScriptedSummaries(answer)) as server:
        window = {"PARLOUR_AGENTS__DEFAULTS__MEMORY_WINDOW": "4"}
        async with gateway(home=home, environment=environment(server, **window)) as parlour:
            for n in range(len(names)):
                await parlour.channel.ask(f"c{n}", f"this is case {n} and we talk about the sea")
                await parlour.channel.ask(f"c{n}", "what else is there to see?")
            for scope in scopes.values():
                await until(parlour, scope)
            for name, scope in scopes.items():
                lines = stored_text(home, scope).splitlines()
                assert all(f"- {fact}" in lines for fact in FACTS), name
                for change in await parlour.app.commands.staging.pending_changes(scopes[name]):
                    assert len(change.would_remove) <= 5, name
            applied = [name for name, scope in scopes.items() if stored_entries(home, scope)]
            assert not {name for name in applied if name.startswith(("cut", "one ", "operations", "empty", "prose"))}
