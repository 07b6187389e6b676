"""An erasure request finds whole words and their inflections, however they are marked up, and no other word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.transcript_lines import FORGOTTEN, encode
from agent.memory.erasure.phrase_matcher import PhraseMatcher
from agent.memory.erasure.word_match import ErasurePattern, clear_line, is_erasable, without_words

FOUND = {
    "the word": ("tea", "I like tea."),
    "another case": ("TEA", "i like tea"),
    "a plural": ("tea", "two Teas"),
    "a plural in the request": ("cities", "the city is big"),
    "a possessive": ("Ann", "Ann's dog"),
    "a possessive in the request": ("the zeppelin's", "The zeppelin"),
    "a part of a file's name": ("tea", "see my_tea_file.txt"),
    "before a hyphen": ("tea", "at tea-time"),
    "German, an umlaut": ("Haus", "Er kaufte die Häuser"),
    "Spanish, a plural": ("gato", "los gatos de mi casa"),
    "without the accent": ("cafe", "the café"),
    "decomposed": ("café", "cafe\u0301"),
    "wide letters": ("green tea", "ｇｒｅｅｎ tea"),
    "bold": ("tea", "I like **tea**"),
    "bold inside of a word": ("tea", "I like **t**ea"),
    "a name, one word bold": ("Ann Smith", "met **Ann** Smith"),
    "a name, one word a link": ("Ann Smith", "met [Ann](https://example.org/x) Smith"),
    "a name, one word a reference": ("Ann Smith", "met [Ann][1] Smith"),
    "a name as a link": ("Ann Smith", "met [Ann Smith](https://example.org)"),
    "a name in code and italics": ("Ann Smith", "met `Ann` _Smith_"),
    "an escaped sign": ("Ann Smith", "met Ann\\_Smith"),
    "an HTML tag": ("Ann Smith", "met <b>Ann</b> Smith"),
    "an HTML blank": ("Ann Smith", "met Ann&nbsp;Smith"),
    "a line wrap": ("Ann Smith", "met Ann\nSmith"),
    "a line wrap in a list": ("Ann Smith", "- met Ann\n  Smith"),
    "a line wrap in a quotation": ("Ann Smith", "> met Ann\n> Smith"),
    "a soft hyphen": ("zeppelin", "zep\u00adpelin"),
    "in the arguments of a tool": ("tea", '{"fact": "first\\ntea"}'),
    "escaped": ("дирижабль", "\\u0434\\u0438\\u0440\\u0438\\u0436\\u0430\\u0431\\u043b\\u044c"),
    "after a terminal's colour": ("boats", "\x1b[2Jboats"),
    "Chinese, without blanks": ("寿司", "我喜欢吃寿司和茶"),
    "Japanese": ("カメラ", "新しいカメラを買った"),
    "Korean, with a particle": ("서울", "서울에서 만나요"),
    "Chinese, half of it bold": ("寿司", "**寿**司"),
    "emoji": ("🦓🚁", "look: 🦓🚁!"),
    "an address": ("ann@example.com", "write to ann@example.com, soon"),
    "quoted": ('"green tea"', "a **Green**  tea!"),
    "in typographic quotes": ("„green tea“", "a green tea"),
    "quoted, with signs": ('"C++"', "I write C++ at work"),
    "quoted, one letter": ('"Q"', "Q knows"),
}
NOT_FOUND = {
    "other words": ("tea", "team, steak, instead, steady, teak, Teamwork"),
    "with digits": ("tea", "tea2go"),
    "two sentences": ("green tea", "It was green. Tea was there."),
    "two items": ("green tea", "- green\n- tea"),
    "two paragraphs": ("green tea", "green\n\ntea"),
    "two cells": ("green tea", "| green | tea |"),
    "another order": ("green tea", "tea, green"),
    "two words as one": ("no table", "that is notable"),
    "a word between": ("Ann Smith", "Ann M. Smith"),
    "a function word": ("note", "I do not"),
    "another language's inflection": ("case", "the casa was nice"),
    "quoted, a plural": ('"tea"', "teas"),
    "quoted, inside of a word": ('"tea"', "steak"),
    "quoted, other signs": ('"C++"', "I write C at work"),
    "Chinese, other signs": ("寿司", "寿星的司机"),
    "the target alone": ("Ann Smith", "[Ann](https://smith.example)"),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_request_finds_its_words(name: str) -> None:
    """In any case, inflection, script and markup."""
    request, text = FOUND[name]
    pattern = ErasurePattern.of(request, "en")
    assert pattern is not None
    assert pattern.in_text(text)
    assert pattern.in_text(f"{'1234 5678. ' * 9_000}\n\n{text}\n\n{'9 10 11. ' * 9_000}")


@pytest.mark.parametrize("name", NOT_FOUND)
def test_a_request_leaves_other_words(name: str) -> None:
    """A word inside of another, words that a sentence parts, and inflections of other languages."""
    request, text = NOT_FOUND[name]
    pattern = ErasurePattern.of(request, "en")
    assert pattern is not None
    assert not pattern.in_text(text)


@pytest.mark.parametrize("language", ["", "en", "de", "es", "zh"])
def test_an_english_plural_is_found_in_every_chat(language: str) -> None:
    """A list item of two words shows no language; a Chinese chat has English words too."""
    pattern = ErasurePattern.of("cookies", language)
    assert pattern is not None
    assert pattern.in_text("- cookies")
    assert pattern.in_text("- I like a cookie")


@pytest.mark.parametrize("request_text", ["", "  ", "ab", "?!", "茶", '""', '"?"', "x" * 501])
def test_a_request_without_words_is_refused(request_text: str) -> None:
    """Two letters, one sign, punctuation, and more than a request may have."""
    assert ErasurePattern.of(request_text) is None


def test_short_words_are_not_found_in_noise() -> None:
    """Bytes of a picture that happen to spell a short word do not cost the picture; readable text in it does."""
    pattern = ErasurePattern("tea")
    noise = b"\xff\xfe\x00" * 40_000
    assert not pattern.in_bytes(noise + b"tea" + noise)
    assert pattern.in_bytes(noise + b"Comment: a cup of tea, please" + noise)
    assert not pattern.in_bytes(noise + b"Comment: the team meets at noon" + noise)


_WORDS = ("tea", "te", "a", "Ann", "Smith", "Häuser", "café", "ｔea", "寿司", "zep\u00adpelin", "é", "ß")
_SIGNS = (
    "**",
    "_",
    "[",
    "](x)",
    "<b>",
    "&amp;",
    "\\",
    "\\u0061",
    "\n",
    "\t",
    " ",
    "-",
    '"',
    "'",
    ":",
    "\x1b[1m",
    "\u2028",
)


class UnfilteredMatcher(PhraseMatcher):
    """Searches every text, whatever its letters are."""

    def _may_contain(self, text: str) -> bool:
        return True


_REQUESTS = ["tea", "Ann Smith", '"Ann Smith"', "Haus", "cafe", "寿司", "カメラ", "zeppelin", "strasse"]
# Signs that stand between the letters of one word.
_DIVIDERS = (
    "",
    "*",
    "**",
    "](x)",
    "[",
    "][1]",
    "[1]: x",
    "<b>",
    "</b>",
    "<br/>",
    "&shy;",
    "&#8203;",
    "\\",
    "\x1b[1m",
    "\u00ad",
    "`",
)


@given(st.data(), st.sampled_from(_REQUESTS), st.sampled_from(["user", "tool"]))
def test_the_quick_look_passes_over_no_divided_word(data: st.DataObject, words: str, role: str) -> None:
    """What the search finds without it, it lets pass: in a text, in a line, and in several lines at once."""
    pieces = [data.draw(st.sampled_from(("", "", "", *_DIVIDERS))) + letter for letter in words.strip('"')]
    around = st.lists(st.sampled_from((*_WORDS, *_SIGNS, *_DIVIDERS)), max_size=4).map("".join)
    text = data.draw(around) + " " + "".join(pieces) + data.draw(around)
    if not UnfilteredMatcher(words, "en").is_in(text):
        return
    pattern = ErasurePattern.of(words, "en")
    assert pattern is not None
    assert pattern.matcher.is_in(text)
    line = encode({"i": 1, "turn": "t", "role": role, "content": text})
    other = encode({"i": 2, "turn": "t", "role": "assistant", "content": "é, another"})
    assert pattern.may_be_in_lines(line)
    assert pattern.may_be_in_lines(other + line)
    assert dict(pattern.select_lines(other + line))[line]


@given(
    st.lists(st.sampled_from((*_WORDS, *_SIGNS)), max_size=12).map("".join),
    st.sampled_from(_REQUESTS),
    st.sampled_from(["user", "assistant", "tool"]),
)
def test_a_line_is_erasable_if_its_erasure_changes_it(text: str, words: str, role: str) -> None:
    """What a preview counts is what the erasure changes, also in the files and the head of a line."""
    pattern = ErasurePattern.of(words, "en")
    assert pattern is not None
    for line in (
        {"i": 1, "turn": "t", "role": role, "content": text, "head": "Tue, Ann"},
        {"i": 1, "turn": "t", "role": role, "content": "a cup", "head": text},
        {"i": 1, "turn": "t", "role": role, "content": FORGOTTEN, "files": [{"name": text}]},
        {"kind": "command", "turn": "t", "content": "/x", "reply": text},
    ):
        raw = encode(line)
        assert is_erasable(raw, pattern, lambda _: True) is (without_words(raw, pattern, lambda _: True) != raw)
        assert not is_erasable(raw, pattern, lambda _: False)


@given(
    st.lists(st.sampled_from((*_WORDS, *_SIGNS)), max_size=12).map("".join),
    st.sampled_from(_REQUESTS),
    st.sampled_from(["user", "assistant", "tool"]),
)
def test_the_quick_look_at_a_line_passes_over_no_match(text: str, words: str, role: str) -> None:
    """A line that it rules out has the words in none of its texts, however they are marked up or escaped."""
    pattern = ErasurePattern.of(words, "en")
    assert pattern is not None
    line = {"i": 1, "turn": "t", "role": role, "content": text, "head": "Tue, Ann"}
    if not pattern.may_be_in_lines(encode(line)) or not dict(pattern.select_lines(encode(line)))[encode(line)]:
        assert clear_line(line, pattern, lambda _: True) is line


@pytest.mark.parametrize(("request_text", "text"), FOUND.values(), ids=FOUND)
def test_the_quick_look_finds_what_is_there(request_text: str, text: str) -> None:
    """Whatever a text matches, its line as stored may match; names of fields do not count."""
    pattern = ErasurePattern.of(request_text)
    assert pattern is not None
    assert pattern.may_be_in_lines(encode({"i": 1, "role": "user", "content": text}))
    assert not ErasurePattern("Istanbul").may_be_in_lines(encode({"i": 1, "role": "assistant", "content": "a cup"}))
    assert not ErasurePattern("content").may_be_in_lines(encode({"i": 1, "role": "user", "content": "a cup"}))


@pytest.mark.parametrize("words", ["Straße", "дирижабль", "寿司", "서울"])
def test_the_quick_look_passes_over_other_lines_in_every_script(words: str) -> None:
    """A preview of 100,000 messages in Chinese took 19 seconds of processor time where each line was searched."""
    others = "Grüße aus Köln; воздушный шар; 茶和咖啡; 부산, né à Łódź"
    pattern = ErasurePattern.of(words)
    assert pattern is not None
    line = encode({"i": 1, "role": "user", "content": others})
    assert not pattern.may_be_in_lines(line)
    assert list(pattern.select_lines(2 * line)) == 2 * [(line, False)]
    assert pattern.may_be_in_lines(encode({"i": 1, "role": "user", "content": f"{others} {words}"}))
    assert pattern.may_be_in_lines(encode({"i": 1, "role": "user", "content": f"é \uff02{words[:1]}\uff02{words[1:]}"}))
