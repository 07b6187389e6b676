"""Short ways to say what happens in a journal: a message, a record, a commit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.events import (
    DeliveryReceipt,
    InboundMessage,
    MessagePart,
    OutboundMessage,
    Role,
    Sender,
    SessionKey,
    turn_id,
)
from gateway.ports.journal import (
    AcceptResult,
    InboxRow,
    Job,
    MessageOutcome,
    PendingDelivery,
    SessionRow,
    TurnCommit,
    TurnLease,
    TurnRecord,
    UsageRow,
)
from gateway.store.sql_store import SqlStore

START = datetime(2026, 11, 21, 21, 0, tzinfo=UTC)
ANN = SessionKey("telegram", "42")
BOB = SessionKey("telegram", "43")


class WallClock:
    """A wall clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = START

    def now(self) -> datetime:
        """Return the time."""
        return self.time

    def advance(self, **span: float) -> None:
        """Move the clock by a timedelta's arguments."""
        self.time += timedelta(**span)


def said(text: str = "hello", **fields: Any) -> InboundMessage:
    """Return a message of Ann in her chat; *id*, *by*, *second* and any field may differ."""
    sender = Sender(id=fields.pop("by", "ann"))
    at = START + timedelta(seconds=fields.pop("second", 0))
    return InboundMessage(
        key=fields.pop("key", ANN), message_id=fields.pop("id", "1"), sender=sender, text=text, sent_at=at, **fields
    )


async def accept(store: SqlStore, message: InboundMessage, *, is_control: bool = False) -> AcceptResult:
    """Accept *message* from a member."""
    return await store.journal.accept(message, role=Role.MEMBER, is_control=is_control)


async def claim(store: SqlStore, key: SessionKey = ANN) -> TurnLease:
    """Claim the lane's next turn, which must be there, also as the suspect that it may be."""
    lease = await store.journal.claim(key) or await claim_suspect(store)
    assert isinstance(lease, TurnLease), f"nothing to claim in {key}"
    assert lease.key == key
    return lease


async def claim_suspect(store: SqlStore, *, beside: int = 0) -> TurnLease | InboxRow | None:
    """Claim the next suspect and put it on trial."""
    suspect = await store.journal.claim_suspect(beside=beside)
    if suspect is None:
        return None
    assert await store.journal.begin_trial(suspect, ())
    return suspect.work


async def begin_turn(store: SqlStore, message: InboundMessage | None = None) -> TurnLease:
    """Accept *message*, by default Ann's first one, and claim the next turn of her chat."""
    await accept(store, message or said())
    return await claim(store)


async def next_delivery(store: SqlStore) -> PendingDelivery:
    """Return what is delivered next in Ann's chat; there must be something."""
    delivery = await store.outbox.next(ANN)
    assert delivery is not None
    return delivery


async def settle(store: SqlStore, row: InboxRow, text: str) -> TurnRecord:
    """Commit *text* as the reply to a control row."""
    session = await store.journal.session(row.message.key)
    lease = TurnLease(key=row.message.key, turn=turn_id(row.message), epoch=0, rows=(row,), session=session)
    commit = answered(lease, text, to_index=session.next_index)
    return await store.journal.settle(row, commit)


def answered(lease: TurnLease, *texts: str, **fields: Any) -> TurnCommit:
    """Return the commit of *lease*: one user line, one answer line, one outbound message per text."""
    start = lease.session.next_index
    jobs: tuple[Job, ...] = fields.pop("jobs", ())
    given: dict[str, Any] = {"outcome": MessageOutcome.ANSWERED, "to_index": start + 2, "from_index": start}
    record = TurnRecord(
        turn=lease.turn,
        key=lease.key,
        transcript=lease.session.transcript,
        lines=(
            {"i": start, "turn": lease.turn, "role": "user", "content": lease.rows[0].message.text},
            {"i": start + 1, "turn": lease.turn, "role": "assistant", "content": "".join(texts)},
            {"kind": "end", "turn": lease.turn},
        ),
        inbox=tuple(row.seq for row in lease.rows),
        at=START,
        **(given | fields),
    )
    return TurnCommit(record=record, outbound=outbound(lease, *texts), jobs=jobs)


def outbound(lease: TurnLease, *texts: str) -> tuple[OutboundMessage, ...]:
    """Return the turn's messages, rows 1 and up."""
    return tuple(
        OutboundMessage(id=f"{lease.turn}.{row}", key=lease.key, text=text) for row, text in enumerate(texts, 1)
    )


def plain_record(turn: str, session: SessionRow, **fields: Any) -> TurnRecord:
    """Return a record that takes no index, as commands and pointer lines make them."""
    given: dict[str, Any] = {
        "outcome": MessageOutcome.ANSWERED,
        "lines": ({"kind": "command", "turn": turn},),
        "inbox": (),
        "from_index": session.next_index,
        "to_index": session.next_index,
    }
    return TurnRecord(turn=turn, key=session.key, transcript=session.transcript, at=START, **(given | fields))


async def answer(store: SqlStore, message: InboundMessage, *texts: str) -> TurnLease:
    """Accept, claim and commit *message* with *texts* as the answer."""
    await accept(store, message)
    lease = await claim(store, message.key)
    await store.journal.commit(lease, answered(lease, *texts))
    return lease


def parts_of(message: OutboundMessage, count: int) -> list[MessagePart]:
    """Cut *message* into *count* equal parts."""
    return [message.part(n, f"{message.text} {n}", f"{message.text} {n}") for n in range(1, count + 1)]


def receipt(part: MessagePart, message_id: str = "900") -> DeliveryReceipt:
    """Return the platform's word for *part*."""
    return DeliveryReceipt(part=part.id, message_id=message_id, at=START)


def spent(turn: str, **fields: Any) -> UsageRow:
    """Return a usage row of ten tokens in and two out."""
    given: dict[str, Any] = {
        "person": "people/ann",
        "chat": str(ANN),
        "purpose": "answer",
        "model": "m",
        "tokens_in": 10,
        "tokens_out": 2,
        "tokens_cached": 0,
        "cost": None,
        "at": START,
    }
    return UsageRow(turn=turn, **(given | fields))
