"""How events and records are written into columns and read back: explicit fields, nothing guessed.

Text is stored losslessly whatever a platform sends: NUL, which PostgreSQL does not take, and lone
surrogates, which UTF-8 cannot hold, are escaped. Two lone surrogates that make a pair come back as
the one character they spell.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from gateway.events import (
    AnswerSource,
    Attachment,
    ChatKind,
    InboundKind,
    InboundMessage,
    MessageButton,
    MessagePart,
    OutboundKind,
    OutboundMessage,
    QuoteKind,
    Sender,
    SessionKey,
)
from gateway.ports.journal import Job, JobAdvance, JobLimit, Line, TurnStep
from gateway.ports.memory import anchor_index
from gateway.store.database import SET_META, Database
from gateway.text.json_lines import encode_ascii, encode_json
from gateway.text.message_text import find_command

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ESCAPED = "\ufdd0"  # a noncharacter code point: ASCII JSON follows


read_json: Callable[[str], Any] = json.JSONDecoder().decode


def is_storable(text: str) -> bool:
    """Return True if any database takes *text*: UTF-8 can encode it, and it has no NUL."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def write_json(value: object) -> str:
    """Return *value* as compact JSON that any database takes."""
    text = encode_json(value)
    return text if is_storable(text) else encode_ascii(value)


def quote(text: str) -> str:
    """Return the column value of *text*: the text itself, unless a database may refuse it."""
    if is_storable(text) and not text.startswith(_ESCAPED):
        return text
    return _ESCAPED + encode_ascii(text)


def unquote(text: str) -> str:
    """Undo `quote`."""
    return str(read_json(text[1:])) if text.startswith(_ESCAPED) else text


def sql(*parts: str) -> str:
    """Join the constant parts of a statement; values never come in here, they are parameters."""
    return " ".join(parts)


def micros(moment: datetime) -> int:
    """Return an aware time as microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(microseconds: int) -> datetime:
    """Undo `micros`."""
    return _EPOCH + timedelta(microseconds=microseconds)


@lru_cache(maxsize=4096)
def read_key(text: str) -> SessionKey:
    """Read a key column."""
    return SessionKey.parse(unquote(text))


@lru_cache(maxsize=4096)
def write_key(key: SessionKey) -> str:
    """Return the column value of a session key."""
    return quote(str(key))


def utf16_length(text: str) -> int:
    """Return the length in UTF-16 units, which is how the platforms that cut a paste count it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


_SENDER_FIELDS = ("name", "is_bot", "is_self", "is_admin", "is_guest", "roles", "team", "timezone")
_ATTACHMENT_TEXTS = ("media_type", "url", "blob", "caption", "question")
_MESSAGE_FILES = ("attachments", "quoted_files")
_MESSAGE_LISTS = ("event_ids", "mentioned")
_MESSAGE_FLAGS = ("is_ephemeral", "is_private", "is_forwarded")
_MESSAGE_TEXTS = (
    *("command", "account", "bot", "revision", "guild", "album", "reply_to", "replaces", "quoted", "quoted_by"),
    *("quoted_name", "forwarded_from"),
)


def _attachment_fields(attachment: Attachment) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": attachment.kind, "name": attachment.name, "size": attachment.size}
    for name in _ATTACHMENT_TEXTS:
        if value := getattr(attachment, name):
            fields[name] = value
    return fields


def _attachment(fields: Mapping[str, Any]) -> Attachment:
    return Attachment(
        kind=fields["kind"],
        name=fields["name"],
        size=fields["size"],
        media_type=fields.get("media_type", ""),
        url=fields.get("url", ""),
        blob=fields.get("blob", ""),
        caption=fields.get("caption", ""),
        question=fields.get("question", ""),
    )


def _button_fields(message: OutboundMessage | MessagePart) -> dict[str, Any]:
    fields: dict[str, Any] = {"settles": True} if message.settles else {}
    if message.calls or message.calls_name:
        fields["calls"] = [message.calls, message.calls_name]
    if message.choices:
        fields["choices"] = [[each.label, each.command, each.row] for each in message.choices]
    return fields


def _call_fields(fields: Mapping[str, Any]) -> dict[str, str]:
    return dict(zip(("calls", "calls_name"), fields.get("calls", ()), strict=False))


def _choices(fields: Mapping[str, Any]) -> tuple[MessageButton, ...]:
    return tuple(MessageButton(label, command, row) for label, command, row in fields.get("choices", ()))


def write_inbound(message: InboundMessage) -> str:
    """Return the payload column of an inbox row. Default values are omitted, and what has a column of its own.

    Key, id, time and the sender's id have; rows of older releases have them in the payload too.
    """
    sender = {name: value for name in _SENDER_FIELDS if (value := getattr(message.sender, name))}
    fields: dict[str, Any] = {"by": sender, "text": message.text}
    if message.kind is not InboundKind.MESSAGE:
        fields["kind"] = message.kind.value
        fields["command"] = message.command  # also an empty one: see `_command`
    if message.chat_kind is not ChatKind.DIRECT:
        fields["chat"] = message.chat_kind.value
    fields |= {name: value for name in _MESSAGE_TEXTS if (value := getattr(message, name))}
    fields |= {name: list(several) for name in _MESSAGE_LISTS if (several := getattr(message, name))}
    fields |= {name: True for name in _MESSAGE_FLAGS if getattr(message, name)}
    if message.is_addressed != _is_direct(fields):
        fields["is_addressed"] = message.is_addressed
    if message.quote_kind is not QuoteKind.ANSWERED:
        fields["quote_kind"] = message.quote_kind.value
    for name in _MESSAGE_FILES:
        if files := getattr(message, name):
            fields[name] = [_attachment_fields(each) for each in files]
    return write_json(fields)


def _is_direct(fields: Mapping[str, Any]) -> bool:
    return "chat" not in fields


def read_inbound(key: SessionKey, message_id: str, sent_at: int, sender: str, payload: str) -> InboundMessage:
    """Undo `write_inbound`; *sender* is the sender's id."""
    fields = read_json(payload)
    by = fields["by"]
    facts: dict[str, Any] = {
        name: tuple(by[name]) if name == "roles" else by[name] for name in _SENDER_FIELDS if name in by
    }
    return InboundMessage(
        key=key,
        message_id=message_id,
        sender=Sender(id=sender, **facts),
        text=fields["text"],
        sent_at=moment(sent_at),
        kind=InboundKind(fields.get("kind", InboundKind.MESSAGE)),
        command=fields["command"] if "command" in fields else _command(fields),
        chat_kind=ChatKind(fields.get("chat", ChatKind.DIRECT)),
        account=fields.get("account", ""),
        bot=fields.get("bot", ""),
        revision=fields.get("revision", ""),
        event_ids=tuple(fields.get("event_ids", ())),
        is_ephemeral=fields.get("is_ephemeral", False),
        is_addressed=fields.get("is_addressed", _is_direct(fields)),
        guild=fields.get("guild", ""),
        is_private=fields.get("is_private", False),
        album=fields.get("album", ""),
        reply_to=fields.get("reply_to", ""),
        replaces=fields.get("replaces", ""),
        mentioned=tuple(fields.get("mentioned", ())),
        quoted=fields.get("quoted", ""),
        quoted_by=fields.get("quoted_by", ""),
        quoted_name=fields.get("quoted_name", ""),
        quote_kind=QuoteKind(fields.get("quote_kind", QuoteKind.ANSWERED)),
        is_forwarded=fields.get("is_forwarded", False),
        forwarded_from=fields.get("forwarded_from", ""),
        **{name: tuple(_attachment(each) for each in fields.get(name, ())) for name in _MESSAGE_FILES},
    )


def _command(fields: Mapping[str, Any]) -> str:
    """Return the command of an inbox row.

    Rows of releases without the field have the command in their text. Display names are written out there, so the
    text counts only if the message mentions no user.
    """
    if fields.get("kind") not in (InboundKind.COMMAND, InboundKind.BUTTON) or fields.get("mentioned"):
        return ""
    return find_command(fields["text"], fields.get("bot", ""))


def write_outbound(message: OutboundMessage) -> str:
    """Return the payload column of an outbox row; id and key have their own columns."""
    fields: dict[str, Any] = {"text": message.text}
    if message.kind is not OutboundKind.ANSWER:
        fields["kind"] = message.kind.value
    if message.reply_to:
        fields["reply_to"] = message.reply_to
    if message.visible_to:
        fields["visible_to"] = message.visible_to
    if message.chat_kind is not ChatKind.DIRECT:
        fields["chat"] = message.chat_kind.value
    if message.attachments:
        fields["attachments"] = [_attachment_fields(each) for each in message.attachments]
    if not message.rings:
        fields["rings"] = False
    if message.links is not None:
        fields["links"] = list(message.links)
    if message.sources:
        fields["sources"] = [[each.url, each.title] for each in message.sources]
    return write_json({**fields, **_button_fields(message)})


def read_outbound(id_: str, key: SessionKey, payload: str) -> OutboundMessage:
    """Undo `write_outbound`."""
    fields = read_json(payload)
    return OutboundMessage(
        id=id_,
        key=key,
        text=fields["text"],
        kind=OutboundKind(fields.get("kind", OutboundKind.ANSWER)),
        reply_to=fields.get("reply_to", ""),
        visible_to=fields.get("visible_to", ""),
        chat_kind=ChatKind(fields.get("chat", ChatKind.DIRECT)),
        attachments=tuple(_attachment(each) for each in fields.get("attachments", ())),
        choices=_choices(fields),
        settles=fields.get("settles", False),
        rings=fields.get("rings", True),
        links=tuple(fields["links"]) if "links" in fields else None,
        sources=tuple(AnswerSource(*each) for each in fields.get("sources", ())),
        **_call_fields(fields),
    )


def write_part(part: MessagePart) -> str:
    """Return the payload column of a part; its id and its message's key have their own columns."""
    fields: dict[str, Any] = {"text": part.payload} if part.payload or not part.plain else {}
    if part.plain != part.payload:
        fields["plain"] = part.plain
    if part.kind is not OutboundKind.ANSWER:
        fields["kind"] = part.kind.value
    if part.reply_to:
        fields["reply_to"] = part.reply_to
    if part.visible_to:
        fields["visible_to"] = part.visible_to
    if part.file is not None:
        fields["file"] = _attachment_fields(part.file)
    if part.is_placed:
        fields["is_placed"] = True
    if part.moved_to:
        fields["moved_to"] = part.moved_to
    return write_json({**fields, **_button_fields(part)})


def read_part(id_: str, key: SessionKey, payload: str) -> MessagePart:
    """Undo `write_part`."""
    fields = read_json(payload)
    text, moved_to = fields.get("text", ""), fields.get("moved_to", "")
    return MessagePart(
        id=id_,
        key=SessionKey(key.channel, moved_to) if moved_to else key,
        payload=text,
        plain=fields.get("plain", text),
        reply_to=fields.get("reply_to", ""),
        visible_to=fields.get("visible_to", ""),
        kind=OutboundKind(fields.get("kind", OutboundKind.ANSWER)),
        file=_attachment(fields["file"]) if "file" in fields else None,
        is_placed=fields.get("is_placed", False),
        choices=_choices(fields),
        settles=fields.get("settles", False),
        moved_to=moved_to,
        **_call_fields(fields),
    )


def with_end(
    turn: str, lines: Sequence[Line], span: tuple[int, int], inbox: Iterable[int], outcome: str, at: datetime
) -> tuple[Line, ...]:
    """Return a record's lines with the `end` line that readers need: a turn without one is ignored.

    *span* is the index of its first message and the one behind its last.
    """
    last = lines[-1] if lines else {}
    if last.get("kind") == "end" and last.get("turn") == turn:
        return tuple(lines)
    end: Line = {
        "kind": "end",
        "turn": turn,
        "from": span[0],
        "to": span[1],
        "inbox": [str(seq) for seq in inbox],
        "outcome": str(outcome),
        "at": at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
    }
    return (*lines, end)


def window_columns(lines: Sequence[Line]) -> tuple[int | None, int | None]:
    """Return the replay start that *lines* set and whether they have a snapshot (1); None for what they have not."""
    anchors = [anchor_index(line) for line in lines if line.get("kind") in ("pointer", "mark")]
    snapshot = 1 if any(line.get("kind") == "snapshot" for line in lines) else None
    return max(anchors, default=None), snapshot


def write_lines(lines: tuple[Line, ...], blobs: Mapping[str, str]) -> str:
    """Return the body of a step."""
    return write_json([lines, blobs] if blobs else [lines])


def read_lines(body: str) -> tuple[tuple[Line, ...], Mapping[str, str]]:
    """Undo `write_lines`."""
    stored = read_json(body)
    return tuple(stored[0]), stored[1] if len(stored) > 1 else {}


def read_step(n: int, kind: str, call: str, body: str) -> TurnStep:
    """Read a step's columns."""
    lines, blobs = read_lines(body)
    return TurnStep(n=n, kind=kind, call=call, lines=lines, blobs=blobs)


JOB_COLUMNS = "id, kind, scope, payload, due_at, attempts"


def read_job(columns: Sequence[Any]) -> Job:
    """Read the columns `JOB_COLUMNS`."""
    id_, kind, scope, payload, due_at, attempts = columns
    return Job(
        id=unquote(id_),
        kind=kind,
        scope=unquote(scope),
        payload=read_json(payload),
        due_at=moment(due_at),
        attempts=attempts,
    )


def encode_job(job: Job) -> tuple[Any, ...]:
    """Return a job's columns."""
    return (quote(job.id), job.kind, quote(job.scope), write_json(job.payload), micros(job.due_at), job.attempts)


def put_job(database: Database, columns: tuple[Any, ...]) -> None:
    """Queue a job once."""
    database.execute(
        "INSERT INTO job (id, kind, scope, payload, due_at, attempts) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        columns,
    )


def put_limited_job(database: Database, columns: tuple[Any, ...], limit: JobLimit) -> None:
    """Queue a job once, unless the limit is reached.

    Such jobs are queued one after the other, over all gateways: each transaction waits for the row that the one before
    has written, and counts afterwards.
    """
    database.execute(SET_META, ("limited_jobs", "")).close()
    fields = [write_json({"person": each})[1:-1] for each in limit.people]
    # Inside of a text, quotes are escaped: only the field itself is written like this.
    is_theirs = " OR ".join(["replace(payload, ?, '') != payload"] * len(fields))
    database.execute(
        sql(_PUT_BELOW, is_theirs, ")) < ? ON CONFLICT DO NOTHING"), (*columns, columns[1], *fields, limit.most)
    )


_PUT_BELOW = (
    "INSERT INTO job (id, kind, scope, payload, due_at, attempts) SELECT ?, ?, ?, ?, ?, ? "
    "WHERE (SELECT count(*) FROM job WHERE kind = ? AND ("
)


def end_jobs(database: Database, prefix: str) -> None:
    """Remove the jobs whose id starts with *prefix*."""
    low = quote(prefix)
    # A range of the id's index, not LIKE: ids may hold its wildcards.
    database.execute("DELETE FROM job WHERE id >= ? AND id < ?", (low, low + "\U0010ffff"))


def encode_advance(advance: JobAdvance) -> tuple[str, tuple[Any, ...] | None]:
    """Return the job's id and the columns of the next one."""
    return quote(advance.job.id), encode_job(advance.next) if advance.next is not None else None


def advance_job(database: Database, advance: tuple[str, tuple[Any, ...] | None]) -> bool:
    """Replace a queued job with the next one; return False, without effect, if it is not queued."""
    id_, columns = advance
    if not database.execute("DELETE FROM job WHERE id = ?", (id_,)).rowcount:
        return False
    if columns is not None:
        put_job(database, columns)
    return True
