"""Sources of results: what pages call themselves is text, and only web addresses become links."""

from __future__ import annotations

import pytest

from agent.tools.tool import collect_sources, encode_sources
from gateway.events import AnswerSource
from gateway.text.message_text import file_address, format_sources


def below(*sources: AnswerSource, text: str = "an answer") -> str:
    """Return the line below *text*."""
    return format_sources(collect_sources([{"sources": encode_sources(sources)}], text), text, "en")


def test_sources_are_links() -> None:
    """Each address once, with the page's title, or the host of a page without one."""
    one = AnswerSource("https://example.org/a", "First page")
    two = AnswerSource("http://example.net/b?c=d&e=f")
    assert below(one, two, one) == (
        "Sources: [First page](https://example.org/a) · [example.net](http://example.net/b?c=d&e=f)"
    )


def test_what_the_answer_links_is_not_listed_again() -> None:
    """No line at all if nothing is left."""
    assert below(AnswerSource("https://example.org/a", "A"), text="see https://example.org/a") == ""
    assert below() == ""


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("](https://evil.example) [click", "https://evil.example click"),
        ("**Bold** _and_ `code` <b>tag</b>", "Bold and code b tag /b"),
        ("two\nlines\x00", "two lines"),
        ("||spoiler|| # heading", "spoiler heading"),
        ("x" * 500, "x" * 80),
        ("[]", "example.org"),
    ],
)
def test_a_title_is_plain_text(title: str, shown: str) -> None:
    """No sign of it is markup, on any platform, and it is bounded."""
    assert below(AnswerSource("https://example.org/a", title)) == f"Sources: [{shown}](https://example.org/a)"


@pytest.mark.parametrize(
    "url",
    ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "//example.org", "https://", "http://[", "x"],
)
def test_only_web_addresses_are_links(url: str) -> None:
    """Others are left out of the transcript and of the answer."""
    assert encode_sources([AnswerSource(url, "x")]) == []
    assert collect_sources([{"sources": [{"url": url, "title": "x"}]}], "see x") == ()
    assert format_sources([AnswerSource(url, "x")], "", "en") == ""


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("lease.pdf, page 2", "lease.pdf, page 2"),
        ("`<@U1> @everyone evil.example`", "@U1 @everyone evil.example"),
        ("[x](https://evil.example)", "x https://evil.example"),
        ("", "file"),
    ],
)
def test_a_file_is_named_as_code(title: str, shown: str) -> None:
    """No platform makes a link or a mention of it, and it has no address."""
    address = file_address("received/a b](`.pdf", "2")
    assert below(AnswerSource(address, title), text="as a b](`.pdf says") == f"Sources: `{shown}`"
    assert below(AnswerSource("chat-file:", "x")) == ""


HITS = [
    AnswerSource(file_address("received/lease.pdf", place), f"lease.pdf, page {place}") for place in ("7", "2", "12")
] + [AnswerSource(file_address("notes.md", ""), "notes.md"), AnswerSource(file_address("合同.pdf", "3"), "合同.pdf, 3")]


@pytest.mark.parametrize(
    ("answer", "listed"),
    [
        ("At nine.", ""),
        ("The lease says so.", ""),
        ("Three months (lease.pdf, page 2).", "`lease.pdf, page 2`"),
        ("See LEASE.PDF, pages 2 and 12", "`lease.pdf, page 2` · `lease.pdf, page 12`"),
        ("It is in received/lease.pdf.", "`lease.pdf, page 7`"),
        ("My notes.md and lease.pdf (page 22)", "`lease.pdf, page 7` · `notes.md`"),
        ("见合同.pdf第3页", "`合同.pdf, 3`"),
        ("a release.pdf2 of footnotes.md", ""),
    ],
)
def test_a_file_is_listed_if_the_answer_cites_it(answer: str, listed: str) -> None:
    """With the places that it names, or the best one; what was found and not used is no source."""
    assert below(*HITS, text=answer) == (f"Sources: {listed}" if listed else "")


def test_an_address_cannot_end_its_link() -> None:
    """Parentheses, blanks and line breaks are escaped; a very long address is left out, and so is the ninth source."""
    assert below(AnswerSource("https://example.org/a) [b](c d\n", "A")) == (
        "Sources: [A](https://example.org/a%29%20%5Bb%5D%28c%20d%0A)"
    )
    assert below(AnswerSource("https://example.org/" + "a" * 2_000)) == ""
    assert below(*(AnswerSource(f"https://example.org/{n}") for n in range(20))).count("](") == 8
