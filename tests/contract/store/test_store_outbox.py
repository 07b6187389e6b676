"""The outbox: in order, cut once, each part accounted for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.errors import LeaseLost
from gateway.events import Attachment, InboundMessage, MessagePart, OutboundMessage, SessionKey
from gateway.ports.journal import PUSH, PartState, PendingDelivery, TurnLease
from gateway.store.sql_store import SqlStore
from tests.contract.store.conftest import StoreBackend
from tests.fakes.turns import (
    ANN,
    BOB,
    accept,
    answer,
    answered,
    begin_turn,
    claim,
    next_delivery,
    parts_of,
    receipt,
    said,
    settle,
)


def states(delivery: PendingDelivery) -> list[PartState]:
    """Return the states of a delivery's parts."""
    return [row.state for row in delivery.parts]


async def frozen(store: SqlStore, count: int) -> tuple[OutboundMessage, list[MessagePart]]:
    """Answer Ann and freeze the answer's parts."""
    await answer(store, said(), "answer")
    message = (await next_delivery(store)).message
    parts = parts_of(message, count)
    await store.outbox.freeze(message, parts)
    return message, parts


async def test_messages_come_in_commit_order(store: SqlStore) -> None:
    """The next one comes when the last part of the one before is sent, to whom has sent it."""
    await answer(store, said(id="1"), "one", "two")
    chats = store.outbox.chats()
    assert await anext(chats) == ANN
    for text in ("one", "two"):
        delivery = await next_delivery(store)
        assert (delivery.message.text, delivery.parts, delivery.preview) == (text, (), None)
        (part,) = parts_of(delivery.message, 1)
        await store.outbox.freeze(delivery.message, [part])
        assert await store.outbox.mark_sent(receipt(part)) == (text == "one")
        await answer(store, said(id=f"b{text}", key=BOB), "x")
        assert await anext(chats) == BOB  # the chat of who sends is not offered again
    assert await store.outbox.next(ANN) is None


async def test_replies_to_commands_give_way_to_answers(backend: StoreBackend) -> None:
    """An answer goes before replies that wait, behind the one that is being sent, and a kill changes nothing of it."""
    store = await backend.open()
    for n in range(3):
        await accept(store, said("/status", id=f"c{n}"), is_control=True)
        await settle(store, await anext(store.journal.control_rows()), f"status {n}")
    first = await next_delivery(store)
    await store.outbox.freeze(first.message, parts_of(first.message, 2))
    await answer(store, said(), "answer")
    store = await backend.reopen()
    assert await anext(store.outbox.chats()) == ANN
    waiting = [each.message.text for each in await store.outbox.undelivered(ANN)]
    assert waiting == ["status 0", "answer", "status 1", "status 2"]
    again = await next_delivery(store)
    assert again.message.text == "status 0"


async def test_parts_are_frozen_once(backend: StoreBackend) -> None:
    """Another cut after a restart changes nothing: what the first stored is sent."""
    store = await backend.open()
    message, parts = await frozen(store, 3)
    again = await store.outbox.freeze(message, parts_of(message, 1))
    assert [row.part for row in again] == parts
    assert [row.state for row in again] == [PartState.SENDING, PartState.PENDING, PartState.PENDING]
    assert [row.attempts for row in again] == [1, 0, 0]
    store = await backend.reopen()
    assert await anext(store.outbox.chats()) == ANN
    delivery = await next_delivery(store)
    assert [row.part for row in delivery.parts] == parts
    assert states(delivery) == [PartState.UNKNOWN, PartState.PENDING, PartState.PENDING]


async def commit_cut(store: SqlStore, message: InboundMessage, *texts: str, count: int = 2) -> list[MessagePart]:
    """Accept, claim and commit *message*, whose answer's first text is stored in *count* parts; return those."""
    await accept(store, message)
    lease = await claim(store, message.key)
    commit = answered(lease, *texts)
    parts = parts_of(commit.outbound[0], count)
    await store.journal.commit(lease, replace(commit, parts=tuple(parts)))
    return parts


async def test_a_commit_marks_the_first_part_of_its_reply(store: SqlStore) -> None:
    """Whoever delivers it gets it as marked, once, and has nothing to freeze; the message behind it is cut later."""
    parts = await commit_cut(store, said(), "answer", "more")
    delivery = await next_delivery(store)
    assert (delivery.is_marked, [row.part for row in delivery.parts]) == (True, parts)
    assert states(delivery) == [PartState.SENDING, PartState.PENDING]
    again = await next_delivery(store)
    assert (again.is_marked, [row.part for row in again.parts], states(again)) == (False, parts, states(delivery))
    assert await store.outbox.mark_sent(receipt(parts[0]), then=parts[1])
    assert await store.outbox.mark_sent(receipt(parts[1]))
    behind = await next_delivery(store)
    assert (behind.message.text, behind.parts, behind.is_marked) == ("more", (), False)


async def test_a_marked_reply_is_doubtful_after_a_kill(backend: StoreBackend) -> None:
    """It may have been sent: the next process looks it up, or says so."""
    store = await backend.open()
    await commit_cut(store, said(), "answer")
    store = await backend.reopen()
    delivery = await next_delivery(store)
    assert (delivery.is_marked, states(delivery)) == (False, [PartState.UNKNOWN, PartState.PENDING])


async def test_a_marked_reply_that_nobody_took_is_not_doubtful_after_a_stop(backend: StoreBackend) -> None:
    """A deliberate stop gives the attempt back, so that nobody reads that the answer may have come before."""
    store = await backend.open()
    await commit_cut(store, said(), "answer")
    await store.close()
    delivery = await next_delivery(await backend.open())
    assert (delivery.is_marked, states(delivery)) == (False, [PartState.PENDING, PartState.PENDING])
    assert delivery.parts[0].attempts == 0


async def test_a_reply_behind_another_message_is_not_marked(store: SqlStore) -> None:
    """It is cut when its turn has come: nothing is marked as sending that is not sent next."""
    await answer(store, said(id="1"), "one")
    await commit_cut(store, said(id="2"), "two")
    one, two = await store.outbox.undelivered(ANN)
    assert (one.message.text, one.parts, two.message.text, two.parts) == ("one", (), "two", ())
    delivery = await next_delivery(store)
    assert (delivery.message.text, delivery.is_marked) == ("one", False)


async def test_a_reply_whose_turn_has_a_preview_is_not_marked(store: SqlStore) -> None:
    """Its first part takes the preview over, which is known when it is cut."""
    lease = await begin_turn(store)
    await store.outbox.preview(lease, preview_part(lease))
    commit = answered(lease, "answer")
    await store.journal.commit(lease, replace(commit, parts=tuple(parts_of(commit.outbound[0], 1))))
    delivery = await next_delivery(store)
    assert (delivery.parts, delivery.is_marked) == ((), False)
    assert delivery.preview is not None


async def test_a_commit_without_the_lease_marks_nothing(store: SqlStore) -> None:
    """Neither is its reply delivered, nor is one that the next holder of the lane marked given back by its stop."""
    lease = await begin_turn(store)
    await store.journal.release(lease)
    commit = answered(lease, "answer")
    with pytest.raises(LeaseLost):
        await store.journal.commit(lease, replace(commit, parts=tuple(parts_of(commit.outbound[0], 1))))
    assert await store.outbox.next(ANN) is None


async def test_a_receipt_marks_the_next_part_in_one_write(backend: StoreBackend) -> None:
    """After a kill exactly the part that was on its way is unknown."""
    store = await backend.open()
    _, parts = await frozen(store, 3)
    await store.outbox.mark_sent(receipt(parts[0], "901"), then=parts[1])
    store = await backend.reopen()
    delivery = await next_delivery(store)
    assert states(delivery) == [PartState.SENT, PartState.UNKNOWN, PartState.PENDING]
    assert delivery.parts[0].message_id == "901"
    await store.outbox.sending(parts[1])
    await store.outbox.mark_sent(receipt(parts[1]), then=parts[2])
    assert (await next_delivery(store)).parts[1].attempts == 2
    assert not await store.outbox.mark_sent(receipt(parts[2]))
    await store.outbox.mark_sent(receipt(parts[2]))
    assert await store.outbox.next(ANN) is None


async def test_a_receipt_says_whether_the_chat_has_more(store: SqlStore) -> None:
    """More of this message, sent next or not, or another message; no part of another chat."""
    await answer(store, said(id="b", key=BOB), "for Bob")
    _, parts = await frozen(store, 3)
    await answer(store, said(id="2"), "two")
    assert await store.outbox.mark_sent(receipt(parts[0]), then=parts[1])
    assert await store.outbox.mark_sent(receipt(parts[1]))
    assert await store.outbox.mark_sent(receipt(parts[2]))
    last = (await next_delivery(store)).message
    (part,) = parts_of(last, 1)
    await store.outbox.freeze(last, [part])
    assert not await store.outbox.mark_sent(receipt(part))


async def test_what_became_of_a_part_is_kept(store: SqlStore) -> None:
    """Unsure is unknown, unsent is pending again; neither ends the message or touches what is sent."""
    _, parts = await frozen(store, 2)
    await store.outbox.mark_uncertain(parts[0], "connection lost")
    assert states(await next_delivery(store)) == [PartState.UNKNOWN, PartState.PENDING]
    await store.outbox.mark_unsent(parts[0], "429")
    assert states(await next_delivery(store)) == [PartState.PENDING, PartState.PENDING]
    await store.outbox.sending(parts[0])
    await store.outbox.mark_sent(receipt(parts[0]), then=parts[1])
    await store.outbox.mark_uncertain(parts[0], "late")
    assert states(await next_delivery(store)) == [PartState.SENT, PartState.SENDING]


async def test_a_placeholder_is_remembered(backend: StoreBackend) -> None:
    """Where a part is going to stand survives a kill and every state but the last; the receipt has the last word."""
    store = await backend.open()
    _, parts = await frozen(store, 2)
    assert (await next_delivery(store)).parts[0].message_id == ""
    await store.outbox.mark_placed(parts[0], "700")
    row = (await next_delivery(store)).parts[0]
    assert (row.state, row.message_id) == (PartState.SENDING, "700")
    store = await backend.reopen()
    row = (await next_delivery(store)).parts[0]
    assert (row.state, row.message_id) == (PartState.UNKNOWN, "700")
    await store.outbox.mark_unsent(parts[0], "429")
    await store.outbox.sending(parts[0])
    await store.outbox.mark_placed(parts[0], "701")  # the first one was deleted
    assert (await next_delivery(store)).parts[0].message_id == "701"
    await store.outbox.mark_sent(receipt(parts[0], "701"), then=parts[1])
    await store.outbox.mark_placed(parts[0], "late")
    first, second = (await next_delivery(store)).parts
    assert (first.state, first.message_id) == (PartState.SENT, "701")
    assert (second.state, second.message_id) == (PartState.SENDING, "")


async def test_a_placeholder_that_stands_is_filled_though_the_turn_is_stopped(store: SqlStore) -> None:
    """/stop between the placeholder and its text: that part is delivered, the later ones are not."""
    message, parts = await frozen(store, 3)
    await store.outbox.mark_placed(parts[0], "700")
    await store.outbox.mark_unsent(parts[0], "429")
    assert await store.outbox.cancel(message.turn) == (1,)
    assert states(await next_delivery(store)) == [PartState.PENDING, PartState.CANCELLED, PartState.CANCELLED]
    await store.outbox.mark_sent(receipt(parts[0], "700"))
    assert await store.outbox.next(ANN) is None


async def test_a_refused_part_ends_its_message(store: SqlStore) -> None:
    """Later parts are dead-lettered with it, and the chat goes on with its next message."""
    await answer(store, said(id="1"), "one", "two")
    message = (await next_delivery(store)).message
    parts = parts_of(message, 3)
    await store.outbox.freeze(message, parts)
    await store.outbox.mark_sent(receipt(parts[0]), then=parts[1])
    await store.outbox.dead_letter(parts[1], "blocked")
    assert (await next_delivery(store)).message.text == "two"
    story = await store.journal.trace(message.turn)
    assert story is not None
    assert [(dead.id, dead.key, dead.reason) for dead in story.dead] == [
        (parts[1].id, ANN, "blocked"),
        (parts[2].id, ANN, "blocked"),
    ]
    assert [part["state"] for part in story.parts] == ["sent", "dead", "dead"]


async def test_dead_letters_are_told_by_channel_and_reason(backend: StoreBackend) -> None:
    """Chats of one channel are one line, whoever they were; the latest reason stands first."""
    store = await backend.open()
    deaths = [(ANN, "blocked"), (BOB, "blocked"), (SessionKey("slack", "C1/9"), "channel_not_found")]
    for minute, (key, reason) in enumerate(deaths):
        backend.wall.advance(minutes=minute)
        await answer(store, said(id=f"d{minute}", key=key), "one")
        delivery = await store.outbox.next(key)
        assert delivery is not None
        parts = [replace(part, key=key) for part in parts_of(delivery.message, 2)]
        await store.outbox.freeze(delivery.message, parts)
        await store.outbox.dead_letter(parts[0], reason)
    groups = await store.outbox.dead(limit=10)
    assert [(group.channel, group.reason, group.count) for group in groups] == [
        ("slack", "channel_not_found", 2),
        ("telegram", "blocked", 4),
    ]
    assert groups[0].newest == backend.wall.now()
    assert await store.outbox.dead(limit=1) == groups[:1]


async def test_a_message_of_no_parts_is_delivered(store: SqlStore) -> None:
    """What renders to nothing does not block its chat."""
    await answer(store, said(), "one", "two")
    assert await store.outbox.freeze((await next_delivery(store)).message, []) == ()
    assert (await next_delivery(store)).message.text == "two"


def preview_part(lease: TurnLease) -> MessagePart:
    """Return the turn's row 0."""
    return MessagePart(id=f"{lease.turn}.0.1", key=lease.key, payload="so far", plain="so far")


async def test_a_preview_is_adopted_by_the_first_message(backend: StoreBackend) -> None:
    """It never comes out of next; it survives a kill as unknown, and one message takes it over."""
    store = await backend.open()
    lease = await begin_turn(store)
    row = await store.outbox.preview(lease, preview_part(lease))
    assert (row.state, row.attempts) == (PartState.SENDING, 1)
    assert await store.outbox.next(ANN) is None
    store = await backend.reopen()
    assert await store.outbox.next(ANN) is None
    lease = await claim(store)
    again = await store.outbox.preview(lease, preview_part(lease))
    assert again.state is PartState.UNKNOWN
    await store.outbox.mark_sent(receipt(again.part, "800"))
    await store.journal.commit(lease, answered(lease, "one", "two"))
    first, second = await store.outbox.undelivered(ANN)
    assert first.preview is not None
    assert (first.preview.state, first.preview.message_id) == (PartState.SENT, "800")
    parts = parts_of(first.message, 1)
    await store.outbox.freeze(first.message, parts)
    assert (await next_delivery(store)).preview is not None
    await store.outbox.mark_sent(receipt(parts[0], "800"))
    delivery = await next_delivery(store)
    assert (delivery.message.text, delivery.preview) == (second.message.text, None)


async def test_a_private_answer_does_not_take_over_a_public_preview(store: SqlStore) -> None:
    """What all have seen is not turned into what one may see, nor the other way round."""
    lease = await begin_turn(store)
    await store.outbox.preview(lease, preview_part(lease))
    commit = answered(lease, "private")
    object.__setattr__(commit.outbound[0], "visible_to", "ann")
    await store.journal.commit(lease, commit)
    delivery = await next_delivery(store)
    assert (delivery.message.visible_to, delivery.preview) == ("ann", None)


async def test_a_preview_needs_the_lease(store: SqlStore) -> None:
    """A worker that lost its lane shows nothing."""
    lease = await begin_turn(store)
    await store.journal.release(lease)
    with pytest.raises(LeaseLost):
        await store.outbox.preview(lease, preview_part(lease))


async def test_cancel_stops_what_is_not_on_its_way(store: SqlStore) -> None:
    """It says what was shown; the rest never goes out, and the chat is free."""
    message, parts = await frozen(store, 3)
    await store.outbox.mark_sent(receipt(parts[0]), then=parts[1])
    assert await store.outbox.cancel(message.turn) == (1, 2)
    assert states(await next_delivery(store)) == [PartState.SENT, PartState.SENDING, PartState.CANCELLED]
    await store.outbox.mark_sent(receipt(parts[1]), then=parts[2])
    assert await store.outbox.next(ANN) is None
    assert await store.outbox.cancel(message.turn) == (1, 2)


async def test_cancel_before_any_part_leaves_only_the_preview(store: SqlStore) -> None:
    """Number 0 is the preview that stays in the chat. A worker that has the message already cannot freeze it."""
    lease = await begin_turn(store)
    row = await store.outbox.preview(lease, preview_part(lease))
    await store.outbox.mark_sent(receipt(row.part))
    await store.journal.commit(lease, answered(lease, "one"))
    message = (await next_delivery(store)).message
    assert await store.outbox.cancel(lease.turn) == (0,)
    assert await store.outbox.freeze(message, parts_of(message, 1)) == ()
    assert await store.outbox.next(ANN) is None
    assert await store.outbox.cancel("tunknown") == ()


async def test_pruning_blanks_files_as_texts(backend: StoreBackend) -> None:
    """Names and captions of files that went out go with the texts, from the message and from its parts."""
    store = await backend.open()
    message, _ = await frozen(store, 1)
    await answer(store, said(id="2"), "secret")
    await store.outbox.mark_sent(receipt(parts_of(message, 1)[0]))
    second = (await next_delivery(store)).message
    file = Attachment(kind="document", name="diagnosis.pdf", size=3, blob="people/ann/abc", caption="mine")
    part = replace(parts_of(second, 1)[0], file=file)
    (row,) = await store.outbox.freeze(second, [part])
    assert row.part.file == file
    await store.outbox.mark_sent(receipt(part))
    backend.wall.advance(days=8)
    await store.prune()
    (row,) = await store.outbox.freeze(second, [])
    assert (row.part.file, row.part.plain, row.state) == (None, "", PartState.SENT)


async def test_pruning_blanks_then_forgets(backend: StoreBackend) -> None:
    """Texts go after their week, rows with the keys; what is undelivered stays whole."""
    store = await backend.open()
    message, parts = await frozen(store, 1)
    await store.outbox.mark_sent(receipt(parts[0]))
    await answer(store, said(id="2"), "waiting")
    backend.wall.advance(days=6)
    await store.prune()
    (row,) = await store.outbox.freeze(message, [])
    assert row.part.payload == parts[0].payload
    backend.wall.advance(days=2)
    await store.prune()
    (row,) = await store.outbox.freeze(message, [])
    assert (row.part.payload, row.state) == ("", PartState.SENT)
    assert (await next_delivery(store)).message.text == "waiting"
    backend.wall.advance(days=23)
    assert await store.prune() >= 1
    story = await store.journal.trace(message.turn)
    assert story is not None
    assert story.parts == ()


async def test_a_sent_message_is_found_by_its_id_in_its_chat(store: SqlStore) -> None:
    """In the chat and its threads, by the id of any part; another chat's message of the same id is another message."""
    message, parts = await frozen(store, 2)
    ids = ["900", "901"]
    for part, id_ in zip(parts, ids, strict=True):
        await store.outbox.mark_sent(receipt(part, id_))
    thread = SessionKey(ANN.channel, f"{ANN.chat}/7")
    for key in (ANN, thread):
        for id_ in ids:
            assert await store.outbox.sent_message(key, id_) == message
    assert await store.outbox.sent_message(BOB, ids[0]) is None
    assert await store.outbox.sent_message(ANN, "no such id") is None
    assert await store.outbox.sent_message(ANN, "") is None


async def test_parts_are_moved_once_and_keep_what_was_sent(store: SqlStore) -> None:
    """The rest of a message goes to another chat under new numbers; what is finished, or was erased, is left alone."""
    message, parts = await frozen(store, 3)
    question = await store.outbox.question(message.turn)
    assert question is not None
    assert (question.text, question.sender.id) == ("hello", "ann")
    await store.outbox.mark_sent(receipt(parts[0]), then=parts[1])
    moved = [replace(parts[1], id=f"{message.id}.4", moved_to="elsewhere", key=SessionKey(ANN.channel, "elsewhere"))]
    assert not await store.outbox.move(message, parts[1], moved, replace(question, text="erased"))
    assert not await store.outbox.move(replace(message, text="erased"), parts[1], moved, question)
    assert not await store.outbox.move(message, parts[0], moved, question)
    assert await store.outbox.move(message, parts[1], moved, question)
    delivery = await next_delivery(store)
    cancelled = [PartState.CANCELLED, PartState.CANCELLED]
    assert states(delivery) == [PartState.SENT, *cancelled, PartState.PENDING]
    assert delivery.parts[-1].part == moved[0]
    assert not await store.outbox.move(message, parts[1], moved, question)
    await store.outbox.mark_sent(receipt(moved[0], "901"))
    assert await store.outbox.next(ANN) is None
    assert not await store.outbox.move(message, moved[0], moved, question)
    assert await store.outbox.question("tunknown") is None


async def test_the_question_of_a_turn_expires_with_its_words(backend: StoreBackend) -> None:
    """Nothing of it is quoted once it was blanked."""
    store = await backend.open()
    message, _ = await frozen(store, 1)
    backend.wall.advance(days=8)
    await store.prune()
    question = await store.outbox.question(message.turn)
    assert question is None or question.text == ""


async def test_an_answer_that_nobody_saw_is_announced_once(backend: StoreBackend) -> None:
    """The job is queued by the transaction that marks the part as sent: not before a kill, and once however often."""
    store = await backend.open()
    message, (part, later) = await frozen(store, 2)
    unseen = replace(receipt(part), notify_at=receipt(part).at)
    store = await backend.reopen()
    assert await store.jobs.pending_of(PUSH) == ()
    for _ in range(2):
        await store.outbox.mark_sent(unseen)
        store = await backend.reopen()
    (job,) = await store.jobs.pending_of(PUSH)
    assert (job.id, job.scope, job.due_at) == (f"{PUSH}:{message.turn}", "", unseen.at)
    assert set(job.payload) == {"at"}  # none of its words
    await store.jobs.finish(job)
    await store.outbox.mark_sent(unseen)  # as of a gateway that lost the chat meanwhile
    await store.outbox.mark_sent(receipt(later))
    assert await store.jobs.pending_of(PUSH) == ()
