"""Erasures against what reads before them and writes after: turns, queued turns, hand edits; wraps, base64, escapes."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agent.base.transcript_lines import utc_now
from agent.llm.scripted_model import ScriptEntry
from agent.memory.editing.staged_changes import StagedChange
from agent.memory.editing.text_operations import AddLines
from agent.memory.erasure import erase_service
from gateway.ports.memory import FORGET, PURGE, HistoryEntry
from tests.e2e.agent.test_consolidation import WINDOW, SummaryModel
from tests.e2e.agent.test_purge import ROOM, wait_until_purged
from tests.fakes.canaries import ASCII, CYRILLIC, where
from tests.fakes.documents import edit_by_hand, stored_changes
from tests.fakes.held_model import HeldModel, HeldScriptModel, calls, results
from tests.fakes.history_log import HistoryLog
from tests.fakes.inprocess_gateway import OPEN, InProcessGateway, gateway
from tests.fakes.staged_changes import erase

ANN = "people/pocket%3aann"
ADMIN: dict[str, Any] = {"sender": "ann", "group": True, "is_admin": True}
IN_GROUP: dict[str, Any] = {"group": True}
BOTH = pytest.mark.parametrize("purge", ["", " --purge"])


def lines(home: Path, word: str = ASCII, *, scope: str = ROOM) -> list[str]:
    """Return the lines of a scope's conversations with *word*, but for the commands about it."""
    text = "".join(path.read_text() for path in sorted((home / scope / "sessions").glob("*.jsonl")))
    return [each for each in text.splitlines() if word in each and f"/forget {word}" not in each]


async def until_at_rest(parlour: InProcessGateway) -> None:
    """Return when the erasures of the room are done, or wait for a turn."""
    while True:
        purges = parlour.app.commands.erasure.purge_jobs
        jobs = [each for each in await parlour.app.store.jobs.pending_in(ROOM) if each.kind in (FORGET, PURGE)]
        if all(each.id in purges.progress and each.due_at > utc_now() for each in jobs):
            return
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let erasures ask for turns that have ended often, and not for ten seconds at a time."""
    monkeypatch.setattr(erase_service, "_MAX_POLLS", 2)
    monkeypatch.setattr(erase_service, "_RETRY_DELAY", timedelta(seconds=1))


async def yes_to(parlour: InProcessGateway, command: str) -> None:
    """Ask for an erasure in the room, and say yes to it."""
    answer = await erase(parlour.channel.ask, "room", command, **ADMIN)
    assert answer.startswith("Done.")


def hold_erasures(parlour: InProcessGateway, patch: pytest.MonkeyPatch, until: Callable[[], Awaitable[Any]]) -> None:
    """Let every erasure but the first wait for *until*."""
    eraser = parlour.app.commands.erasure.word_eraser
    forget, count = eraser.forget, 0

    async def held(*given: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        if count > 1:
            await until()
        return await forget(*given, **more)

    patch.setattr(eraser, "forget", held)


@BOTH
@pytest.mark.parametrize("begins", ["before", "meanwhile"])
async def test_a_turn_reads_before_the_batch_and_commits_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, purge: str, begins: str
) -> None:
    """It ends while the command is still at work, when the lines of its chat were looked at already."""
    model = HeldScriptModel("hello", f"a red {ASCII}", held=[2])
    async with gateway(home=tmp_path / "home", model=model, policy=OPEN) as parlour:
        say = parlour.channel.say
        await parlour.channel.ask("room", f"my {ASCII} leaks", **ADMIN)
        answers: list[Awaitable[Any]] = []

        async def begin_turn() -> None:
            _, answered = await say("room/thread", "which colour?", sender="bob", **IN_GROUP)
            answers.append(answered)
            await model.called(2)

        if begins == "before":
            await begin_turn()
        eraser = parlour.app.commands.erasure.word_eraser
        go_on = eraser.request_new_snapshots

        async def end_turn(*given: Any) -> None:
            if not answers:
                await begin_turn()
            model.go(2)
            await answers[0]
            await go_on(*given)

        monkeypatch.setattr(eraser, "request_new_snapshots", end_turn)
        await yes_to(parlour, f"/forget {ASCII}{purge}")
        await wait_until_purged(parlour, ROOM)
        assert lines(parlour.home) == []
    assert not purge or not where(tmp_path / "home", ASCII)


@BOTH
async def test_a_turn_that_follows_such_a_turn_ends_long_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, purge: str
) -> None:
    """The commit of the first one leaves the words out, so that the next message of the chat is answered without."""
    model = HeldScriptModel("hello", f"a red {ASCII}", "yes", held=[2, 3])
    async with gateway(home=tmp_path / "home", model=model, policy=OPEN) as parlour:
        say = parlour.channel.say
        await parlour.channel.ask("room", f"my {ASCII} leaks", **ADMIN)
        _, first = await say("room/thread", "which colour?", sender="bob", **IN_GROUP)
        await model.called(2)
        _, second = await say("room/thread", "really?", sender="eve", **IN_GROUP)
        hold_erasures(parlour, monkeypatch, lambda: model.called(3))
        await yes_to(parlour, f"/forget {ASCII}{purge}")
        model.go(2)
        assert ASCII not in str(await first)
        assert ASCII not in str((await model.called(3)).messages)
        await until_at_rest(parlour)
        assert lines(parlour.home) == []
        model.go(3)
        await second
        await wait_until_purged(parlour, ROOM)
        assert lines(parlour.home) == []
        await parlour.channel.ask("room/thread", "and now?", sender="bob", **IN_GROUP)
        assert ASCII not in str(model.asked[-1].messages)
    assert not purge or not where(tmp_path / "home", ASCII)


async def test_a_turn_claimed_before_the_erasure_of_a_group_ends_long_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The yes comes in a direct chat, so a job erases: a turn that begins between the two knows the words."""
    model = HeldScriptModel("hello", f"a red {ASCII}", held=[2])
    async with gateway(home=tmp_path / "home", model=model, policy=OPEN) as parlour:
        ask = parlour.channel.ask
        await ask("room", f"my {ASCII} leaks", sender="ann", **IN_GROUP)
        question = await ask("room", f"/forget {ASCII} --purge", sender="ann", **IN_GROUP)
        began = asyncio.Event()
        eraser = parlour.app.commands.erasure.word_eraser
        forget = eraser.forget

        async def held(*given: Any, **more: Any) -> Any:
            began.set()
            await model.called(2)
            return await forget(*given, **more)

        monkeypatch.setattr(eraser, "forget", held)
        (approve,) = re.findall(r"/memory approve f[a-z2-7]{16}", question)
        assert "erasing this from the group" in await ask("ann", approve)
        await began.wait()
        _, answered = await parlour.channel.say("room", "which colour?", sender="ann", **IN_GROUP)
        assert ASCII in str((await model.called(2)).messages)
        await until_at_rest(parlour)
        assert lines(parlour.home) == []
        model.go(2)
        await answered
        await wait_until_purged(parlour, ROOM)
    assert not where(tmp_path / "home" / ROOM, ASCII)


async def test_a_summary_that_is_being_made_does_not_bring_the_words_back(tmp_path: Path) -> None:
    """The model has read the messages: its answer, the stored answer, the history and the document lose the words."""

    def summarise(n: int, memory: str) -> dict[str, str]:
        word = ASCII if n == 1 else "a leak"  # it is asked again without them
        told = f"She told of {word}. She sails."
        return {"history_entry": f"[2026-11-22 10:00] {told}", "memory_update": f"{memory}\n- owns a {word}\n- sails"}

    home, model = tmp_path / "home", SummaryModel(summarise)
    model.go_on.clear()
    async with gateway(home=home, model=model, environment=WINDOW) as parlour:
        for n in range(6):
            await parlour.channel.ask("ann", f"my {ASCII} leaks, for the {n}th time")
        await model.thinking.wait()
        answer = await erase(parlour.channel.ask, "ann", f"/forget {ASCII} --purge")
        assert answer.startswith("Done.")
        model.go_on.set()
        await wait_until_purged(parlour, ANN)
        entries = [each.content for each in HistoryLog(home / ANN / "memory").after(0)]
    assert where(home, ASCII) == {}
    assert all("She sails." in each for each in entries)


async def test_a_preview_that_is_being_written_leaves_no_words(tmp_path: Path) -> None:
    """The answer was shown in part before the purge, and goes on behind it: nothing of it stays in the outbox."""
    home, text = tmp_path / "home", f"the {ASCII} is as red as ever it was, and it leaks"
    model = HeldModel(text, first=30)
    async with gateway(home=home, model=model, policy=OPEN) as parlour:
        _, answered = await parlour.channel.say("room/thread", "which colour?", sender="bob", **IN_GROUP)
        await model.wait_asked(1)
        await parlour.channel.ask("room", f"/remember my {ASCII} leaks", **ADMIN)
        await yes_to(parlour, f"/forget {ASCII} --purge")
        model.go_on.set()
        await answered
        await wait_until_purged(parlour, ROOM)
    assert where(home, ASCII) == {}


@BOTH
async def test_a_change_that_a_job_proposes_meanwhile_is_erased_and_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, purge: str
) -> None:
    """A question about it may be on its way: the pass that found it is not the last."""
    model = HeldScriptModel("hello", "fine", held=[2])
    async with gateway(home=tmp_path / "home", model=model, policy=OPEN) as parlour:
        await parlour.channel.ask("room", f"my {ASCII} leaks", **ADMIN)
        _, answered = await parlour.channel.say("room/thread", "which colour?", sender="bob", **IN_GROUP)
        await model.called(2)
        staging, passes = parlour.app.commands.staging, 0

        async def propose() -> None:
            nonlocal passes
            passes += 1
            if passes == 1:
                model.go(2)
                await answered
                waits = StagedChange(name="e1", why="many", at=utc_now(), operations=(AddLines(f"- {ASCII}"),))
                await staging.stage(ROOM, waits)

        hold_erasures(parlour, monkeypatch, propose)
        await yes_to(parlour, f"/forget {ASCII}{purge}")
        await wait_until_purged(parlour, ROOM)
        assert await staging.pending_changes(ROOM) == []
        assert passes >= 2


async def test_words_that_people_write_again_are_not_erased_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is done a purge takes new messages, too: none is stored with the words. What is said then stays."""
    async with gateway(home=tmp_path / "home", model=HeldScriptModel(), policy=OPEN) as parlour:
        await parlour.channel.ask("room", f"my {ASCII} leaks", **ADMIN)
        count = 0

        async def write_again() -> None:
            nonlocal count
            count += 1
            await parlour.channel.ask("room/thread", f"{ASCII} number {count}", sender="bob", **IN_GROUP)
            assert lines(parlour.home) == []

        hold_erasures(parlour, monkeypatch, write_again)
        await yes_to(parlour, f"/forget {ASCII} --purge")
        await wait_until_purged(parlour, ROOM)
        assert count <= 3
        await parlour.channel.ask("room/thread", f"one more {ASCII}", sender="bob", **IN_GROUP)
        await parlour.app.session_files.flush()
        assert [each for each in lines(parlour.home) if "one more" not in each] == []
        assert lines(parlour.home)


async def test_two_purges_at_the_same_time_erase_what_each_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of one are a part of the other's: neither takes them out of the other's job."""
    home = tmp_path / "home"
    model = HeldScriptModel("hello", "fine", "done", held=[3])
    async with gateway(home=home, model=model, policy=OPEN) as parlour:
        await parlour.channel.ask("room", f"my {ASCII} leaks", **ADMIN)
        await parlour.channel.ask("room", f"a {CYRILLIC} and a {ASCII}", **ADMIN)
        _, answered = await parlour.channel.say("room/thread", "which colour?", sender="bob", **IN_GROUP)
        await model.called(3)
        await yes_to(parlour, f"/forget {ASCII} --purge")
        await yes_to(parlour, f"/forget {CYRILLIC} and a {ASCII} --purge")
        await until_at_rest(parlour)
        kept = {
            str(each.payload["words"]) for each in await parlour.app.store.jobs.pending_in(ROOM) if each.kind == PURGE
        }
        assert kept == {ASCII, f"{CYRILLIC} and a {ASCII}"}
        model.go(3)
        await answered
        await wait_until_purged(parlour, ROOM)
    assert not where(home, ASCII)


async def test_a_log_that_was_read_before_a_purge_brings_no_words_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/memory log` has its diffs when the words go out of every version; the ids that it shows are good afterwards."""
    home = tmp_path / "home"
    async with gateway(home=home, model=HeldScriptModel("hello"), policy=OPEN) as parlour:
        ask = parlour.channel.ask
        await ask("room", f"/remember my {ASCII} leaks", **ADMIN)
        await ask("room", "/remember the sea is blue", **ADMIN)
        await parlour.idle()
        sea, leak = stored_changes(home, ROOM)
        service, is_read, may_answer = parlour.app.commands.documents, asyncio.Event(), asyncio.Event()
        diffs = service.diffs

        async def hold(*given: Any) -> list[str]:
            found = await diffs(*given)
            is_read.set()
            await may_answer.wait()
            return found

        monkeypatch.setattr(service, "diffs", hold)
        _, answered = await parlour.channel.say("room/thread", "/memory log", sender="eve", is_admin=True, **IN_GROUP)
        await is_read.wait()
        await yes_to(parlour, f"/forget {ASCII} --purge")
        may_answer.set()
        await answered
        await wait_until_purged(parlour, ROOM)
        assert "the sea is blue" in await ask("room", f"/memory diff {sea.short}", **ADMIN)
        assert "Unknown" not in await ask("room", f"/memory diff {leak.short}", **ADMIN)
        assert (await ask("room", f"/memory undo {sea.short}", **ADMIN)).startswith("Undone")
    assert not where(home, ASCII)


async def test_edits_by_hand_before_and_during_an_erasure(tmp_path: Path) -> None:
    """One that no turn has noticed yet, and one that is saved while the erasure waits for a turn."""
    home = tmp_path / "home"
    model = HeldScriptModel("hello", "fine", held=[2])
    async with gateway(home=home, model=model, policy=OPEN) as parlour:
        ask = parlour.channel.ask
        await ask("room", f"my {ASCII} leaks", **ADMIN)
        await ask("room", "/remember the sea is blue", **ADMIN)
        _, answered = await parlour.channel.say("room/thread", "which colour?", sender="bob", **IN_GROUP)
        await model.called(2)
        memory = home / ROOM / "memory" / "MEMORY.md"
        await parlour.settle_documents()
        edit_by_hand(memory, f"{memory.read_text()}- by hand: {ASCII}\n- by hand: the sun\n")
        await yes_to(parlour, f"/forget {ASCII} --purge")
        await parlour.settle_documents()
        edit_by_hand(memory, f"{memory.read_text()}- again by hand: {ASCII}\n- again by hand: the moon\n")
        model.go(2)
        await answered
        await wait_until_purged(parlour, ROOM)
        text = await parlour.document(ROOM)
    assert [each for each in ("the sea", "the sun", "the moon") if each not in text] == []
    assert not where(home, ASCII)


@BOTH
async def test_an_edit_by_hand_behind_the_last_pass(tmp_path: Path, purge: str) -> None:
    """The files are written at the end, which takes the edit over: its words are erased too."""
    home = tmp_path / "home"
    async with gateway(home=home, policy=OPEN) as parlour:
        await parlour.channel.ask("room", f"/remember my {ASCII} leaks", **ADMIN)
        await parlour.channel.ask("room", "/remember the sea is blue", **ADMIN)
        await parlour.settle_documents()
        memory, purges = home / ROOM / "memory" / "MEMORY.md", parlour.app.commands.erasure.purge_jobs
        edits = [f"- by hand: {ASCII}\n- by hand: the sun\n"]

        async def edit_first(scope: str) -> None:
            if edits:
                edit_by_hand(memory, f"{memory.read_text()}{edits.pop()}")
            await parlour.app.memory_files.settle(scope)

        object.__setattr__(purges, "storage", dataclasses.replace(purges.storage, settle_documents=edit_first))
        await yes_to(parlour, f"/forget {ASCII}{purge}")
        await wait_until_purged(parlour, ROOM)
        text = await parlour.document(ROOM)
        assert not edits
    assert ASCII not in text
    assert [each for each in ("the sea", "the sun") if each not in text] == []
    assert not purge or not where(home, ASCII)


async def test_a_phrase_that_wraps_over_two_lines(tmp_path: Path) -> None:
    """In a message, a call of a tool, a paragraph of memory, a summary, a note, a file, and a change that waits."""
    home, wrapped = tmp_path / "home", f"silver\n{ASCII}"
    written = json.dumps({"name": "a.txt", "text": f"my {wrapped} leaks\nthis stays\n"})
    model = HeldScriptModel(calls(("file_write", written)), "it is written", "hello")
    async with gateway(home=home, model=model) as parlour:
        await parlour.channel.ask("ann", f"write that my {wrapped} leaks")
        memory = home / ANN / "memory"
        memory.mkdir(parents=True, exist_ok=True)
        (memory / "MEMORY.md").write_text(f"# Facts\n\nAnn owns a {wrapped} with a leak.\n\n- Ann sails\n")
        (memory / "2026-11-20-leak.md").write_text(f"# Note\n\n- about the\n  {wrapped} of Ann\n- stays\n")
        summary = HistoryEntry(timestamp="2026-11-20 10:00", content=f"The {wrapped} leaks.\nShe sails.", entry="e1")
        HistoryLog(memory).append(summary)
        waits = StagedChange(name="e1", why="many", at=utc_now(), operations=(AddLines(f"- a\n  {wrapped}"),))
        await parlour.app.commands.staging.stage(ANN, waits)
        assert len(where(parlour.kill(tmp_path / "before"), ASCII)) >= 6
        await erase(parlour.channel.ask, "ann", f"/forget silver {ASCII} --purge")
        await wait_until_purged(parlour, ANN)
    assert where(home, ASCII) == {}
    assert "- Ann sails" in (memory / "MEMORY.md").read_text()


async def test_base64_and_escapes_in_calls_and_results_of_tools(tmp_path: Path) -> None:
    """Of an earlier turn, and of one whose steps are stored while the words are erased."""
    home = tmp_path / "home"
    packed = base64.b64encode(f"all about the {ASCII} and more".encode()).decode()
    escaped = json.dumps(f"all about {CYRILLIC} and more")
    texts = [f"packed: {packed}\n", f"escaped: {escaped}\nhttps://example.org/?q={quote(CYRILLIC)}\n"]
    writes = [calls(("file_write", json.dumps({"name": f"{n}.txt", "text": text}))) for n, text in enumerate(texts)]
    reads = [calls(("file_read", json.dumps({"name": f"{n}.txt"}))) for n in range(2)]
    script: list[ScriptEntry | str] = [*writes, *reads, "done", *reads, "done again"]
    model = HeldScriptModel(*script, held=[8])
    async with gateway(home=home, model=model, policy=OPEN) as parlour:
        ask = parlour.channel.ask
        assert await ask("room", "please write", **ADMIN) == "done"
        assert packed in str(results(model.asked[4]))
        _, answered = await parlour.channel.say("room/thread", "please read", sender="bob", **IN_GROUP)
        await model.called(8)
        before = where(parlour.kill(tmp_path / "before"), ASCII), where(tmp_path / "before", CYRILLIC)
        assert all("journal.db" in found for found in before)
        for word in (ASCII, CYRILLIC):
            await yes_to(parlour, f"/forget {word} --purge")
        model.go(8)
        await answered
        await wait_until_purged(parlour, ROOM)
    assert where(home, ASCII) == {}
    assert where(home, CYRILLIC) == {}
    files = [path for path in home.rglob("*") if path.is_file()]
    assert [path.name for path in files if quote(CYRILLIC).encode() in path.read_bytes()] == []
