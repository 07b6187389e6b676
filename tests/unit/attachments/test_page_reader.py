"""Web pages as text: the main part, its links, what a page says about itself, and pages that mean harm."""

from __future__ import annotations

import pytest

from agent.attachments.document_reader import SandboxedReader
from agent.attachments.page_reader import clean_link, decode_page, read_page
from gateway.errors import FileUnavailable
from tests.fakes.web_pages import PAGES, word_f1

ARTICLE = "".join(f"<p>Paragraph {n} has words, commas, and enough of both to count as text.</p>" for n in range(9))


def read(source: str, *, is_whole: bool = False, address: str = "https://site.example/news/today") -> dict[str, str]:
    """Return what is read of *source*."""
    return read_page(source.encode(), charset="utf-8", address=address, is_whole=is_whole)


def test_the_main_part_of_ordinary_layouts_is_found() -> None:
    """Over fifteen layouts, what is read is what a reader wants: F1 of the words is 0.95 and more, on each page 0.9."""
    scores = {}
    for page in PAGES:
        scores[page.name] = word_f1(read(page.source)["text"], page.wanted)
    assert sum(scores.values()) / len(scores) >= 0.95
    assert min(scores.values()) >= 0.9, scores


def test_links_are_absolute_and_lead_to_pages() -> None:
    """Relative links get the page's address; links that run something or lead elsewhere keep only their words."""
    found = read(
        f"<body><article>{ARTICLE}<p>See <a href='../faq?utm_source=x&id=3&fbclid=y'>the answers, all of them</a>,"
        " <a href='javascript:alert(1)'>run</a>, <a href='data:text/html,x'>data</a>, <a href='http://u@h.example/'>who</a>,"
        " <a href='https://h.example/a(b)[c] d'>odd</a>, and <a title='](http://evil.example)' href='#top'>up</a>."
    )["text"]
    assert "[the answers, all of them](https://site.example/faq?id=3)" in found
    assert "[odd](https://h.example/a%28b%29%5Bc%5D%20d)" in found
    assert "run, data, who" in found
    assert not any(word in found for word in ("javascript", "data:", "evil", "utm_", "u@h"))


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("https://a.example/?utm_medium=mail", "https://a.example/"),
        ("https://a.example/?q=a+b&gclid=1", "https://a.example/?q=a+b"),
        ("https://a.example/?page=2", "https://a.example/?page=2"),
        ("http://[::1", ""),
        ("mailto:a@b.example", ""),
        ("https://a.example:99999/", ""),
        ("https://a.example/\u202e", ""),
    ],
)
def test_a_link_without_what_tracks(address: str, kept: str) -> None:
    """Parameters that only identify the reader are dropped, others stay; what is no address of a page is no link."""
    assert clean_link(address) == kept


def test_a_page_tells_about_itself() -> None:
    """Title, language and date are taken from where pages state them, each bounded and checked."""
    head = (
        '<html lang="de-AT"><head><title>A\n title</title><meta property="article:published_time" content="{}"></head>'
    )
    found = read(head.format("2026-11-01T08:30:00Z") + f"<body>{ARTICLE}")
    assert (found["title"], found["language"], found["date"]) == ("A title", "de-AT", "2026-11-01T08:30")
    found = read(f'<html lang="no such language!"><title>{"x" * 999}</title><body>{ARTICLE}')
    assert (len(found["title"]), "language" in found, "date" in found) == (300, False, False)
    data = '<script type="application/ld+json">{"datePublished": "2026-10-31"}</script>'
    assert read(f"<head>{data}</head><body>{ARTICLE}")["date"] == "2026-10-31"


def test_what_a_reader_does_not_see_is_not_read() -> None:
    """Hidden elements, comments, scripts and attributes hold words for machines; they are no text of the page."""
    hidden = (
        "<div hidden>secret one</div><p style='color:red; display : none'>secret two</p><!-- secret three -->"
        "<script>secret four</script><template>secret five</template><img alt='secret 6'>"
        "<p aria-hidden=true>secret 7</p>"
    )
    for is_whole in (False, True):
        found = read(f"<body><article>{hidden}{ARTICLE}</article>", is_whole=is_whole)["text"]
        assert "secret" not in found
        assert "Paragraph 8" in found


@pytest.mark.parametrize("depth", [300, 2_000, 10_000])
def test_deep_pages_are_read(depth: int) -> None:
    """Clumsy pages never close their elements; however deep its text is, it is read, and hidden text is not."""
    page = f"<body>before{'<div>' * depth}deep<p hidden>secret</p><script>secret</script></body>"
    for is_whole in (False, True):
        assert read(page, is_whole=is_whole)["text"].split() == ["before", "deep"]


def test_a_file_is_read_whole() -> None:
    """Navigation and footer belong to it; what nobody sees does not, and its relative links lead nowhere."""
    head = "<title>Report</title><nav>menu</nav>"
    found = read_page(
        f"{head}<p hidden>secret<p><a href='x.html'>next</a> [1]{ARTICLE}<footer>imprint</footer>".encode()
    )
    assert found["title"] == "Report"
    assert found["text"].startswith("menu\n\nnext [1]\n\nParagraph 0")
    assert found["text"].endswith("imprint")
    assert "secret" not in found["text"]


def test_text_behind_an_embedded_object_is_read() -> None:
    """HTML gives `embed` no content; the parser puts the rest of the paragraph and of the page into it."""
    source = f"<body><article><p>Before it.<embed src='a.swf'><p>After it.</p>{ARTICLE}</article>"
    for is_whole in (False, True):
        found = read(source, is_whole=is_whole)["text"]
        assert "After it." in found
        assert "Paragraph 8" in found


def test_a_page_without_a_main_part_is_read_whole() -> None:
    """A list of links has no article: its text is the page's, without navigation and footer."""
    links = "".join(f"<li><a href='/{n}'>Item {n}</a></li>" for n in range(5))
    found = read(f"<body><nav>menu</nav><ul>{links}</ul><footer>imprint</footer>")
    assert not found["is_main"]
    assert found["text"].splitlines()[0] == "- [Item 0](https://site.example/0)"
    assert "menu" not in found["text"]


@pytest.mark.parametrize(
    ("data", "charset", "text"),
    [
        ("Grüße".encode(), "", "Grüße"),
        ("Grüße".encode("latin-1"), "", "Grüße"),
        ("Grüße".encode("latin-1"), "iso-8859-1", "Grüße"),
        ("<meta charset=shift_jis>港".encode("shift_jis"), "", "<meta charset=shift_jis>港"),
        (b"\xef\xbb\xbfGr\xc3\xbc\xc3\x9fe", "latin-1", "Grüße"),
        (b"plain", "zip", "plain"),
        (b"plain", "no-such-charset", "plain"),
        (b"+ADw-script+AD4-", "utf-7", "+ADw-script+AD4-"),
    ],
)
def test_the_text_of_a_page_is_decoded_once(data: bytes, charset: str, text: str) -> None:
    """A byte order mark wins, then the server, then the page; codecs that are no charset of pages are never used."""
    assert decode_page(data, charset) == text


async def test_pages_are_read_in_the_reader_process() -> None:
    """A page, and one that is nested beyond reason, are read by the child; the text is cut where it is asked to be."""
    reader = SandboxedReader()
    page = f"<title>T</title><body><article>{ARTICLE}</article>".encode()
    found = await reader.page(page, charset="", address="https://a.example/", is_whole=False, chars=100)
    assert (found.title, found.is_main, found.is_cut, len(found.text)) == ("T", True, True, 100)
    entity = b"<!DOCTYPE x [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><p>&a;"
    for hostile in (b"<div>" * 100_000, b"", b"\x00" * 1_000, entity):
        try:
            found = await reader.page(hostile, charset="", address="https://a.example/", is_whole=False, chars=100)
        except FileUnavailable:
            continue
        assert "root:" not in found.text


async def test_a_page_of_five_megabytes_is_read() -> None:
    """The source of a long page is read as far as the limits allow, and the text says that it is cut."""
    page = b"<body><article>" + b"<p>a readable word, and some more of it. </p>" * 110_000
    found = await SandboxedReader(wall=60).page(
        page, charset="utf-8", address="https://a.example/", is_whole=False, chars=1_000_000
    )
    assert found.is_cut
    assert len(found.text) == 1_000_000
