"""Commits of turns leave out the words that are being erased, within the rights of the person who erases them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent.memory.erasure.commit_filter import CommitFilter, ErasedWords
from agent.memory.erasure.word_eraser import ErasureRequester
from agent.memory.erasure.word_match import ErasurePattern
from gateway.events import PlatformAccount
from gateway.ports import REMEMBER, Job, TurnRecord
from tests.fakes.memory import SCOPE, START, FakeJobs, exchange

WORD = "zeppelin"
ANN = ErasureRequester(account=PlatformAccount(kind="telegram", id="42"), sender="42", may_all=True)


def words(*, requester: ErasureRequester = ANN, is_purge: bool = False) -> ErasedWords:
    """Return an erasure that has just begun."""
    return ErasedWords(pattern=ErasurePattern(WORD), requester=requester, is_purge=is_purge, begun_at=START)


def job(n: int, kind: str, text: str) -> Job:
    """Return a job of a commit."""
    return Job(id=f"{kind}:{n}", kind=kind, scope=SCOPE, payload={"fact": text}, due_at=START)


def said_in(record: TurnRecord) -> list[Mapping[str, Any]]:
    """Return its messages."""
    return [line for line in record.lines if line.get("role")]


def record(text: str) -> TurnRecord:
    """Return a turn that says *text*."""
    return exchange(0, 0, said=text)


async def test_the_words_are_left_out_and_everything_else_stays() -> None:
    """Lines keep their number, order and ids; a job with the words is dropped, and an erasure's own job is not."""
    commits = CommitFilter(FakeJobs(), lambda: START)
    commits.begin(SCOPE, "forget:t1", words())
    before = record(f"my {WORD} leaks")
    jobs = [job(1, REMEMBER, f"a {WORD}"), job(2, REMEMBER, "a boat"), job(3, "forget", WORD)]
    after, left = await commits.apply(SCOPE, before, jobs)
    assert WORD not in str(after.lines)
    assert [(each.get("i"), each.get("role")) for each in after.lines] == [
        (each.get("i"), each.get("role")) for each in before.lines
    ]
    assert replace(after, lines=before.lines) == before
    assert [each.id for each in left] == [f"{REMEMBER}:2", "forget:3"]
    clean = record("my boat leaks")
    assert (await commits.apply(SCOPE, clean, ()))[0] == clean


async def test_only_its_scope_passes_and_only_until_the_end() -> None:
    """Of two erasures the other one goes on."""
    commits = CommitFilter(FakeJobs(), lambda: START)
    commits.begin(SCOPE, "forget:t1", words())
    commits.begin(SCOPE, "purge:t2", words(is_purge=True))
    assert not commits.has_words("people/bob")
    commits.end(SCOPE, "forget:t1")
    commits.end(SCOPE, "forget:t1")
    assert commits.has_words(SCOPE)
    commits.end(SCOPE, "purge:t2")
    assert not commits.has_words(SCOPE)


async def test_a_member_leaves_other_peoples_turns_alone() -> None:
    """In a group only the member's own messages and their answers lose the words."""
    member = replace(ANN, sender="43", may_all=False)
    commits = CommitFilter(FakeJobs(), lambda: START)
    commits.begin(SCOPE, "forget:t1", words(requester=member))
    before = record(f"my {WORD} leaks")
    jobs = [job(1, REMEMBER, f"a {WORD}")]
    assert await commits.apply(SCOPE, before, jobs) == (before, jobs)


@pytest.mark.parametrize(("minutes", "has_job", "stays"), [(9, False, True), (11, False, False), (11, True, True)])
async def test_an_erasure_whose_command_failed_ends(minutes: int, has_job: bool, stays: bool) -> None:
    """Without its job it ends after ten minutes; with it, an erasure may wait for turns as long as it has to."""
    now, queue = START, FakeJobs()
    commits = CommitFilter(queue, lambda: now)
    commits.begin(SCOPE, "forget:1", words())
    if has_job:
        await queue.put(job(1, "forget", WORD))
    now = START + timedelta(minutes=minutes)
    after, _ = await commits.apply(SCOPE, record(WORD), ())
    assert (WORD not in str(said_in(after))) is stays
    assert commits.has_words(SCOPE) is stays
