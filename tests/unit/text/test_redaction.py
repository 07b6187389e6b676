"""Secrets in what people read: those of the settings and the shapes of tokens, at the end of a growing text too."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.redaction import _BY_SHAPE, _BY_TOKEN, REDACTED, SecretRedactor

SECRET = "kY7-wq9+Zz/2pLm=="
TOKENS = [
    "1234567890:AAHk3_fakefakefakefakefakefakefakefak",
    "xoxb-123456789012-abcdefABCDEF",
    "xapp-1-A0B1C2D3-abcdef0123",
    "sk-proj-abcdefghijklmnop0123",
    "ghp_abcdefghijklmnopqrstuvwxyz0123",
    "AIzaSyA0123456789abcdefghijklmnopqrstuv",
    "MTIzNDU2Nzg5MDEyMzQ1Njc4.GabcdE.abcdefghijklmnopqrstuvwxyz0",
]
WORDS = [
    "A basic internationalization-friendly example",
    "postgres://user:password@localhost/db, then open https://x.example/?key=value&code=17",
    "The bot configuration-and-settings page. Authorization: Bearer",
    "call 0123 456789 at 12:30, ratio 12345:6789",
    "task-list sk-ip risk-averse",
]


@pytest.mark.parametrize("token", [*TOKENS, SECRET])
def test_a_secret_is_not_shown(token: str) -> None:
    """Known or by its shape, in a sentence, in code or in an address, it is replaced; the rest stays."""
    redactor = SecretRedactor([SECRET])
    for around in ("Here: {}.", "`{}`", "```\nTOKEN={}\n```", "https://a.example/?t={}", "({})"):
        assert redactor.redact(around.format(token)) == around.format(REDACTED)


@pytest.mark.parametrize("words", WORDS)
def test_words_stay(words: str) -> None:
    """An answer may explain headers and addresses: what a log loses for where it stands is no secret here."""
    assert SecretRedactor(["ollama", "not-needed", "password"]).redact(words) == words


PIECES = [
    *TOKENS,
    "a",
    "12345:",
    " ",
    "\n",
    "\u2003",
    "\x1c",
    "-",
    ".",
    "é",
    "/bot",
    "Bearer ",
    "x" * 40,
    "AIza",
    "://u:p@",
]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.text(alphabet="AIzas0-_.:é \x1f", max_size=90))
def test_looking_at_long_words_alone_misses_nothing(text: str) -> None:
    """As if the patterns were searched for in the whole text, whatever stands beside a token."""
    assert SecretRedactor().redact(text) == _BY_TOKEN.sub(REDACTED, text)
    assert SecretRedactor().redact_log(text) == _BY_SHAPE.sub(REDACTED, text)


@given(st.sampled_from([*TOKENS, SECRET]), st.integers(1, 9), st.sampled_from(["", "and `", "key=", "see\n"]))
def test_no_delta_shows_a_beginning_of_a_secret(token: str, step: int, before: str) -> None:
    """However a stream cuts it, no text so far shows a piece of it, each goes on with the one before, and all comes."""
    redactor = SecretRedactor([SECRET])
    text = f"Some words {before}{token} and more words, to the end\n"
    # What stands before the first mark in Telegram's and Discord's is the bot's public number.
    hidden = token[re.match(r"\d{6,}:|MTI\w+\.|", token).end() :]  # type: ignore[union-attr]
    shown = ""
    for end in range(1, len(text) + step, step):
        now = redactor.redact_growing(text[:end])
        assert now.startswith(shown) or hidden != token
        assert not any(piece in now for piece in (hidden[:6], hidden[-6:], hidden[4:12]))
        shown = now
    assert redactor.redact(text).startswith(shown)
    assert shown.endswith(" and more words, to the end\n")


def test_a_growing_text_is_held_back_by_a_word_at_most() -> None:
    """Ordinary words are shown when they have ended, and a run without an end is not waited for."""
    redactor = SecretRedactor([SECRET])
    assert redactor.redact_growing("The answer is sim") == "The answer is "
    assert redactor.redact_growing("The answer is simple ") == "The answer is simple "
    assert redactor.redact_growing("漢字が続く") == "漢字が続く"
    assert redactor.redact_growing("-=" * 500) == "-=" * (500 - 64)
    assert len(redactor.redact_growing("a" * 1_000)) == 1_000 - 256
    assert SecretRedactor().redact_growing("The answer is sim") == "The answer is sim"


SECRETS = ("Zq7mKp2xWv", "correct horse 9 battery staple", "pässwört-ünlimited-9", "k" * 40 + "9" + "z" * 200)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("before", ["", "The code begins with ", "key=", "漢字"])
def test_guesses_of_a_secret_look_alike(secret: str, before: str) -> None:
    """Whoever makes the bot write one guess after the other sees the same for a right letter and a wrong one."""
    redactor = SecretRedactor([secret])
    learnt = ""
    for n in range(1, min(len(secret), 100)):
        right = redactor.redact_growing(f"{before}{secret[:n]}")
        wrong = redactor.redact_growing(f"{before}{secret[: n - 1]}~")
        learnt += secret[n - 1] if len(right) != len(wrong) else ""
    assert learnt == ""


@pytest.mark.parametrize("secret", SECRETS)
def test_no_delta_shows_a_beginning_of_any_secret(secret: str) -> None:
    """Also of one that has blanks, other scripts, or more characters than are held back."""
    redactor = SecretRedactor([secret])
    for end in range(1, len(secret) + 1):
        now = redactor.redact_growing(f"It is {secret}"[: 6 + end])
        assert not now.removeprefix("It is ").removesuffix("[redacted]")
