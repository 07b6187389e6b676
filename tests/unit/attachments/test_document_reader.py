"""What strangers send is opened in a child: honest files are read, and those that mean harm cost little."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from agent.attachments import reader_process
from agent.attachments.document_reader import DocumentPlace, SandboxedReader, _clean_places
from gateway.errors import FileUnavailable
from tests.fakes import sample_files

TOO_LARGE = "it is too large inside"
BROKEN = "it is broken, or not what its name says"


async def reason(data: bytes, form: str) -> str:
    """Return why a file was not read."""
    reader = SandboxedReader()
    with pytest.raises(FileUnavailable) as refused:
        await (reader.picture(data) if form == "picture" else reader.document(data, form, 1_000))
    return str(refused.value)


async def test_documents_are_read() -> None:
    """The words of a PDF, a Word document and a page come out, with their form where there is one."""
    reader = SandboxedReader()
    pdf = await reader.document(sample_files.pdf("first page", "", "third page"), "pdf", 1_000)
    assert (pdf.text, pdf.pages, pdf.is_cut) == ("first page\n\nthird page", 3, False)
    assert pdf.places == (DocumentPlace(0, "page", "1"), DocumentPlace(12, "page", "3"))
    word = await reader.document(sample_files.docx(sample_files.paragraph("Prices &amp; more")), "docx", 1_000)
    assert word.text == "Prices & more"
    page = b"<title>T</title><h1>Big</h1><p>a <b>bold</b> word<script>alert(1)</script><style>p{}</style>"
    assert (await reader.document(page, "html", 1_000)).text == "T\n\n# Big\n\na **bold** word"


async def test_what_is_longer_says_so() -> None:
    """Of a long document the beginning is read, and that it is only that is known; later pages are no places."""
    reader = SandboxedReader()
    text = await reader.document(sample_files.pdf(*["twelve chars"] * 50), "pdf", 100)
    assert (len(text.text), text.is_cut, text.pages, len(text.places)) == (100, True, 50, 8)
    assert (await reader.document(b"<p>" + b"word " * 100, "html", 50)).is_cut


@pytest.mark.parametrize(
    ("value", "places"),
    [
        ([[0, "page", "1"], [5, "page", "2"]], ((0, "1"), (4, "2"))),
        ([[0, "sheet", "a\n\x07b" + "c" * 99]], ((0, "a b" + "c" * 37),)),
        ([[3, "page", "1"], [1, "page", "2"], [-1, "page", "3"], [99, "page", "4"]], ((2, "1"),)),
        ([["0", "page", "1"], [0, "root", "1"], [0, "page", 1], "x", None], ()),
        ({"0": 1}, ()),
        (None, ()),
    ],
    ids=["listed", "hostile-name", "out-of-order", "other-types", "no-list", "none"],
)
def test_places_are_checked(value: object, places: tuple[tuple[int, str], ...]) -> None:
    """The child may be taken over: what it tells of places is taken where it fits the cleaned text."""
    text, found = _clean_places("a\0bcdefgh", value)
    assert text == "abcdefgh"
    assert tuple((each.start, each.name) for each in found) == places


def test_places_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document of very many pages is read; the first of them are places."""
    monkeypatch.setattr(reader_process, "PLACES", 3)
    found = reader_process.document(sample_files.pdf(*["page"] * 5), 1_000, "pdf")
    assert found["text"].count("page") == 5
    assert [each[2] for each in found["places"]] == ["1", "2", "3"]


async def test_a_picture_is_upright_small_and_bare() -> None:
    """It is turned as its camera says, scaled, nothing but pixels; the same picture gives the same bytes."""
    reader = SandboxedReader()
    data = sample_files.picture(4_000, 1_000, orientation=6)
    assert b"Secret Street" in data
    shown = await reader.picture(data)
    assert shown.media_type == "image/jpeg"
    assert b"Secret" not in shown.data
    with Image.open(io.BytesIO(shown.data)) as image:
        assert image.size == (392, 1_568)
        assert not image.getexif()
    assert (await reader.picture(data)).data == shown.data
    drawing = await reader.picture(sample_files.picture(form="PNG"))
    assert drawing.media_type == "image/png"


@pytest.mark.parametrize(
    ("data", "form", "why"),
    [
        (sample_files.png_of(30_000, 30_000), "picture", "it has too many pixels"),
        (sample_files.png_of(3_000, 3_000), "picture", BROKEN),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "picture", "it is no picture of a kind"),
        (sample_files.moving(), "picture", "it moves"),
        (sample_files.docx(sample_files.paragraph("A" * (40 << 20))), "docx", TOO_LARGE),
        (sample_files.nested_zip(3), "docx", "this kind of file cannot be read here"),
        (sample_files.laughing_docx(), "docx", BROKEN),
        (sample_files.hidden_laughs("padding"), "docx", BROKEN),
        (sample_files.hidden_laughs("utf-16"), "docx", BROKEN),
        (sample_files.hidden_laughs("word/_rels/footnotes.xml.rels"), "docx", BROKEN),
        (sample_files.hidden_laughs("word/media/image1.png"), "docx", BROKEN),
        (b"PK\x03\x04 and nothing else", "docx", BROKEN),
        (b"%PDF-1.4 and nothing else", "pdf", ""),
        (sample_files.pdf(""), "pdf", "there is no text in it"),
    ],
    ids=[
        "png-bomb",
        "cut-png",
        "svg",
        "gif",
        "zip-bomb",
        "nested-zip",
        "entities",
        "entities-far-in",
        "entities-utf-16",
        "entities-in-relations",
        "entities-in-media",
        "no-zip",
        "no-pdf",
        "no-words",
    ],
)
async def test_what_means_harm_is_a_phrase(data: bytes, form: str, why: str) -> None:
    """Bombs and broken files are refused in a person's words, within seconds and within the child's memory."""
    async with asyncio.timeout(60):
        assert why in await reason(data, form)


async def test_a_million_objects_do_no_harm() -> None:
    """A PDF with a million objects is read, or refused for the time it takes; nobody waits longer than that."""
    data = await asyncio.to_thread(sample_files.pdf, "hello", more=60_000)
    async with asyncio.timeout(60):
        assert (await SandboxedReader().document(data, "pdf", 100)).text == "hello"


async def test_a_link_to_elsewhere_is_not_followed() -> None:
    """A picture that a document wants fetched is left out: the child opens no connection and no file."""
    asked = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for address in (f"http://127.0.0.1:{port}/x.png", "file:///proc/self/environ"):
            text = await SandboxedReader().document(sample_files.linked_docx(address), "docx", 1_000)
            assert text.text == "before\n\nafter"
    assert not asked.is_set()


async def test_deep_nesting_is_read_flat() -> None:
    """Markup nested ten thousand deep gives its words."""
    assert (await SandboxedReader().document(b"<div>" * 10_000 + b"deep", "html", 100)).text == "deep"


async def test_a_child_that_takes_too_long_is_ended() -> None:
    """The wall clock counts too, and the child is gone afterwards."""
    before = _children()
    with pytest.raises(FileUnavailable, match="takes too long"):
        await SandboxedReader(wall=0.01).document(sample_files.pdf("x", more=300_000), "pdf", 100)
    assert _children() <= before


def _children() -> set[str]:
    """Return our child processes."""
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text("ascii").split()}


def test_nothing_that_reads_files_is_loaded_before_there_is_one() -> None:
    """The gateway starts without the libraries that open pictures and documents; only the child ever has them."""
    program = "import sys, gateway.app.composition; print([name for name in sys.argv[1:] if name in sys.modules])"
    heavy = ["PIL", "pypdf", "mammoth", "markdownify", "bs4", "litellm"]
    done = subprocess.run([sys.executable, "-c", program, *heavy], capture_output=True, text=True, check=True)  # noqa: S603 - ours
    assert done.stdout == "[]\n"
