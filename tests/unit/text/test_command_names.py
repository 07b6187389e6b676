"""How sentences of the catalogue name commands where a slash does not reach us."""

from __future__ import annotations

import re

import pytest

from gateway.events import MessageButton
from gateway.i18n import (
    LANGUAGES,
    ChatLanguage,
    command_names,
    command_prefix,
    load_catalogue,
    translate,
    with_command_prefix,
)
from gateway.text import append_commands

_TYPED = re.compile(rf"(?<![\w.:/<])/(?:{'|'.join(command_names())}|\{{)(?![\w-])")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("sign", ["!", "/parlour "])
def test_no_sentence_names_a_slash_that_is_swallowed(language: str, sign: str) -> None:
    """In every language each command has the chat's sign; everything else stays as it is."""
    for key, sentence in load_catalogue(language).items():
        said = with_command_prefix(sentence, sign, command_names())
        assert not _TYPED.search(said.replace("/parlour ", "")), key
        assert said.replace(sign, "/") == sentence.replace(sign, "/"), key


def test_fields_are_left_alone() -> None:
    """What people typed is not rewritten; the name of a command in a field is."""
    here = ChatLanguage("en", "!")
    assert (
        translate("commands.did_you_mean", here, name="nwe", near="new") == "Unknown command: !nwe. Did you mean !new?"
    )
    assert "`a /stop b`" in translate("people.blocked", here, whom="a /stop b")
    assert (
        translate("commands.did_you_mean", "en", name="nwe", near="new") == "Unknown command: /nwe. Did you mean /new?"
    )


def test_a_language_without_a_sentence_keeps_the_sign() -> None:
    """English, where it is lacking, is told the same way."""
    assert (
        translate("commands.unknown", ChatLanguage("xx", "!"), name="x")
        == "Unknown command: !x. !help lists all commands."
    )
    assert command_prefix(ChatLanguage("de", "!")) == "!"
    assert command_prefix("de") == "/"


def test_buttons_as_text_have_the_sign() -> None:
    """Where there are no buttons the command below can be typed as it stands."""
    assert append_commands("Sure?", [MessageButton("Yes", "/pair yes x")], "!") == "Sure?\n\n- Yes: `!pair yes x`"
