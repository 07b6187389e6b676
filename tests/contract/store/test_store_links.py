"""Accounts and persons: one transaction each way, the same when done twice, there again after a kill."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from gateway.events import PlatformAccount, SessionKey
from gateway.ports.access import ScopeMove
from gateway.ports.journal import Job, MessageOutcome, TurnRecord
from gateway.store.sql_store import SqlStore
from tests.contract.store.conftest import StoreBackend
from tests.fakes.turns import START, accept, answered, claim, parts_of, receipt, said

ANN, BOB = "telegram%3a42", "slack%3at1%3au7"
CHATS = {ANN: SessionKey("telegram", "42"), BOB: SessionKey("slack", "D1")}
LINK = ScopeMove(id="link:1", kind="link", source=f"people/{BOB}", target=f"people/{ANN}", at=START)
UNLINK = ScopeMove(
    id="unlink:1",
    kind="unlink",
    source=f"people/{ANN}",
    target=f"people/{BOB}",
    at=START + timedelta(hours=1),
    account=PlatformAccount.from_name(BOB),
)


async def talked(store: SqlStore, account: str) -> None:
    """Have a direct chat of an account with two messages in it, a job about it, and a choice."""
    key = CHATS[account]
    session = await store.journal.session(key)
    record = TurnRecord(
        turn=f"t{account[0]}",
        key=key,
        transcript=session.transcript,
        scope=f"people/{account}",
        outcome=MessageOutcome.ANSWERED,
        lines=(),
        from_index=0,
        to_index=2,
        inbox=(),
        at=START,
    )
    await store.records.append(record)
    payload = {"key": str(key)}
    job = Job(id=f"note:{account}", kind="note", scope=f"people/{account}", payload=payload, due_at=START)
    await store.jobs.put(job)
    await store.people.prefer(f"people/{account}", "language", account[:2])


async def answer_as_ann(store: SqlStore, key: SessionKey, message_id: str, text: str) -> None:
    """Answer a message of a chat of Ann's, linked ones included."""
    await accept(store, said(key=key, id=message_id))
    lease = await claim(store, key)
    await store.journal.commit(lease, answered(lease, text, scope=f"people/{ANN}"))


async def test_linked_accounts_are_one_person_with_everything_there_is_of_them(backend: StoreBackend) -> None:
    """Sessions, jobs and whose chat is whose; doing it again changes nothing; a kill neither."""
    store = await backend.open()
    for account in (ANN, BOB):
        await talked(store, account)
    await store.people.prefer(f"people/{BOB}", "timezone", "Europe/Berlin")
    assert store.links.person(PlatformAccount.from_name(BOB)) == BOB
    assert store.links.accounts(ANN) == ()
    for _ in range(2):
        await store.links.link(LINK)
    assert store.people.preferences(f"people/{ANN}") == {"language": "te", "timezone": "Europe/Berlin"}
    store = await backend.reopen()
    assert store.people.preferences(f"people/{ANN}") == {"language": "te", "timezone": "Europe/Berlin"}
    assert store.links.person(PlatformAccount.from_name(BOB)) == ANN
    assert [each.account.name for each in store.links.accounts(ANN)] == [ANN, BOB]
    assert store.links.account_of(CHATS[BOB]) == PlatformAccount.from_name(BOB)
    assert {row.scope for row in await store.records.sessions()} == {f"people/{ANN}"}
    assert {each.id for each in await store.jobs.pending_in(f"people/{ANN}")} == {f"note:{ANN}", f"note:{BOB}"}
    (move,) = await store.links.moves()
    assert move == replace(LINK, single=(ANN, BOB))
    await store.links.mark_moved(move)
    assert await store.links.moves() == []


async def test_unlinked_each_has_their_own_and_begins_anew(backend: StoreBackend) -> None:
    """Chats go with their account, every conversation has a new transcript, and the old ones are to be summarised."""
    store = await backend.open()
    for account in (ANN, BOB):
        await talked(store, account)
    before = {row.key: row.transcript for row in await store.records.sessions()}
    await store.links.link(LINK)
    await store.links.mark_moved(LINK)
    for _ in range(2):
        await store.links.unlink(UNLINK)
    assert store.links.person(PlatformAccount.from_name(BOB)) == BOB
    assert store.links.accounts(ANN) == ()
    for account in (ANN, BOB):
        session = await store.journal.session(CHATS[account])
        assert session.scope == f"people/{account}"
        assert session.next_index == 0
        assert session.transcript != before[CHATS[account]]
        ids = {each.id for each in await store.jobs.pending_in(f"people/{account}")}
        assert ids == {f"note:{account}", f"summarise:{before[CHATS[account]]}"}
    (move,) = await store.links.moves()
    assert move.since == START
    assert move.keys == (str(CHATS[BOB]),)
    assert dict(move.ended) == {str(key): transcript for key, transcript in before.items()}


async def test_unlinked_answers_that_were_delivered_are_blank(store: SqlStore) -> None:
    """One chat may show the other's memory: no later erasure of its owner reaches it. What is not sent yet stays."""
    for account in (ANN, BOB):
        await talked(store, account)
    await store.links.link(LINK)
    await store.links.mark_moved(LINK)
    for n, key in enumerate(CHATS.values()):
        await answer_as_ann(store, key, f"1{n}", "my zeppelin leaks")
        delivery = await store.outbox.next(key)
        assert delivery is not None
        (part,) = parts_of(delivery.message, 1)
        await store.outbox.freeze(delivery.message, [part])
        await store.outbox.mark_sent(receipt(part, f"90{n}"))
    bob = CHATS[BOB]
    await answer_as_ann(store, bob, "2", "a late zeppelin")
    await store.links.unlink(UNLINK)
    delivered = [await store.outbox.sent_message(key, f"90{n}") for n, key in enumerate(CHATS.values())]
    assert [each and each.text for each in delivered] == ["", ""]
    late = await store.outbox.next(bob)
    assert late is not None
    assert late.message.text == "a late zeppelin"
    (part,) = parts_of(late.message, 1)
    await store.outbox.freeze(late.message, [part])
    await store.outbox.mark_sent(receipt(part, "905"))
    (move,) = await store.links.moves()
    await store.links.mark_moved(move)
    left = await store.outbox.messages_of(late.message.turn)
    assert "zeppelin" not in str(left)


async def test_a_note_is_replaced_by_who_knows_what_it_was(store: SqlStore) -> None:
    """Two who take up the same offer: one of them is told that it is not what it was."""
    assert await store.links.note("offer:1", "open", was="")
    assert not await store.links.note("offer:1", "bob", was="")
    assert await store.links.note("offer:1", "bob", was="open")
    assert not await store.links.note("offer:1", "eve", was="open")
    assert await store.links.notes() == {"offer:1": "bob"}
    assert await store.links.note("offer:1", "", was="bob")
    assert await store.links.notes() == {}


async def test_a_late_pointer_does_not_say_where_a_session_stands(store: SqlStore) -> None:
    """A record of a transcript that has ended leaves the session's scope as it is."""
    await talked(store, ANN)
    session = await store.journal.session(CHATS[ANN])
    record = TurnRecord(
        turn="plate",
        key=CHATS[ANN],
        transcript="anothertranscrip",
        scope="people/elsewhere",
        outcome=MessageOutcome.ANSWERED,
        lines=(),
        from_index=session.next_index,
        to_index=session.next_index,
        inbox=(),
        at=START,
    )
    await store.records.append(record)
    assert (await store.journal.session(CHATS[ANN])).scope == f"people/{ANN}"
