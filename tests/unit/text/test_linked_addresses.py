"""Addresses that must not be links, in every shape that Markdown has for them, on every platform."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence

import pytest
from rich.console import Console

from channels.discord.render import render as render_discord
from channels.slack.render import render as render_slack
from channels.telegram.render import render as render_telegram
from channels.web.frame_codec import part_frame
from channels.web.frame_codec import render as render_frames
from channels.web.terminal import TerminalScreen
from gateway.events import MessagePart, OutboundMessage, SessionKey
from gateway.text import break_addresses, comparable_address, find_addresses, render_plain
from tests.fakes.link_readers import discord_links, slack_links, telegram_links, text_links

LINKS = ("good.example/a",)
SECRET = "evil.example/?q=secret"
HOSTILE = {
    "bare": f"see https://{SECRET}.",
    "no scheme": f"see {SECRET} or www.{SECRET}",
    "case": f"HtTpS://{SECRET.upper()}",
    "link": f"[docs](https://{SECRET})",
    "title": f"[docs](https://{SECRET} 'https://good.example/a')",
    "autolink": f"<https://{SECRET}>",
    "reference": f"[docs][x] [x] [docs][]\n\n[x]: https://{SECRET}\n[docs]: <https://{SECRET}> 'a'",
    "only a definition": f"[x]: https://{SECRET}",
    "picture": f"![](https://{SECRET}) ![cat](https://{SECRET}) [![cat](https://{SECRET})](https://good.example/a)",
    "label names another": f"[https://good.example/a](https://{SECRET}) [https://{SECRET}](https://good.example/a)",
    "emphasis inside": f"https://ev**il.exam**ple/?q=*secret* __https://{SECRET}__ ~~{SECRET}~~",
    "emphasis in a label": f"[a **b `c`** *d*](https://{SECRET})",
    "escapes": r"https\:\/\/evil\.example\/?q=secret",
    "entities": "&#104;ttps&colon;//evil&period;example/?q=secret",
    "code": f"`https://{SECRET}` ``a ` {SECRET}`` `a`{SECRET}`b`",
    "a lone backtick": f"` https://{SECRET} ` ```x {SECRET}\n\n` https://{SECRET}",
    "backslashes and backticks": f"\\`https://{SECRET}\\` \\\\``{SECRET}",
    "heading": f"# https://{SECRET}\n\n[a](https://{SECRET})\n===",
    "list": f"- https://{SECRET}\n  1. [a](https://{SECRET})\n- [ ] {SECRET}",
    "quote": f"> https://{SECRET}\n> > [a](https://{SECRET})",
    "table": f"| https://{SECRET} | b |\n|--|--|\n| [a](https://{SECRET}) | {SECRET} |",
    "wide table": f"| {'head ' * 12} | b |\n|--|--|\n| {'cell ' * 12} | [a](https://{SECRET}) https://{SECRET} |",
    "html": f'<a href="https://{SECRET}">docs</a> <img src=//{SECRET}>',
    "international": "https://évil.example/?q=secret xn--vil-9la.example/?q=secret пример.рф/secret",
    "user": f"https://good.example/a@{SECRET} secret@good.example/a ann@evil.example [m](mailto:secret@evil.example)",
    "longer": "https://good.example/a?q=secret https://good.example/a/secret good.example/a#s good.example/asecret",
    "glued": f"https://good.example/a,https://{SECRET} https://good.example/a秘密 [ok](https://good.example/a)秘密",
    "no-break space": "https://good.example/a\x85secret https://good.example/a\u200bsecret",
    "other schemes": "[a](javascript:alert(1)) [b](data:text/html,x) [c](ftp://evil.example/secret) tg://resolve?domain=evil",
    "encoded": "https://evil.example/%73ecret [a](https://good.example/%61)",
    "fence": f"```\nhttps://{SECRET}\n```\n\n    {SECRET}",
}
Render = Callable[[OutboundMessage], Sequence[MessagePart]]
READERS: dict[str, tuple[Render, Callable[[MessagePart], list[str]]]] = {
    "telegram": (render_telegram, telegram_links),
    "slack": (render_slack, slack_links),
    "discord": (render_discord, discord_links),
    "frames": (render_frames, lambda part: text_links(part.plain)),
}


def answer(text: str, links: tuple[str, ...] | None = LINKS) -> OutboundMessage:
    """Return an answer that may link to *links* alone."""
    return OutboundMessage(id="t1.1", key=SessionKey("pocket", "1"), text=text, links=links)


@pytest.mark.parametrize("platform", READERS)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_an_address_is_shown_and_is_no_link(platform: str, text: str) -> None:
    """Whole, cut at any length (as in a stream), and so heavy that it is not parsed: no link but to what is allowed."""
    render, read = READERS[platform]
    beginnings = [text[:end] for end in range(1, len(text) + 1, 3)]
    for shown in (text, *beginnings, f"{text}\n\n{'*' * 30_000}"):
        for part in render(answer(shown)):
            found = [*read(part), *text_links(part.plain)]
            assert not [each for each in found if comparable_address(each) not in LINKS], part
    (part, *_) = render(answer(text))
    shown = f"{part.payload} {part.plain}".lower()
    assert "evil" in shown or "secret" in shown


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_terminal_prints_nothing_to_click(text: str) -> None:
    """Terminals find addresses in what is printed: those that are not allowed are broken, drawn or as they stand."""
    for is_live in (True, False):
        printed = io.StringIO()
        screen = TerminalScreen(is_live=is_live, console=Console(file=printed, width=300, force_terminal=False))
        screen.history([("assistant", text, LINKS)])
        screen.message(text, "", links=LINKS)
        found = [each for each in text_links(printed.getvalue()) if "://" in each or each.startswith("www.")]
        assert not [each for each in found if comparable_address(each) not in LINKS], printed.getvalue()


def test_allowed_addresses_are_links_in_every_form() -> None:
    """With and without the scheme, in a label, in brackets, with signs behind it, in another case of the host."""
    text = (
        "[docs](https://good.example/a), <https://good.example/a>, https://GOOD.example/a/. (good.example/a)"
        " **http://good.example/a** ![pic](https://good.example/a)"
    )
    assert {comparable_address(each) for each in find_addresses(text)} >= set(LINKS)
    for platform, (render, read) in READERS.items():
        (part,) = render(answer(text))
        assert "`" not in part.payload, platform
        assert "[.]" not in part.plain
        if platform != "frames":
            assert len(read(part)) >= 4, platform
        (free,) = render(answer(text, None))
        assert free.plain.replace("![", "[") == part.plain


def test_without_a_restriction_nothing_changes() -> None:
    """Answers that no untrusted text influenced are what they were."""
    for text in HOSTILE.values():
        for render, _ in READERS.values():
            assert [part.payload for part in render(answer(text, None))] == [
                part.payload for part in render(OutboundMessage(id="t1.1", key=SessionKey("pocket", "1"), text=text))
            ]
    assert break_addresses("https://evil.example", None) == "https://evil.example"


def test_code_keeps_its_dots() -> None:
    """Code is code already; only where it is plain text an address in it is broken, and no name of a module."""
    text = "`os.path.join` and numpy.array\n\n```python\nos.path # https://evil.example\n```"
    (part,) = render_telegram(answer(text))
    shown = json.loads(part.payload)
    assert shown["text"] == "os.path.join and numpy.array\n\nos.path # https://evil.example"
    assert [each["type"] for each in shown["entities"]] == ["code", "code", "pre"]
    assert break_addresses("os.path https://evil.example", (), is_code=True) == "os.path https[:]//evil[.]example"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("https://Good.Example/A", "good.example/A"),
        ("http://a.example/", "HTTPS://A.example"),
        ("https://bücher.example/ä?ö", "https://xn--bcher-kva.example/%C3%A4?%C3%B6"),
        ("mailto:Ann@Good.example", "Ann@good.example"),
    ],
)
def test_equal_addresses_are_comparable(first: str, second: str) -> None:
    """What people leave out makes no difference."""
    assert comparable_address(first) == comparable_address(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("https://a.example/b", "https://a.example/B"),
        ("https://a.example/?q=b", "https://a.example/?q=B"),
        ("https://a.example/%61", "https://a.example/a"),
        ("https://a.example/", "https://a.example/?"),
        ("https://Ann@a.example", "https://ann@a.example"),
        ("ftp://a.example", "https://a.example"),
        ("https://a.example?Q", "https://a.example?q"),
    ],
)
def test_what_the_server_could_tell_apart_is_not_equal(first: str, second: str) -> None:
    """Every choice that the server sees would carry a bit."""
    assert comparable_address(first) != comparable_address(second)


def test_a_frame_names_the_links() -> None:
    """The page decides on its own tokens: it gets the addresses with the message, and with no restriction none."""
    (part,) = render_frames(answer("https://evil.example"))
    assert part_frame(part)["links"] == ["good.example/a"]
    (part,) = render_frames(answer("https://evil.example", None))
    assert "links" not in part_frame(part)


def test_plain_text_is_broken_visibly() -> None:
    """A person can still read where it leads."""
    assert render_plain("[a](https://evil.example/x.html)", ()) == "a (https[:]//evil[.]example/x[.]html)"
