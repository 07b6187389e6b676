"""Which conversations are greetings alone, in five languages; nothing that may be an answer or a fact is one."""

from __future__ import annotations

import pytest

from agent.memory.update.notes import has_only_greetings

GREETINGS = ["hi", "Hi!", "heyyy", "Hello there", "How's it going?", "Guten Morgen!", "Grüß Gott", "👋", "你好！"]
GREETINGS += [
    "hallo, wie geht's?",
    "¡Hola! ¿Qué tal?",
    "Bonjour, ça va ?",
    "good morning, how are you?",
    "merci beaucoup",
]
OTHERS = ["yes", "no", "ok", "👍", "hi 👍", "hi Tom", "42", "hi, I moved to Dresden", "call me", "remember that", "tea"]
OTHERS += ["hola Ana", "how are the cats", "good", "moin moin 12", "test results are negative", "/new"]


@pytest.mark.parametrize("text", GREETINGS)
def test_greetings_are_recognised(text: str) -> None:
    """In any of the languages, stretched, punctuated, five times in a row."""
    said = [{"role": "user", "content": text}, {"role": "assistant", "content": "Hello! How can I help?"}]
    assert has_only_greetings(said * 5)


@pytest.mark.parametrize("text", OTHERS)
def test_what_may_be_an_answer_or_a_fact_is_not(text: str) -> None:
    """One such message among greetings is enough; when in doubt, the conversation is summarised."""
    assert not has_only_greetings([*([{"role": "user", "content": "hi"}] * 4), {"role": "user", "content": text}])


def test_files_and_tools_are_more_than_greetings() -> None:
    """A greeting with a photo, a quotation or a tool's work beside it says something."""
    assert not has_only_greetings([{"role": "user", "content": "hi", "files": [{"name": "a.png"}]}])
    assert not has_only_greetings([{"role": "user", "content": "hi", "quoted": "the address is 12 Elm St"}])
    assert not has_only_greetings([{"role": "user", "content": "hi"}, {"role": "tool", "content": "3"}])
    assert not has_only_greetings([{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
    assert not has_only_greetings([])
