"""The outbox: messages in order per chat, their frozen parts, one state each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from gateway.errors import StoreUnavailable
from gateway.events import DeliveryReceipt, InboundMessage, MessagePart, OutboundMessage, SessionKey
from gateway.ports.journal import PUSH, Job, OutboxPart, PartState, PendingDelivery, TurnLease
from gateway.store.adoption import AdoptedRange, is_uncertain
from gateway.store.claims import IS_HELD, claim_name
from gateway.store.database import BURY, LISTED, LOCKED, Database
from gateway.store.engine import StoreEngine
from gateway.store.row_codec import (
    encode_job,
    micros,
    moment,
    put_job,
    quote,
    read_inbound,
    read_json,
    read_key,
    read_outbound,
    read_part,
    sql,
    unquote,
    write_json,
    write_key,
    write_part,
)
from gateway.store.session_queue import check_lease

KEEP = timedelta(days=30)  # keys of ended messages
_RETRY_SECONDS = 1.0
_RECEIPT_WITHIN = 0.02  # seconds; less than the call took, whose end is in doubt as well if the process is killed


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup:
    """Dead letters of one channel that died of one reason."""

    channel: str
    reason: str
    count: int
    newest: datetime


def _turn_of(id_: str) -> str:
    """Return the turn of a message or part. Its operations touch the turn's rows, and those behind them in the chat."""
    return id_.partition(".")[0]


class SqlOutbox:
    """Durable deliveries, in order per chat. The same durability promise as the journal."""

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine

    def chats(self) -> AsyncIterator[SessionKey]:
        """Yield each chat that has something to deliver: the last run's first, then as commits enqueue.

        After the delivery of a message, ask for the next one of its chat.
        """
        return self._engine.chats.stream()

    async def next(self, key: SessionKey) -> PendingDelivery | None:
        """Return the chat's oldest message with an unfinished part; previews never come out of here."""
        engine = self._engine
        if (cut := engine.cut.get(key)) is not None and cut.is_marked:
            return engine.cut.pop(key)
        try:
            found = await engine.writer.submit(
                lambda database: next_delivery(database, key, engine.owner if engine.claims.is_shared else ""),
                group=key.parent,
            )
        except StoreUnavailable:
            engine.wake_at(_RETRY_SECONDS, partial(engine.wake_chat, key))
            raise
        # A commit whose result was lost is in the database all the same. It comes again: what is taken has no parts.
        cut = engine.cut.get(key)
        if cut is None or not cut.parts or found is None or found.message != cut.message:
            return found
        if tuple(replace(row, at=None) for row in found.parts) != cut.parts:
            return found
        if cut.is_marked:
            del engine.cut[key]
        else:
            engine.cut[key] = replace(cut, parts=())
        return replace(found, is_marked=True)

    async def freeze(self, message: OutboundMessage, parts: Sequence[MessagePart]) -> tuple[OutboxPart, ...]:
        """Store the parts once and mark the first as sending; a second call returns the stored parts.

        Stores and returns none of a message that was cancelled meanwhile, or whose words an erasure has changed.
        """
        now, adopted = self._engine.now(), self._engine.adopted
        cut = [(part, write_part(part)) for part in parts]
        return await self._engine.writer.submit(
            lambda database: freeze(database, message, cut, now, adopted), group=_turn_of(message.id)
        )

    async def sending(self, part: MessagePart) -> MessagePart | None:
        """Mark *part* as sending, and return it as it is stored now, when that is durable; None if it was cancelled.

        An erasure may have changed it since it was read: send what is returned.
        """
        now = self._engine.now()
        stored = await self._engine.writer.submit(
            lambda database: mark_sending(database, part.id, now), group=_turn_of(part.id)
        )
        return read_part(part.id, part.key, stored) if stored is not None else None

    async def mark_sent(self, receipt: DeliveryReceipt, *, then: MessagePart | None = None) -> bool:
        """Store the receipt; in the same transaction mark *then* as sending. Return False if the chat has no more.

        If the receipt has a `notify_at`, the transaction queues the job that notifies the person: once for a part.
        """
        now, stamp = self._engine.now(), micros(receipt.at)
        following = then.id if then is not None else None
        return await self._engine.writer.submit(
            lambda database: mark_sent(database, receipt, stamp, following, now),
            None if receipt.notify_at is None else lambda _: self._engine.queued_job.set(),
            group=_turn_of(receipt.part),
            within=_RECEIPT_WITHIN,
        )

    async def mark_placed(self, part: MessagePart, message_id: str) -> None:
        """Store the message id of the placeholder of *part*. Its state stays; after `cancel` it can still be filled."""
        await self._engine.writer.submit(
            lambda database: mark_placed(database, part.id, message_id), group=_turn_of(part.id)
        )

    async def mark_uncertain(self, part: MessagePart, reason: str) -> None:
        """Mark *part* as unknown."""
        await self._mark(part, PartState.UNKNOWN, reason)

    async def mark_unsent(self, part: MessagePart, reason: str) -> None:
        """Mark *part* as pending again: it was certainly not sent."""
        await self._mark(part, PartState.PENDING, reason)

    async def _mark(self, part: MessagePart, state: PartState, reason: str) -> None:
        now = self._engine.now()
        await self._engine.writer.submit(
            lambda database: mark(database, part.id, state, reason, now), group=_turn_of(part.id)
        )

    async def dead_letter(self, part: MessagePart, reason: str) -> None:
        """Dead-letter *part* and the later parts of its message."""
        now = self._engine.now()
        await self._engine.writer.submit(lambda database: bury(database, part.id, reason, now))

    async def question(self, turn: str) -> InboundMessage | None:
        """Return the first message of *turn*; None if its words have expired."""
        return await self._engine.writer.submit(lambda database: question_of(database, turn), group=turn)

    async def move(
        self, message: OutboundMessage, part: MessagePart, parts: Sequence[MessagePart], question: InboundMessage
    ) -> bool:
        """Replace *part* and the later parts of *message* by *parts*, which go to another chat.

        Returns False, without effect, if *part* is finished, or if an erasure changed *message* or *question*.
        """
        now = self._engine.now()
        cut = [(part_place(each.id)[1], write_part(each)) for each in parts]
        return await self._engine.writer.submit(
            lambda database: move(database, message, part.id, cut, question, now), group=_turn_of(part.id)
        )

    async def preview(self, lease: TurnLease, part: MessagePart) -> OutboxPart:
        """Store the turn's row 0 as sending, before its first send; a second call returns the stored row."""
        engine, now, payload = self._engine, self._engine.now(), write_part(part)
        return await engine.writer.submit(
            lambda database: open_preview(database, lease, part, payload, engine.owner, now), group=lease.turn
        )

    async def cancel(self, turn: str) -> tuple[int, ...]:
        """Cancel the turn's parts that are not yet sending; return the numbers of those shown."""
        now = self._engine.now()

        def wake(result: tuple[tuple[int, ...], set[SessionKey]]) -> None:
            for key in result[1]:
                self._engine.wake_chat(key)

        shown, _ = await self._engine.writer.submit(lambda database: cancel(database, turn, now), wake)
        return shown

    async def undelivered(self, key: SessionKey) -> tuple[PendingDelivery, ...]:
        """Return everything of a chat that has not reached its end state, in order."""
        return await self._engine.writer.submit(lambda database: undelivered(database, key))

    async def messages_of(self, turn: str) -> tuple[PendingDelivery, ...]:
        """Return the messages of *turn* with their parts, whatever has become of them; expired texts are empty."""
        return await self._engine.writer.submit(lambda database: messages_of(database, turn))

    async def sent_message(self, key: SessionKey, message_id: str) -> OutboundMessage | None:
        """Return the message that the chat of *key* shows as *message_id*; None if it is unknown.

        Only the newest messages are searched. An expired text is empty.
        """
        return await self._engine.writer.submit(lambda database: sent_message(database, key, message_id))

    async def messages_of_all(self, turns: Sequence[str]) -> Mapping[str, tuple[PendingDelivery, ...]]:
        """Return `messages_of` of each of *turns*, read at once."""
        return await self._engine.writer.submit(lambda database: {each: messages_of(database, each) for each in turns})

    async def dead(self, *, limit: int) -> tuple[DeadLetterGroup, ...]:
        """Return the dead letters that are kept, grouped, those of the latest date first, *limit* groups at most."""
        return await self._engine.writer.submit(lambda database: dead_groups(database)[:limit])


# `open`: 1 is a message, 2 a preview, 3 the reply to a command, which gives way to messages until it is being sent.
# With the number of its parts, and of its previews, whose id ends in 0.
_OPEN = (
    "SELECT id, payload, (SELECT count(*) FROM part WHERE message = o.seq) "
    "+ (SELECT count(*) FROM outbox WHERE id = rtrim(o.id, '0123456789') || '0') "
    "FROM outbox o WHERE key = ? AND open IN (1, 3)"
)
_ORDER = "ORDER BY open, seq"
_FIRST = sql(_OPEN, "AND (? = '' OR EXISTS (", IS_HELD, "))", _ORDER, "LIMIT 1")
_PARTS = (
    "SELECT o.id, p.adopted, p.n, p.state, p.attempts, p.message_id, p.at, p.payload "
    "FROM outbox o JOIN part p ON p.message = o.seq WHERE o.id IN (?, ?) ORDER BY p.n"
)
_MOST_SEARCHED = 20_000  # of the newest messages: a search must not hold the writer for longer than a moment
_SENT_AS = sql(
    "SELECT o.id, o.key, o.payload FROM part p JOIN outbox o ON o.seq = p.message",
    "WHERE p.message > (SELECT coalesce(max(seq), 0) FROM outbox) - ? AND p.message_id = ? AND o.key IN (?, ?)",
    "ORDER BY p.message DESC LIMIT 1",
)
# A new message's first part, if the chat has nothing before it and the turn no preview.
_FREEZE_FIRST = (
    "INSERT INTO part (message, n, state, attempts, at, payload) SELECT seq, ?, 'sending', 1, ?, ? FROM outbox o "
    "WHERE id = ? AND +open IS NOT NULL AND NOT EXISTS (SELECT 1 FROM outbox WHERE key = ? AND open IN (1, 3) "
    "AND seq < o.seq) AND NOT EXISTS (SELECT 1 FROM outbox WHERE id = ?) ON CONFLICT DO NOTHING RETURNING message"
)
_UNMARK = (
    "UPDATE part SET state = 'pending', attempts = 0 WHERE message = (SELECT seq FROM outbox WHERE id = ?) "
    "AND state = 'sending' AND attempts = 1"
)
_GIVES_WAY = 3
_KEY = "SELECT key FROM outbox WHERE id = ?"
_INSERT_PART = (
    "INSERT INTO part (message, n, state, attempts, at, payload) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
# The first part, unless there are stored ones, or the message was cancelled. An erasure by another worker changes the
# message before this transaction, which then reads it, or after it, and then finds the parts.
_FREEZE = sql(
    "INSERT INTO part (message, n, state, attempts, at, payload) SELECT seq, ?, ?, ?, ?, ? FROM outbox",
    "WHERE id = ? AND +open IS NOT NULL",
    LOCKED,
    "ON CONFLICT DO NOTHING RETURNING message, (SELECT open FROM outbox WHERE seq = part.message),",
    "(SELECT payload FROM outbox WHERE seq = part.message), (SELECT seq FROM outbox WHERE id = ?)",
)
_OF_MESSAGE = "message = (SELECT seq FROM outbox WHERE id = ?)"
_IS_UNFINISHED = "state IN ('pending', 'sending', 'unknown')"
_SENDING = sql(
    "UPDATE part SET state = 'sending', attempts = attempts + 1, at = ? WHERE",
    _OF_MESSAGE,
    "AND n = ? AND",
    _IS_UNFINISHED,
    "RETURNING payload",
)
_SENT = sql("UPDATE part SET state = 'sent', message_id = ?, at = ? WHERE", _OF_MESSAGE, "AND n = ?")
_SENT_BEFORE = sql("SELECT 1 FROM part WHERE", _OF_MESSAGE, "AND n = ? AND state = 'sent'")
_MARK = sql("UPDATE part SET state = ?, reason = ?, at = ? WHERE", _OF_MESSAGE, "AND n = ? AND", _IS_UNFINISHED)
_BURY = sql(
    "UPDATE part SET state = 'dead', reason = ?, at = ? WHERE",
    _OF_MESSAGE,
    "AND n >= ? AND",
    _IS_UNFINISHED,
    "RETURNING n",
)
_QUESTION = "SELECT key, message_id, sent_at, sender, payload FROM inbox WHERE seq = ?"
_UNMOVED = sql("SELECT payload, seq FROM outbox WHERE id = ? AND +open IS NOT NULL", LOCKED)
_MAY_MOVE = sql("SELECT 1 FROM part WHERE message = ? AND n = ? AND", _IS_UNFINISHED)
_MOVED = sql(
    "UPDATE part SET state = 'cancelled', reason = 'moved', at = ? WHERE message = ? AND n >= ? AND", _IS_UNFINISHED
)
_PLACED = sql("UPDATE part SET message_id = ? WHERE", _OF_MESSAGE, "AND n = ? AND", _IS_UNFINISHED)
_END_PREVIEW = "UPDATE outbox SET open = NULL, ended_at = ? WHERE id = ? AND +open IS NOT NULL"
_OPEN_PREVIEW = "INSERT INTO outbox (id, key, open, payload) VALUES (?, ?, 2, '{}') RETURNING seq"
_STATES = "SELECT n, state, message_id, adopted FROM part WHERE message = ? ORDER BY n"
_ADOPT = "UPDATE part SET adopted = ? WHERE message = ?"
_CANCEL = (
    # A sent placeholder is filled in any case, or it would stay for ever.
    "UPDATE part SET state = 'cancelled', at = ? WHERE message = ? AND state = 'pending' AND message_id = ''"
)
_END = sql(  # the message and its turn's preview
    "UPDATE outbox SET open = NULL, ended_at = ?1 WHERE id IN (?2, ?3) AND open IS NOT NULL AND NOT EXISTS "
    "(SELECT 1 FROM part WHERE message = (SELECT seq FROM outbox WHERE id = ?2) AND",
    _IS_UNFINISHED,
    ") RETURNING EXISTS (SELECT 1 FROM outbox WHERE key = (SELECT key FROM outbox WHERE id = ?2)",
    "AND open IN (1, 3) AND id != ?2)",
)
_RECOVER = "UPDATE part SET state = 'unknown', reason = 'restart' WHERE state = 'sending'"
RECOVER_PARTS = sql(_RECOVER, "AND message IN (SELECT seq FROM outbox WHERE open IS NOT NULL)")
_DELIVERED = sql("SELECT payload, seq FROM outbox WHERE open IS NULL AND key", LISTED)
_OTHER_TEXTS = frozenset({"attachments", "sources", "links"})  # that a message may have beside its text
_SHOWN = frozenset({"sending", "sent", "unknown"})


def part_place(id_: str) -> tuple[str, int]:
    """Return the outbox column and number of a part id."""
    message, _, number = id_.rpartition(".")
    return quote(message), int(number)


def preview_of(message: str) -> str:
    """Return the id of row 0 of the turn that *message* belongs to."""
    return f"{message.rpartition('.')[0]}.0"


def _read_part(message: str, key: SessionKey, columns: Sequence[Any]) -> OutboxPart:
    n, state, attempts, message_id, at, payload = columns
    part = read_part(f"{unquote(message)}.{n}", key, payload)
    return OutboxPart(
        part=part, state=PartState(state), attempts=attempts, message_id=unquote(message_id), at=moment(at)
    )


def _read_parts(
    database: Database, id_: str, key: SessionKey, visible_to: str
) -> tuple[tuple[OutboxPart, ...], OutboxPart | None]:
    """Return the parts of a message, and the preview that it takes over.

    One message of the turn takes the preview over, and only one that the same people may see.
    """
    above = preview_of(id_)
    found = database.execute(_PARTS, (id_, above)).fetchall()
    parts = tuple(_read_part(id_, key, columns) for name, _, *columns in found if name == id_)
    previews = (
        _read_part(above, key, columns) for name, adopted, *columns in found if name == above and adopted in ("", id_)
    )
    return parts, next((each for each in previews if each.part.visible_to == visible_to), None)


def _delivery(database: Database, id_: str, key: SessionKey, payload: str, parts_stored: int = 1) -> PendingDelivery:
    message = read_outbound(unquote(id_), key, payload)
    parts, preview = _read_parts(database, id_, key, message.visible_to) if parts_stored else ((), None)
    return PendingDelivery(message=message, parts=parts, preview=preview)


def next_delivery(database: Database, key: SessionKey, worker: str) -> PendingDelivery | None:
    """Return the chat's open message that comes first: the oldest, replies to commands behind all others.

    With a *worker*, return None unless the chat is claimed by it.
    """
    found = database.execute(_FIRST, (write_key(key), worker, claim_name(key), worker)).fetchone()
    return _delivery(database, found[0], key, *found[1:]) if found is not None else None


def undelivered(database: Database, key: SessionKey) -> tuple[PendingDelivery, ...]:
    """Return every open message of the chat, in order."""
    found = database.execute(sql(_OPEN, _ORDER), (write_key(key),)).fetchall()
    return tuple(_delivery(database, id_, key, *columns) for id_, *columns in found)


def messages_of(database: Database, turn: str) -> tuple[PendingDelivery, ...]:
    """Return every message of *turn*, in order. Rows of previews, which a stopped turn leaves, are skipped."""
    ids = (f"{quote(turn)}.", f"{quote(turn)}/")  # "/" follows "."
    rows = database.execute("SELECT id, key, payload FROM outbox WHERE id >= ? AND id < ? ORDER BY seq", ids).fetchall()
    found = [row for row in rows if row[0] != preview_of(row[0])]
    return tuple(_delivery(database, id_, read_key(key), payload) for id_, key, payload in found)


def sent_message(database: Database, key: SessionKey, message_id: str) -> OutboundMessage | None:
    """Return the message that the chat of *key* shows as *message_id*; None if it is unknown, or a preview alone."""
    if not message_id:
        return None
    keys = (write_key(key), write_key(key.parent))
    found = database.execute(_SENT_AS, (_MOST_SEARCHED, quote(message_id), *keys)).fetchone()
    if found is None or found[0] == preview_of(found[0]):
        return None
    id_, stored_key, payload = found
    return read_outbound(unquote(id_), read_key(stored_key), payload)


def freeze(
    database: Database,
    message: OutboundMessage,
    cut: Sequence[tuple[MessagePart, str]],
    at: int,
    adopted: AdoptedRange,
) -> tuple[OutboxPart, ...]:
    """Store the parts and their payloads unless there are stored ones; the first is marked as sending.

    Stores none if *message* is not what the outbox has: its words were erased, and the parts have them still.
    Parts that may have been sent before the journal was restored are all of unknown outcome.
    """
    id_ = quote(message.id)
    later = PartState.PENDING
    if is_unknown := is_uncertain(database, id_, adopted):
        later = PartState.UNKNOWN
    states = [later if place or is_unknown else PartState.SENDING for place in range(len(cut))]
    new = [
        OutboxPart(part=part, state=state, attempts=int(state is PartState.SENDING), at=moment(at))
        for (part, _), state in zip(cut, states, strict=True)
    ]
    columns = [
        (part_place(row.part.id)[1], row.state.value, row.attempts, at, payload)
        for row, (_, payload) in zip(new, cut, strict=True)
    ]
    first = database.execute(_FREEZE, (*columns[0], id_, preview_of(id_))).fetchone() if columns else None
    if first is None:
        stored, _ = _read_parts(database, id_, message.key, message.visible_to)
        if not stored:
            _finish(database, id_, at)  # nothing to show is delivered
        return stored
    seq, how, payload, preview = first
    if read_outbound(message.id, message.key, payload) != message:
        database.execute("DELETE FROM part WHERE message = ?", (seq,))
        return ()
    if columns[1:]:
        database.executemany(_INSERT_PART, [(seq, *each) for each in columns[1:]])
    if how == _GIVES_WAY:
        database.execute("UPDATE outbox SET open = 1 WHERE seq = ?", (seq,))
    if preview is not None and _read_parts(database, id_, message.key, message.visible_to)[1] is not None:
        database.execute(_ADOPT, (id_, preview))
    return tuple(new)


def freeze_first(database: Database, message: OutboundMessage, payloads: Sequence[tuple[int, str]], at: int) -> bool:
    """Store the parts of a new *message*, the first as sending; False, without effect, if it has to wait."""
    id_ = quote(message.id)
    (n, payload), *later = payloads
    columns = (n, at, payload, id_, write_key(message.key), preview_of(id_))
    first = database.execute(_FREEZE_FIRST, columns).fetchone()
    if first is not None and later:
        rows = [(first[0], number, PartState.PENDING.value, 0, at, each) for number, each in later]
        database.executemany(_INSERT_PART, rows)
    return first is not None


def unmark(database: Database, messages: Iterable[str]) -> None:
    """Give back the attempts that `freeze_first` marked and that were not made, of *messages* by their ids."""
    database.executemany(_UNMARK, [(quote(each),) for each in messages])


def mark_sending(database: Database, part: str, at: int) -> str | None:
    """Mark a part as being sent and return its payload; None if it is finished."""
    found = database.execute(_SENDING, (at, *part_place(part))).fetchone()
    return found[0] if found is not None else None


def mark_sent(database: Database, receipt: DeliveryReceipt, stamp: int, then: str | None, at: int) -> bool:
    """Store a receipt, mark the next part, and end the message when it was the last.

    Returns False if the chat has nothing more.
    """
    id_, n = part_place(receipt.part)
    if receipt.notify_at is not None and database.execute(_SENT_BEFORE, (id_, n)).fetchone() is None:
        turn, payload = _turn_of(receipt.part), {"at": receipt.at.isoformat()}
        job = Job(id=f"{PUSH}:{turn}", kind=PUSH, scope="", payload=payload, due_at=receipt.notify_at)
        put_job(database, encode_job(job))
    database.execute(_SENT, (quote(receipt.message_id), stamp, id_, n))
    if then is not None and mark_sending(database, then, at) is not None:
        return True
    return _finish(database, id_, at)


def mark_placed(database: Database, part: str, message_id: str) -> None:
    """Note where a part that is not finished is going to stand."""
    database.execute(_PLACED, (quote(message_id), *part_place(part)))


def mark(database: Database, part: str, state: PartState, reason: str, at: int) -> None:
    """Mark a part that is not finished."""
    database.execute(_MARK, (state.value, quote(reason), at, *part_place(part)))


def bury(database: Database, part: str, reason: str, at: int) -> None:
    """Dead-letter a part and what follows it."""
    id_, n = part_place(part)
    buried = database.execute(_BURY, (quote(reason), at, id_, n)).fetchall()
    found = database.execute(_KEY, (id_,)).fetchone()
    key = found[0] if found is not None else ""
    turn = id_.rpartition(".")[0]
    database.executemany(
        BURY,
        [(f"{id_}.{number}", turn, key, quote(reason), at) for (number,) in buried],
    )
    _finish(database, id_, at)


def question_of(database: Database, turn: str) -> InboundMessage | None:
    """Return the first message of *turn*, which has ended; None if its row has expired."""
    found = database.execute("SELECT inbox FROM record WHERE turn = ?", (quote(turn),)).fetchone()
    rows = read_json(found[0]) if found is not None else []
    found = database.execute(_QUESTION, (rows[0],)).fetchone() if rows else None
    if found is None:
        return None
    key, message_id, sent_at, sender, payload = found
    return read_inbound(read_key(key), unquote(message_id), sent_at, unquote(sender), payload)


def move(
    database: Database,
    message: OutboundMessage,
    part: str,
    cut: Sequence[tuple[int, str]],
    question: InboundMessage,
    at: int,
) -> bool:
    """Replace *part* and what follows it by parts with new numbers; False if it is finished, or words were erased."""
    id_, n = part_place(part)
    found = database.execute(_UNMOVED, (id_,)).fetchone()
    if found is None or read_outbound(message.id, message.key, found[0]) != message:
        return False
    if question_of(database, message.turn) != question:
        return False
    if database.execute(_MAY_MOVE, (found[1], n)).fetchone() is None:
        return False
    database.execute(_MOVED, (at, found[1], n))
    state = PartState.PENDING.value
    database.executemany(_INSERT_PART, [(found[1], number, state, 0, at, payload) for number, payload in cut])
    return True


def _finish(database: Database, id_: str, at: int) -> bool:
    """End a message without unfinished parts, and its turn's preview; return False if its chat has nothing more."""
    if id_.endswith(".0"):
        return True
    ended = database.execute(_END, (at, id_, preview_of(id_))).fetchall()
    return not ended or bool(ended[0][0])


def open_preview(
    database: Database, lease: TurnLease, part: MessagePart, payload: str, owner: str, at: int
) -> OutboxPart:
    """Write row 0 of the turn as sending, once."""
    check_lease(database, write_key(lease.key), owner, lease.epoch, lease.turn)
    id_, n = part_place(part.id)
    stored, _ = _read_parts(database, id_, part.key, part.visible_to)
    if stored:
        return stored[0]
    (seq,) = database.execute(_OPEN_PREVIEW, (id_, write_key(part.key))).fetchone()
    state = PartState.SENDING
    database.execute(_INSERT_PART, (seq, n, state.value, 1, at, payload))
    return OutboxPart(part=part, state=state, attempts=1, at=moment(at))


def cancel(database: Database, turn: str, at: int) -> tuple[tuple[int, ...], set[SessionKey]]:
    """Cancel parts that are not being sent; return the numbers of displayed parts and the chats with more to send.

    Number 0 is a preview that no part has replaced.
    """
    prefix = quote(turn)
    rows = database.execute(
        "SELECT id, seq, key FROM outbox WHERE id >= ? AND id < ? ORDER BY seq", (f"{prefix}.", f"{prefix}/")
    ).fetchall()
    shown: set[int] = set()
    chats: set[SessionKey] = set()
    preview: list[tuple[int, str, str, str]] = []
    replaced_by: set[str] = set()
    for id_, seq, key in rows:
        is_preview = id_.endswith(".0")
        if not is_preview:
            database.execute(_CANCEL, (at, seq))
        parts = database.execute(_STATES, (seq,)).fetchall()
        if is_preview:
            preview = parts
            continue
        numbers = {n for n, state, place, _ in parts if state in _SHOWN or (state == "pending" and place)}
        shown |= numbers
        if numbers:
            replaced_by.add(id_)
        if _finish(database, id_, at):
            chats.add(read_key(key))
    if preview and preview[0][1] in _SHOWN and preview[0][3] not in replaced_by:
        shown.add(0)
    database.execute(_END_PREVIEW, (at, f"{prefix}.0"))
    return tuple(sorted(shown)), chats


def recover(database: Database, is_lost: Callable[[SessionKey], bool] | None = None) -> None:
    """Mark parts found as being sent as unknown: of all chats, or of those that *is_lost* says."""
    if is_lost is None:
        database.execute(RECOVER_PARTS)
        return
    found = database.execute("SELECT seq, key FROM outbox WHERE open IS NOT NULL").fetchall()
    lost = [(seq,) for seq, column in found if is_lost(read_key(column))]
    database.executemany(sql(_RECOVER, "AND message = ?"), lost)


def open_chats(database: Database) -> list[SessionKey]:
    """Return the chats that have something to deliver, the longest waiting first."""
    found = database.execute("SELECT key FROM outbox WHERE open IN (1, 3) GROUP BY key ORDER BY min(seq)")
    return [read_key(key) for (key,) in found]


def dead_groups(database: Database) -> tuple[DeadLetterGroup, ...]:
    """Return the dead letters by channel and reason, the latest first."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for key, reason, count, newest in database.execute(
        "SELECT key, reason, count(*), max(at) FROM dead WHERE key != '' GROUP BY key, reason"
    ):
        group = (read_key(key).channel, unquote(reason))
        before, latest = found.get(group, (0, newest))
        found[group] = (before + count, max(newest, latest))
    groups = (
        DeadLetterGroup(channel=channel, reason=reason, count=count, newest=moment(newest))
        for (channel, reason), (count, newest) in found.items()
    )
    return tuple(sorted(groups, key=lambda group: group.newest, reverse=True))


def _blank(payload: str) -> str:
    fields = {name: value for name, value in read_json(payload).items() if name not in _OTHER_TEXTS}
    return write_json({**fields, "text": ""})


def blank_delivered(database: Database, keys: Iterable[str]) -> None:
    """Blank the texts of all messages of *keys*, as column values, that are delivered or given up."""
    found = database.execute(_DELIVERED, (write_json(list(keys)),)).fetchall()
    _blank_rows(database, found)


def _blank_rows(database: Database, rows: Iterable[tuple[str, int]]) -> int:
    blanked = [(_blank(payload), seq) for payload, seq in rows]
    database.executemany("UPDATE outbox SET payload = ? WHERE seq = ?", blanked)
    nothing = write_json({"text": ""})
    database.executemany("UPDATE part SET payload = ? WHERE message = ?", [(nothing, seq) for _, seq in blanked])
    return len(blanked)


def purge(database: Database, blank: tuple[int, int], forget_before: int, rows: tuple[int, int]) -> int:
    """Blank the texts of messages that ended within *blank*, remove those that ended before another time.

    *rows* are the first number to look at and the one behind the last.
    """
    found = database.execute(
        "SELECT payload, seq FROM outbox WHERE seq >= ? AND seq < ? AND ended_at >= ? AND ended_at < ?", (*rows, *blank)
    )
    blanked = _blank_rows(database, found)
    gone = database.execute(
        "DELETE FROM outbox WHERE seq >= ? AND seq < ? AND ended_at IS NOT NULL AND ended_at < ? "
        "AND seq < (SELECT max(seq) FROM outbox) RETURNING seq",
        (*rows, forget_before),
    ).fetchall()
    database.executemany("DELETE FROM part WHERE message = ?", gone)
    return blanked + len(gone)
