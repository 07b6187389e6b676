"""The field `quoted`: what of a long talk is kept, and that none of it can pass for anything else."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as some

from agent.turns.prompt_assembly import (
    BACKGROUND_TOKENS,
    CHARS_PER_TOKEN,
    MOST_OF_ONE,
    build_quoted,
    message_header,
    select_background,
)
from gateway.events import Attachment, InboundMessage, QuoteKind, Sender, SessionKey
from tests.fakes.turns import said

LIMIT = BACKGROUND_TOKENS * CHARS_PER_TOKEN


def talk(*texts: str) -> list[InboundMessage]:
    """Return what Bob said, a second apart."""
    bob = Sender(id="bob", name="Bob")
    return [replace(said(text, id=str(n), second=n), sender=bob) for n, text in enumerate(texts)]


def format_background(messages: list[InboundMessage], *, thread: bool = False) -> str:
    """Return the background as the model reads it."""
    return select_background(messages, lambda each: message_header(each, "UTC"), has_start=thread)


def test_the_newest_is_kept_and_a_threads_start_before_it() -> None:
    """4,000 tokens hold the end of a long talk; in a thread also its first message, which is what it is about."""
    long = talk(*(f"message {n} {'x' * 500}" for n in range(100)))
    text = format_background(long)
    assert len(text) <= LIMIT
    assert "message 99 " in text
    assert "message 0 " not in text
    numbers = [int(line.partition("message ")[2].split()[0]) for line in text.splitlines()[1:-1]]
    assert numbers == list(range(numbers[0], 100))
    text = format_background(long, thread=True)
    assert len(text) <= LIMIT
    assert "message 0 " in text
    assert "message 99 " in text


def test_a_long_message_is_shortened_and_a_file_is_named() -> None:
    """One message cannot crowd the others out; a file is its kind; what says nothing is left out."""
    photo = Attachment(kind="image", name="x.png", size=1, url="https://secret")
    messages = [*talk("y" * 10_000, " "), replace(talk("")[0], attachments=(photo,))]
    text = format_background(messages)
    assert f"{'y' * MOST_OF_ONE}…" in text
    assert text.splitlines()[2].endswith("Bob: (image)")
    assert len(text.splitlines()) == 4
    assert format_background([]) == format_background(talk("")) == ""


@given(some.text(max_size=200), some.text(max_size=60))
def test_every_line_is_marked(text: str, name: str) -> None:
    """Whatever others write or are called, no line of theirs begins like one of ours."""
    message = replace(said("hello", id="9"), quoted=text, key=SessionKey("slack", "C1/2"))
    heard = replace(said(text, id="1"), sender=Sender(id="bob", name=name))
    lines = build_quoted(message, [heard], lambda each: message_header(each, "UTC")).split("\n")
    ours = [line for line in lines if line and not line.startswith("> ")]
    assert all(line.startswith(("[background] Said", "[end of the", "[the message that")) for line in ours)
    assert len(ours) == (0 if heard.is_empty else 2) + (1 if text.strip() else 0)


def test_shared_words_in_the_background_are_told_apart() -> None:
    """What Bob shared stands behind his own words, with the name of its author."""
    shared = replace(talk("see this")[0], quoted="it fails", quoted_name="Eve", quote_kind=QuoteKind.SHARED)
    assert "Bob: see this [shared, by Eve:] it fails" in format_background([shared])
