"""What we send: mrkdwn that looks native, calls nobody, and fits."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.slack.render import LIMIT, message_body, metadata, part_of, render, render_markup
from gateway.events import MessagePart, OutboundMessage, SessionKey
from gateway.i18n import translate

KEY = SessionKey("slack", "C0ROOM/1795000000.000100")


def parts(text: str, **more: object) -> list[MessagePart]:
    """Cut *text*."""
    return render(OutboundMessage(id="t1.1", key=KEY, text=text, **more))  # type: ignore[arg-type]


DIALECT = [
    ("**bold** and _it_ and ~~gone~~", "*bold* and _it_ and ~gone~"),
    ("***both***", "_*both*_"),
    ("# A **big** title", "*A big title*"),
    ("half**bold**half", "half\u200b*bold*\u200bhalf"),
    ("**two\nlines**", "*two*\n*lines*"),
    ("- a\n- b\n  1. c\n  2. d", "• a\n• b\n    1. c\n    2. d"),
    ("> said\n> twice", "> said\n> twice"),
    ("`a<b`", "`a&lt;b`"),
    ("``a`b``", "a`b"),
    ("```py\nif a < b:\n    pass\n```", "```\nif a &lt; b:\n    pass\n```"),
    ("[docs](https://example.org/a?b=1&c=2)", "<https://example.org/a?b=1&amp;c=2|docs>"),
    ("<https://example.org>", "<https://example.org>"),
    ("| a | b |\n|---|---|\n| 1 | two |", "```\na | b\n--+----\n1 | two\n```"),
    ("---", "———"),
    ("a & b < c > d", "a &amp; b &lt; c &gt; d"),
]


@pytest.mark.parametrize(("markdown", "slack"), DIALECT)
def test_markdown_becomes_slacks_dialect(markdown: str, slack: str) -> None:
    """Every kind of mark has its own in Slack."""
    assert render_markup(markdown) == slack


HARMFUL = [
    ("<!channel> <!here> <!everyone>", "&lt;!channel&gt; &lt;!here&gt; &lt;!everyone&gt;"),
    ("<@U0BOB> <!subteam^S0T>", "&lt;@U0BOB&gt; &lt;!subteam^S0T&gt;"),
    ("`<!channel>`", "`&lt;!channel&gt;`"),
    ("[bank.example](https://evil.example/x)", "bank.example (<https://evil.example/x>)"),
    ("[https://bank.example](https://evil.example)", "https://bank.example (<https://evil.example>)"),
    ("[a|<!channel>](https://a.example/|<!channel>)", None),
    ("[x](ftp://a.example)", "x (ftp://a.example)"),
    ("![pic](https://evil.example/?q=secret)", "pic (<https://evil.example/?q=secret>)"),
    ("```\n<!channel>\n```", "```\n&lt;!channel&gt;\n```"),
]


@pytest.mark.parametrize(("markdown", "slack"), HARMFUL)
def test_no_answer_calls_or_misleads(markdown: str, slack: str | None) -> None:
    """Mass mentions are text, a link that claims another host says where it leads, pictures are not fetched."""
    found = render_markup(markdown)
    assert slack is None or found == slack
    assert not re.search(r"<[!@#]", found)


@given(st.text(alphabet=st.sampled_from("ab <>&!@#*_~`|[]()>\n-1.\\\"'\u200bé"), max_size=200))
def test_whatever_the_model_writes_calls_nobody(text: str) -> None:
    """No text makes an angle bracket but those of our own links, and rendering is pure."""
    once = parts(text)
    assert once == parts(text)
    for part in once:
        assert not re.search(r"<(?!https?:|mailto:)", part.payload)
        assert len(part.payload) <= LIMIT


GROWING = [
    "&" * 30_000,
    "> " * 30 + "deep\n" + "x\n" * 5_000,
    ("| " + "wide " * 60 + "| b |\n|---|---|\n" + "| 1 | 2 |\n" * 400),
    "word " * 4_000 + "\n```python\n" + "code < 1\n" * 1_000 + "```\nend",
    "- " * 200 + "x",
    "🛋️" * 5_000,
]


@pytest.mark.parametrize("text", GROWING, ids=["amp", "quote", "table", "fence", "nest", "emoji"])
def test_every_part_fits_with_its_mark(text: str) -> None:
    """However much escaping adds, a part that may repeat still fits into what an edit takes."""
    cut = parts(text)
    assert 1 <= len(cut) <= 40
    for part in cut:
        assert len(message_body(part, may_be_duplicate=True)["text"]) <= LIMIT
        assert part.payload.count("```") % 2 == 0


def test_what_was_said_is_all_there() -> None:
    """A long answer with code keeps its words, in order, and its fences whole."""
    text = "\n\n".join(f"paragraph {n} " + "word " * 60 for n in range(60)) + "\n\n```\n" + "line\n" * 900 + "```"
    cut = parts(text)
    words = html.unescape(" ".join(part.payload for part in cut)).replace("```", " ").split()
    assert words == text.replace("```", " ").split()
    assert len(cut) > 4


def test_a_part_is_posted_as_what_it_is() -> None:
    """No parsing of names, no mentions; plain text where the formatting was refused; the mark is the first line."""
    (part,) = parts("**late** <!channel>", reply_to="1795000000.000100")
    sent = message_body(part, may_be_duplicate=True)
    assert sent["text"] == f"_{translate('delivery.may_repeat')}_\n*late* &lt;!channel&gt;"
    assert (sent["parse"], sent["link_names"], sent["mrkdwn"]) == ("none", False, True)
    assert sent["channel"] == "C0ROOM"
    naked = MessagePart(id=part.id, key=KEY, payload="", plain="late <!channel>")
    assert message_body(naked, may_be_duplicate=False)["text"] == "late &lt;!channel&gt;"
    assert message_body(naked, may_be_duplicate=False)["mrkdwn"] is False


def test_the_send_key_comes_back() -> None:
    """What is put into the metadata is what is read from it; other apps' metadata is nobody's key."""
    (part,) = parts("late")
    assert part_of({"metadata": metadata(part)}) == "t1.1.1"
    assert part_of({}) == ""
    assert part_of({"metadata": {"event_type": "other", "event_payload": {"part": "t1.1.1"}}}) == ""


def test_nothing_to_say_is_no_part() -> None:
    """Blank text is not posted."""
    assert parts(" \n ") == []
