"""Commits leave out the words that are being erased, within the rights of the person who erases them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent.memory.erasure.word_eraser import CommitFilter
from agent.reminders.reminder import REMIND
from gateway.app.context import JOB_KINDS
from gateway.events import Attachment, OutboundMessage
from gateway.ports.journal import REMEMBER, Job, JobAdvance, TurnCommit, TurnRecord
from gateway.ports.memory import FileKind, HistoryEntry
from tests.fakes.memory import SCOPE, START, exchange

WORD = "zeppelin"
FILTER = CommitFilter(JOB_KINDS)


def erasure(kind: str = "forget", *, may_all: bool = True, sender: str = "42", turn: str = "t1") -> Job:
    """Return the job of an erasure that has just begun."""
    payload = {"words": WORD, "person": f"telegram:{sender}", "sender": sender, "may_all": may_all, "turn": turn}
    return Job(id=f"{kind}:{turn}", kind=kind, scope=SCOPE, payload=payload, due_at=START)


def job(n: int, kind: str, text: str) -> Job:
    """Return a job of a commit."""
    payload = {"fact": text, "text": text, "person": "telegram:43"}
    return Job(id=f"{kind}:{n}", kind=kind, scope=SCOPE, payload=payload, due_at=START)


def record(text: str) -> TurnRecord:
    """Return a turn that says *text*."""
    return exchange(0, 0, said=text)


def said_in(record: TurnRecord) -> list[Mapping[str, Any]]:
    """Return its messages."""
    return [line for line in record.lines if line.get("role")]


def test_the_words_are_left_out_and_everything_else_stays() -> None:
    """Lines keep their number, order and ids; a job with the words is dropped, and an erasure's own job is not."""
    before = record(f"my {WORD} leaks")
    jobs = (job(1, REMEMBER, f"a {WORD}"), job(2, REMEMBER, "a boat"), job(3, REMIND, f"the {WORD}"), erasure())
    picture = Attachment(kind="image", name=f"{WORD}.png", size=1)
    message = OutboundMessage(id="t2.1", key=before.key, text=f"your {WORD}", attachments=(picture,))
    moved = JobAdvance(job(4, REMIND, "a boat"), job(5, REMIND, f"a {WORD}"))
    commit = TurnCommit(record=before, outbound=(message,), jobs=jobs, advances=(moved,))
    cleared = FILTER.clear_commit([erasure()], commit)
    assert WORD not in str((cleared.record.lines, cleared.outbound))
    assert [(each.get("i"), each.get("role")) for each in cleared.record.lines] == [
        (each.get("i"), each.get("role")) for each in before.lines
    ]
    assert replace(cleared.record, lines=before.lines) == before
    assert [each.id for each in cleared.jobs] == [f"{REMEMBER}:2", "forget:t1"]
    assert cleared.advances == (replace(moved, next=None),)
    assert replace(cleared.outbound[0], text=message.text, attachments=(picture,)) == message
    clean = TurnCommit(record=record("my boat leaks"), jobs=jobs[1:2])
    assert FILTER.clear_commit([erasure(), erasure("purge", turn="t2")], clean) == clean


def test_the_turn_that_erases_is_stored_as_it_is() -> None:
    """Its answer is about the erasure, and its messages were chosen by it already."""
    commit = TurnCommit(record=record(f"forget my {WORD}"))
    assert FILTER.clear_commit([erasure(turn=commit.record.turn)], commit) == commit


@pytest.mark.parametrize("sender", ["43", "44"])
def test_a_member_leaves_other_peoples_turns_alone(sender: str) -> None:
    """In a group only the member's own messages and their answers lose the words, and only their own reminders."""
    member = erasure(may_all=False, sender=sender)
    commit = TurnCommit(record=record(f"my {WORD} leaks"), jobs=(job(1, REMEMBER, f"a {WORD}"),))
    assert FILTER.clear_commit([member], commit) == commit
    reminder = job(2, REMIND, f"a {WORD}")
    assert FILTER.clear_job([member], reminder) == (None if sender == "43" else reminder)


def test_documents_lose_lines_that_the_requester_may_erase() -> None:
    """An admin erases every line with the words, a member those that they add themselves."""
    before = {"MEMORY.md": f"- a {WORD}\n"}
    texts = {"MEMORY.md": f"- a {WORD}\n- a boat\n- one more {WORD}\n"}
    member = erasure(may_all=False, sender="43")
    assert FILTER.clear_texts([erasure()], texts, before, "") == {"MEMORY.md": "- a boat\n"}
    assert FILTER.clear_texts([member], texts, before, "telegram:42") == texts
    assert FILTER.clear_texts([member], texts, before, "telegram:43") == {"MEMORY.md": f"- a {WORD}\n- a boat\n"}


def test_summaries_and_messages_without_one_lose_the_words() -> None:
    """Only an admin's erasure takes them out of summaries, which are about everybody."""
    entry = HistoryEntry(timestamp="2026-11-20 10:00", content=f"She sails.\nThe {WORD} leaks.", entry="e1")
    assert FILTER.clear_entry([erasure()], entry).content == "She sails."
    assert FILTER.clear_entry([erasure(may_all=False)], entry) == entry
    messages = said_in(record(f"my {WORD} leaks"))
    assert WORD not in str(FILTER.clear_messages([erasure()], messages))


def test_files_lose_the_words_as_in_a_pass() -> None:
    """A workspace's file as an admin's erasure leaves it, and a result for everybody's; None is not kept."""
    before = f"a {WORD}\na boat\n".encode()
    assert FILTER.clear_file([erasure()], FileKind.WORKSPACE, "a.txt", before) == b"a boat\n"
    assert FILTER.clear_file([erasure()], FileKind.WORKSPACE, f"{WORD}.txt", b"a boat") is None
    packed = WORD.encode() + b"\xff"
    assert FILTER.clear_file([erasure()], FileKind.WORKSPACE, "a.zip", packed) == packed
    assert FILTER.clear_file([erasure("purge")], FileKind.WORKSPACE, "a.zip", packed) is None
    member = erasure(may_all=False)
    assert FILTER.clear_file([member], FileKind.WORKSPACE, "a.txt", before) == before
    assert FILTER.clear_file([member], FileKind.RESULT, "r", before) is None
    assert FILTER.clear_file([member], FileKind.RESULT, "r", b"a boat") == b"a boat"
