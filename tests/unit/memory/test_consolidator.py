"""Killed at every write of a consolidation: one entry, one fact, the right pointer, and it is paid for once."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from agent.base.disk import Disk
from agent.base.scopes import scope_folder
from agent.memory.erasure.message_deletions import DELETION_JOBS
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.privacy import EXPORT_JOBS
from agent.memory.prompt.due_jobs import APPLY, CONSOLIDATE, PROMPT, SUMMARISE, consolidation_job
from agent.memory.storage.messages import MessageRange
from agent.memory.update.conversation_updates import APPLY_JOBS, UPDATE_JOBS
from gateway.app.context import JOB_KINDS
from gateway.ports.journal import Job
from tests.fakes.consolidation_scene import TURNS, ConsolidationScene, begin
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, killed_runs


async def consolidate(world: ConsolidationScene, disk: Disk | None) -> None:
    """Do the consolidation that is due, in a process with this disk."""
    await world.run(world.consolidator(disk))


async def test_killed_at_every_write_there_is_one_of_everything(tmp_path: Path) -> None:
    """The model is asked once unless the kill came before its answer was stored; nothing is there twice."""
    async for at, world in killed_runs(tmp_path, begin, consolidate, more_than=1):
        assert [(each.start, each.end) for each in world.history.after(0)] == [(0, 8)], at
        assert world.pointers() == [8]
        assert await world.memory() == "- old fact\n- new fact\n"
        assert world.model.calls == 1, at


async def test_entry_pointer_and_edit_are_one_transaction(tmp_path: Path) -> None:
    """No reader of the store sees one of them without the others, whichever write a kill came at."""
    async for at, world in killed_runs(tmp_path, begin, _killed_once, more_than=1):
        entries, pointers = len(world.history.after(0)), len(world.pointers())
        has_fact = "- new fact" in await world.memory()
        assert (entries, pointers) in ((0, 0), (1, 1)), at
        assert has_fact is bool(entries), at


async def _killed_once(world: ConsolidationScene, disk: Disk | None) -> None:
    if disk is not None:
        await consolidate(world, disk)


async def test_a_line_that_was_undone_stays_so_behind_a_kill(tmp_path: Path) -> None:
    """The answer was applied, its job not yet removed, and a person took the line back: it is not added again."""
    world = await begin(tmp_path)
    updates = world.consolidator()
    (job,) = world.jobs.jobs.values()
    await updates.ask(job)
    answer = next(each for each in world.jobs.jobs.values() if each.kind == APPLY)
    await updates.apply(answer)
    documents = world.records.documents
    applied = await documents.read(SCOPE, "MEMORY.md")
    assert applied.text == "- old fact\n- new fact\n"
    await documents.write(SCOPE, "MEMORY.md", "- old fact\n", was=applied.rev, why="undo")
    await updates.apply(answer)
    assert await world.memory() == "- old fact\n"
    assert (len(world.history.after(0)), world.pointers()) == (1, [8])


async def test_after_three_bad_answers_the_messages_themselves_are_kept(tmp_path: Path) -> None:
    """The window moves on, memory is as it was, and the raw archive holds what was said."""
    world = await begin(tmp_path)
    world.model.bad_answers = 99
    await world.run(world.consolidator())
    assert world.model.calls == 3
    [entry] = world.history.after(0)
    assert entry.content.startswith("[raw] 8 messages")
    assert world.pointers() == [8]
    raw = (scope_folder(tmp_path, SCOPE) / "memory" / "raw.jsonl").read_text()
    assert all(f"question {n}" in raw for n in range(4))
    assert "question 4" not in raw
    assert await world.memory() == "- old fact\n"


async def test_a_job_that_was_noticed_twice_is_done_once(tmp_path: Path) -> None:
    """While an answer waits to be applied, and after the pointer has moved, the same span is nobody's any more."""
    world = await begin(tmp_path)
    consolidator = world.consolidator()
    [job] = world.jobs.jobs.values()
    assert await consolidator.ask(job) is None
    await world.jobs.finish(job)
    later = replace(job, payload={**job.payload, "end": 10})
    assert await consolidator.ask(later) is None
    await world.run(consolidator)
    assert await consolidator.ask(later) is None
    assert world.model.calls == 1
    assert [(each.start, each.end) for each in world.history.after(0)] == [(0, 8)]


async def test_an_answer_is_applied_as_it_is_stored_then(tmp_path: Path) -> None:
    """Words that were erased from the job after it was claimed are not brought back by it."""
    world = await begin(tmp_path)
    consolidator = world.consolidator()
    [job] = world.jobs.jobs.values()
    await consolidator.ask(job)
    [claimed] = [each for each in world.jobs.jobs.values() if each.kind == APPLY]
    erased = json.loads(json.dumps(claimed.payload).replace("new fact", "what is left"))
    world.jobs.jobs[claimed.id] = replace(claimed, payload=erased)
    await consolidator.apply(claimed)
    assert await world.memory() == "- old fact\n- what is left\n"


async def test_the_summary_of_an_archive_waits_for_what_is_under_way(tmp_path: Path) -> None:
    """/new comes between answer and pointer: what the archive's summary takes begins where the last one ended."""
    world = await begin(tmp_path)
    consolidator = world.consolidator()
    [job] = world.jobs.jobs.values()
    await consolidator.ask(job)
    await world.jobs.finish(job)
    payload = {"key": str(ANN), "transcript": TRANSCRIPT, "turn": "t", "length": 2 * TURNS}
    ending = Job(id=f"{SUMMARISE}:{TRANSCRIPT}", kind=SUMMARISE, scope=SCOPE, payload=payload, due_at=START)
    await world.jobs.put(ending)
    waits = await consolidator.ask(ending)
    assert waits == RetryJobLater(waits.delay, waits.reason, counts=False) if waits else pytest.fail("it did not wait")
    assert [each.kind for each in world.jobs.jobs.values() if each.kind == APPLY] == [APPLY]
    await world.run(consolidator)
    assert [(each.start, each.end) for each in world.history.after(0)] == [(0, 8), (8, 12)]
    assert world.model.calls == 2


async def test_of_a_transcript_that_is_in_a_summary_there_is_nothing_to_summarise(tmp_path: Path) -> None:
    """/new of a conversation that was just consolidated whole asks no model."""
    world = await begin(tmp_path)
    await world.jobs.finish(next(iter(world.jobs.jobs.values())))
    await world.jobs.put(consolidation_job(ANN, SCOPE, TRANSCRIPT, MessageRange(0, 12), START))
    consolidator = world.consolidator()
    await world.run(consolidator)
    payload = {"key": str(ANN), "transcript": TRANSCRIPT, "turn": "t", "length": 12}
    await world.jobs.put(Job(id="s", kind=SUMMARISE, scope=SCOPE, payload=payload, due_at=START))
    await world.run(consolidator)
    assert world.model.calls == 1


async def test_what_does_not_fit_one_question_takes_several(tmp_path: Path) -> None:
    """Each ends where a person begins to speak; the pointer moves with each, and every message is in one entry."""
    world = await begin(tmp_path, question="why " * 200)  # 200 tokens each
    world.prompt_limit = 1_050
    await world.run(world.consolidator())
    spans = [(each.start, each.end) for each in world.history.after(0)]
    assert len(spans) > 1
    assert spans[0][0] == 0
    assert spans[-1][1] == 8
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert all(end % 2 == 0 for _, end in spans)
    assert world.pointers() == [end for _, end in spans]


async def test_at_most_five_rounds_follow_one_another(tmp_path: Path) -> None:
    """What is left then is due again with the next turn, which sees that it left the window."""
    world = await begin(tmp_path, turns=12, until=24, question="why " * 200)
    world.prompt_limit = 800
    await world.run(world.consolidator())
    assert world.pointers() == [2, 4, 6, 8, 10]


async def test_a_question_that_is_refused_as_too_long_is_made_smaller(tmp_path: Path) -> None:
    """The model's limit is smaller than anybody knew: less is asked at once, and nothing is left out."""
    world = await begin(tmp_path, question="why " * 200)
    world.prompt_limit = 2_600
    world.model.takes = 3_000
    await world.run(world.consolidator())
    spans = [(each.start, each.end) for each in world.history.after(0)]
    assert world.model.refused >= 1
    assert len(spans) > 1
    assert spans[-1][1] == 8
    assert not any(each.raw for each in world.history.after(0))


async def test_what_no_model_takes_is_extracted_at_once(tmp_path: Path) -> None:
    """The messages go into the raw archive and an entry says so; nobody waits for a third failure."""
    world = await begin(tmp_path)
    world.prompt_limit = 2_000
    world.model.takes = 1
    await world.run(world.consolidator())
    [entry] = world.history.after(0)
    assert entry.content.startswith("[raw] 8 messages")
    assert world.pointers() == [8]
    assert world.model.refused == 3
    assert "question 3" in (scope_folder(tmp_path, SCOPE) / "memory" / "raw.jsonl").read_text()


async def test_one_giant_message_is_summarised_by_its_beginning(tmp_path: Path) -> None:
    """A word as long as a book does not wedge the conversation: the question shows a part and says so."""
    world = await begin(tmp_path, question="book " * 50_000)
    world.prompt_limit = 4_000
    await world.run(world.consolidator())
    assert [(each.start, each.end) for each in world.history.after(0)][-1][1] == 8
    assert all(len(shown) < 16_000 for shown in world.model.shown)
    assert "not all of them shown here" in world.model.shown[0]


async def test_jobs_of_earlier_releases_are_run(tmp_path: Path) -> None:
    """Each prompt was a kind of job, and answers had three; rows with those kinds are asked about and applied."""
    world = await begin(tmp_path)
    (job,) = world.jobs.jobs.values()
    payload = {name: value for name, value in job.payload.items() if name != PROMPT}
    world.jobs.jobs = {job.id: replace(job, kind=CONSOLIDATE, payload=payload)}
    await world.run(world.updates())
    assert world.pointers() == [job.payload["end"]]
    assert JOB_KINDS["summarise"] is JOB_KINDS["flush"] is UPDATE_JOBS
    assert JOB_KINDS["apply_raw"] is JOB_KINDS["flushed"] is APPLY_JOBS
    assert (JOB_KINDS["unexport"], JOB_KINDS["unlearn"]) == (EXPORT_JOBS, DELETION_JOBS)
