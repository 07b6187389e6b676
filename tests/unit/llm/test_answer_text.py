"""The words of an answer: thinking left out, calls written as text kept from the preview, repetition ended."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.llm.answer_text import AnswerText


def read(text: str, size: int = 0) -> AnswerText:
    """Read *text* in pieces of *size*, or whole."""
    answer = AnswerText()
    for start in range(0, len(text), size or len(text) or 1):
        answer.add(text[start : start + (size or len(text))])
    answer.close()
    return answer


def read_harmony(text: str, size: int) -> tuple[AnswerText, list[str]]:
    """Read *text* as the answer of a gpt-oss in pieces of *size*; return it with every preview."""
    answer, previews = AnswerText(is_harmony=True), list[str]()
    for start in range(0, len(text), size):
        answer.add(text[start : start + size])
        previews.append(answer.visible_text)
    answer.close()
    return answer, previews


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_thinking_of_a_gpt_oss_whose_special_tokens_are_gone_is_left_out(size: int) -> None:
    """The names of its messages run into their words; neither preview nor answer shows the thinking."""
    answer, previews = read_harmony("analysisThe user says <b>hi</b>.\nI greet.assistantfinalHello, you!", size)
    assert answer.text == answer.visible_text == "Hello, you!"
    assert all("Hello, you!".startswith(each) for each in previews)


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_a_call_of_a_gpt_oss_whose_special_tokens_are_gone_is_a_written_one(size: int) -> None:
    """It is asked for again and never shown."""
    answer, previews = read_harmony('analysisI look.assistantcommentary to=functions.look json{"at": 1}', size)
    assert (answer.call_at, answer.visible_text) == (0, "")
    assert not any(previews)


@pytest.mark.parametrize(
    "text",
    [
        "analysis of the text: an assistantfinal is not a word",
        "analysis",
        "analysis.assistantfinal",
        "analysisWithout an end",
        "ana",
        "The word assistantfinal",
    ],
)
def test_words_of_a_gpt_oss_that_only_look_so_are_kept(text: str) -> None:
    """Without both names, each in front of its words, nothing is taken away."""
    for size in (1, 7, 1_000):
        assert read_harmony(text, size)[0].visible_text == text
    assert read("analysisI think.assistantfinalHello!").text == "analysisI think.assistantfinalHello!"


THINKING = {
    "closed": ("<think>\nsecret\n</think>\n\nHello!", "Hello!"),
    "upper case": ("<THINK>secret</Think>Hello!", "Hello!"),
    "thinking": ("<thinking>secret</thinking>Hello!", "Hello!"),
    "reasoning": ("<reasoning>\nsecret</reasoning>\nHello!", "Hello!"),
    "bracket": ("[THINK]secret[/THINK]Hello!", "Hello!"),
    "never closed": ("Hello!\n<think>secret", "Hello!\n"),
    "never opened": ("secret, I will greet.\n</think>\n\nHello!", "Hello!"),
    "several": ("<think>secret</think>Hel<think>secret</think>lo!", "Hello!"),
    "nested": ("<think>secret <think>secret</think> secret</think>Hello!", "Hello!"),
    "closed twice": ("<think>secret</think>Hello!</think>", "Hello!"),
    "thoughts": ("<thoughts>secret</thoughts>Hello!", "Hello!"),
    "gpt-oss": (
        "<|channel|>analysis<|message|>secret<|end|><|start|>assistant<|channel|>final<|message|>Hello!<|return|>",
        "Hello!",
    ),
    "gpt-oss, a call": ('<|channel|>commentary to=functions.x <|constrain|>json<|message|>{"secret": 1}<|call|>', ""),
    "cohere": ("<|START_THINKING|>secret<|END_THINKING|><|START_RESPONSE|>Hello!<|END_RESPONSE|>", "Hello!"),
    "gemma": ("<|channel>thought\nsecret<channel|>Hello!", "Hello!"),
    "code block": ("```html\n<think>x</think>\n```\nHello!", "```html\n<think>x</think>\n```\nHello!"),
    "code span": ("Write `<think>` here and `</think>` there.", "Write `<think>` here and `</think>` there."),
    "code in thinking": ("<think>```\nsecret</think>Hello!", "Hello!"),
    "other tags": ("a <b>bold</b> <i>x [1] < 3", "a <b>bold</b> <i>x [1] < 3"),
}


@pytest.mark.parametrize("size", [0, 1, 3, 7])
@pytest.mark.parametrize(("text", "answer"), THINKING.values(), ids=THINKING)
def test_thinking_is_no_part_of_the_answer(text: str, answer: str, size: int) -> None:
    """Tags in any case, split anywhere, unclosed or unopened; in code they are text."""
    assert read(text, size).text == answer


@pytest.mark.parametrize("mark", ["<|im_end|>", "</s>", "<|eot_id|>", "<end_of_turn>\n", "<|return|>", "<|endoftext|>"])
def test_the_mark_of_an_end_is_no_part_of_the_answer(mark: str) -> None:
    """Where the server does not know it as such; in the middle, and in HTML, it is text."""
    for size in (0, 1, 5):
        assert read(f"Hello!{mark}", size).text == "Hello!"
    assert read(f"{mark} ends it.").text == f"{mark} ends it."
    assert read("<s>gone</s>").text == "<s>gone</s>"


def test_words_about_a_header_are_words() -> None:
    """Behind the first words it begins no thinking."""
    assert read("gpt-oss writes <|channel|> first.", 3).text == "gpt-oss writes <|channel|> first."


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("text", [text for name, (text, _) in THINKING.items() if text[0] in "<[" and name != "nested"])
def test_thinking_is_never_shown(text: str, size: int) -> None:
    """No state of the preview has a character of it, nor half a tag."""
    answer = AnswerText()
    for start in range(0, len(text), size):
        answer.add(text[start : start + size])
        assert not set("<[") & set(answer.visible_text)
        assert "s" not in answer.visible_text


def test_a_model_that_only_ends_its_thinking_is_known_the_next_time() -> None:
    """The first time cannot be told before the tag; from then on nothing is shown before it."""
    first = read("secret</think>Hello!")
    assert first.ended_unopened
    answer = AnswerText(is_hidden=True)
    for piece in ("sec", "ret", "</thi", "nk>", "Hello!"):
        answer.add(piece)
        assert answer.visible_text in ("", "Hello!")
    assert answer.visible_text == "Hello!"
    unhidden = AnswerText(is_hidden=True)
    unhidden.add("Hello!")
    unhidden.close()
    assert unhidden.visible_text == "Hello!"


@pytest.mark.parametrize(
    "call",
    [
        "<tool_call>\n{",
        "[TOOL_CALLS][{",
        "<function=x>",
        "<|python_tag|>{",
        "<｜tool▁calls▁begin｜>",
        '<invoke name="x">',
    ],
)
def test_a_call_written_as_text_is_not_shown(call: str) -> None:
    """The preview ends before it; in a code block it is text."""
    text = f"Let me look.\n{call} more"
    answer = AnswerText()
    for each in text:
        answer.add(each)
        assert "Let me look.\n".startswith(answer.visible_text)
    assert answer.call_at == len("Let me look.\n")
    assert read(f"```\n{call}\n```").call_at is None


def test_an_object_that_names_a_tool_is_not_shown() -> None:
    """It may be a call; the whole answer tells."""
    assert read('{"name": "memory_search", "argu').visible_text == ""
    assert read('{"answer": 42}').visible_text == '{"answer": 42}'
    for text in ('{"name": "memory_search"}', '[{"type": "function", "name": "x"}]', '{"tool_calls": []}'):
        answer = AnswerText()
        for each in text:
            answer.add(each)
            assert answer.visible_text in ("", "[")


@pytest.mark.parametrize("period", [1, 7, 37, 200, 290, 1_001, 3_999])
@pytest.mark.parametrize("size", [0, 4, 333])
def test_an_answer_that_repeats_itself_is_cut_to_one_copy(period: int, size: int) -> None:
    """Whatever the distance of the copies, and whatever stands before them."""
    block = "".join(chr(0x4E00 + (n * n * 31 + n) % 7_919) for n in range(period))
    answer = read("Once. " + block * (40_000 // period), size)
    assert answer.is_repeated
    assert answer.text == "Once. " + block


def test_what_is_only_alike_is_no_repetition() -> None:
    """Seven copies, a long table and a list of numbers are answers."""
    for text in (
        "".join(f"{n}. The same words on each line, and another number at its beginning.\n" for n in range(500)),
        "x" * 1_500,
        ("A paragraph that comes back. " * 10)[:250].join(str(n) for n in range(300)),
    ):
        assert not read(text, 5).is_repeated
        assert read(text, 5).text == text


@given(st.text("ab<>/think`~\n[]{} "), st.integers(1, 9))
def test_pieces_make_no_difference(text: str, size: int) -> None:
    """An answer is the same however it was cut."""
    whole, cut = read(text), read(text, size)
    assert (whole.text, whole.call_at) == (cut.text, cut.call_at)


def test_a_long_answer_costs_little() -> None:
    """150,000 characters that look like tags everywhere are read in pieces of four within two seconds."""
    started = time.thread_time()
    read("<th`in[k </thin " * 9_400, 4)
    read("`<think>` " * 15_000, 4)
    read("a" * 199 + ("b" + "a" * 199) * 6 + "".join(f"{n:06}" for n in range(24_000)), 4)
    assert time.thread_time() - started < 2
