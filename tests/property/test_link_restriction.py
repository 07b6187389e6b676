"""Whatever Markdown a tainted answer is, no platform shows a link whose address is not allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from channels.discord.render import render as render_discord
from channels.slack.render import render as render_slack
from channels.telegram.render import render as render_telegram
from channels.web.frame_codec import render as render_frames
from gateway.events import MessagePart, OutboundMessage, SessionKey
from gateway.text import comparable_address, find_addresses, render_plain
from tests.fakes.link_readers import discord_links, slack_links, telegram_links, text_links

LINKS = ("good.example/a",)
PIECES = [
    *(
        "https://evil.example/?q=",
        "HtTpS://",
        "https:",
        "//",
        "://",
        "www.evil.example",
        "evil.example",
        "ev",
        "il.example",
    ),
    *(
        "secret",
        "q=1",
        "a",
        "é",
        "秘密",
        "।",
        ".",
        ",",
        ")",
        "(",
        "]",
        "[",
        "](",
        "![",
        "[x]",
        "[x]: ",
        "[][x]",
        ":",
        "/",
        "@",
        "?",
    ),
    *(
        "*",
        "**",
        "_",
        "~~",
        "`",
        "``",
        "```",
        "~~~",
        "\\",
        "&",
        "&#104;ttps://",
        "&lt;",
        "%68",
        "<",
        ">",
        "|",
        '"',
        "'",
    ),
    *("\n", "\n\n", " ", "    ", "\u00a0", "\u3000", "\u200b", "\x85", "- ", "1. ", "> ", "# ", "\n|-|-|\n", "  \n"),
    *("https://good.example/a", "[ok](https://good.example/a)", "<https://good.example/a>", "good.example/a"),
    *(
        "[https://fine.example](https://good.example/a)",
        "[b](<https://fine.example/(b)>)",
        "[ann](mailto:ann@good.example)",
        "javascript:alert(1)",
        "mailto:",
        "evil@evil.example",
        '<img src="https://evil.example/p.png">',
        "xn--e1afmkfd.xn--p1ai",
        "пример.рф",
    ),
]
MARKDOWN = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)
_WORDS = [
    *(
        "https://a.example/b",
        "(see www.c.example)",
        "[d](https://e.example/?f=g&h)",
        "<https://i.example>,",
        "ann@j.example.",
    ),
    *(
        "**https://k.example/(l)**",
        "![m](https://n.example/o.png)",
        "[*p* `q`](mailto:r@s.example)",
        "`t.example`",
        "`",
        "*",
    ),
]
Render = Callable[[OutboundMessage], Sequence[MessagePart]]
READERS: dict[str, tuple[Render, Callable[[MessagePart], list[str]]]] = {
    "telegram": (render_telegram, telegram_links),
    "slack": (render_slack, slack_links),
    "discord": (render_discord, discord_links),
    "frames": (render_frames, lambda part: text_links(part.plain)),
}


def is_allowed(address: str) -> bool:
    """Return True if *address* leads where an answer may link to."""
    return comparable_address(address) in LINKS


@pytest.mark.parametrize("platform", READERS)
@given(markdown=MARKDOWN)
def test_no_link_leads_where_it_may_not(platform: str, markdown: str) -> None:
    """Neither what is written as a link nor what a client would find, in the formatted text and in the plain one."""
    render, read = READERS[platform]
    for part in render(OutboundMessage(id="t1.1", key=SessionKey("pocket", "1"), text=markdown, links=LINKS)):
        assert all(map(is_allowed, read(part))), part
        assert all(map(is_allowed, text_links(part.plain))), part.plain


@settings(max_examples=100)
@given(words=st.lists(st.sampled_from(_WORDS), max_size=8))
@example(words=["`", "`t.example`"])  # the sign behind the host is compared as %60
def test_an_answer_whose_addresses_are_all_allowed_is_unchanged(words: list[str]) -> None:
    """What is found in it covers whatever its writer would restrict."""
    markdown = " ".join(words)
    every = {comparable_address(each) for each in find_addresses(markdown)}
    assert render_plain(markdown, every) == render_plain(markdown)


@given(address=st.text(max_size=40))
def test_a_comparable_address_stays_itself(address: str) -> None:
    """Whoever compares it again gets the same."""
    once = comparable_address(address)
    assert comparable_address(once) == comparable_address(comparable_address(once))
