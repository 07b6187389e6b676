"""Commands in what a sender typed."""

from __future__ import annotations

import pytest

from gateway.text import as_one_word, find_command


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("/help", "/help"),
        ("  !stop \n", "!stop"),
        ("/HELP@parlour", "/HELP"),
        ("@Parlour stop", "stop"),
        ("@parlour  /allow  a  b ", "/allow a  b"),
        ("/forget a\nb", "/forget a\nb"),
        ("/help@other", ""),
        ("@other /help", ""),
        ("@parlour stop it", ""),
        ("@parlour", ""),
        ("stop", ""),
        ("/etc/passwd", ""),
        ("> /help", ""),
        ("<@1> /help", ""),
        ("", ""),
    ],
)
def test_what_was_typed_is_found(typed: str, command: str) -> None:
    """A command starts the text, or stands behind our own mention; a bare name is one only as all the rest."""
    assert find_command(typed, "Parlour") == command


def test_names_are_spelt_in_the_arguments_alone() -> None:
    """What a mention resolves to never stands where the command's name is read."""
    assert find_command("/allow <@1>", spell=lambda text: text.replace("<@1>", "@x")) == "/allow @x"
    assert find_command("<@1> all", spell=lambda text: text.replace("<@1>", "/forget")) == ""


def test_a_name_of_blanks_and_breaks_is_one_word() -> None:
    """No blank, break or no-break space is left in it."""
    assert as_one_word(" a b\u00a0c\nd ") == "a_b_c_d"
