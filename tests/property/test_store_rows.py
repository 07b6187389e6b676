"""What the journal writes it reads back from every engine: every field, any text."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TypeVar

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from gateway.store import row_codec
from gateway.store.postgres.connection import PostgresConnection
from tests.fakes.postgres_server import PostgresServer

T = TypeVar("T")


def every(kind: type[T], /, **fields: st.SearchStrategy[object]) -> st.SearchStrategy[T]:
    """Build *kind* from a strategy for each of its fields, or fail.

    So a field that is added to an event without its codec fails here, not in a chat.
    """
    differing = set(fields) ^ {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    assert not differing, (
        f"{kind.__name__}: write and read {sorted(differing)} in row_codec.py, and name a strategy here"
    )
    return st.builds(kind, **fields)


def join_pairs(text: str) -> str:
    """Return *text* with lone surrogates that make a pair joined, which is the one thing storing does to it."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


TEXT = st.text(st.characters(), max_size=20).map(join_pairs)
FLAG = st.booleans()
KEY = st.builds(SessionKey, st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True), TEXT.filter(bool))
TIME = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis adds the zone
SENDER = every(
    Sender,
    id=TEXT,
    name=TEXT,
    is_bot=FLAG,
    is_self=FLAG,
    is_admin=FLAG,
    is_guest=FLAG,
    roles=st.lists(TEXT, max_size=2).map(tuple),
    team=TEXT,
    timezone=TEXT,
)
ATTACHMENT = every(
    Attachment,
    kind=TEXT,
    name=TEXT,
    size=st.integers(0, 2**53),
    media_type=TEXT,
    url=TEXT,
    blob=TEXT,
    caption=TEXT,
    question=TEXT,
)
CHOICE = every(
    MessageButton,
    label=TEXT.filter(bool),
    command=st.from_regex(r"/[a-z][ -~]{0,62}\Z", fullmatch=True),
    row=st.integers(0, 4),
)
CHOICES = st.lists(CHOICE, max_size=2).map(tuple)
ATTACHMENTS = st.lists(ATTACHMENT, max_size=2).map(tuple)
INBOUND = every(
    InboundMessage,
    key=KEY,
    message_id=TEXT,
    sender=SENDER,
    text=TEXT,
    sent_at=TIME,
    kind=st.sampled_from(InboundKind),
    command=TEXT,
    chat_kind=st.sampled_from(ChatKind),
    account=TEXT,
    bot=TEXT,
    revision=TEXT,
    event_ids=st.lists(TEXT, max_size=2).map(tuple),
    mentioned=st.lists(TEXT, max_size=2).map(tuple),
    is_ephemeral=FLAG,
    is_addressed=FLAG,
    guild=TEXT,
    is_private=FLAG,
    album=TEXT,
    reply_to=TEXT,
    replaces=TEXT,
    quoted=TEXT,
    quoted_by=TEXT,
    quoted_name=TEXT,
    quoted_files=ATTACHMENTS,
    quote_kind=st.sampled_from(QuoteKind),
    is_forwarded=FLAG,
    forwarded_from=TEXT,
    attachments=ATTACHMENTS,
)
OUTBOUND = every(
    OutboundMessage,
    id=TEXT,
    key=KEY,
    text=TEXT,
    kind=st.sampled_from(OutboundKind),
    reply_to=TEXT,
    visible_to=TEXT,
    chat_kind=st.sampled_from(ChatKind),
    attachments=ATTACHMENTS,
    choices=CHOICES,
    settles=FLAG,
    calls=TEXT,
    calls_name=TEXT,
    rings=FLAG,
    links=st.none() | st.lists(TEXT, max_size=3).map(tuple),
    sources=st.lists(st.builds(AnswerSource, TEXT, TEXT), max_size=3).map(tuple),
)
PART = every(
    MessagePart,
    id=TEXT,
    key=KEY,
    payload=TEXT,
    plain=TEXT,
    reply_to=TEXT,
    visible_to=TEXT,
    kind=st.sampled_from(OutboundKind),
    file=st.none() | ATTACHMENT,
    is_placed=FLAG,
    choices=CHOICES,
    settles=FLAG,
    calls=TEXT,
    calls_name=TEXT,
    moved_to=TEXT,
)
SCALARS = st.none() | FLAG | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | TEXT
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=10
)
LINES = st.lists(st.dictionaries(TEXT, JSON, max_size=3), max_size=3).map(tuple)


class Columns:
    """A column of each engine."""

    def __init__(self, server: PostgresServer) -> None:
        self._sqlite = sqlite3.connect(":memory:")
        self._postgres = PostgresConnection(psycopg.connect(server.url, autocommit=True))

    def store(self, text: str) -> str:
        """Store *text* and read it back, which is the same in both."""
        (stored,) = self._sqlite.execute("SELECT ?", (text,)).fetchone()
        assert self._postgres.execute("SELECT ?", (text,)).fetchone() == (stored,)
        return str(stored)

    def close(self) -> None:
        """Close both."""
        self._sqlite.close()
        self._postgres.close()


@pytest.fixture(scope="module")
def columns(postgres: PostgresServer) -> Iterator[Columns]:
    """Return the columns."""
    opened = Columns(postgres)
    yield opened
    opened.close()


@given(message=INBOUND)
def test_inbound_round_trip(columns: Columns, message: InboundMessage) -> None:
    """An inbound message comes back as it was."""
    payload = columns.store(row_codec.write_inbound(message))
    key = row_codec.read_key(columns.store(row_codec.write_key(message.key)))
    message_id = row_codec.unquote(columns.store(row_codec.quote(message.message_id)))
    sender = row_codec.unquote(columns.store(row_codec.quote(message.sender.id)))
    assert row_codec.read_inbound(key, message_id, row_codec.micros(message.sent_at), sender, payload) == message


def released(text: str, kind: InboundKind, *mentioned: str) -> InboundMessage:
    """Return the message of an inbox row as a release wrote it that did not store commands, but the row's columns."""
    message = InboundMessage(
        key=SessionKey("discord", "42"),
        message_id="1",
        sender=Sender(id="7"),
        text=text,
        sent_at=datetime(2026, 11, 22, tzinfo=UTC),
        kind=kind,
        bot="Parlour",
        mentioned=mentioned,
    )
    fields = row_codec.read_json(row_codec.write_inbound(message))
    fields.pop("command", None)
    at = row_codec.micros(message.sent_at)
    payload = row_codec.write_json({**fields, "key": str(message.key), "id": "1", "at": at})
    return row_codec.read_inbound(message.key, "1", at, message.sender.id, payload)


@pytest.mark.parametrize("kind", [InboundKind.COMMAND, InboundKind.BUTTON])
def test_a_command_of_a_released_row_is_still_one(kind: InboundKind) -> None:
    """What waited at the upgrade is run; a row that names somebody is not, since its text may be their name."""
    assert released("/memory approve e1", kind).command == "/memory approve e1"
    assert released("@Parlour stop", kind).command == "stop"
    assert released("/forget everything yes", kind, "2003").command == ""


def test_a_text_of_a_released_row_is_no_command() -> None:
    """What the release took for a message stays one."""
    assert released("/etc is a folder", InboundKind.MESSAGE).command == ""


@given(message=OUTBOUND)
def test_outbound_round_trip(columns: Columns, message: OutboundMessage) -> None:
    """An outbound message comes back as it was."""
    assert row_codec.read_outbound(message.id, message.key, columns.store(row_codec.write_outbound(message))) == message


@given(part=PART)
def test_part_round_trip(columns: Columns, part: MessagePart) -> None:
    """A part comes back as it was; one that was moved goes to the chat that it was moved to."""
    read = row_codec.read_part(part.id, part.key, columns.store(row_codec.write_part(part)))
    key = SessionKey(part.key.channel, part.moved_to) if part.moved_to else part.key
    assert read == dataclasses.replace(part, key=key)


@given(lines=LINES, blobs=st.dictionaries(TEXT, TEXT, max_size=2))
def test_lines_round_trip(columns: Columns, lines: tuple[dict[str, object], ...], blobs: dict[str, str]) -> None:
    """A record's lines and blobs come back as they were."""
    assert row_codec.read_lines(columns.store(row_codec.write_lines(lines, blobs))) == (lines, blobs)


@given(text=st.text(st.characters()))
def test_columns_round_trip(columns: Columns, text: str) -> None:
    """A column's text comes back as it was, and two texts never share a column. None has a NUL."""
    joined = join_pairs(text)
    assert "\0" not in row_codec.quote(joined)
    assert row_codec.unquote(columns.store(row_codec.quote(joined))) == joined


@given(key=KEY)
def test_keys_round_trip(columns: Columns, key: SessionKey) -> None:
    """A session key comes back as it was."""
    assert row_codec.read_key(columns.store(row_codec.write_key(key))) == key


@given(TIME)
def test_times_round_trip(time: datetime) -> None:
    """A time comes back to the microsecond."""
    assert row_codec.moment(row_codec.micros(time)) == time
