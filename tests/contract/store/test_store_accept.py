"""Accepting: durable once, deduplicated, edited and refused as docs/formats.md says."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gateway.errors import UnreadableEvent
from gateway.events import (
    ChatKind,
    InboundKind,
    InboundMessage,
    OutboundKind,
    Role,
    Sender,
    SessionKey,
    edit_revision,
    turn_id,
)
from gateway.ports.journal import AcceptOutcome, InboxRow, MessageOutcome, TurnRecord
from gateway.store import upkeep
from gateway.store.engine import StoreLimits
from gateway.store.inbox import LONGEST_ID
from gateway.store.sql_store import SqlStore
from gateway.text.json_lines import decode_lines
from tests.contract.store.conftest import StoreBackend
from tests.fakes.turns import (
    ANN,
    BOB,
    START,
    accept,
    answer,
    answered,
    begin_turn,
    claim,
    claim_suspect,
    parts_of,
    receipt,
    said,
    settle,
)

LATE = START + timedelta(days=3650)


async def test_a_new_message_is_there_after_a_kill(backend: StoreBackend) -> None:
    """What accept has confirmed survives a kill, whole."""
    store = await backend.open()
    message = said("hällo 👋", reply_to="7", quoted="before", event_ids=("e1",), is_addressed=True)
    acceptance = await store.journal.accept(message, role=Role.ADMIN, is_control=False)
    store = await backend.reopen()
    assert await anext(store.journal.ready_sessions()) == ANN
    lease = await claim(store)
    assert acceptance.outcome is AcceptOutcome.NEW
    assert [(row.seq, row.message, row.role) for row in lease.rows] == [(acceptance.seq, message, Role.ADMIN)]


async def test_a_redelivery_is_a_duplicate_with_the_first_number(store: SqlStore) -> None:
    """The logical key decides, whatever event ids the redelivery carries."""
    first = await accept(store, said(event_ids=("e1",)))
    again = await accept(store, said(event_ids=("e2",)))
    assert (again.outcome, again.seq, again.queued) == (AcceptOutcome.DUPLICATE, first.seq, 1)


async def test_a_redelivery_after_the_answer_stays_a_duplicate(backend: StoreBackend) -> None:
    """An answered message that is delivered again, even after a restart, makes no second turn."""
    store = await backend.open()
    await answer(store, said(), "answer")
    store = await backend.reopen()
    assert (await accept(store, said())).outcome is AcceptOutcome.DUPLICATE
    assert await store.journal.claim(ANN) is None


def long_id(size: int) -> str:
    """Return an id of *size* bytes that no index can compress."""
    return random.Random(size).randbytes(size // 2).hex() + "x" * (size % 2)  # noqa: S311 - no secret


async def test_the_longest_ids_are_stored_by_every_engine(store: SqlStore) -> None:
    """All at once: a chat, a message, an account, a revision, a sender and an event of 512 bytes each."""
    longest = long_id(LONGEST_ID)
    message = said(
        id=longest,
        by=longest[1:] + "1",
        key=SessionKey("telegram", long_id(LONGEST_ID - len("telegram:"))),
        account=longest[::-1],
        revision=longest[2:] + "22",
        event_ids=(longest,),
    )
    assert (await accept(store, message)).outcome is AcceptOutcome.NEW
    assert (await accept(store, message)).outcome is AcceptOutcome.DUPLICATE
    button = replace(message, message_id="", kind=InboundKind.BUTTON, event_ids=(longest[::-1],))
    assert (await accept(store, button, is_control=True)).outcome is AcceptOutcome.NEW
    lease = await claim(store, message.key)
    await store.journal.commit(lease, answered(lease, "one"))
    assert [each.message.text for each in await store.outbox.undelivered(message.key)] == ["one"]


@pytest.mark.parametrize("field", ["id", "by", "key", "account", "revision", "event_ids"])
async def test_a_longer_id_is_refused_in_one_place(store: SqlStore, field: str) -> None:
    """It is an event that cannot be read, on every engine: nothing is stored, and its neighbours are."""
    value: Any = long_id(LONGEST_ID + 1)
    value = {"key": SessionKey("telegram", value), "event_ids": ("e", value)}.get(field, value)
    with pytest.raises(UnreadableEvent, match="an id of 5"):
        await accept(store, said(**{"id": "1", field: value}))
    assert (await accept(store, said(id="2"))).outcome is AcceptOutcome.NEW
    assert [row.message.message_id for row in await store.journal.waiting_rows(ANN)] == ["2"]


async def test_event_ids_do_not_decide_where_there_is_a_message_id(store: SqlStore) -> None:
    """A repeated event id (Telegram's update ids restart) does not swallow another message."""
    await accept(store, said(id="1", event_ids=("e1",)))
    assert (await accept(store, said(id="2", event_ids=("e1",)))).outcome is AcceptOutcome.NEW


async def test_any_of_a_buttons_event_ids_decides(store: SqlStore) -> None:
    """Without a message id one known event id makes a duplicate."""
    button = said("yes", id="", kind=InboundKind.BUTTON, event_ids=("a", "b"))
    await accept(store, button, is_control=True)
    assert (
        await accept(store, replace(button, event_ids=("b", "c")), is_control=True)
    ).outcome is AcceptOutcome.DUPLICATE
    assert (await accept(store, replace(button, event_ids=("c",)), is_control=True)).outcome is AcceptOutcome.NEW


async def test_the_same_message_id_in_another_chat_or_account_is_new(store: SqlStore) -> None:
    """Keys hold the block, the bot account and the chat."""
    await accept(store, said())
    assert (await accept(store, said(key=BOB))).outcome is AcceptOutcome.NEW
    assert (await accept(store, said(key=SessionKey("telegram-work", "42")))).outcome is AcceptOutcome.NEW
    assert (await accept(store, said(account="second"))).outcome is AcceptOutcome.NEW


async def test_an_edit_of_a_waiting_message_replaces_its_text(store: SqlStore) -> None:
    """The edit keeps the message's place and turn, and an edit delivered again is a duplicate."""
    await accept(store, said("one", id="1", event_ids=("e",)))
    await accept(store, said("two", id="2", second=1))
    edit = said("ONE", id="1", revision="r2", second=9)
    assert (await accept(store, edit)).outcome is AcceptOutcome.EDITED
    assert (await accept(store, edit)).outcome is AcceptOutcome.DUPLICATE
    lease = await claim(store)
    message = lease.rows[0].message
    assert (message.text, message.revision, message.sent_at, message.event_ids) == ("ONE", "r2", START, ("e",))
    assert lease.turn == turn_id(said(id="1"))


async def test_an_original_after_its_edit_changes_nothing(store: SqlStore) -> None:
    """A late first revision does not take the edit back."""
    await accept(store, said("new", revision="r2"))
    assert (await accept(store, said("old"))).outcome is AcceptOutcome.DUPLICATE
    assert (await claim(store)).rows[0].message.text == "new"


async def test_an_edit_after_the_claim_is_noted_for_the_next_turn(store: SqlStore) -> None:
    """It opens no turn, and ends with the turn it was told to."""
    lease = await begin_turn(store, said("one"))
    assert (await accept(store, said("ONE", revision="r2"))).outcome is AcceptOutcome.NOTED
    await store.journal.commit(lease, answered(lease))
    assert await store.journal.claim(ANN) is None
    lease = await begin_turn(store, said("two", id="2"))
    assert [note.message.text for note in lease.notes] == ["ONE"]
    await store.journal.commit(lease, answered(lease))
    await accept(store, said("three", id="3"))
    assert (await claim(store)).notes == ()


async def test_a_note_is_told_again_to_a_turn_that_is_claimed_again(store: SqlStore) -> None:
    """A given-back turn gets the notes it had, and none that came later."""
    await answer(store, said("one"))
    await accept(store, said("", kind=InboundKind.DELETION))
    lease = await begin_turn(store, said("two", id="2"))
    await store.journal.release(lease)
    again = await begin_turn(store, said("TWO", id="2", revision="r2"))
    assert [note.message.kind for note in again.notes] == [InboundKind.DELETION]
    assert again.notes[0].seq == lease.notes[0].seq


async def test_a_deletion_ends_a_waiting_message(store: SqlStore) -> None:
    """Nobody answers what was taken back, and its redelivery stays a duplicate."""
    await accept(store, said())
    deletion = said("", kind=InboundKind.DELETION)
    assert (await accept(store, deletion)).outcome is AcceptOutcome.DELETED
    assert (await accept(store, deletion)).outcome is AcceptOutcome.DUPLICATE
    assert (await accept(store, said())).outcome is AcceptOutcome.DUPLICATE
    assert (await accept(store, said("edit", revision="r2"))).outcome is AcceptOutcome.DUPLICATE
    assert await store.journal.claim(ANN) is None


async def test_a_deletion_of_something_unknown_stores_nothing(store: SqlStore) -> None:
    """A stranger's deleted message leaves no row."""
    acceptance = await accept(store, said("", kind=InboundKind.DELETION))
    assert (acceptance.outcome, acceptance.seq) == (AcceptOutcome.DUPLICATE, 0)
    assert (await accept(store, said())).outcome is AcceptOutcome.NEW


async def test_an_edit_behind_the_deletion_of_an_old_message_is_no_new_one(store: SqlStore) -> None:
    """In a chat with a conversation, a deleted message whose keys are gone is not answered through a late edit."""
    await answer(store, said("one"))
    await accept(store, said("", id="of-last-year", kind=InboundKind.DELETION))
    edit = said("edit", id="of-last-year", revision="1800000000")
    assert (await accept(store, edit)).outcome is AcceptOutcome.DUPLICATE
    assert await store.journal.claim(ANN) is None


@pytest.mark.parametrize("command", ["/help", "/new"])
async def test_a_waiting_text_that_becomes_a_command_is_a_turn_of_its_own(backend: StoreBackend, command: str) -> None:
    """Neither the sender's next messages nor a running turn take it up."""
    store = await backend.open(StoreLimits(merge="burst"))
    await accept(store, said("helo", id="1"))
    for n in (2, 3):
        await accept(store, said(f"more {n}", id=str(n), second=n))
    edit = said(command, id="1", revision="1800000000", kind=InboundKind.COMMAND, command=command)
    assert (await accept(store, edit)).outcome is AcceptOutcome.EDITED
    lease = await claim(store)
    assert [row.message.command for row in lease.rows] == [command]
    await store.journal.commit(lease, answered(lease))
    lease = await claim(store)
    assert [row.message.text for row in lease.rows] == ["more 2", "more 3"]
    for row, text in (("4", "helo"), ("5", "behind it")):
        await accept(store, said(text, id=row, second=int(row)))
    await accept(store, replace(edit, message_id="4"))
    assert await store.journal.steer(lease) == ()


async def test_a_late_older_edit_does_not_win(store: SqlStore) -> None:
    """Edits are compared by their time, whichever comes first, while the message waits and after its answer."""
    await accept(store, said("one"))
    newest, older = (said(f"at {at}", revision=edit_revision(at, at)) for at in ("1800000060", "1800000009.5"))
    assert (await accept(store, newest)).outcome is AcceptOutcome.EDITED
    assert (await accept(store, older)).outcome is AcceptOutcome.DUPLICATE
    lease = await claim(store)
    assert lease.rows[0].message.text == "at 1800000060"
    await store.journal.commit(lease, answered(lease))
    later = said("later", revision=edit_revision("1800000061", "later"))
    assert (await accept(store, later)).outcome is AcceptOutcome.NOTED
    assert (await accept(store, replace(older, revision=edit_revision("1800000060.5", "x")))).outcome is (
        AcceptOutcome.DUPLICATE
    )


async def test_two_edits_within_one_second_are_both_seen(store: SqlStore) -> None:
    """A platform whose clock counts seconds gives both the same time; the one that comes later wins."""
    await accept(store, said("one"))
    for words in ("two", "three"):
        edit = said(words, revision=edit_revision("1800000000", words))
        assert (await accept(store, edit)).outcome is AcceptOutcome.EDITED
        assert (await accept(store, edit)).outcome is AcceptOutcome.DUPLICATE
    assert (await claim(store)).rows[0].message.text == "three"


async def test_a_full_chat_is_refused_and_told_once_a_minute(backend: StoreBackend) -> None:
    """Past the limit rows are stored as refused; the chat reads one line per minute."""
    store = await backend.open(StoreLimits(queued_per_chat=2))
    outcomes = [(await accept(store, said(id=str(n)))).outcome for n in range(5)]
    assert outcomes == [AcceptOutcome.NEW] * 2 + [AcceptOutcome.FULL] * 3
    told = await store.outbox.undelivered(ANN)
    assert [(each.message.id, each.message.kind) for each in told] == [
        (f"{turn_id(said(id='2'))}.1", OutboundKind.NOTICE)
    ]
    assert await anext(store.outbox.chats()) == ANN
    backend.wall.advance(minutes=1)
    await accept(store, said(id="9"))
    assert len(await store.outbox.undelivered(ANN)) == 2
    assert (await accept(store, said(id="9"))).outcome is AcceptOutcome.DUPLICATE


@pytest.mark.parametrize("name", ["job:remind/r1/2026-11-21T21:00", "job:task/k1"])
async def test_what_a_person_set_is_never_refused_nor_dropped(backend: StoreBackend, name: str) -> None:
    """It was stored before, within limits of its own: a full chat takes it, once, and /stop leaves it in the queue."""
    store = await backend.open(StoreLimits(queued_per_chat=1, queued=1))
    await accept(store, said())
    due = said("tea", id=name, kind=InboundKind.JOB)
    assert [(await accept(store, due)).outcome for _ in range(2)] == [AcceptOutcome.NEW, AcceptOutcome.DUPLICATE]
    assert (await accept(store, said(id="2"))).outcome is AcceptOutcome.FULL
    assert await store.journal.drop(ANN) == 1
    assert [row.message.message_id for row in await store.journal.waiting_rows(ANN)] == [due.message_id]


async def test_the_last_message_of_a_user_is_known(backend: StoreBackend) -> None:
    """Jobs are no messages of users, and other chats do not count."""
    store = await backend.open()
    assert await store.journal.last_message_at(ANN) is None
    await accept(store, said("tea", id="job:remind/r1/x", kind=InboundKind.JOB))
    await accept(store, said(key=BOB))
    assert await store.journal.last_message_at(ANN) is None
    await accept(store, said(id="1"))
    backend.wall.advance(hours=1)
    await accept(store, said(id="2"))
    assert await store.journal.last_message_at(ANN) == START + timedelta(hours=1)


async def test_one_sender_fills_at_most_half_of_a_shared_chats_queue(backend: StoreBackend) -> None:
    """The other half is for everybody else; a direct chat has one sender, and all of it is theirs."""
    store = await backend.open(StoreLimits(queued_per_chat=6))
    group: dict[str, Any] = {"key": BOB, "chat_kind": ChatKind.GROUP}
    outcomes = [(await accept(store, said(id=f"a{n}", by="ann", **group))).outcome for n in range(5)]
    assert outcomes == [AcceptOutcome.NEW] * 3 + [AcceptOutcome.FULL] * 2
    others = [(await accept(store, said(id=f"{by}{n}", by=by, **group))).outcome for by in "xyz" for n in range(2)]
    assert others == [AcceptOutcome.NEW] * 3 + [AcceptOutcome.FULL] * 3
    direct = [(await accept(store, said(id=f"d{n}"))).outcome for n in range(7)]
    assert direct == [AcceptOutcome.NEW] * 6 + [AcceptOutcome.FULL]


async def test_a_full_chat_does_not_stop_another_one_or_a_command(backend: StoreBackend) -> None:
    """Limits are per chat, and control rows pass."""
    store = await backend.open(StoreLimits(queued_per_chat=1))
    await accept(store, said(id="1"))
    await accept(store, said(id="2"))
    assert (await accept(store, said("/stop", id="3"), is_control=True)).outcome is AcceptOutcome.NEW
    assert (await accept(store, said(key=BOB))).outcome is AcceptOutcome.NEW


async def test_commands_wait_in_a_limited_number(backend: StoreBackend) -> None:
    """A command waits until its reply is on its way; of a shared chat's limit one sender has half."""
    store = await backend.open(StoreLimits(queued_per_chat=4))
    group: dict[str, Any] = {"key": BOB, "chat_kind": ChatKind.GROUP}

    async def command(number: int, by: str) -> AcceptOutcome:
        return (await accept(store, said("/status", id=f"{by}{number}", by=by, **group), is_control=True)).outcome

    assert [await command(n, "mal") for n in range(4)] == [AcceptOutcome.NEW] * 2 + [AcceptOutcome.FULL] * 2
    rows = [await anext(store.journal.control_rows()) for _ in range(2)]
    for row in rows:
        await settle(store, row, "status")
    assert await command(5, "mal") is AcceptOutcome.FULL  # their replies are not sent yet
    assert [await command(n, "ann") for n in range(3)] == [AcceptOutcome.NEW] * 2 + [AcceptOutcome.FULL]
    assert (await accept(store, said(id="hello", by="mal", **group))).outcome is AcceptOutcome.NEW
    for row in rows:
        waiting = [each.message for each in await store.outbox.undelivered(BOB)]
        reply = next(each for each in waiting if each.turn == turn_id(row.message))
        (part,) = parts_of(reply, 1)
        await store.outbox.freeze(reply, [part])
        await store.outbox.mark_sent(receipt(part))
    assert await command(6, "mal") is AcceptOutcome.NEW


@pytest.mark.parametrize("claimed", [0, 2])
async def test_the_whole_backlog_has_a_limit(backend: StoreBackend, claimed: int) -> None:
    """It is exact, and what was claimed leaves room again."""
    store = await backend.open(StoreLimits(queued=5))
    keys = [SessionKey("telegram", str(n)) for n in range(9)]
    for key in keys[:5]:
        await accept(store, said(key=key))
    for key in keys[:claimed]:
        await claim(store, key)
    outcomes = [(await accept(store, said(key=key))).outcome for key in keys[5:]]
    assert outcomes == [AcceptOutcome.NEW] * claimed + [AcceptOutcome.FULL] * (4 - claimed)


async def test_a_control_row_comes_out_of_controls_alone(backend: StoreBackend) -> None:
    """It never waits in the lane, and is offered again after a kill; after a second one it is a suspect."""
    store = await backend.open()
    await accept(store, said("/stop"), is_control=True)
    row = await anext(store.journal.control_rows())
    assert (row.message.text, row.is_control, row.attempts) == ("/stop", True, 0)
    assert await store.journal.claim(ANN) is None
    store = await backend.reopen()
    again = await anext(store.journal.control_rows())
    assert (again.seq, again.is_control, again.attempts) == (row.seq, True, 0)  # only what runs alone is charged
    store = await backend.reopen()
    suspect = await claim_suspect(store)
    assert isinstance(suspect, InboxRow)
    assert (suspect.seq, suspect.is_control, suspect.attempts) == (row.seq, True, 0)


STRANGE = ["\ud800 lone", "nul \0 in it", "\udfff\ud800", "\u202e rtl", "", "\ufdd0 marker"]


@pytest.mark.parametrize("text", STRANGE, ids=ascii)
async def test_strange_text_is_kept_as_it_is(store: SqlStore, text: str) -> None:
    """No text breaks a batch, in any field that a platform fills."""
    key = SessionKey("telegram", f"42{text}")
    message = InboundMessage(
        key=key, message_id=f"1{text}", sender=Sender(id=f"ann{text}", name=text), text=text, sent_at=START
    )
    await accept(store, message)
    assert (await accept(store, message)).outcome is AcceptOutcome.DUPLICATE
    assert await anext(store.journal.ready_sessions()) == key
    lease = await claim(store, key)
    assert lease.rows[0].message == message
    await store.journal.commit(lease, answered(lease, text))
    delivery = await store.outbox.next(key)
    assert delivery is not None
    assert delivery.message.text == text
    [stored] = await store.records.unwritten(0, 10)
    assert decode_lines(stored.body)[1]["content"] == text


async def test_a_dead_letter_and_its_message_stay_known(store: SqlStore) -> None:
    """A message that was set aside is not tried again when its platform repeats it, and the story tells why."""
    lease = await begin_turn(store)
    await store.journal.commit(lease, answered(lease, outcome=MessageOutcome.DEAD, failure="poison"))
    assert (await accept(store, said())).outcome is AcceptOutcome.DUPLICATE
    story = await store.journal.trace(lease.turn[:8])
    assert story is not None
    assert [(dead.id, dead.reason) for dead in story.dead] == [(f"inbox:{lease.rows[0].seq}", "poison")]
    assert story.inbox[0]["state"] == "dead"


async def test_pruning_takes_all_rows_a_few_at_a_time(backend: StoreBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the ended ones nothing stays behind at the edge of a transaction; one that still waits stays, with its key."""
    monkeypatch.setattr(upkeep, "ROWS_AT_ONCE", 2)
    store = await backend.open()
    for n in range(3):
        await answer(store, said(id=f"a{n}"), "answer")
    await accept(store, said("waiting", key=BOB, id="open"))
    for n in range(4):
        await answer(store, said(id=f"b{n}"), "answer")
    store.records.mark_written([record.seq for record in await store.records.unwritten(0, 10)])
    backend.wall.advance(days=31)
    await store.prune()
    # The newest row stays, so that its number is not given again.
    kept = {"open", "b3"}
    for id_ in ("a0", "a1", "a2", "open", "b0", "b1", "b2", "b3"):
        found = await accept(store, said("again", key=BOB if id_ == "open" else ANN, id=id_))
        assert (id_, found.outcome is AcceptOutcome.DUPLICATE) == (id_, id_ in kept)


async def test_texts_go_after_a_week_and_keys_after_a_month(backend: StoreBackend) -> None:
    """Until then a redelivery is a duplicate; numbers are never given twice."""
    store = await backend.open()
    first = await answer(store, said("secret"), "answer")
    await accept(store, said("waiting", id="2"))
    store.records.mark_written([record.seq for record in await store.records.unwritten(0, 10)])
    backend.wall.advance(days=8)
    await store.prune()
    assert (await claim(store)).rows[0].message.text == "waiting"  # only what has ended is blanked
    backend.wall.advance(days=21)
    await store.prune()
    assert (await accept(store, said("secret"))).outcome is AcceptOutcome.DUPLICATE
    backend.wall.advance(days=2)
    assert await store.prune() > 0
    again = await accept(store, said("secret"))
    assert again.outcome is AcceptOutcome.NEW
    assert again.seq > first.rows[0].seq


async def test_a_deletion_is_due_at_once_and_told_once(store: SqlStore) -> None:
    """Nobody need write again for it to count: a job says so, and either that job or the next turn ends the note."""
    await answer(store, said("one"))
    await accept(store, said("", kind=InboundKind.DELETION))
    (job,) = await store.jobs.due(LATE, 5, kinds=("deleted",))
    note = job.payload["note"]
    assert (job.payload["key"], job.payload["mid"]) == (str(ANN), said().message_id)
    told = await store.records.pending_notes(ANN, note)
    assert told is not None
    assert told.message.kind is InboundKind.DELETION
    session = await store.journal.session(ANN)
    record = TurnRecord(
        turn="dabcdefgh",
        key=ANN,
        transcript=session.transcript,
        outcome=MessageOutcome.MERGED,
        lines=(),
        from_index=session.next_index,
        to_index=session.next_index,
        inbox=(),
        at=START,
        scope=session.scope,
    )
    assert await store.records.append_for(note, record)
    assert not await store.records.append_for(note, replace(record, turn="dother"))
    assert await store.records.pending_notes(ANN, note) is None
    await accept(store, said("two", id="2"))
    assert (await claim(store)).notes == ()


async def test_a_turn_that_took_a_deletion_up_keeps_it(store: SqlStore) -> None:
    """What a running turn was told of is that turn's to store."""
    await answer(store, said("one"))
    await accept(store, said("", kind=InboundKind.DELETION))
    lease = await begin_turn(store, said("two", id="2"))
    assert await store.records.pending_notes(ANN, lease.notes[0].seq) is None


async def test_a_deletion_of_what_only_files_know_is_due_too(store: SqlStore) -> None:
    """Keys of old messages leave the journal; where there is a conversation, its files are asked."""
    await answer(store, said("one"))
    await accept(store, said("", id="of-last-year", kind=InboundKind.DELETION))
    (job,) = await store.jobs.due(LATE, 5, kinds=("deleted",))
    assert (job.payload["mid"], job.payload["note"]) == ("of-last-year", 0)
