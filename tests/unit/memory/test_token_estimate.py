"""What a message is reckoned at: words in any script, pictures, tool calls; never the bytes of a picture."""

from __future__ import annotations

import pytest

from agent.base.transcript_lines import PICTURE_TOKENS, estimate_message, estimate_messages, estimate_text


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("", 0, 0),
        ("The quick brown fox jumps over the lazy dog.", 9, 12),  # 10 by the tokenizers in use
        ("Быстрая лиса прыгает через ленивую собаку.", 10, 22),  # 12 to 20
        ("敏捷的棕色狐狸跳过懒狗。", 8, 16),  # 10 to 15
        ("🙂🙂🙂", 3, 9),
    ],
)
def test_a_text_is_reckoned_near_what_tokenizers_say(text: str, least: int, most: int) -> None:
    """A quarter of its bytes: near enough for Latin, Cyrillic and Chinese letters to be corrected by a factor."""
    assert least <= estimate_text(text) <= most


def test_a_picture_counts_as_one_however_many_bytes_it_has() -> None:
    """The budget does not burst because of base64."""
    part = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + "x" * 1_000_000}}
    message = {"role": "user", "content": [{"type": "text", "text": "look"}, part]}
    assert PICTURE_TOKENS < estimate_message(message) < PICTURE_TOKENS + 50


def test_everything_that_is_sent_counts() -> None:
    """Arguments of tool calls, thinking that goes back, results, the tools themselves, an empty content."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"q": "' + "x" * 4_000 + '"}'}}
    plain = {"role": "assistant", "content": None}
    assert estimate_message(plain) < 10
    assert estimate_message({**plain, "tool_calls": [call]}) > 1_000
    assert (
        estimate_message({**plain, "thinking": {"model": "m", "message": {"thinking_blocks": ["x" * 4_000]}}}) > 1_000
    )
    assert estimate_messages([{"type": "function", "function": {"description": "x" * 400}}]) > 100
