"""What rides along in a conversation until the next snapshot, how much of it, and what each model is sent of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agent.base.transcript_lines import kind_of
from agent.llm.chat_model import ChatRequest, estimate
from agent.llm.request_messages import outgoing, without_pictures
from agent.memory.prompt.conversation import Conversation, ConversationCache
from agent.memory.prompt.prompt_snapshot import BACKGROUND_TOKENS, CHARS_PER_TOKEN, PICTURES, MemoryView, opening
from gateway.ports.journal import Line, SessionRow
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, FakeRecords, exchange

VIEW = MemoryView(soul="", user="", memory="- tea", shared="", rev="1")
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}


async def conversation(home: Path) -> Conversation:
    """Return a conversation that has not begun."""
    row = SessionRow(key=ANN, transcript=TRANSCRIPT, next_index=0, created_at=START)
    return await ConversationCache(FakeRecords().transcripts).open(row, SCOPE)


def turn(talk: Conversation, **fields: object) -> list[str]:
    """Take a turn whose user line has *fields*; return the kinds of the lines that opened it."""
    begun = opening(talk, VIEW, "UTC", abilities="", at=talk.next_index)
    record = exchange(talk.next_index, talk.next_index, before=begun.lines, blobs=begun.blobs)
    talk.adopt(replace(record, lines=tuple(_with(line, fields) for line in record.lines)))
    return [kind_of(line) for line in begun.lines]


def _with(line: Line, fields: dict[str, object]) -> Line:
    return {**line, **fields} if line.get("role") == "user" else line


def photo(n: int) -> dict[str, object]:
    """The fact of a picture that is shown."""
    return {
        "kind": "image",
        "name": f"{n}.png",
        "size": 1,
        "seen": {"blob": f"{SCOPE}/{n:064x}", "media_type": "image/png"},
    }


async def test_too_many_pictures_take_a_snapshot(tmp_path: Path) -> None:
    """Up to twenty ride along; then a snapshot makes facts of them all, and counting begins again."""
    talk = await conversation(tmp_path)
    assert turn(talk, files=[photo(n) for n in range(PICTURES)]) == ["snapshot"]
    assert turn(talk, files=[photo(99)]) == []
    assert talk.auxiliary.pictures == PICTURES + 1
    assert isinstance(talk.messages[0]["content"], list)
    assert turn(talk) == ["snapshot"]
    assert talk.auxiliary.pictures == 0
    assert all(isinstance(message["content"], str) for message in talk.messages)
    assert "(image 99.png, 1 bytes)" in talk.messages[2]["content"]


async def test_too_much_background_takes_a_snapshot(tmp_path: Path) -> None:
    """What others said before mentions is paid for in each prompt, so it is dropped when it has grown large."""
    talk = await conversation(tmp_path)
    turn(talk, quoted="[background]" + "x" * BACKGROUND_TOKENS * CHARS_PER_TOKEN)
    assert "[background]" in talk.messages[0]["content"]
    assert turn(talk) == ["snapshot"]
    assert talk.auxiliary.background == 0
    assert "[background]" not in talk.messages[0]["content"]


async def test_taking_back_takes_everything_at_once(tmp_path: Path) -> None:
    """Picture and background leave the window in the same request as the words."""
    talk = await conversation(tmp_path)
    turn(talk, mid="7", files=[photo(1)], quoted="[background] secret")
    messages = talk.messages_with([{"kind": "forgotten", "mid": "7"}])
    assert "secret" not in str(messages)
    assert "image" not in str(messages)
    assert "[forgotten]" in str(messages)


def test_a_model_that_cannot_see_is_sent_words() -> None:
    """A fallback may be blind: it is told that there are pictures, and asked without them."""
    message = {"role": "user", "content": [{"type": "text", "text": "look"}, PICTURE]}
    assert without_pictures(message)["content"] == [
        {"type": "text", "text": "look"},
        {"type": "text", "text": "(pictures that you cannot see)"},
    ]
    plain = {"role": "user", "content": "look"}
    assert without_pictures(plain) is plain


def test_a_providers_mark_is_on_the_last_part() -> None:
    """A last message of parts is marked for the provider's cache as one of words is."""
    (sent,) = outgoing([{"role": "user", "content": [{"type": "text", "text": "look"}, PICTURE]}], "anthropic/claude-x")
    assert "cache_control" not in sent["content"][0]
    assert sent["content"][1]["cache_control"] == {"type": "ephemeral"}


def test_an_estimate_does_not_count_bytes() -> None:
    """A picture is about a thousand tokens, however many bytes it has."""
    content = [{"type": "text", "text": "look"}, PICTURE]
    tokens = estimate(ChatRequest(messages=[{"role": "user", "content": content}], turn="t"))
    assert 1_000 < tokens.input < 1_200
