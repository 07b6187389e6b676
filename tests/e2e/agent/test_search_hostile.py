"""A model that wants another scope's words, through the real loop: no argument of any search tool gets them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_gateway import gateway

BOB = "people/pocket%3abob"
SECRET = "zeppelin of Bob"
HIS = (f"{BOB}/memory/MEMORY.md", "chats/pocket%3aroom/memory/MEMORY.md", "chats/pocket%3aroom/USER.md")

QUERIES = (
    "zeppelin", "zeppelin OR 1=1", '"zeppelin" NEAR bob', "scope:people/pocket%3abob zeppelin", "*", "'; SELECT * --",
    f"source:{BOB}/memory/MEMORY.md zeppelin", "zeppelin\x00", "zepp*" * 400,
)  # fmt: skip
PLACES = (
    f"{BOB}/memory/MEMORY.md",
    "../pocket%3abob/memory/MEMORY.md",
    f"../../{BOB}/memory/MEMORY.md",
    f"shared/../{BOB}/memory/MEMORY.md",
    "memory/../../pocket%3abob/memory/MEMORY.md",
    "memory/2026-01-01/../../../pocket%3abob/USER.md",
    f"docs/house/../../{BOB}/memory/MEMORY.md",
    "sessions/../../pocket%3abob/memory/MEMORY.md",
    "shared/memory/../../people/pocket:bob/memory/MEMORY.md",
    "..%2fpocket%253abob%2fmemory%2fMEMORY.md",
    "index.db",
    "{transcript}",
    "shared/{transcript}",
    "../pocket%3abob/{transcript}",
)
PROJECTS = ("", "_memory", "house", "..", f"../{BOB}", "house/../..", ".", "people")


async def test_no_argument_of_a_tool_reaches_another_scope(tmp_path: Path) -> None:
    """Queries, sources, projects, lines and arguments that are none: what Bob said or has stays out of every result."""
    home = tmp_path / "home"
    for name in (*HIS, "docs/house/roof.md"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"- the {SECRET} flies\n" if name in HIS else "the roof\n")
    (home / "docs/house/link.md").symlink_to(home / HIS[0])
    async with gateway(model=HeldScriptModel(), home=home) as parlour:
        await parlour.channel.ask("bob", f"the {SECRET} is red", sender="bob", name="Bob")
        await parlour.channel.ask("ann", "the zeppelin of Ann is green")
        await parlour.idle()
        found = parlour.app.operations["memory search"]
        there = [line async for line in found({"text": "zeppelin", "scope": BOB})]
        [transcript] = {line["source"] for line in there if line["source"].startswith("sessions/")}
        assert len(there) >= 2  # Bob's own search has both
    wanted: list[tuple[str, dict[str, object]]] = [("memory_search", {"query": query}) for query in QUERIES]
    wanted += [("memory_search", {"query": "zeppelin", "scope": BOB, "project": project}) for project in PROJECTS[:4]]
    wanted += [("vector_search", {"query": "zeppelin", "project": project, "scope": BOB}) for project in PROJECTS]
    wanted += [
        ("memory_get", {"source": place.format(transcript=transcript), "line": line, "project": project})
        for n, place in enumerate(PLACES)
        for line, project in ((1, ""), ((-1, 2**63, 0)[n % 3], ""), (1, PROJECTS[n % len(PROJECTS)]))
    ]
    turns = [wanted[start : start + 20] for start in range(0, len(wanted), 20)]
    script = [step for turn in turns for step in (calls(*((name, json.dumps(said)) for name, said in turn)), "done")]
    model = HeldScriptModel(*script)
    async with gateway(model=model, home=home) as parlour:
        for n in range(len(turns)):
            await parlour.channel.ask("ann", f"again {n}")
            told = results(model.asked[-1])[-len(turns[n]) :]
            assert len(told) == len(turns[n])
            assert SECRET not in " ".join(told)
            if n == 0:
                assert "the zeppelin of Ann is green" in told[0]
