"""Long results of tools: the model sees a page, asks for the next, and finds what it has seen after a restart."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agent.tools.tool import LONGEST_RESULT, ResultContent, Tool, ToolContext, ToolKind, ToolResult, tool
from agent.turns.turn_draft import StagedEffects
from agent.turns.turn_tools import KEPT_FOR, MOST_RESULTS, ToolResultPages
from gateway.events import AnswerSource
from gateway.ports.memory import FileKind, FileTotal, ScopeFile
from gateway.store.files import SqlFiles
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.memory import FakeRecords
from tests.fakes.stored_files import stored_files
from tests.fakes.turns import WallClock

PAGE = 1_000


def reading(text: str, *, brings: ResultContent = ResultContent.TRUSTED) -> Tool:
    """Return a tool whose result is *text*, on pages of 1,000 characters."""

    @tool("Read it.", kind=ToolKind.WEB, name="read_it", page=PAGE, brings=brings)
    async def read_it(_: ToolContext) -> str:
        return text

    return read_it


def read_page(result: str, page: int) -> tuple[str, str]:
    """Return a call of `read_result`."""
    return "read_result", json.dumps({"result": result, "page": page})


def name_of(page: str) -> str:
    """Return the name of the result, as the last line of its first page has it."""
    found = re.search(r'\n\[page 1 of \d+: read_result\("(r[0-9a-f]{8})", 2\)\]\Z', page)
    assert found, page[-100:]
    return found[1]


def text_of(lines: int) -> str:
    """Return numbered lines of ten characters."""
    return "".join(f"line {n:04}\n" for n in range(lines))


async def test_pages_follow_each_other_over_a_restart(tmp_path: Path) -> None:
    """Every character is on one page; the last has no line about a next one; a page that is not there is an error."""
    text = text_of(250)
    model = HeldScriptModel(calls(("read_it", "{}")), "a long one")
    async with gateway(home=tmp_path / "home", model=model, tools=[reading(text)]) as parlour:
        await parlour.channel.ask("c", "read it")
        await parlour.idle()
    (first,) = results(model.asked[1])
    name = name_of(first)
    assert first.startswith(text[:PAGE])
    model = HeldScriptModel(calls(*(read_page(name, n) for n in (2, 3, 4))), calls(read_page("r00000000", 1)), "done")
    async with gateway(home=tmp_path / "home", model=model, tools=[reading(text)]) as parlour:
        await parlour.channel.ask("c", "and the rest?")
        await parlour.idle()
        assert await parlour.app.pages.prune() == 0
        later = datetime.now(UTC) + KEPT_FOR + timedelta(minutes=1)
        assert await ToolResultPages(parlour.app.store.files, lambda: later).prune() == 1
    second, third, missing = results(model.asked[1])[-3:]
    assert second == f'{text[PAGE : 2 * PAGE]}\n[page 2 of 3: read_result("{name}", 3)]'
    assert third == text[2 * PAGE :]
    assert missing == "error: this result has the pages 1 to 3"
    assert results(model.asked[2])[-1] == "error: there is no result 'r00000000' in this conversation"


async def test_a_result_is_kept_up_to_a_megabyte(tmp_path: Path) -> None:
    """What is beyond is not stored, no page of it is offered, and the last page says so."""
    model = HeldScriptModel(calls(("read_it", "{}")), "very long")
    async with gateway(home=tmp_path / "home", model=model, tools=[reading("é" * 900_000)]) as parlour:
        await parlour.channel.ask("c", "read it")
        await parlour.idle()
        (scope,) = await parlour.app.store.files.scopes(FileKind.RESULT)
        assert (await parlour.app.store.files.totals(scope))[FileKind.RESULT] == FileTotal(count=1, size=LONGEST_RESULT)
        first = results(model.asked[1])[0]
        assert '[page 1 of 500: read_result("' in first
        model.script.extend([calls(read_page(re.findall(r"r[0-9a-f]{8}", first)[-1], 500)), "read"])
        await parlour.channel.ask("c", "the last page")
    assert results(model.asked[3])[-1].endswith("é\n[cut: the rest of this result was not kept]")


async def test_a_scope_keeps_a_hundred_results() -> None:
    """The oldest goes first; the newest stays whatever the clock says."""
    files, clock, effects = FakeRecords().files, WallClock(), StagedEffects()
    clock.advance(hours=1)  # it was ahead while the first were stored
    pages = ToolResultPages(files, clock.now)
    names = []
    for n in range(MOST_RESULTS + 1):
        clock.advance(seconds=1)
        if n == MOST_RESULTS:
            clock.advance(hours=-2)
        await pages.cut("chats/c", f"result {n}", 3, effects)
        assert effects.paged is not None
        names.append(effects.paged["sha"])
    assert {each.name for each in await files.files("chats/c")} == set(names[1:])


class FullStore(SqlFiles):
    """A store on a disk without space."""

    async def put(self, *_: Any, **__: Any) -> ScopeFile:
        """Write nothing."""
        raise OSError(28, "No space left on device")


async def test_a_full_disk_costs_the_other_pages_and_not_the_turn() -> None:
    """The model reads the first page, and that there is no more."""
    effects = StagedEffects()
    pages = ToolResultPages(FullStore(FakeRecords().engine, None), WallClock().now)
    text = await pages.cut("chats/c", "a long result", 6, effects)
    assert text + effects.footer == "a long\n[cut: the rest of this result was not kept]"
    assert effects.paged is None


async def test_a_page_is_as_untrusted_as_its_result(tmp_path: Path) -> None:
    """After /new the result is out of reach; in its own conversation each page of it taints the turn."""
    text = text_of(200)
    model = HeldScriptModel(calls(("read_it", "{}")), "read")
    untrusted = reading(text, brings=ResultContent.WORDS)
    async with gateway(home=tmp_path / "home", model=model, tools=[untrusted]) as parlour:
        await parlour.channel.ask("c", "read it")
        name = name_of(results(model.asked[1])[0])
        model.script.extend([calls(read_page(name, 2)), "read on"])
        await parlour.channel.ask("c", "go on")
        await parlour.idle()
        (session,) = parlour.home.rglob("sessions/*.jsonl")
        lines = [json.loads(line) for line in session.read_text().splitlines()]
        pages = [line for line in lines if line.get("role") == "tool"]
        assert [line.get("origin") for line in pages] == ["untrusted", "untrusted"]


async def test_erased_words_go_from_results_too(tmp_path: Path) -> None:
    """/forget removes every stored result that contains the words."""
    text = text_of(150) + "The secret is blue cheese.\n"
    model = HeldScriptModel(calls(("read_it", "{}")), "read")
    async with gateway(home=tmp_path / "home", model=model, tools=[reading(text)]) as parlour:
        await parlour.channel.ask("c", "read about blue cheese")
        await parlour.idle()
        assert stored_files(parlour.home, FileKind.RESULT)
        question = await parlour.channel.ask("c", "/forget blue cheese")
        yes = re.search(r"/memory approve f[a-z2-7]{16}", question)
        assert yes, question
        await parlour.channel.ask("c", yes[0])
        await parlour.idle()
        assert not stored_files(parlour.home, FileKind.RESULT)


async def test_sources_are_listed_below_the_answer(tmp_path: Path) -> None:
    """Those of the turn's results that the answer does not link itself."""

    @tool("Read a page.", kind=ToolKind.WEB, name="open_page", brings=ResultContent.WORDS)
    async def open_page(_: ToolContext, url: str) -> ToolResult:
        return ToolResult(text="a page", sources=[AnswerSource(url, f"Title of {url[-1]}")])

    pages = [("open_page", json.dumps({"url": f"https://example.org/{name}"})) for name in "ab"]
    model = HeldScriptModel(calls(*pages), "Read at https://example.org/a, and elsewhere.")
    async with gateway(home=tmp_path / "home", model=model, tools=[open_page]) as parlour:
        answer = await parlour.channel.ask("c", "read both")
    assert answer == ("Read at https://example.org/a, and elsewhere.\n\nSources: [Title of b](https://example.org/b)")
