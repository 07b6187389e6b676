"""Requests of the programs that people use, and of nobody: what is new in them, and what is refused."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.api.parse import (
    LARGEST_IMAGE,
    LONGEST_INSTRUCTIONS,
    LONGEST_TEXT,
    MOST_IMAGES,
    MOST_MESSAGES,
    AnswerFields,
    ApiError,
    read_chat,
    read_id,
    read_idempotency_key,
    read_json,
    read_message,
    read_response,
    write_id,
)
from channels.api.render import growth, render, restrict_markdown
from gateway.events import OutboundKind, OutboundMessage, SessionKey
from gateway.text import comparable_address

PNG = "data:image/png;base64,AAAA"
PAYLOADS = Path(__file__).parents[2] / "payloads" / "api"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("model", "messages", "input", "role", "content", "type", "text", "image_url", "url", "user", "stream_options")


def payload(name: str) -> Any:
    """Return a request."""
    return json.loads((PAYLOADS / f"{name}.json").read_text("utf-8"))


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    """Return a request of /v1/chat/completions."""
    return {"model": "parlour", "messages": list(messages), **fields}


def image(url: str) -> dict[str, Any]:
    """Return a content part."""
    return {"type": "image_url", "image_url": {"url": url}}


def user(content: Any) -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": content}


@pytest.mark.parametrize("name", ["open_webui_chat", "librechat_chat", "home_assistant_chat"])
def test_only_what_is_new_is_taken(name: str) -> None:
    """The same history names the same place, whichever program sends it."""
    found = read_chat(payload(name))
    assert (found.text, found.is_stateless) == ("And when?", False)
    assert found.position == read_response(payload("openai_responses")).position
    assert read_chat(chat(user("And when?"))).position == ""


def test_instructions_are_the_system_messages() -> None:
    """Wherever they stand, in their order."""
    assert read_chat(payload("home_assistant_chat")).instructions.startswith("I want you to act")
    assert read_response(payload("openai_responses")).instructions == "Answer briefly."
    found = read_chat(chat({"role": "system", "content": "a"}, user("b"), {"role": "developer", "content": "c"}))
    assert (found.instructions, found.text) == ("a\n\nc", "b")


@pytest.mark.parametrize(
    "name",
    [
        *("open_webui_title", "open_webui_tags", "open_webui_follow_ups"),
        *("librechat_title", "librechat_structured_title"),
    ],
)
def test_requests_beside_a_conversation(name: str) -> None:
    """Are recognized by their form, and only as a whole request."""
    body = payload(name)
    assert read_chat(body).is_stateless
    said = body["messages"][0]["content"]
    assert (read_chat(body).fields is not None) is ("tools" in body)
    assert not read_chat(chat(user(f"Look at this prompt: {said}"))).is_stateless
    assert not read_chat(chat(user("hi"), {"role": "assistant", "content": "hi"}, user(said))).is_stateless


def test_a_title_in_fields() -> None:
    """LibreChat forces a function for it, or asks for an object; nothing else is forced, and no message."""
    body = payload("librechat_structured_title")
    fields = read_chat(body).fields
    assert fields == AnswerFields(names=("title", "language"), function="extract")
    schema = body["tools"][0]["function"]["parameters"]
    plain = {name: body[name] for name in ("model", "messages")}
    as_object = read_chat({**plain, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}})
    assert as_object.fields == AnswerFields(names=("title", "language"))
    many: dict[str, Any] = {f"a{n}": {} for n in range(11)}
    functions: list[Any] = [
        {"name": "extract", "parameters": {"properties": []}},
        {"name": "extract", "parameters": {"properties": {"x" * 65: {}}}},
        {"name": "extract", "parameters": {"properties": many}},
        {"name": "extract"},
        "extract",
    ]
    for bad in (
        *({**body, "tools": [{"type": "function", "function": each}]} for each in functions),
        {**body, "tools": []},
        {**body, "tool_choice": "required"},
        {**body, "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {**body, "messages": [user("hi")]},
    ):
        with pytest.raises(ApiError, match="cannot force a tool"):
            read_chat(bad)


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ('{"title": "At the harbour", "language": "English", "other": 1}', "At the harbour"),
        ('```json\n{"title": "At the harbour", "language": "English"}\n```', "At the harbour"),
        ("1. English\nAt the harbour\n", "At the harbour"),
        ('{"title": broken', '{"title": broken'),
        ("[1]", "[1]"),
        ("", ""),
    ],
)
def test_fields_are_read_from_what_the_model_said(answer: str, title: str) -> None:
    """As texts, by the names that were asked for; a model that writes no JSON has written a title."""
    found = json.loads(AnswerFields(names=("title", "language")).read(answer, str))
    assert (found["title"], list(found)) == (title, ["title", "language"])


def test_what_has_no_effect_is_named() -> None:
    """So that a client can know."""
    found = read_chat(payload("home_assistant_chat"))
    assert set(found.ignored) == {"max_tokens", "top_p", "temperature", "tools"}
    assert read_chat(chat(user("hi"))).ignored == ()
    assert read_chat(chat(user("hi"), temperature=0, tools=[], store=False)).ignored == ("temperature",)


def test_an_image() -> None:
    """Of the formats that models read."""
    found = read_chat(payload("open_webui_images"))
    (image,) = found.images
    assert (image.name, image.media_type, image.data[:4]) == ("image-1.png", "image/png", b"\x89PNG")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": [user("hi")]}, "model is missing"),
        ({"model": "gpt-5", "messages": [user("hi")]}, "use 'parlour'"),
        (chat(), "at least one message"),
        (chat(user("hi"), {"role": "assistant", "content": "hi"}), "must end with a message"),
        (chat(user(" \n")), "is empty"),
        (chat(user("hi"), n=2), "n must be 1"),
        (chat(user("hi"), tool_choice={"type": "function"}), "tool_choice"),
        (chat(user("hi"), {"role": "tool", "content": "x"}), "no tool of this client"),
        (chat(user([{"type": "input_audio"}])), "not supported"),
        (chat({"role": "king", "content": "x"}), "role"),
        (chat({"role": "system", "content": [image(PNG)]}, user("x")), "only messages of the role user"),
        (chat(user("x" * (LONGEST_TEXT + 1))), "more than 100000 characters"),
        (chat({"role": "system", "content": "x" * (LONGEST_INSTRUCTIONS + 1)}, user("x")), "system messages"),
        (chat(*[user("x")] * (MOST_MESSAGES + 1)), "more than 2000 messages"),
        (chat(user([image(PNG)] * (MOST_IMAGES + 1))), "at most 10 images"),
        (chat(user([image(PNG + "A" * (LARGEST_IMAGE * 2))])), "larger than 8 MB"),
        (chat(user([image("http://169.254.169.254/")])), "addresses are not fetched"),
        (chat(user("hi"), user=["x"]), "user must be a string"),
        (chat(user("hi"), stream_options=3), "stream_options"),
        (chat(user("hi"), stream="false"), "stream must be true or false"),
    ],
)  # fmt: skip
def test_what_is_not_allowed(body: Any, words: str) -> None:
    """With a sentence that says how to mend it."""
    with pytest.raises(ApiError, match=words):
        read_chat(body)


def test_a_message_has_two_fields() -> None:
    """Another one is a mistake."""
    assert read_message({"text": "hi", "chat": "work"}).user == "work"
    for wrong in ({"text": "hi", "callback_url": "x"}, {"text": 3}, {"text": "hi", "chat": "a/b"}):
        with pytest.raises(ApiError):
            read_message(wrong)


@given(JSON)
def test_any_json_is_read_or_not_allowed(body: Any) -> None:
    """Nothing else happens."""
    for read in (read_chat, read_response, read_message):
        with suppress(ApiError):
            read(read_json(json.dumps(body).encode()))


@given(
    st.recursive(
        st.sampled_from(("user", "system", "assistant", "text", "parlour", "image_url", 1, None)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
        max_leaves=12,
    )
)
def test_any_request_is_read_or_not_allowed(body: Any) -> None:
    """Also one that is nearly right."""
    for read in (read_chat, read_response):
        with suppress(ApiError):
            read({"model": "parlour", "messages": body, "input": body})


def test_ids_name_a_conversation_and_a_message() -> None:
    """And nothing else: a name that a key's person could not have is no id."""
    for kind in ("msg", "resp", "chatcmpl"):
        assert read_id(write_id(kind, "work", "a.b-c_1")) == ("work", "a.b-c_1")
    forged = base64.urlsafe_b64encode(b"../bob x").decode()
    for wrong in ("", "msg_", f"msg_{forged}", "msg_!", "x" * 1_000):
        assert read_id(wrong) is None
    assert read_idempotency_key("a") != read_idempotency_key("b")
    with pytest.raises(ApiError):
        read_idempotency_key("x" * 257)


def test_markdown_links_what_it_may() -> None:
    """Formatting stays; an address that may not be a link, or a picture, is none."""
    text = "**See** [a](https://good.example/a) ![p](https://evil.example/?q=secret)"
    assert restrict_markdown(text, None) == text
    good, evil = map(comparable_address, ("https://good.example/a", "https://evil.example/?q=secret"))
    assert restrict_markdown(text, frozenset({good, evil})) == text
    found = restrict_markdown(text, frozenset({good}))
    assert "https://good.example/a" in found
    assert "https://evil.example" not in found


def test_a_stream_takes_nothing_back() -> None:
    """What does not continue it begins a paragraph."""
    assert growth("", "It") == "It"
    assert growth("It", "It is") == " is"
    assert growth("Let me look.", "It is 5.") == "\n\nIt is 5."


def test_a_stream_of_addresses_that_may_not_be_links_is_said_once() -> None:
    """A preview ends before the word that grows, and waits from the first address that is broken."""
    text = "**See** the page https://evil.example/?q=1 and [a](https://evil.example/?q=2) for more."
    answer = json.loads(render(outbound(text, OutboundKind.ANSWER), 400_000, 10, "en")[0].payload)["text"]
    said = before = ""
    for n in range(1, len(text) + 1):
        for part in render(outbound(text[:n], OutboundKind.PREVIEW), 400_000, 10, "en"):
            shown = json.loads(part.payload)["text"] or before
            said, before = said + growth(before, shown) * (shown != before), shown
    assert said == "**See** the page"
    said += growth(before, answer)
    assert said.count("for more.") == 1
    assert "https://evil" not in said


def outbound(text: str, kind: OutboundKind) -> OutboundMessage:
    """Return a message none of whose addresses may be a link."""
    return OutboundMessage(id="t.1", key=SessionKey("api", "ann/work"), text=text, kind=kind, links=())
